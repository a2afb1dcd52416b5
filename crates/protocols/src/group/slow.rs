//! Slow members: which one holds a subgroup up and why, and the exclusion of those whose consumers do, if the settings say so (Derecho §3.4).
//!
//! A sender that has been held up for
//! [`SubgroupSettings::slow_after`](crate::multicast::SubgroupSettings::slow_after) reports the member that holds it
//! up, which then leaves ([`Membership::report_slow`](crate::membership::Membership::report_slow)), but only while
//! the rest is a majority \[V5\]: if all members are slow it is better to wait.

use std::fmt;

use squall_fabric::{Duration, Fabric, Instant, NodeId};

use super::active::{AnySubgroup, either};
use super::core::{GroupCore, GroupStage, PresentView};
use super::{GroupApplication, SubgroupId};
use crate::membership::{MemberHindrance, Membership};
use crate::multicast::{HeldUp, MessageStage, SlowestMember};

/// Why a member holds others up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowCause {
    /// Its application takes no messages.
    Consumer,
    /// Its disk, as it says itself.
    Disk,
    /// Others have its processors, as it says itself.
    Processor,
    /// It acknowledges late, and knows no reason for that: its link, or it does not run.
    Link,
}

impl fmt::Display for SlowCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Consumer => "consumer",
            Self::Disk => "disk",
            Self::Processor => "processor",
            Self::Link => "link",
        })
    }
}

/// The member that holds this one up the most in a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldUp {
    /// The member; it may be this one.
    pub member: NodeId,
    /// Why.
    pub cause: SlowCause,
    /// In how many of a hundred moments of the last second.
    pub percent: u32,
}

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
        let mut is_disk_slow = false;
        if !rota.is_in_turn() {
            self.standstill = None;
        }
        for place in rota.watch() {
            let active = &mut subgroups[place];
            let (slow_after, held, since, slowest) = either!(&mut active.core, core => {
                core.look_at_consumers(now);
                is_disk_slow |= core.is_disk_slow();
                (core.settings().slow_after, core.held_up_by(), core.stands_still_since(), core.slowest(now))
            });
            let hold_up = slowest.map(|slowest| hold_up(membership, &slowest));
            self.flight.look_at_hold_up(now, active.id, hold_up);
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
        if is_disk_slow {
            self.hindrance = Some((MemberHindrance::Disk, now));
        }
        if let Some((hindrance, noted)) = self.hindrance {
            let is_over = now.since(noted) >= HINDERED_FOR;
            membership.set_hindrance((!is_over).then_some(hindrance));
            self.hindrance.take_if(|_| is_over);
        }
    }

    /// Notes that this member's polling thread waits for a processor for much of the time.
    pub fn note_processor_wait(&mut self, now: Instant) {
        let is_known = self.hindrance.is_some_and(|(hindrance, _)| hindrance == MemberHindrance::Disk);
        if !is_known {
            self.hindrance = Some((MemberHindrance::Processor, now));
        }
    }

    /// Returns the member that holds this one up the most in the subgroup `id`, and why, if one does: its consumer, its disk, its link or
    /// its processor. It may make progress all the same ([`GroupCore::held_up_by`] has those that make none).
    #[must_use]
    pub fn hold_up(&self, id: SubgroupId, now: Instant) -> Option<HoldUp> {
        let GroupStage::Present(present) = &self.stage else { return None };
        let active = present.subgroups.iter().find(|active| active.id == id)?;
        let slowest = either!(&active.core, core => core.slowest(now))?;
        Some(hold_up(&present.membership, &slowest))
    }

    /// Returns the member whose consumer holds up the application in the subgroup `id`, if one does.
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

fn hold_up(membership: &Membership, slowest: &SlowestMember) -> HoldUp {
    let &SlowestMember { member, stage, percent } = slowest;
    HoldUp { member, cause: cause(stage, membership.hindrance(member)), percent }
}

/// Why messages wait at a stage for a member that says this of itself. A member whose thread waits for a processor delivers late, too.
const fn cause(stage: MessageStage, hindrance: Option<MemberHindrance>) -> SlowCause {
    match (stage, hindrance) {
        (_, Some(MemberHindrance::Processor)) => SlowCause::Processor,
        (MessageStage::Consumer, _) => SlowCause::Consumer,
        (_, Some(MemberHindrance::Disk)) => SlowCause::Disk,
        (_, None) => SlowCause::Link,
    }
}

/// What has made this member slow counts for this time.
const HINDERED_FOR: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// What a member says of itself counts more than where its messages wait, if it explains that.
    #[test]
    fn a_member_without_processors_is_not_taken_for_a_slow_consumer() {
        let processor = Some(MemberHindrance::Processor);
        assert_eq!(cause(MessageStage::Consumer, processor), SlowCause::Processor);
        assert_eq!(cause(MessageStage::Consumer, Some(MemberHindrance::Disk)), SlowCause::Consumer);
        assert_eq!(cause(MessageStage::Consumer, None), SlowCause::Consumer);
    }
}
