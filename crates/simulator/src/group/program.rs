//! What runs in a cluster: a program at each node of the group, and what is around them (Derecho §2).

use squall_fabric::sim::Prng;
use squall_fabric::{Instant, NodeId};
use squall_protocols::group::{GroupApplication, GroupCore, GroupEnd, SubgroupId, SubgroupLayout};
use squall_protocols::membership::RankSet;
use squall_protocols::multicast::Message;
use squall_protocols::restart::DurableView;

use super::plan::MESSAGE_MAX;
use crate::admission::JoinProcess;
use crate::checker::{DurableDeliveries, ViewHistory};
use crate::restart::RestartRemains;
use crate::run::Violation;

/// What the checkers of a run share.
pub(crate) struct RunChecks {
    pub(crate) views: ViewHistory,
    pub(crate) durable: DurableDeliveries,
    pub(crate) violation: Option<Violation>,
}

impl RunChecks {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            views: ViewHistory::new(seed, MESSAGE_MAX),
            durable: DurableDeliveries::default(),
            violation: None,
        }
    }

    /// Checks a delivery.
    pub(crate) fn on_delivery(&mut self, node: NodeId, id: SubgroupId, message: &Message<'_>) {
        let result = self.views.on_delivery(node, id, message);
        self.take(result);
        if let Some(members) = self.views.durable_members(message.view, id) {
            let result = self.durable.on_delivery(node, id, message, members);
            self.take(result);
        }
    }

    /// Writes down what a restart has to keep.
    pub(super) fn recall(&self, durable: &[SubgroupId], remains: &mut RestartRemains) {
        let set = |members: &[NodeId], of: &[NodeId]| -> RankSet {
            let is_in = |(_, node): &(usize, &NodeId)| of.contains(node);
            members.iter().enumerate().filter(is_in).map(|(rank, _)| rank).collect()
        };
        for (number, members) in self.durable.views() {
            let shard = |id| set(members, self.views.durable_members(*number, id).unwrap_or_default());
            let shards = durable.iter().copied().map(shard).collect();
            remains.views.push(DurableView { number: *number, members: members.clone(), shards });
        }
        for ((view, id), count) in self.durable.delivered() {
            let shard = durable.iter().position(|other| other == id).expect("only these are durable");
            remains.delivered.insert((*view, shard), *count);
        }
        remains.lived.extend(self.durable.recorded());
        remains.ends = self.durable.ends();
    }

    pub(crate) fn take(&mut self, result: Result<(), Violation>) {
        if let Err(violation) = result {
            self.violation.get_or_insert(violation);
        }
    }
}

/// The application at one node. All times are by the node's own clock.
pub(crate) trait NodeProgram: GroupApplication {
    /// Its process comes to the group as this node, after an attempt that has failed.
    fn come_as(&mut self, node: NodeId);

    /// Its process is a member. Before that it acts in no other way than as the group's application.
    fn arrive(&mut self);

    /// Does what it has to do before the group's evaluation; whether there was anything.
    fn send(&mut self, now: Instant, prng: &mut Prng) -> bool;

    /// Does what it has to do after the group's evaluation; whether there was anything.
    fn consume(&mut self, now: Instant, prng: &mut Prng) -> bool;

    /// Ends and begins the flushes of its disk after the group's evaluation, also while its process joins; whether one has ended.
    fn flush(&mut self, _now: Instant, _prng: &mut Prng) -> bool {
        false
    }

    /// When the flush that is under way is over.
    fn next_flush(&self) -> Option<Instant> {
        None
    }

    /// The group has ended here. This is called more than once.
    fn end(&mut self) {}

    /// When it wants to act next.
    fn next_deadline(&self, now: Instant) -> Option<Instant>;

    /// Whether it has nothing more to do.
    fn is_done(&self) -> bool;
}

/// What is around the nodes of a group: their programs, the placement of subgroups, and nodes that never join. Nodes are
/// named by their places in the plan, except in [`GroupScene::check_complete`].
pub(crate) trait GroupScene {
    type Program: NodeProgram;

    /// The program of the process at `place` in the plan, which comes to the group as `node`.
    fn program(&mut self, place: u32, node: NodeId) -> Self::Program;

    /// Returns the placement of the subgroups.
    fn layout(&self) -> Box<dyn SubgroupLayout + Send>;

    /// A turn of a node that it has added to the world beyond those of the plan: whether it worked, and when it wants to
    /// act next.
    fn client_step(&mut self, client_node: u32, _prng: &mut Prng) -> (bool, Option<Instant>) {
        unreachable!("node {client_node} is none of the plan's")
    }

    /// Whether `node` can leave: nothing that the plan does holds it back.
    fn lets_go(&self, _node: NodeId) -> bool {
        true
    }

    /// Whether the clients have nothing more to do.
    fn is_done(&self) -> bool {
        true
    }

    /// Whether the group may have ended at `node` in this way, though no fault of the plan explains it.
    fn excuses(&self, _node: NodeId, _ended: GroupEnd) -> bool {
        false
    }

    /// Whether `node`, while it is healthy, has to finish its work: it waits for no node that the plan lets hang.
    fn owes_work(&self, _node: NodeId) -> bool {
        true
    }

    /// Messages delivered so far.
    fn delivered(&self) -> u64;

    /// Whether all is as it has to be in the end, at those who are in the last view.
    fn check_complete(&self, present: &[(NodeId, &Self::Program)]) -> Result<(), Violation>;
}

/// The view that a member is in.
pub(super) fn view_id<P: NodeProgram>(process: &JoinProcess<P>) -> Option<u64> {
    process.view().filter(|_| process.joiner.is_none()).map(|view| view.id)
}

/// Whether a member waits for a majority of its view.
pub(super) fn waits<P: NodeProgram>(process: &JoinProcess<P>) -> bool {
    let group = process.group.as_ref().filter(|_| process.joiner.is_none());
    group.and_then(GroupCore::membership).is_some_and(|membership| membership.waits().is_some())
}

pub(super) fn is_done<P: NodeProgram>(process: &JoinProcess<P>) -> bool {
    process.member().is_none_or(NodeProgram::is_done)
}
