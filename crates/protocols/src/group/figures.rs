//! Figures of a group for operators: what its subgroups have done in all views together, and how far their members are (Derecho §3.4).

use squall_fabric::{Duration, DurationHistogram, Instant, NodeId};

use super::active::{ActiveSubgroup, either};
use super::core::{GroupCore, GroupStage};
use super::{FlightRecorder, GroupApplication, SubgroupId};
use crate::membership::{Membership, MembershipState};
use crate::multicast::MulticastCounters;

/// What a subgroup has done, and how long this member's messages took.
pub(super) type SubgroupTotals = (MulticastCounters, DurationHistogram);

impl<A: GroupApplication> GroupCore<A> {
    /// Returns what this node has noticed lately.
    #[must_use]
    pub const fn flight(&self) -> &FlightRecorder {
        &self.flight
    }

    /// Returns what the subgroup `id` has done in the current view.
    #[must_use]
    pub fn counters(&self, id: SubgroupId) -> Option<MulticastCounters> {
        Some(self.active(id)?.counters())
    }

    /// Returns what the subgroup `id` has done here in all views together. Each counter only grows. A message that a view change makes
    /// a sender send again counts again as sent; what the application pulls is not counted as delivered here
    /// ([`crate::multicast::DeliveryTally`]).
    #[must_use]
    pub fn totals(&self, id: SubgroupId) -> MulticastCounters {
        let (mut totals, _) = self.past_totals.get(&id).copied().unwrap_or_default();
        totals += self.counters(id).unwrap_or_default();
        totals
    }

    /// Returns how long this member's own messages in the subgroup `id` took, in all views together: see
    /// [`crate::multicast::Subgroup::latencies`].
    #[must_use]
    pub fn latencies(&self, id: SubgroupId) -> DurationHistogram {
        let (_, mut latencies) = self.past_totals.get(&id).copied().unwrap_or_default();
        if let Some(active) = self.active(id) {
            latencies += either!(&active.core, core => core.latencies());
        }
        latencies
    }

    /// Has each subgroup measure one of this member's next messages, if it is time for that: see
    /// [`crate::multicast::Subgroup::sample_latency`].
    pub fn sample_latencies(&mut self, now: Instant) {
        if self.sampled.is_some_and(|sampled| now.since(sampled) < SAMPLE_PERIOD) {
            return;
        }
        self.sampled = Some(now);
        let GroupStage::Present(present) = &mut self.stage else { return };
        for active in &mut present.subgroups {
            either!(&mut active.core, core => core.sample_latency());
        }
    }

    /// Returns whether the view is ending, so that nothing is sent or acknowledged in it any more.
    #[must_use]
    pub fn is_wedged(&self) -> bool {
        let state = self.membership().map(Membership::state);
        matches!(state, Some(MembershipState::Wedged | MembershipState::Decided))
    }

    /// Calls `each` with each member of the subgroup `id` and how far it is behind: see [`crate::multicast::Subgroup::lags`].
    pub fn lags(&self, id: SubgroupId, mut each: impl FnMut(NodeId, u64)) {
        if let Some(active) = self.active(id) {
            either!(&active.core, core => core.lags(|rank, lag| each(core.members()[rank], lag)));
        }
    }

    /// Returns how much of this member's window in the subgroup `id` is used: see [`crate::multicast::Subgroup::window_use`].
    #[must_use]
    pub fn window_use(&self, id: SubgroupId) -> Option<(u64, u64)> {
        let active = self.active(id)?;
        either!(&active.core, core => core.window_use())
    }

    fn active(&self, id: SubgroupId) -> Option<&ActiveSubgroup<A::Deliver>> {
        let GroupStage::Present(present) = &self.stage else { return None };
        present.subgroups.iter().find(|active| active.id == id)
    }

    /// Keeps what the subgroup `id` has done in a view that has ended.
    pub(super) fn add_totals(&mut self, id: SubgroupId, (counters, latencies): SubgroupTotals) {
        let (past_counters, past_latencies) = self.past_totals.entry(id).or_default();
        *past_counters += counters;
        *past_latencies += &latencies;
    }
}

/// Between the messages of a subgroup that are measured: a hundred in a second tell enough, and cost nothing that can be measured.
const SAMPLE_PERIOD: Duration = Duration::from_millis(10);
