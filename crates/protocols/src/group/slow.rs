//! Slow consumers: members that are excluded for holding up a subgroup, if the settings say so (Derecho §3.4).
//!
//! A sender that has been held up for
//! [`SubgroupSettings::slow_after`](crate::multicast::SubgroupSettings::slow_after) reports the member that holds it
//! up, which then leaves ([`Membership::report_slow`](crate::membership::Membership::report_slow)), but only while
//! the rest is a majority \[V5\]: if all members are slow it is better to wait.

use squall_fabric::{Duration, Fabric, Instant};

use super::active::{AnySubgroup, either};
use super::core::{GroupCore, GroupStage, PresentView};
use super::{GroupApplication, SubgroupId};
use crate::multicast::HeldUp;

/// A standstill of this member's own consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerStandstill {
    /// The subgroup.
    pub subgroup: SubgroupId,
    /// The instant since which it has made no progress.
    pub since: Instant,
    /// The time after which the others exclude this member for that, if they do.
    pub slow_after: Option<Duration>,
}

impl<A: GroupApplication> GroupCore<A> {
    /// Checks the consumers of all subgroups, if it is time.
    pub(super) fn look_at_consumers<F: Fabric>(&mut self, fabric: &F) {
        let GroupStage::Present(present) = &mut self.stage else { return };
        let now = fabric.now();
        self.flight.look_at_clock(now, present.membership.next_deadline());
        let PresentView { membership, subgroups, rota, .. } = present;
        if !rota.is_in_turn() {
            self.standstill = None;
        }
        for place in rota.watch() {
            let active = &mut subgroups[place];
            let (slow_after, held, since) = either!(&mut active.core, core => {
                core.look_at_consumers(now);
                (core.settings().slow_after, core.held_up_by(), core.stands_still_since())
            });
            self.flight.look_at_consumers(now, active.id, held.map(|held| (held.member, held.since)));
            // Those of the others are as they were when they were looked at.
            self.standstill.take_if(|longest| longest.subgroup == active.id);
            if let Some(since) = since
                && self.standstill.is_none_or(|longest| since < longest.since)
            {
                self.standstill = Some(ConsumerStandstill { subgroup: active.id, since, slow_after });
            }
            let is_too_slow = |held: &HeldUp| slow_after.is_some_and(|after| now.since(held.since) >= after);
            if let Some(held) = held.filter(is_too_slow) {
                membership.report_slow(held.member);
            }
        }
    }

    /// Returns the member that holds up the application in the subgroup `id`, if one does.
    #[must_use]
    pub fn held_up_by(&self, id: SubgroupId) -> Option<HeldUp> {
        let GroupStage::Present(present) = &self.stage else { return None };
        let active = present.subgroups.iter().find(|active| active.id == id)?;
        either!(&active.core, core => core.held_up_by())
    }

    /// Returns since when this member's own consumer of the subgroup `id` has made no progress, although there are
    /// messages.
    #[must_use]
    pub fn stands_still_since(&self, id: SubgroupId) -> Option<Instant> {
        let GroupStage::Present(present) = &self.stage else { return None };
        let active = present.subgroups.iter().find(|active| active.id == id)?;
        either!(&active.core, core => core.stands_still_since())
    }

    /// Returns the longest standstill of this member's own consumers, if there is one; after the group has ended
    /// here, the one at its end.
    #[must_use]
    pub const fn standstill(&self) -> Option<ConsumerStandstill> {
        self.standstill
    }
}
