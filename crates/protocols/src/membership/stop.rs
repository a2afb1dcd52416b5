//! When and why a member stops (Derecho §2).

use super::{Membership, PartitionSafety, RankSet, SenderSegment};
use crate::coverage::{Point, reach};
use crate::ends::{EndObstacle, WaitReason};
use crate::mutation;

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
    /// More than half of the members of a shard are gone, and no other may have what was delivered there, with a majority for quorum \[G10\].
    QuorumLost {
        /// The number of the shard's members that are gone.
        lost: usize,
        /// The number of its members in the view.
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
            Self::QuorumLost { lost, members } => write!(
                f,
                "{lost} of the {members} members of a shard are gone, and with quorum = \"majority\" they may be all that had what was \
                 delivered there, so the group must not continue: begin it anew, or set quorum = \"all\""
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
        // While all members are heard, this one continues.
        let hears_all = self.accused.is_empty() && self.suspected.is_empty() && self.waiting.is_empty();
        if hears_all && !self.leaving && self.stop.is_none() {
            return false;
        }
        // Members that are only silent may return, where this one can wait for them [V17].
        let gone = if self.is_patient() { self.dead } else { self.accused };
        if self.stop.is_none() && !self.suffice((self.all() - gone).len()) {
            self.stop_as_minority(gone);
        }
        if self.stop.is_none() {
            self.stop_without_quorum(gone);
        }
        if self.stop.is_none() && self.is_patient() && self.orphan(self.dead).is_some() {
            self.stop_without_logs(self.dead);
        }
        if self.stop.is_none() && self.waits.is_none() {
            self.look_for_majority();
        }
        if self.stop.is_none() && self.leaves_with_the_rest() {
            self.stop = Some(StopReason::Left);
        }
        if (self.stop.is_some() || self.waits.is_some()) && self.leaving {
            self.stop = Some(if self.is_slow { StopReason::Excluded } else { StopReason::Left });
        }
        self.stop.is_some()
    }

    /// Stops or waits if no majority takes part, or no member of it leads any more.
    fn look_for_majority(&mut self) {
        let able = self.taking_part(self.heard_members());
        let reason = match () {
            () if !self.suffice(able.len()) => WaitReason::Minority,
            () if self.leader().is_none() => WaitReason::Leaderless,
            () => return,
        };
        if self.is_patient() {
            self.begin_waiting(reason);
        } else if reason == WaitReason::Leaderless {
            self.stop = Some(StopReason::Excluded);
        }
    }

    /// Returns those of `ranks` that do not wait for a majority, as far as this member knows.
    pub(super) fn taking_part(&self, ranks: RankSet) -> RankSet {
        ranks - self.waiting
    }

    /// Waits, where this member can, or stops, because there is no majority without the members of `lost`.
    pub(super) fn part_as_minority(&mut self, lost: RankSet) {
        if self.is_patient() {
            self.begin_waiting(WaitReason::Minority);
        } else {
            self.stop_as_minority(lost);
        }
    }

    /// Waits, where this member can and those of `cut` are not all dead, or stops, because all that had the log of a subgroup are in it.
    pub(super) fn part_without_logs(&mut self, cut: RankSet) {
        match self.orphan(cut) {
            Some(subgroup) if self.is_patient() && self.orphan(self.dead).is_none() => {
                self.begin_waiting(WaitReason::Obstacle(EndObstacle::Logs(subgroup as usize)));
            }
            _ => self.stop_without_logs(cut),
        }
    }

    /// Stops because all members that had the log of a subgroup are in `lost` \[T5\].
    fn stop_without_logs(&mut self, lost: RankSet) {
        reach(Point::StoppedWithoutLogs);
        self.stop = self.orphan(lost).map(|subgroup| StopReason::LogsGone { subgroup });
    }

    /// Stops because there is no majority without the members of `lost`. If any of them has published that it does
    /// not hear this member, or has removed it, it is more likely that the others continue without this one than the reverse.
    pub(super) fn stop_as_minority(&mut self, lost: RankSet) {
        let is_excluded = self.is_accused() || self.is_removed;
        reach(if is_excluded { Point::StoppedAccused } else { Point::StoppedAsMinority });
        let members = self.view.members.len();
        let minority = StopReason::Minority { lost: lost.len(), members };
        self.stop = Some(if is_excluded { StopReason::Excluded } else { minority });
    }

    /// Stops if the members of `lost` may be all that have what was delivered in a shard \[G10\]; returns whether they may. Either
    /// they or this member will not be in the next view.
    pub(super) fn stop_without_quorum(&mut self, lost: RankSet) -> bool {
        mutant!(EndWithoutQuorum => return false);
        let of = |segment: &SenderSegment| Some((segment.lost_quorum(lost)?, segment.ranks.len()));
        let Some((lost, members)) = self.segments.iter().find_map(of) else { return false };
        reach(Point::GenuineQuorumLost);
        let gone = StopReason::QuorumLost { lost, members };
        self.stop = Some(if self.is_accused() { StopReason::Excluded } else { gone });
        true
    }

    /// Waits, where this member can, or stops, because those of `cut` may be all that have what was delivered in a shard \[G10\]; returns
    /// whether they may.
    pub(super) fn part_without_quorum(&mut self, cut: RankSet) -> bool {
        mutant!(EndWithoutQuorum => return false);
        let lost = self.segments.iter().position(|segment| segment.lost_quorum(cut).is_some());
        match lost {
            Some(shard) if self.is_patient() => {
                self.begin_waiting(WaitReason::Obstacle(EndObstacle::Quorum(shard)));
                true
            }
            _ => self.stop_without_quorum(cut),
        }
    }

    /// Waits, where this member can, or stops, because no member that this one hears has what it is to install \[G11\].
    pub(crate) fn give_up(&mut self) {
        if self.is_patient() {
            return self.begin_waiting(WaitReason::ContentMissing);
        }
        if !self.suffice(self.heard_members().len()) {
            self.stop_as_minority(self.accused);
        } else if !self.stop_without_quorum(self.accused) {
            self.stop = Some(StopReason::Excluded);
        }
    }

    /// Returns whether this number of members is a majority of the view, or no majority is needed \[V5\].
    pub(super) fn suffice(&self, members: usize) -> bool {
        2 * members > self.view.members.len() || !self.needs_majority()
    }

    /// Returns whether only a majority of the view may continue.
    pub(super) fn needs_majority(&self) -> bool {
        self.settings.partition_safety == PartitionSafety::Majority && !mutant!(NoPartitionRule)
    }

    /// Returns whether another member has published that it does not hear this one.
    fn is_accused(&self) -> bool {
        let own = self.table.rank();
        let accuses_this = |rank| self.row.accused.contains(self.table.row(rank), own);
        self.all().without(own).iter().any(accuses_this)
    }
}
