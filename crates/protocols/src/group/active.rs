//! The subgroups of the current view that a node belongs to (Derecho §2.3).

use squall_fabric::{Fabric, NodeId};

use super::figures::SubgroupTotals;
use super::register::{GroupRegister, view_end};
use super::shards::ActiveShards;
use super::{GroupApplication, SubgroupId, SubgroupLayout};
use crate::ends::Ballot;
use crate::membership::{LogPeers, Proposal, SenderSegment, Subgroups, View};
use crate::multicast::{Deliver, Message, MessageBatch, MulticastCounters, NoUpcall, Subgroup};
use crate::mutation;

/// A subgroup that this node belongs to.
pub(super) struct ActiveSubgroup<D> {
    pub(super) id: SubgroupId,
    pub(super) core: AnySubgroup<D>,
    pub(super) segment: SenderSegment,
}

/// A subgroup whose messages are delivered to an upcall, or pulled.
pub(super) enum AnySubgroup<D> {
    Upcall(Subgroup<UpcallGate<D>>),
    Pulled(Subgroup<NoUpcall>),
}

/// An upcall that gets nothing while its node stands by ([`GroupCore::stand_by`](super::GroupCore::stand_by)):
/// neither a view nor the messages that are delivered at the view's end. The first view of its application is the one
/// in which the node takes part \[J8\].
pub(super) struct UpcallGate<D> {
    deliver: D,
    is_shut: bool,
    /// The view that has begun meanwhile.
    begun: Option<(u64, Vec<NodeId>)>,
}

impl<D: Deliver> UpcallGate<D> {
    pub(super) const fn new(deliver: D, is_shut: bool) -> Self {
        Self { deliver, is_shut, begun: None }
    }

    pub(super) fn into_deliver(self) -> D {
        self.deliver
    }

    /// Lets the upcall get everything from now on.
    pub(super) fn open(&mut self) {
        self.is_shut = false;
        if let Some((view, members)) = self.begun.take() {
            self.deliver.begin_view(view, &members);
        }
    }
}

impl<D: Deliver> Deliver for UpcallGate<D> {
    fn deliver(&mut self, message: Message<'_>) {
        if !self.is_shut {
            self.deliver.deliver(message);
        }
    }

    fn begin_view(&mut self, view: u64, members: &[NodeId]) {
        if self.is_shut {
            self.begun = Some((view, members.to_vec()));
        } else {
            self.deliver.begin_view(view, members);
        }
    }

    #[inline]
    fn deliver_batch(&mut self, batch: MessageBatch<'_>) {
        if self.is_shut && !mutant!(HearEarly) && !mutant!(TakePartEarly) {
            batch.for_each(|_| ());
        } else {
            self.deliver.deliver_batch(batch);
        }
    }
}

squall_fabric::define_either! { $ either: AnySubgroup { Upcall, Pulled } }

pub(super) use either;

impl<D: Deliver> ActiveSubgroup<D> {
    /// Ends the subgroup at a member that stops \[V14\].
    pub(super) fn stop(&mut self) {
        either!(&mut self.core, core => core.stop());
    }

    /// Returns what the subgroup has done in this view.
    pub(super) fn counters(&self) -> MulticastCounters {
        either!(&self.core, core => *core.counters())
    }

    /// Returns what the subgroup has done in this view, and its times.
    pub(super) fn totals(&self) -> SubgroupTotals {
        either!(&self.core, core => (*core.counters(), core.times()))
    }

    /// Returns the subgroup's id, and its upcall, if it has one.
    pub(super) fn into_deliver(self) -> (SubgroupId, Option<D>) {
        let deliver = match self.core {
            AnySubgroup::Upcall(core) => core.into_deliver().map(UpcallGate::into_deliver),
            AnySubgroup::Pulled(_) => None,
        };
        (self.id, deliver)
    }

    /// Returns whether this member has all of the trim.
    pub(super) fn covers(&self, decision: &Proposal) -> bool {
        let SenderSegment { trims, senders, .. } = self.segment;
        either!(&self.core, core => core.covers(&decision.trims[trims..trims + senders]))
    }
}

/// The subgroups as membership sees them, with the application that knows which states it holds.
pub(super) struct ViewSubgroups<'a, A: GroupApplication> {
    pub(super) application: &'a mut A,
    pub(super) subgroups: &'a mut Vec<ActiveSubgroup<A::Deliver>>,
    pub(super) shards: Option<&'a mut ActiveShards>,
    pub(super) disk: Option<ViewDisk<'a>>,
}

/// What a vote of a group with durable subgroups needs.
pub(super) struct ViewDisk<'a> {
    pub(super) register: &'a mut GroupRegister,
    pub(super) layout: &'a dyn SubgroupLayout,
}

impl<F: Fabric, A: GroupApplication> Subgroups<F> for ViewSubgroups<'_, A> {
    fn freeze(&mut self, fabric: &mut F, member: NodeId) {
        for active in &mut *self.subgroups {
            either!(&mut active.core, core => core.freeze(fabric, member));
        }
        self.shards.iter_mut().for_each(|shards| shards.freeze(fabric, member));
    }

    fn wedge(&mut self, counts: &mut [u64], states: &mut [u64]) -> bool {
        let mut is_final = true;
        self.shards.iter_mut().for_each(|shards| shards.wedge(counts, states));
        for active in &mut *self.subgroups {
            let SenderSegment { counts: first, senders, .. } = active.segment;
            match either!(&mut active.core, core => core.wedge()) {
                Some(here) => counts[first..first + senders].copy_from_slice(here),
                None => is_final = false,
            }
        }
        if is_final {
            for active in &mut *self.subgroups {
                if self.application.seal(active.id) {
                    add(active.id, states);
                }
            }
        }
        is_final
    }

    fn may_act(&self, view: &View) -> bool {
        self.disk.as_ref().is_none_or(|disk| disk.register.has_recorded(view))
    }

    fn has_log(&mut self, proposal: &Proposal) -> bool {
        self.shards.as_mut().is_none_or(|shards| shards.has_log(proposal))
    }

    fn vote(&mut self, view: &View, segments: &[SenderSegment], ballot: Ballot, proposal: &Proposal) -> bool {
        let Some(ViewDisk { register, layout }) = &mut self.disk else { return true };
        register.vote(ballot, |shards| view_end(shards, *layout, view, segments, proposal))
    }

    fn exchange_log(&mut self, fabric: &mut F, peers: &LogPeers<'_>) -> (u64, usize) {
        self.shards.as_mut().map_or((0, 0), |shards| shards.exchange_log(fabric, peers))
    }

    fn promise(&mut self, ballot: Ballot) -> bool {
        self.disk.as_mut().is_none_or(|disk| disk.register.promise(ballot))
    }

    fn has_whole_log(&self, view: &View) -> bool {
        let is_recorded = self.disk.as_ref().is_some_and(|disk| disk.register.has_recorded(view));
        is_recorded && self.application.has_whole_log()
    }

    fn hold(&mut self, states: &mut [u64]) -> bool {
        if states.is_empty() {
            return false;
        }
        let has_shard_news = self.shards.as_mut().is_some_and(|shards| shards.hold(states));
        if !self.application.take_state_news() {
            return has_shard_news;
        }
        let held = self.subgroups.iter().map(|active| active.id).filter(|id| self.application.holds(*id));
        held.for_each(|id| add(id, states));
        true
    }
}

/// Adds a subgroup to a set of subgroups that may have states.
fn add(id: SubgroupId, states: &mut [u64]) {
    if let Some(word) = states.get_mut(id.0 as usize / 64) {
        *word |= 1 << (id.0 % 64);
    }
}
