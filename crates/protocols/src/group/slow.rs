//! Slow consumers: who is excluded for holding a subgroup up, where the settings say so (Derecho §3.4).
//!
//! A sender that has been held up for [`SubgroupSettings::slow_after`](crate::multicast::SubgroupSettings::slow_after) reports
//! the member that holds it up, which then leaves ([`Membership::report_slow`](crate::membership::Membership::report_slow));
//! only while the rest is a majority \[V5\]: if all are slow it is better to wait.

use squall_fabric::{Duration, Fabric, Instant};

use super::active::either;
use super::core::{GroupCore, GroupStage};
use super::{GroupApplication, SubgroupId};
use crate::multicast::HeldUp;

/// This member's own consumer stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerStandstill {
    /// In which subgroup.
    pub subgroup: SubgroupId,
    /// Since when.
    pub since: Instant,
    /// After how long the others exclude this member for that, if they do.
    pub slow_after: Option<Duration>,
}

impl<A: GroupApplication> GroupCore<A> {
    /// Looks at the consumers of all subgroups, if it is time.
    pub(super) fn look_at_consumers<F: Fabric>(&mut self, fabric: &F) {
        let GroupStage::Present(present) = &mut self.stage else { return };
        let now = fabric.now();
        self.standstill = None;
        for active in &mut present.subgroups {
            let (slow_after, held, since) = either!(&mut active.core, core => {
                core.look_at_consumers(now);
                (core.settings().slow_after, core.held_up_by(), core.stands_still_since())
            });
            if let Some(since) = since
                && self.standstill.is_none_or(|longest| since < longest.since)
            {
                self.standstill = Some(ConsumerStandstill { subgroup: active.id, since, slow_after });
            }
            let is_too_slow = |held: &HeldUp| slow_after.is_some_and(|after| now.since(held.since) >= after);
            if let Some(held) = held.filter(is_too_slow) {
                present.membership.report_slow(held.member);
            }
        }
    }

    /// The member that holds the application up in the subgroup `id`, if one does.
    #[must_use]
    pub fn held_up_by(&self, id: SubgroupId) -> Option<HeldUp> {
        let GroupStage::Present(present) = &self.stage else { return None };
        let active = present.subgroups.iter().find(|active| active.id == id)?;
        either!(&active.core, core => core.held_up_by())
    }

    /// Since when this member's own consumer of the subgroup `id` has not moved, although there are messages.
    #[must_use]
    pub fn stands_still_since(&self, id: SubgroupId) -> Option<Instant> {
        let GroupStage::Present(present) = &self.stage else { return None };
        let active = present.subgroups.iter().find(|active| active.id == id)?;
        either!(&active.core, core => core.stands_still_since())
    }

    /// The own consumer that has stood still for the longest, if one does; when the group has ended here, the one at its end.
    #[must_use]
    pub const fn standstill(&self) -> Option<ConsumerStandstill> {
        self.standstill
    }
}
