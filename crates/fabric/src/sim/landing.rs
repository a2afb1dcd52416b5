//! Landing: how the first post of a lane reaches its target. It travels, passes the receiver's link, lands in
//! pieces [F2], waits for a receive if it needs one [F7], and is done [F6].

use super::agenda::SimAction;
use super::link::{LaneId, LanePayload, LanePost, LaneStage, LaneTarget};
use super::trace::Happening;
use super::{SimMemory, WorldState};
use crate::Region;

/// What the first post of a lane needs next.
enum Progress {
    Again,
    At(u64),
    Wait,
}

impl WorldState {
    pub(super) fn on_lane(&mut self, id: LaneId) {
        self.lanes[id].scheduled = false;
        self.run_lane(id);
    }

    /// Advances the first posts as far as time allows.
    pub(super) fn run_lane(&mut self, id: LaneId) {
        loop {
            match self.advance(id) {
                Progress::Again => {}
                Progress::At(at) => return self.schedule_lane(id, at),
                Progress::Wait => return,
            }
        }
    }

    fn advance(&mut self, id: LaneId) -> Progress {
        let lane = &self.lanes[id];
        let Some(post) = lane.posts.front() else { return Progress::Wait };
        let due_at = match lane.stage {
            LaneStage::Travelling => self.config.cost.first_byte_at(post),
            _ => post.arrive_at,
        };
        if due_at > self.now {
            return Progress::At(due_at);
        }
        let [from, to] = [lane.from, lane.to];
        if self.path(from, to).is_shut() {
            return Progress::Wait;
        }
        if !self.config.one_sided_progress && self.polling != Some(to) {
            self.nodes[to as usize].arrivals.push(id);
            self.touch(to);
            return Progress::Wait;
        }
        match lane.stage {
            LaneStage::Travelling => self.pass_link(id),
            LaneStage::Received => self.begin_landing(id),
            LaneStage::Landing => self.land_next(id),
            LaneStage::NeedsReceive | LaneStage::Stalled => self.take_receive(id),
        }
    }

    /// Passes the receiver's link, which takes one post after the other, in the order of their first bytes.
    fn pass_link(&mut self, id: LaneId) -> Progress {
        let lane = &mut self.lanes[id];
        let post = lane.posts.front_mut().expect("checked by `advance`");
        let cost = &self.config.cost;
        let (busy_ns, is_packet) = (cost.link_ns(post.bytes()), post.bytes() <= cost.packet_bytes);
        let receiver = &mut self.nodes[lane.to as usize];
        post.arrive_at = receiver.ingress.take(cost.first_byte_at(post), busy_ns, is_packet) + busy_ns;
        lane.stage = LaneStage::Received;
        Progress::Again
    }

    fn begin_landing(&mut self, id: LaneId) -> Progress {
        let lane = &mut self.lanes[id];
        let post = lane.posts.front().expect("checked by `advance`");
        if matches!(post.target, LaneTarget::Receive) {
            lane.stage = LaneStage::NeedsReceive;
            return Progress::Again;
        }
        match &self.config.adversary {
            Some(adversary) => adversary.cut(&mut self.prng, post.words, &mut lane.pieces),
            None => lane.pieces.push((0, post.words)),
        }
        lane.stage = LaneStage::Landing;
        Progress::Again
    }

    fn land_next(&mut self, id: LaneId) -> Progress {
        let [from, to] = [self.lanes[id].from, self.lanes[id].to];
        let path = self.path_mut(from, to);
        path.pieces += 1;
        let pieces = path.pieces;
        while let Some(rule) = super::rule::due(&mut self.path_mut(from, to).piece_rules, pieces) {
            self.on_rule(rule);
        }
        if self.lanes[id].posts.is_empty() || self.path(from, to).is_shut() {
            return Progress::Wait;
        }
        if !self.land_piece(id) {
            self.refuse(id);
            return Progress::Wait;
        }
        self.touch(to);
        let lane = &mut self.lanes[id];
        if !lane.pieces.is_empty() {
            let adversary = self.config.adversary.as_ref().expect("only the adversary cuts");
            return Progress::At(self.now + adversary.post_delay_ns(&mut self.prng));
        }
        if lane.posts.front().is_some_and(|post| post.immediate.is_some()) {
            lane.stage = LaneStage::NeedsReceive;
        } else {
            self.place(id);
        }
        Progress::Again
    }

