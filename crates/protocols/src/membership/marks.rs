//! What a member has noticed in its view, as sets of ranks that only grow: for a record of what happened (Derecho §3.4).

use super::{Member, Membership, Proposal, RankSet};

/// What one member has noticed in one view, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MembershipMarks {
    /// The number of the view.
    pub view: u64,
    /// The ranks that this member does not hear.
    pub accused: RankSet,
    /// The ranks that do not hear this member, as far as it knows, and its own rank if there are any.
    pub accusers: RankSet,
    /// The ranks that this member does not follow any more: `accused ⊆ suspected`.
    pub suspected: RankSet,
    /// The ranks whose consumers hold this member up for too long.
    pub slow: RankSet,
    /// This member has stalled, and is accused because of it.
    pub concedes: bool,
    /// This member wants to leave.
    pub leaving: bool,
    /// This member sends and acknowledges nothing any more in the view.
    pub wedged: bool,
    /// This member waits for a majority of the view.
    pub waits: bool,
    /// The rank of the leader whose proposal this member has echoed.
    pub echoed: Option<usize>,
    /// How the view ends is known here.
    pub decided: bool,
}

impl Membership {
    /// Returns whether this member has noticed something since `seen`: what [`Membership::marks`] returns differs from it. It copies nothing.
    #[must_use]
    pub fn has_noticed_since(&self, seen: &MembershipMarks) -> bool {
        let sets = [
            (&self.accused, &seen.accused),
            (&self.accusers, &seen.accusers),
            (&self.suspected, &seen.suspected),
            (&self.slow, &seen.slow),
        ];
        self.view.id != seen.view
            || sets.into_iter().any(|(now, before)| now != before)
            || (self.concedes, self.leaving, self.wedged) != (seen.concedes, seen.leaving, seen.wedged)
            || self.echoed.as_ref().map(|(leader, _): &(usize, Proposal)| *leader) != seen.echoed
            || (self.waits.is_some(), self.decision.is_some()) != (seen.waits, seen.decided)
    }

    /// Returns what this member has noticed so far. It costs a few loads, of this member's own memory alone.
    #[must_use]
    pub fn marks(&self) -> MembershipMarks {
        MembershipMarks {
            view: self.view.id,
            accused: self.accused,
            accusers: self.accusers,
            suspected: self.suspected,
            slow: self.slow,
            concedes: self.concedes,
            leaving: self.leaving,
            wedged: self.wedged,
            waits: self.waits.is_some(),
            echoed: self.echoed.as_ref().map(|(leader, _): &(usize, Proposal)| *leader),
            decided: self.decision.is_some(),
        }
    }

    /// Returns the ranks of the members that have the view and everything before it on their disks \[T19\], as far as this member knows.
    #[must_use]
    pub fn whole_logs(&self) -> RankSet {
        (0..self.view.members.len()).filter(|rank| self.row.whole.load(self.table.row(*rank))).collect()
    }

    /// Returns the member with this rank in the view.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn member(&self, rank: usize) -> Member {
        self.view.members[rank]
    }
}
