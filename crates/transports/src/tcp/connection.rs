//! Connections: one incarnation of a channel between two nodes, with its queues of posts (RDMA: a queue pair).

use std::collections::VecDeque;
use std::ops::Range;

use squall_fabric::region::Access;
use squall_fabric::{Channel, ConnId, FabricEvent, Instant, PostError, Region, Token};

use super::frame::{TcpFrame, TcpViolation, WriteFrame};
use super::output::OutputQueue;

/// One end of a connection.
///
/// It is connected when each end has paired its own number with the other's and knows that the other has done
/// the same. `accepted` implies `partner`.
#[derive(Debug)]
pub(super) struct TcpConnection {
    pub(super) channel: Channel,
    /// The peer's number for the incarnation that this one is paired with.
    pub(super) partner: Option<u32>,
    /// Whether the peer has paired its end with this one.
    pub(super) accepted: bool,
    receives: VecDeque<TcpReceive>,
    /// Signalled posts that are not acknowledged, in post order.
    signals: VecDeque<TcpSignal>,
    /// The number of signalled posts of this end that the peer has acknowledged.
    acknowledged: u64,
    /// The number of signalled posts of the peer that have landed.
    placed: u64,
    /// Whether some of them are not yet acknowledged.
    ack_due: bool,
    /// A post that found no receive, and everything that arrived after it: nothing may overtake it [F1, F7].
    stalled: VecDeque<StalledPost>,
    /// When the post at the front of `stalled` began to wait.
    stalled_since: Instant,
}

/// A signalled post.
#[derive(Clone, Copy, Debug)]
struct TcpSignal {
    token: Token,
    /// Where it ends in the stream.
    end: u64,
}

/// Memory for one incoming send, or for one write with immediate.
#[derive(Debug)]
pub(super) struct TcpReceive {
    pub(super) region: Region,
    pub(super) range: Range<usize>,
    pub(super) token: Token,
}

/// A post of the peer that waits for a posted receive.
#[derive(Debug)]
pub(super) struct StalledPost {
    pub(super) post: TcpPost,
    /// Complete when it has as many words as the post.
    pub(super) payload: Vec<u64>,
}

/// A post of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum TcpPost {
    Write(WriteFrame),
    Send { connection: u32, length: u32, signal: bool },
}

