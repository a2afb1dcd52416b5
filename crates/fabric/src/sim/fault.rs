//! Faults: crashes, pauses, partitions and breaks, and how nodes learn of them [F11].

use super::WorldState;
use super::adversary::Adversary;
use super::agenda::SimAction;
use super::connection::{BreakNotice, EndState};
use super::node::NodeState;
use crate::{BreakReason, Duration, FabricEvent, NodeId};

impl WorldState {
    /// Removes `peer` at `node` deliberately: `node` gets no more events of it, and the peer gets `PeerLost`.
    pub(super) fn part(&mut self, node: u32, peer: u32) {
        if !self.lives(node) || std::mem::replace(&mut self.path_mut(node, peer).lost, true) {
            return;
        }
        for end in 0..self.ends.len() {
            if self.ends[end].node == node
                && self.ends[end].peer == peer
                && self.ends[end].state != EndState::Over
            {
                self.end_is_over(end);
            }
        }
        self.forget_mirrors(node, peer);
        if self.path(node, peer).unlinked {
            return;
        }
        let at = self.now + self.notice_delay();
        let reason = BreakReason::PeerClosed;
        self.agenda.enter(at, SimAction::Lose { node: peer, peer: node, reason });
    }

    /// Crashes a node. Its posts land up to some point; the other nodes learn of the crash one by one.
    pub(super) fn crash(&mut self, node: u32) {
        if !self.lives(node) {
            return;
        }
        let state = &mut self.nodes[node as usize];
        (state.state, state.ready_at) = (NodeState::Crashed, None);
        state.inbox.clear();
        self.deaths += 1;
        for end in 0..self.ends.len() {
            if self.ends[end].node == node && self.ends[end].state != EndState::Over {
                self.end_is_over(end);
            }
        }
        self.abandon_mirrors(node);
        for peer in (0..self.node_count()).filter(|peer| *peer != node) {
            if let Some(lane) = self.path(peer, node).mirror_lane {
                self.close_lane(lane);
            }
            if let Some(lane) = self.path(node, peer).mirror_lane {
                self.strand_lane(lane);
            }
            if !self.path(node, peer).unlinked {
                self.announce_loss(peer, node);
            }
        }
    }

    /// Crashes a node as the kernel does, if the others can see that: it continues for a moment, and then they see it dying, one by
    /// one, before they lose it or after that.
    pub(super) fn kill(&mut self, node: u32) {
        if !self.config.dies_visibly {
            self.crash(node);
            return;
        }
        if std::mem::replace(&mut self.nodes[node as usize].dying, true) {
            return;
        }
        for peer in (0..self.node_count()).filter(|peer| *peer != node) {
            if !self.path(node, peer).unlinked {
                let at = self.now + DYING_NS_MAX + self.notice_delay();
                self.agenda.enter(at, SimAction::See { node: peer, dying: node });
            }
        }
        let at = self.now + self.prng.below(DYING_NS_MAX);
        self.agenda.enter(at, SimAction::Crash(node));
    }

    /// Handles the sight of a dying peer.
    pub(super) fn on_see(&mut self, node: u32, dying: u32) {
        if self.lives(node) && !self.path(node, dying).lost {
            self.push_event(node, FabricEvent::PeerDying { peer: NodeId(dying) });
        }
    }

    /// Schedules the event by which `node` learns that `peer` has died.
    fn announce_loss(&mut self, node: u32, peer: u32) {
        let at = self.now + self.loss_delay();
        let reason = self.loss_reason();
        self.agenda.enter(at, SimAction::Lose { node, peer, reason });
    }

    /// Handles the loss of `peer` at `node`.
    pub(super) fn on_lose(&mut self, node: u32, peer: u32, reason: BreakReason) {
        if !self.lives(node) || std::mem::replace(&mut self.path_mut(node, peer).lost, true) {
            return;
        }
        let lost = FabricEvent::PeerLost { peer: NodeId(peer), reason };
        let first = self.config.adversary.is_some() && self.prng.chance(500);
        if first {
            self.push_event(node, lost.clone());
        }
        for end in 0..self.ends.len() {
            if self.ends[end].node == node && self.ends[end].peer == peer {
                self.break_end(end, BreakNotice::Broken(reason));
            }
        }
        self.forget_mirrors(node, peer);
        if !first {
            self.push_event(node, lost);
        }
    }

    /// Stops a node's processor, for `span` or until it is resumed.
    pub(super) fn pause(&mut self, node: u32, span: Option<Duration>) {
        if !self.lives(node) {
            return;
        }
        let state = &mut self.nodes[node as usize];
        state.state = NodeState::Paused;
        state.pause += 1;
        if let Some(span) = span {
            let resume = SimAction::Resume { node, pause: state.pause };
            self.agenda.enter(self.now + nanos(span), resume);
        }
    }

