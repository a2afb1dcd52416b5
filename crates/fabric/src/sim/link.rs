//! Lanes: the posts of one node to another, which land in post order [F1].
//!
//! Each direction of a connection is a lane, and so is each pair of owner and reader, for all mirrors of the
//! owner [M1]. A lane processes only its first post: see [`super::landing`].

use std::collections::VecDeque;
use std::mem;

use super::adversary::Adversary;
use super::agenda::SimAction;
use super::connection::EndId;
use super::mirror::AttachmentId;
use super::trace::Happening;
use super::{CostModel, SimMemory, WorldState};
use crate::{Grant, Token};

pub(super) type LaneId = usize;

/// One direction between two nodes.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) from: u32,
    pub(super) to: u32,
    /// The ends of the connection: the poster's and the target's. `None` for mirrors.
    pub(super) ends: Option<[EndId; 2]>,
    pub(super) posts: VecDeque<LanePost>,
    /// The number of the first post.
    pub(super) first_post: u64,
    /// Posts that occupy an entry of the poster's queue: those that have not landed, and those that are
    /// signalled and not yet reported.
    pub(super) outstanding: usize,
    pub(super) stage: LaneStage,
    /// The pieces of the first post that have yet to land, the next one last.
    pub(super) pieces: Vec<(u32, u32)>,
    /// Whether the agenda holds `SimAction::Lane` for this lane.
    pub(super) scheduled: bool,
    /// Whether nothing more lands.
    pub(super) closed: bool,
    /// Whether the poster's end is over or breaking: later posts never land, so that a prefix of the posts
    /// has landed [F11].
    is_stranded: bool,
    delay_ns: u64,
    last_arrival_at: u64,
    /// Lower bound of the next completion's time: completions of the lane arrive in order.
    pub(super) last_done_at: u64,
}

/// The progress of the first post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneStage {
    Travelling,
    /// It has passed the receiver's link.
    Received,
    Landing,
    /// All words have landed; a receive is needed.
    NeedsReceive,
    /// As above, and the timeout is running.
    Stalled,
}

/// One write, send or push.
#[derive(Debug)]
pub(super) struct LanePost {
    pub(super) source: LanePayload,
    pub(super) words: u32,
    pub(super) target: LaneTarget,
    pub(super) immediate: Option<u32>,
    pub(super) signal: Option<Token>,
    /// The time at which its last byte reaches the receiver's link.
    pub(super) arrive_at: u64,
}

/// The source of the words.
#[derive(Debug)]
pub(super) enum LanePayload {
    /// By reference to a registered region (its index): read when they land.
    Reference { memory: usize, first: usize },
    /// By value.
    Value([u64; crate::WriteSource::VALUE_WORDS_MAX]),
    /// Captured when posted, although by reference, or when the poster crashed.
    Captured(Box<[u64]>),
    /// A send.
    Bytes(Box<[u8]>),
}

/// The destination of the words.
#[derive(Debug)]
pub(super) enum LaneTarget {
    Granted { grant: Grant, offset: u64 },
    Attachment { attachment: AttachmentId, first: usize },
    Receive,
}

impl LanePost {
    /// Returns the bytes that the post occupies on a link.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.words) * 8
    }
}

impl CostModel {
    /// Returns when the first byte of a post reaches the receiver's link, if the link is free.
    pub(super) fn first_byte_at(&self, post: &LanePost) -> u64 {
        post.arrive_at.saturating_sub(self.link_ns(post.bytes()))
    }
}

impl Lane {
    fn new(from: u32, to: u32, ends: Option<[EndId; 2]>, delay_ns: u64) -> Self {
        Self {
            from,
            to,
            ends,
            posts: VecDeque::new(),
            first_post: 0,
            outstanding: 0,
            stage: LaneStage::Travelling,
            pieces: Vec::new(),
            scheduled: false,
            closed: false,
            is_stranded: false,
            delay_ns,
            last_arrival_at: 0,
            last_done_at: 0,
        }
    }
}

impl WorldState {
    pub(super) fn add_lane(&mut self, from: u32, to: u32, ends: Option<[EndId; 2]>) -> LaneId {
        let delay_ns = match &self.config.adversary {
            Some(adversary) => Adversary::wait_ns(&mut self.prng, adversary.delay_max),
            None => 0,
        };
        self.lanes.push(Lane::new(from, to, ends, delay_ns));
        self.lanes.len() - 1
    }

