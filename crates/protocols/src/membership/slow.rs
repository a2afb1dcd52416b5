//! Slow consumers leave: a member whose consumer holds others up for too long is notified, and leaves (Derecho §2).
//!
//! Its polling thread lives, so no member considers it dead: it leaves like a member that wishes to, with everything
//! delivered that is stable, and ends as excluded. The members that wait for it report that in their rows. Only as
//! many may leave as keep a majority of the view \[V5\]; if there are more, the oldest members that are reported
//! stay.
//!
//! **Hindrance.** A member whose disk or processor is slow says so in its row, since the others see only that it acknowledges late. The
//! column grows, as all columns do \[S1\]: its last two bits are the hindrance, the others count changes.

use squall_fabric::NodeId;

use super::{Membership, RankSet};
use crate::coverage::{Point, reach};
use crate::mutation;

/// What makes a member slow, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberHindrance {
    /// Its disk.
    Disk,
    /// Others have its processors.
    Processor,
}

impl Membership {
    /// Publishes what makes this member slow, if anything does.
    pub fn set_hindrance(&mut self, hindrance: Option<MemberHindrance>) {
        let published = self.row.hindrance.load(self.table.own());
        let bits = match hindrance {
            None => 0,
            Some(MemberHindrance::Disk) => 1,
            Some(MemberHindrance::Processor) => 2,
        };
        if published & 3 != bits && self.table.is_ready() {
            self.table.raise(self.row.hindrance, (published & !3) + 4 + bits);
        }
    }

    /// Returns what makes a member slow, as far as it has said so.
    #[must_use]
    pub fn hindrance(&self, node: NodeId) -> Option<MemberHindrance> {
        let rank = self.view.rank(node)?;
        match self.row.hindrance.load(self.table.row(rank)) & 3 {
            1 => Some(MemberHindrance::Disk),
            2 => Some(MemberHindrance::Processor),
            _ => None,
        }
    }

    /// Returns whether this member wished to leave.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.leaving && !self.is_slow
    }

    /// Reports that the consumer of `node` holds this member up for too long, unless the rest would not be a
    /// majority.
    pub fn report_slow(&mut self, node: NodeId) {
        let Some(rank) = self.view.rank(node).filter(|rank| *rank != self.table.rank()) else { return };
        let reported = (self.reported_slow() | self.accused).with(rank);
        if reported.len() <= (self.view.members.len() - 1) / 2 {
            self.slow.insert(rank);
        }
    }

    /// Leaves if others report that this member is too slow; publishes the members that this one finds too slow.
    pub(super) fn heed_slow(&mut self) {
        if self.seen.reporting.is_empty() && self.slow.is_empty() {
            return;
        }
        let (members, own) = (self.view.members.len(), self.table.rank());
        let reported = self.reported_slow();
        // Itself and younger members.
        let may_go = (reported - RankSet::all(own)).len() <= (members - 1) / 2;
        if reported.contains(own) && may_go && !self.leaving && !mutant!(StayThoughSlow) {
            reach(Point::SlowLeaver);
            (self.leaving, self.is_slow) = (true, true);
        }
        if self.row.slow.load(self.table.own()) != self.slow {
            self.row.slow.raise(&mut self.table, &self.slow);
        }
    }

    /// Returns the ranks that this member, or one that it hears, finds too slow.
    fn reported_slow(&self) -> RankSet {
        let reporters = self.seen.reporting & self.heard_members();
        let reports = reporters.iter().map(|rank| self.row.slow.load(self.table.row(rank)));
        reports.fold(self.slow, |slow, report| slow | report) & self.all()
    }
}
