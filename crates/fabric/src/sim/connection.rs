//! Connections: two ends, opened by both, broken for each end at its own time [F11].

use std::collections::VecDeque;
use std::ops::Range;

use super::WorldState;
use super::adversary::Adversary;
use super::agenda::SimAction;
use super::link::LaneId;
use super::trace::Happening;
use crate::{BreakReason, Channel, ConnId, FabricEvent, NodeId, PostError, Token};

/// The index of an end in the table; its node knows it as a [`ConnId`].
pub(super) type EndId = usize;

/// One node's end of one incarnation of a connection.
#[derive(Debug)]
pub(super) struct ConnectionEnd {
    pub(super) node: u32,
    pub(super) peer: u32,
    channel: Channel,
    pub(super) state: EndState,
    /// The other end, once connected.
    partner: Option<EndId>,
    /// The lane of this node's posts, once connected.
    pub(super) lane: Option<LaneId>,
    pub(super) receives: VecDeque<PostedReceive>,
    /// Completions in flight to the poster, ordered by time.
    completions: VecDeque<(u64, Token)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndState {
    Opening,
    Connected,
    /// Closed, broken or refused.
    Over,
}

/// How an end learns that its connection has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum BreakNotice {
    Broken(BreakReason),
    Refused,
}

/// A posted receive.
#[derive(Clone, Debug)]
pub(super) struct PostedReceive {
    pub(super) memory: usize,
    pub(super) range: Range<usize>,
    pub(super) token: Token,
}

impl PostedReceive {
    /// Stores the bytes of a send; returns `None` if they do not fit.
    pub(super) fn fill(self, memories: &[super::SimMemory], end: EndId, bytes: &[u8]) -> Option<FabricEvent> {
        if bytes.len() > self.range.len() * 8 {
            return None;
        }
        memories[self.memory].region.copy_bytes_in(self.range.start, bytes);
        Some(FabricEvent::Received { conn: conn_id(end), token: self.token, length: bytes.len() })
    }

    /// Reports a write with immediate.
    pub(super) fn announce(self, end: EndId, immediate: u32) -> FabricEvent {
        FabricEvent::Arrived { conn: conn_id(end), token: self.token, immediate }
    }
}

impl WorldState {
    /// Returns the end that `node` knows as `conn`.
    pub(super) fn end_of(&self, node: u32, conn: ConnId) -> EndId {
        let id = usize::try_from(conn.0).expect("a connection of this node");
        assert!(
            self.ends.get(id).is_some_and(|end| end.node == node),
            "{conn:?} is not a connection of node {node}"
        );
        id
    }

    pub(super) fn open(&mut self, node: u32, peer: u32, channel: Channel) -> ConnId {
        assert!(node != peer && (peer as usize) < self.nodes.len(), "node {node} cannot open to node {peer}");
        let id = self.ends.len();
        if let Some(old) = self.openings.insert((node, peer, channel.0), id) {
            self.close_end(old);
        }
        self.ends.push(ConnectionEnd {
            node,
            peer,
            channel,
            state: if self.lives(node) { EndState::Opening } else { EndState::Over },
            partner: None,
            lane: None,
            receives: VecDeque::new(),
            completions: VecDeque::new(),
        });
        let at = self.local_now(node) + self.config.cost.connect_ns + self.notice_delay();
        if !self.lives(peer) {
            self.agenda.enter(at, SimAction::Break(id, BreakNotice::Broken(BreakReason::Unreachable)));
        }
        self.agenda.enter(at, SimAction::Connect(id));
        conn_id(id)
    }

    /// Connects `id` with the end that its peer has opened, if both still want it.
    pub(super) fn on_connect(&mut self, id: EndId) {
        let ConnectionEnd { node, peer, channel, state, .. } = self.ends[id];
        let Some(&other) = self.openings.get(&(peer, node, channel.0)) else { return };
        if state != EndState::Opening || self.ends[other].state != EndState::Opening {
            return;
        }
        let path = self.path(node, peer);
        match (path.is_shut(), path.lost) {
            (true, true) => return self.sever(id, BreakNotice::Broken(BreakReason::Unreachable)),
            (true, false) => return self.delayed.push(SimAction::Connect(id)),
            (false, _) => {}
        }
        for (end, partner) in [(id, other), (other, id)] {
            let ConnectionEnd { node, peer, .. } = self.ends[end];
            let lane = self.add_lane(node, peer, Some([end, partner]));
            let entry = &mut self.ends[end];
            (entry.state, entry.partner, entry.lane) = (EndState::Connected, Some(partner), Some(lane));
            self.path_mut(node, peer).lost = false;
            self.push_event(node, FabricEvent::Connected { conn: conn_id(end), peer: NodeId(peer) });
        }
    }

    /// Returns the lane on which `node` may post to `conn`.
    pub(super) fn lane_for_post(&mut self, node: u32, conn: ConnId) -> Result<LaneId, PostError> {
        let end = &self.ends[self.end_of(node, conn)];
        let lane = end.lane.filter(|_| end.state == EndState::Connected).ok_or(PostError::NotConnected)?;
        match self.lanes[lane].outstanding < self.config.queue_posts_max {
            true => Ok(lane),
            false => Err(PostError::Full),
        }
    }