    /// Sends a post on its way; the poster's processor has been charged.
    pub(super) fn enqueue(&mut self, id: LaneId, mut post: LanePost) {
        let cost = &self.config.cost;
        let lane = &mut self.lanes[id];
        lane.outstanding += 1;
        let bytes = match &post.source {
            LanePayload::Bytes(bytes) => bytes.len() as u64,
            _ => u64::from(post.words) * 8,
        };
        let poster = &mut self.nodes[lane.from as usize];
        poster.counters.posts += 1;
        poster.counters.posted_bytes += bytes;
        let mirror = match &post.target {
            LaneTarget::Attachment { attachment, first } => Some((self.attachments[*attachment].key, *first)),
            LaneTarget::Granted { .. } | LaneTarget::Receive => None,
        };
        let posted = Happening::Posted { to: lane.to, words: post.words, mirror };
        self.trace.add(self.now, lane.from, posted);
        if lane.closed || lane.is_stranded {
            return;
        }
        let is_packet = bytes <= cost.packet_bytes;
        let departs_at = poster.egress.take(poster.clock.max(self.now), cost.link_ns(bytes), is_packet);
        let path = &self.paths[lane.from as usize][lane.to as usize];
        let mut arrive_at = departs_at + cost.wire_ns(bytes) + path.extra.as_nanos() as u64;
        if let Some(adversary) = &self.config.adversary {
            arrive_at += lane.delay_ns + adversary.post_delay_ns(&mut self.prng);
            self.capture_early(id, &mut post);
        }
        let lane = &mut self.lanes[id];
        post.arrive_at = arrive_at.max(lane.last_arrival_at);
        lane.last_arrival_at = post.arrive_at;
        let at = self.config.cost.first_byte_at(&post);
        lane.posts.push_back(post);
        if lane.posts.len() == 1 {
            self.schedule_lane(id, at);
        }
    }

    /// Captures source words at post time with the adversary's probability [F5].
    fn capture_early(&mut self, _id: LaneId, post: &mut LanePost) {
        let late = self.config.adversary.as_ref().map_or(1000, |adversary| adversary.late_source_per_mille);
        if !self.prng.chance(late) {
            capture(&self.memories, post);
        }
    }

    pub(super) fn schedule_lane(&mut self, id: LaneId, at: u64) {
        let lane = &mut self.lanes[id];
        if !mem::replace(&mut lane.scheduled, true) {
            self.agenda.enter(at, SimAction::Lane(id));
        }
    }

    /// Schedules a lane that may have waited, so that it checks again.
    pub(super) fn nudge_lane(&mut self, id: LaneId) {
        if !self.lanes[id].posts.is_empty() {
            self.schedule_lane(id, self.now);
        }
    }

    /// Closes a lane at its receiver: posts that have not landed never will.
    pub(super) fn close_lane(&mut self, id: LaneId) {
        let lane = &mut self.lanes[id];
        lane.closed = true;
        lane.posts.clear();
        lane.pieces.clear();
        lane.stage = LaneStage::Travelling;
    }

    /// Strands a lane whose poster is dead or has closed its end: some prefix of its posts still lands [F11],
    /// with the words that its memory holds now [F5].
    pub(super) fn strand_lane(&mut self, id: LaneId) {
        if self.config.adversary.is_none() {
            return self.close_lane(id);
        }
        let lane = &mut self.lanes[id];
        lane.is_stranded = true;
        let kept = self.prng.index(lane.posts.len() + 1);
        lane.posts.truncate(kept);
        if kept == 0 {
            lane.pieces.clear();
            lane.stage = LaneStage::Travelling;
        }
        for post in &mut lane.posts {
            capture(&self.memories, post);
            post.signal = None;
        }
    }
}

/// Reads the source words of a post, once and for all.
fn capture(memories: &[SimMemory], post: &mut LanePost) {
    if let LanePayload::Reference { memory, first } = post.source {
        let mut words = vec![0; post.words as usize];
        memories[memory].region.copy_out(first, &mut words);
        post.source = LanePayload::Captured(words.into());
    }
}
