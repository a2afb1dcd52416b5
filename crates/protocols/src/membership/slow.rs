//! Slow consumers leave: a member whose consumer holds others up for too long is notified, and leaves (Derecho §2).
//!
//! Its polling thread lives, so no member considers it dead: it leaves like a member that wishes to, with everything
//! delivered that is stable, and ends as excluded. The members that wait for it report that in their rows. Only as
//! many may leave as keep a majority of the view \[V5\]; if there are more, the oldest members that are reported
//! stay.

use squall_fabric::NodeId;

use super::{Membership, RankSet};
use crate::coverage::{Point, reach};
use crate::mutation;

impl Membership {
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