    pub(super) fn resume(&mut self, node: u32) {
        if self.nodes[node as usize].state == NodeState::Paused {
            self.nodes[node as usize].state = NodeState::Running;
            self.touch(node);
        }
    }

    pub(super) fn on_resume(&mut self, node: u32, pause: u32) {
        if self.nodes[node as usize].pause == pause {
            self.resume(node);
        }
    }

    /// Cuts all paths between different groups, and joins all others.
    pub(super) fn partition(&mut self, groups: &[Vec<u32>]) {
        let group = |host: u32| groups.iter().position(|group| group.contains(&host));
        for a in 0..self.node_count() {
            for b in a + 1..self.node_count() {
                let cut = group(self.host(a)) != group(self.host(b));
                self.set_cut(a, b, cut);
                if cut {
                    self.await_unreachable(a, b);
                }
            }
        }
        self.wake_paths();
    }

    /// Cuts the paths between two nodes.
    pub(super) fn cut_between(&mut self, a: u32, b: u32) {
        self.set_cut(a, b, true);
        self.await_unreachable(a, b);
    }

    fn set_cut(&mut self, a: u32, b: u32, cut: bool) {
        for (from, to) in [(a, b), (b, a)] {
            let path = self.path_mut(from, to);
            path.cut = cut;
            path.cuts += 1;
        }
    }

    /// Joins the paths between two nodes.
    pub(super) fn mend_between(&mut self, a: u32, b: u32) {
        self.set_cut(a, b, false);
        self.wake_paths();
    }

    /// Sets whether two nodes have a link; initially all have one. What is published for a node without a
    /// link, or attached from one, waits for the link; a link with a dead node leads to its loss.
    pub(super) fn set_linked(&mut self, a: u32, b: u32, linked: bool) {
        self.path_mut(a, b).unlinked = !linked;
        self.path_mut(b, a).unlinked = !linked;
        if linked {
            self.wake_paths();
            for (node, peer) in [(a, b), (b, a)] {
                if !self.lives(peer) {
                    self.announce_loss(node, peer);
                }
            }
            if self.path(a, b).cut {
                self.await_unreachable(a, b);
            }
        }
    }

    /// Schedules the mutual loss of two nodes, should their paths remain cut.
    fn await_unreachable(&mut self, a: u32, b: u32) {
        let at = self.now + nanos(self.config.unreachable_after) + self.notice_delay();
        self.agenda.enter(at, SimAction::Unreachable { nodes: [a, b], cuts: self.path(a, b).cuts });
    }

    /// Joins all paths.
    pub(super) fn heal(&mut self) {
        self.partition(&[(0..self.node_count()).collect()]);
    }

    /// Continues what waited for paths, where they are joined now.
    fn wake_paths(&mut self) {
        for action in std::mem::take(&mut self.delayed) {
            self.agenda.enter(self.now, action);
        }
        for lane in 0..self.lanes.len() {
            self.nudge_lane(lane);
        }
    }

    /// Handles the timeout of two nodes whose paths were cut.
    pub(super) fn on_unreachable(&mut self, nodes: [u32; 2], cuts: u32) {
        let [a, b] = nodes;
        let path = self.path(a, b);
        if path.cuts != cuts || !path.cut || path.unlinked {
            return;
        }
        for (node, peer) in [(a, b), (b, a)] {
            let at = self.now + self.notice_delay();
            self.agenda.enter(at, SimAction::Lose { node, peer, reason: BreakReason::Unreachable });
        }
    }

    /// Breaks all connections between two live nodes.
    pub(super) fn break_between(&mut self, a: u32, b: u32) {
        for end in 0..self.ends.len() {
            let of_pair = [[a, b], [b, a]].contains(&[self.ends[end].node, self.ends[end].peer]);
            if of_pair && self.ends[end].state == EndState::Connected {
                let lane = self.ends[end].lane.expect("connected");
                self.strand_lane(lane);
                self.sever(end, BreakNotice::Broken(BreakReason::Unreachable));
            }
        }
    }

    /// Draws the delay of a notice of the fabric.
    pub(super) fn notice_delay(&mut self) -> u64 {
        match &self.config.adversary {
            Some(adversary) => Adversary::wait_ns(&mut self.prng, adversary.late_notice_max),
            None => 0,
        }
    }

    /// Draws the time until a node learns of another's death.
    fn loss_delay(&mut self) -> u64 {
        match self.config.adversary.is_some() {
            true => Adversary::wait_ns(&mut self.prng, self.config.loss_noticed_after),
            false => nanos(self.config.loss_noticed_after),
        }
    }

    /// Draws the reported reason: a crash and a partition look alike [F11].
    fn loss_reason(&mut self) -> BreakReason {
        match self.config.adversary.is_some() && self.prng.chance(500) {
            true => BreakReason::Unreachable,
            false => BreakReason::PeerClosed,
        }
    }
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 4)
}
/// The most nanoseconds for which a node continues that was killed; it is seen dying after that.
const DYING_NS_MAX: u64 = 20_000;