    pub(super) fn post_receive(
        &mut self,
        node: u32,
        conn: ConnId,
        receive: PostedReceive,
    ) -> Result<(), PostError> {
        let id = self.end_of(node, conn);
        let end = &mut self.ends[id];
        if end.state == EndState::Over {
            return Err(PostError::NotConnected);
        }
        if end.receives.len() >= self.config.queue_receives_max {
            return Err(PostError::Full);
        }
        end.receives.push_back(receive);
        if let Some(lane) = end.partner.and_then(|partner| self.ends[partner].lane) {
            self.nudge_lane(lane);
        }
        Ok(())
    }

    /// Sends the completion of a landed post back to its poster.
    pub(super) fn complete(&mut self, lane: LaneId, token: Token) {
        let late = match &self.config.adversary {
            Some(adversary) => Adversary::wait_ns(&mut self.prng, adversary.late_done_max),
            None => 0,
        };
        let lane = &mut self.lanes[lane];
        let [from_end, _] = lane.ends.expect("pushes are not signalled");
        let at = (self.now + self.config.cost.completion_ns + late).max(lane.last_done_at);
        lane.last_done_at = at;
        self.ends[from_end].completions.push_back((at, token));
        self.agenda.enter(at, SimAction::Completions(from_end));
    }

    /// Yields the completions that are due. In a partition they are delayed too.
    pub(super) fn on_completions(&mut self, id: EndId) {
        let ConnectionEnd { node, peer, .. } = self.ends[id];
        if self.path(peer, node).is_shut() {
            return self.delayed.push(SimAction::Completions(id));
        }
        while let Some((at, token)) = self.ends[id].completions.front().copied() {
            if at > self.now {
                return;
            }
            self.ends[id].completions.pop_front();
            self.push_event(node, FabricEvent::Done { conn: conn_id(id), token });
        }
    }

    /// Closes the node's own end; the peer is notified.
    pub(super) fn close_end(&mut self, id: EndId) {
        if self.ends[id].state == EndState::Over {
            return;
        }
        let partner = self.ends[id].partner;
        self.end_is_over(id);
        if let Some(partner) = partner {
            self.sever(partner, BreakNotice::Broken(BreakReason::PeerClosed));
        }
    }

    /// Schedules the notice to the end that the connection is broken, after all completions in flight.
    pub(super) fn sever(&mut self, id: EndId, broke: BreakNotice) {
        let last = self.ends[id].lane.map_or(0, |lane| self.lanes[lane].last_done_at);
        let at = (self.now + self.config.cost.completion_ns + self.notice_delay()).max(last);
        self.agenda.enter(at, SimAction::Break(id, broke));
    }

    pub(super) fn on_break(&mut self, id: EndId, broke: BreakNotice) {
        let ConnectionEnd { node, peer, .. } = self.ends[id];
        // A partition also delays the notice of a close.
        if matches!(broke, BreakNotice::Broken(BreakReason::PeerClosed)) && self.path(peer, node).is_shut() {
            return self.delayed.push(SimAction::Break(id, broke));
        }
        self.break_end(id, broke);
    }

    /// Reports to the node that its end is over, unless it already is.
    pub(super) fn break_end(&mut self, id: EndId, broke: BreakNotice) {
        let ConnectionEnd { node, state, .. } = self.ends[id];
        if state == EndState::Over {
            return;
        }
        self.end_is_over(id);
        let conn = conn_id(id);
        let event = match broke {
            BreakNotice::Broken(reason) => FabricEvent::Broken { conn, reason },
            BreakNotice::Refused => FabricEvent::Refused { conn },
        };
        self.push_event(node, event);
    }

    /// Marks the end as over: nothing more lands at it; of its own posts, some prefix still may.
    pub(super) fn end_is_over(&mut self, id: EndId) {
        let end = &mut self.ends[id];
        end.state = EndState::Over;
        end.receives.clear();
        end.completions.clear();
        let (own, partner) = (end.lane, end.partner);
        if let Some(lane) = partner.and_then(|partner| self.ends[partner].lane) {
            self.close_lane(lane);
        }
        if let Some(lane) = own {
            self.strand_lane(lane);
        }
    }

    /// Refuses a write without a valid grant: nothing more of the lane lands [F10].
    pub(super) fn refuse(&mut self, lane: LaneId) {
        let [from_end, to_end] = self.lanes[lane].ends.expect("mirrors need no grants");
        let [from, to] = [self.lanes[lane].from, self.lanes[lane].to];
        self.trace.add(self.now, to, Happening::RefusedWrite { from });
        self.close_lane(lane);
        self.sever(from_end, BreakNotice::Refused);
        self.sever(to_end, BreakNotice::Broken(BreakReason::PeerClosed));
    }

    /// Breaks the lane of a send that did not fit its receive.
    pub(super) fn break_protocol(&mut self, lane: LaneId) {
        self.break_lane(lane, BreakReason::Protocol);
    }

    /// Breaks a lane for which no receive was posted for too long [F7].
    pub(super) fn break_unready(&mut self, lane: LaneId) {
        self.break_lane(lane, BreakReason::ReceiverNotReady);
    }

    fn break_lane(&mut self, lane: LaneId, reason: BreakReason) {
        let ends = self.lanes[lane].ends.expect("mirrors take no receives");
        self.close_lane(lane);
        ends.into_iter().for_each(|end| self.sever(end, BreakNotice::Broken(reason)));
    }
}

pub(super) fn conn_id(end: EndId) -> ConnId {
    ConnId(end as u64)
}