    /// Lands one piece; returns false if the write is refused.
    fn land_piece(&mut self, id: LaneId) -> bool {
        let lane = &mut self.lanes[id];
        let (piece, count) = lane.pieces.pop().expect("a piece has yet to land");
        let post = lane.posts.front().expect("checked by `land_next`");
        let words = u64::from(post.words);
        let (memory, first) = match &post.target {
            LaneTarget::Granted { grant, offset } => {
                let Some(first) = self.grants.admit(grant, lane.from, lane.to, *offset, words) else {
                    return false;
                };
                (usize::try_from(grant.region.0).expect("admitted"), first)
            }
            LaneTarget::Attachment { attachment, first } => {
                let attachment = &self.attachments[*attachment];
                if !attachment.is_fed() {
                    return true;
                }
                (attachment.memory, *first)
            }
            LaneTarget::Receive => unreachable!("a send does not land in pieces"),
        };
        let target = &self.memories[memory].region;
        let first = first + piece as usize;
        copy(&self.memories, post, piece as usize, count as usize, target, first);
        let value = if count > 0 { target.load_relaxed(first) } else { 0 };
        self.trace.add(self.now, lane.to, Happening::Landed { from: lane.from, first, words: count, value });
        true
    }

    /// Matches the first post with a posted receive, or begins to wait for one [F7].
    fn take_receive(&mut self, id: LaneId) -> Progress {
        let lane = &self.lanes[id];
        let [_, to_end] = lane.ends.expect("only connections carry sends and immediates");
        let Some(receive) = self.ends[to_end].receives.pop_front() else {
            if lane.stage != LaneStage::Stalled {
                let patience = self.config.receiver_not_ready_after.as_nanos() as u64;
                let number = lane.first_post;
                self.lanes[id].stage = LaneStage::Stalled;
                self.agenda.enter(self.now + patience, SimAction::ReceiverNotReady(id, number));
            }
            return Progress::Wait;
        };
        let post = lane.posts.front().expect("checked by `advance`");
        let event = match (&post.source, post.immediate) {
            (LanePayload::Bytes(bytes), _) => receive.fill(&self.memories, to_end, bytes),
            (_, immediate) => Some(
                receive.announce(to_end, immediate.expect("a post without an immediate needs no receive")),
            ),
        };
        let to = lane.to;
        let Some(event) = event else {
            self.break_protocol(id);
            return Progress::Wait;
        };
        self.push_event(to, event);
        self.place(id);
        Progress::Again
    }

    pub(super) fn on_receiver_not_ready(&mut self, id: LaneId, number: u64) {
        let lane = &self.lanes[id];
        if lane.stage == LaneStage::Stalled && lane.first_post == number && !lane.closed {
            self.break_unready(id);
        }
    }

    /// Removes the first post, which has landed completely [F6].
    fn place(&mut self, id: LaneId) {
        let lane = &mut self.lanes[id];
        let post = lane.posts.pop_front().expect("a post was landing");
        lane.first_post += 1;
        lane.stage = LaneStage::Travelling;
        match post.signal {
            Some(token) => self.complete(id, token),
            None => lane.outstanding -= 1,
        }
    }
}

/// Copies `count` words of the post, from its word `piece` on, to `target` at `first`.
fn copy(memories: &[SimMemory], post: &LanePost, piece: usize, count: usize, target: &Region, first: usize) {
    match &post.source {
        LanePayload::Reference { memory, first: source } => {
            target.copy_words(first, &memories[*memory].region, source + piece..source + piece + count);
        }
        LanePayload::Value(words) => target.copy_in(first, &words[piece..piece + count]),
        LanePayload::Captured(words) => target.copy_in(first, &words[piece..piece + count]),
        LanePayload::Bytes(_) => unreachable!("sends land in receives"),
    }
}
