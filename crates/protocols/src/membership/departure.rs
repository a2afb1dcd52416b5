//! Departure: a member that wishes to leave hands its states over first (Derecho §2, app. A).

use super::{Member, Membership, RankSet};
use crate::coverage::{Point, reach};
use crate::mutation;

impl Membership {
    /// Puts the states that this member holds into its row.
    pub(super) fn publish_states(&mut self) {
        for (i, word) in self.states.iter().enumerate() {
            let column = self.row.holds.column(i);
            if column.load(self.table.own()) != *word {
                self.table.raise(column, *word);
            }
        }
    }

    /// Returns whether the view is to end because this member wishes to leave: either the others have not learned of
    /// the wish yet, or others that stay hold every state that this member holds.
    pub(super) fn may_end_view(&self) -> bool {
        let own = self.table.rank();
        let is_known = self.view.leaving.contains(own);
        !is_known || self.can_spare(own, self.heard_members(), &[])
    }

    /// Returns the ranks that wish to leave and are nevertheless in the next view, and the ranks that are removed:
    /// called as leader, which removes the cut and admits `joins`.
    pub(super) fn departures(&self, cut: RankSet, joins: &[Member]) -> (RankSet, RankSet) {
        let rest = self.all() - cut;
        let wish = |rank: &usize| self.wishes_to_leave(*rank);
        let goes = |rank: &usize| self.can_spare(*rank, rest, joins) || mutant!(RemoveLastHolder);
        let removed = cut | rest.iter().filter(wish).filter(goes).collect();
        let leaving: RankSet = (rest - removed).iter().filter(wish).collect();
        if !leaving.is_empty() {
            reach(Point::LeaverHeldBack);
        }
        (leaving, removed)
    }

    /// Returns whether this member has lost a member, and all members that it still hears wish to leave, as it does.
    /// The lost members may live and have decided without it, as they do when it leaves: a part in which no member
    /// stays has no reason to decide alone, since no view follows for it.
    pub(super) fn leaves_with_the_rest(&self) -> bool {
        let all_leave = || self.heard_members().iter().all(|rank| self.wishes_to_leave(rank));
        let is_alone = self.leaving && !self.accused.is_empty() && !self.needs_majority() && all_leave();
        is_alone && !mutant!(DecideDeparted)
    }

    /// Records why this member wedges.
    pub(super) fn note_reason(&self) {
        let leaves = |rank: usize| self.row.leaving.load(self.table.row(rank));
        reach(match () {
            () if !self.disputed.is_empty() => Point::WedgedByAccusation,
            () if self.can_admit() => Point::WedgedByJoin,
            () if self.renewing => Point::WedgedByCount,
            () if self.heard_members().iter().any(leaves) => Point::WedgedByLeave,
            () => Point::WedgedByNews,
        });
    }

    /// Returns for each state the members that hold it and are not `removed`, as a set of ranks. All of them have
    /// wedged, so their rows do not change any more in this respect.
    pub(super) fn holders(&self, removed: RankSet) -> Vec<RankSet> {
        let go_on = self.all() - removed;
        let holders = |state: usize| go_on.iter().filter(|rank| self.holds(*rank, state)).collect();
        (0..self.row.states).map(holders).collect()
    }

    /// Returns the subgroups whose state this member holds and no other member that stays does, as far as it knows.
    #[must_use]
    pub fn sole_states(&self) -> Vec<u32> {
        let own = self.table.rank();
        let stays = |rank: &usize| *rank != own && !self.wishes_to_leave(*rank);
        let is_sole = |state: &usize| {
            let is_elsewhere = self.heard_members().iter().filter(stays).any(|rank| self.holds(rank, *state));
            self.holds(own, *state) && !is_elsewhere
        };
        (0..self.row.states).filter(is_sole).filter_map(|state| u32::try_from(state).ok()).collect()
    }

    /// Returns whether a member that this one hears holds a state, as far as this member knows.
    #[must_use]
    pub fn is_held(&self, state: usize) -> bool {
        self.heard_members().iter().any(|rank| self.holds(rank, state))
    }

    /// Returns whether `rank` wishes to leave, as far as this member knows.
    pub(super) fn wishes_to_leave(&self, rank: usize) -> bool {
        self.view.leaving.contains(rank) || self.row.leaving.load(self.table.row(rank))
    }

    /// Returns whether those of `among` that do not wish to leave hold every state that `rank` holds, or there are
    /// none of them and no process joins \[A9\].
    fn can_spare(&self, rank: usize, among: RankSet, joins: &[Member]) -> bool {
        let stay: Vec<usize> = among.iter().filter(|other| !self.wishes_to_leave(*other)).collect();
        let is_held = |word: usize| {
            let elsewhere = stay.iter().fold(0, |held, other| held | self.states_of(*other, word));
            self.states_of(rank, word) & !elsewhere == 0
        };
        (stay.is_empty() && joins.is_empty()) || (0..self.row.holds.count()).all(is_held)
    }

    /// Returns whether `rank` may hold a state: it has said so, or held it when the view began.
    pub(super) fn may_hold(&self, rank: usize, state: usize) -> bool {
        self.holds(rank, state) || self.view.holders.get(state).is_some_and(|holders| holders.contains(rank))
    }

    fn holds(&self, rank: usize, state: usize) -> bool {
        self.states_of(rank, state / 64) >> (state % 64) & 1 == 1
    }

    /// Returns a word of the set of states that `rank` holds.
    fn states_of(&self, rank: usize, word: usize) -> u64 {
        self.row.holds.column(word).load(self.table.row(rank))
    }
}