impl TcpConnection {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel,
            partner: None,
            accepted: false,
            receives: VecDeque::new(),
            signals: VecDeque::new(),
            acknowledged: 0,
            placed: 0,
            ack_due: false,
            stalled: VecDeque::new(),
            stalled_since: Instant::default(),
        }
    }

    /// Returns the peer's number, to which posts are addressed.
    pub(super) fn target(&self) -> Result<u32, PostError> {
        self.partner.filter(|_| self.accepted).ok_or(PostError::NotConnected)
    }

    /// Returns whether there is space for a post.
    pub(super) fn check_space(&self) -> Result<(), PostError> {
        if self.signals.len() < SIGNALS_MAX { Ok(()) } else { Err(PostError::Full) }
    }

    /// Registers a signalled post, which ends at `end` in the stream.
    pub(super) fn on_signalled_post(&mut self, token: Token, end: u64) {
        self.signals.push_back(TcpSignal { token, end });
    }

    /// Adds a receive.
    ///
    /// # Panics
    /// Panics if the range is outside its region, or this process may not store there.
    pub(super) fn post_receive(
        &mut self,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError> {
        region.check(&range);
        assert!(
            region.access() == Access::ReadWrite,
            "an attachment of another node's mirror cannot receive"
        );
        if self.receives.len() >= RECEIVES_MAX {
            return Err(PostError::Full);
        }
        self.receives.push_back(TcpReceive { region: region.clone(), range, token });
        Ok(())
    }

    /// Takes the oldest receive.
    pub(super) fn take_receive(&mut self) -> Option<TcpReceive> {
        self.receives.pop_front()
    }

    /// Handles an acknowledgement: the peer has completed `count` signalled posts in total.
    pub(super) fn on_ack(
        &mut self,
        conn: ConnId,
        count: u64,
        output: &mut OutputQueue,
        events: &mut VecDeque<FabricEvent>,
    ) -> Result<(), TcpViolation> {
        let placed = count.checked_sub(self.acknowledged).and_then(|placed| usize::try_from(placed).ok());
        let placed = placed.filter(|placed| *placed <= self.signals.len());
        let placed = placed.ok_or(TcpViolation("an acknowledgement of posts that were not signalled"))?;
        let Some(last) = placed.checked_sub(1).map(|last| self.signals[last]) else { return Ok(()) };
        if last.end > output.next() {
            return Err(TcpViolation("an acknowledgement of posts that were not sent"));
        }
        // The sources belong to the application from the event on [F14, C5].
        output.trim(last.end);
        self.acknowledged = count;
        let done = self.signals.drain(..placed);
        events.extend(done.map(|TcpSignal { token, .. }| FabricEvent::Done { conn, token }));
        Ok(())
    }

    /// Notes that a signalled post of the peer has landed. Returns whether it is the first since the last
    /// acknowledgement.
    pub(super) fn on_signalled_post_placed(&mut self) -> bool {
        self.placed += 1;
        !std::mem::replace(&mut self.ack_due, true)
    }

    /// Returns the acknowledgement to send.
    pub(super) fn take_ack(&mut self) -> Option<TcpFrame> {
        self.ack_due = false;
        self.partner.map(|connection| TcpFrame::Ack { connection, count: self.placed })
    }

    /// Returns whether an incoming post must wait.
    pub(super) fn must_stall(&self, post: &TcpPost) -> bool {
        !self.stalled.is_empty() || self.lacks_receive(post)
    }

    /// Lets a post wait; its payload follows.
    pub(super) fn stall(&mut self, post: TcpPost, now: Instant) {
        if self.stalled.is_empty() {
            self.stalled_since = now;
        }
        self.stalled.push_back(StalledPost { post, payload: Vec::new() });
    }

    /// Adds payload to the last waiting post.
    pub(super) fn extend_stalled(&mut self, words: &[u64]) {
        self.stalled.back_mut().expect("its payload is arriving").payload.extend_from_slice(words);
    }

    /// Takes the oldest waiting post if it is complete and its receive is available.
    pub(super) fn resume(&mut self, now: Instant) -> Option<StalledPost> {
        let front = self.stalled.front()?;
        if front.payload.len() < front.post.words() || self.lacks_receive(&front.post) {
            return None;
        }
        self.stalled_since = now;
        self.stalled.pop_front()
    }

    /// Returns until when the post at the front waits.
    pub(super) fn stall_deadline(&self) -> Option<Instant> {
        self.stalled.front().map(|_| self.stalled_since + RECEIVER_PATIENCE)
    }

    /// Returns the memory that stalled posts take, in words.
    pub(super) fn stalled_words(&self) -> usize {
        self.stalled.iter().map(|stalled| stalled.post.stalled_words()).sum()
    }

    fn lacks_receive(&self, post: &TcpPost) -> bool {
        let needed = match post {
            TcpPost::Write(frame) => frame.immediate.is_some(),
            TcpPost::Send { .. } => true,
        };
        needed && self.receives.is_empty()
    }
}

impl TcpPost {
    /// Returns the receiver's connection.
    pub(super) fn connection(&self) -> u32 {
        match *self {
            Self::Write(WriteFrame { connection, .. }) | Self::Send { connection, .. } => connection,
        }
    }

    /// Returns the number of words of payload.
    pub(super) fn words(&self) -> usize {
        match *self {
            Self::Write(WriteFrame { words, .. }) => words as usize,
            Self::Send { length, .. } => (length as usize).div_ceil(8),
        }
    }

    /// Returns the number of words of memory that it takes while it waits.
    pub(super) fn stalled_words(&self) -> usize {
        self.words() + size_of::<StalledPost>() / 8
    }
}

/// Returns this node's id of connection `number` with the peer at `peer`.
pub(super) fn conn_id(peer: usize, number: u32) -> ConnId {
    ConnId((peer as u64) << 32 | u64::from(number))
}

/// Returns the peer's index and the connection's number.
#[expect(clippy::cast_possible_truncation, reason = "the two halves are what is wanted")]
pub(super) fn split_conn_id(conn: ConnId) -> (usize, u32) {
    ((conn.0 >> 32) as usize, conn.0 as u32)
}

/// The most signalled posts in flight on one connection.
const SIGNALS_MAX: usize = 1 << 14;

/// The most receives posted on one connection.
const RECEIVES_MAX: usize = 1 << 14;

/// How long a post waits for a posted receive (verbs: RNR retries) [F7].
const RECEIVER_PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);
