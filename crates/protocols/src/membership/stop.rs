//! When and why a member stops (Derecho §2).

use super::Membership;
use super::cut::{everybody, ranks};
use crate::coverage::{Point, reach};

/// Why a member has stopped permanently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The others suspect this member, or have continued without it \[V4\].
    Excluded,
    /// Too many members of the view are gone: the rest is not a majority \[V5\].
    Minority {
        /// The number of members that are gone.
        lost: usize,
        /// The number of members of the view.
        members: usize,
    },
    /// All members that had the log of a durable subgroup in this view are gone, so that no other knows what was delivered there
    /// \[T5\].
    LogsGone {
        /// The subgroup's number.
        subgroup: u32,
    },
    /// It has left, as it wished.
    Left,
}

impl std::error::Error for StopReason {}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Excluded => f.write_str(
                "the other members have continued without this one, which they considered dead: join again",
            ),
            Self::Minority { lost, members } => write!(
                f,
                "{lost} of {members} members are gone, so the rest is not a majority and must not continue alone: \
                 start them again, or set partition_safety = \"off\" if the network cannot be partitioned"
            ),
            Self::LogsGone { subgroup } => write!(
                f,
                "all members that had the log of subgroup {subgroup} are gone, and no other knows what was delivered there, so \
                 this member must not continue: the logs of those members have it"
            ),
            Self::Left => f.write_str("this member has left the group"),
        }
    }
}

impl Membership {
    /// Returns whether this member stops, for good.
    pub(super) fn must_stop(&mut self) -> bool {
        if self.stop.is_none() && !self.suffice(self.heard_members().count_ones()) {
            self.stop_as_minority(self.accused);
        }
        if self.stop.is_none() && self.leader().is_none() {
            reach(Point::StoppedLeaderless);
            self.stop = Some(StopReason::Excluded);
        }
        if self.stop.is_none() && self.leaves_with_the_rest() {
            self.stop = Some(StopReason::Left);
        }
        if self.stop.is_some() && self.leaving {
            self.stop = Some(if self.is_slow { StopReason::Excluded } else { StopReason::Left });
        }
        self.stop.is_some()
    }

    /// Stops because there is no majority without the members of `lost`. If any of them has published that it does
    /// not hear this member, it is more likely that the others continue without this one than the reverse.
    pub(super) fn stop_as_minority(&mut self, lost: u64) {
        let own = self.table.rank();
        let accuses_this = |rank| self.row.accused.load(self.table.row(rank)) >> own & 1 == 1;
        let minority =
            StopReason::Minority { lost: lost.count_ones() as usize, members: self.view.members.len() };
        let is_excluded = ranks(everybody(self.view.members.len()) & !(1 << own)).any(accuses_this);
        reach(if is_excluded { Point::StoppedAccused } else { Point::StoppedAsMinority });
        self.stop = Some(if is_excluded { StopReason::Excluded } else { minority });
    }
}
