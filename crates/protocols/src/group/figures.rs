//! Figures of a group for operators: what its subgroups have done in all views together, and how far their members are (Derecho §3.4).

use squall_fabric::{Duration, Instant, NodeId};

use super::active::{ActiveSubgroup, AnySubgroup, either};
use super::core::{GroupCore, GroupStage};
use super::{FlightRecorder, GroupApplication, MessageTracks, SubgroupId};
use crate::membership::{Membership, MembershipState};
use crate::multicast::{MulticastCounters, WindowTimes};

/// What a subgroup has done, and how long that took.
pub(super) type SubgroupTotals = (MulticastCounters, WindowTimes);

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

    /// Returns the times of this member's window in the subgroup `id`, in all views together: see
    /// [`crate::multicast::Subgroup::times`].
    #[must_use]
    pub fn times(&self, id: SubgroupId) -> WindowTimes {
        let (_, mut times) = self.past_totals.get(&id).copied().unwrap_or_default();
        if let Some(active) = self.active(id) {
            times += &either!(&active.core, core => core.times());
        }
        times
    }

    /// Returns the latest messages of this node whose way was measured.
    #[must_use]
    pub const fn tracks(&self) -> &MessageTracks {
        &self.tracks
    }

    /// Has each subgroup measure one of this member's next messages, and looks whether its window is full, if it is time for that: see
    /// [`crate::multicast::Subgroup::sample_latency`] and [`crate::multicast::Subgroup::sample_fullness`].
    pub fn sample(&mut self, now: Instant) {
        if self.sampled.is_some_and(|sampled| now.since(sampled) < SAMPLE_PERIOD) {
            return;
        }
        self.sampled = Some(now);
        let GroupStage::Present(present) = &mut self.stage else { return };
        for active in &mut present.subgroups {
            let track = either!(&mut active.core, core => {
                core.sample_fullness(now);
                core.sample_latency();
                core.take_track()
            });
            if let Some(track) = track {
                self.tracks.note(active.id, track);
            }
        }
    }

    /// Returns whether the view is ending, so that nothing is sent or acknowledged in it any more.
    #[must_use]
    pub fn is_wedged(&self) -> bool {
        let state = self.membership().map(Membership::state);
        matches!(state, Some(MembershipState::Wedged | MembershipState::Waiting | MembershipState::Decided))
    }

    /// Returns whether this node hears no majority of its view, and waits for one with its state \[V17\].
    #[must_use]
    pub fn lacks_majority(&self) -> bool {
        self.membership().is_some_and(|membership| membership.state() == MembershipState::Waiting)
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
    pub(super) fn add_totals(&mut self, id: SubgroupId, (counters, times): SubgroupTotals) {
        let (past_counters, past_times) = self.past_totals.entry(id).or_default();
        *past_counters += counters;
        *past_times += &times;
    }
}

/// Between the messages of a subgroup that are measured: a hundred in a second are enough, and cost nothing that can be measured.
pub const SAMPLE_PERIOD: Duration = Duration::from_millis(10);
