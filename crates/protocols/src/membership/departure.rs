//! Departure: a member that wishes to leave hands its states over first (Derecho §2, app. A).

use super::cut::{everybody, ranks};
use super::{Member, Membership};
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

    /// Whether the view is to end because this member wishes to leave: the others have yet to hear of the wish, or others
    /// that stay hold all that this member holds.
    pub(super) fn may_end_view(&self) -> bool {
        let own = self.table.rank();
        let is_known = self.view.leaving >> own & 1 == 1;
        !is_known || self.can_spare(own, self.heard_members(), &[])
    }

    /// Who wishes to leave and is in the next view all the same, and who is removed, as sets of ranks: as leader, which
    /// removes the cut and lets `joins` in.
    pub(super) fn departures(&self, cut: u64, joins: &[Member]) -> (u64, u64) {
        let rest = everybody(self.view.members.len()) & !cut;
        let wish = |rank: &usize| self.wishes_to_leave(*rank);
        let goes = |rank: &usize| self.can_spare(*rank, rest, joins) || mutant!(RemoveLastHolder);
        let removed = ranks(rest).filter(wish).filter(goes).fold(cut, |removed, rank| removed | 1 << rank);
        let leaving = ranks(rest & !removed).filter(wish).fold(0, |leaving, rank| leaving | 1 << rank);
        if leaving != 0 {
            reach(Point::LeaverHeldBack);
        }
        (leaving, removed)
    }

    /// Whether this member has lost somebody, and whoever it still hears wishes to leave, as it does. Those that it has lost may
    /// live and have decided without it, as they do when it leaves: no view comes for whose sake a part that nobody stays in
    /// would have to decide alone.
    pub(super) fn leaves_with_the_rest(&self) -> bool {
        let all_leave = || ranks(self.heard_members()).all(|rank| self.wishes_to_leave(rank));
        let is_alone = self.leaving && self.accused != 0 && !self.needs_majority() && all_leave();
        is_alone && !mutant!(DecideDeparted)
    }

    /// Notes why this member wedges.
    pub(super) fn note_reason(&self) {
        let leaves = |rank: usize| self.row.leaving.load(self.table.row(rank));
        reach(match () {
            () if self.disputed != 0 => Point::WedgedByAccusation,
            () if self.can_admit() => Point::WedgedByJoin,
            () if self.renewing => Point::WedgedByCount,
            () if ranks(self.heard_members()).any(leaves) => Point::WedgedByLeave,
            () => Point::WedgedByNews,
        });
    }

    /// For each state the members that hold it and are not `removed`, as a set of ranks. All of them have wedged, so what
    /// their rows say does not change any more.
    pub(super) fn holders(&self, removed: u64) -> Vec<u64> {
        let go_on = everybody(self.view.members.len()) & !removed;
        let holders = |state: usize| {
            let holds = |rank: &usize| self.holds(*rank, state);
            ranks(go_on).filter(holds).fold(0, |holders, rank| holders | 1 << rank)
        };
        (0..self.row.states).map(holders).collect()
    }

    /// The subgroups whose state this member holds and no other that stays does, as far as it knows.
    #[must_use]
    pub fn sole_states(&self) -> Vec<u32> {
        let own = self.table.rank();
        let stays = |rank: &usize| *rank != own && !self.wishes_to_leave(*rank);
        let is_sole = |state: &usize| {
            let is_elsewhere = ranks(self.heard_members()).filter(stays).any(|rank| self.holds(rank, *state));
            self.holds(own, *state) && !is_elsewhere
        };
        (0..self.row.states).filter(is_sole).filter_map(|state| u32::try_from(state).ok()).collect()
    }

    /// Whether `rank` wishes to leave, as far as this member knows.
    pub(super) fn wishes_to_leave(&self, rank: usize) -> bool {
        self.view.leaving >> rank & 1 == 1 || self.row.leaving.load(self.table.row(rank))
    }

    /// Whether those of `among` that do not wish to leave hold all that `rank` holds, or there are none of them and nobody
    /// joins \[A9\].
    fn can_spare(&self, rank: usize, among: u64, joins: &[Member]) -> bool {
        let stay: Vec<usize> = ranks(among).filter(|other| !self.wishes_to_leave(*other)).collect();
        let is_held = |word: usize| {
            let elsewhere = stay.iter().fold(0, |held, other| held | self.states_of(*other, word));
            self.states_of(rank, word) & !elsewhere == 0
        };
        (stay.is_empty() && joins.is_empty()) || (0..self.row.holds.count()).all(is_held)
    }

    fn holds(&self, rank: usize, state: usize) -> bool {
        self.states_of(rank, state / 64) >> (state % 64) & 1 == 1
    }

    /// A word of the states that `rank` holds.
    fn states_of(&self, rank: usize, word: usize) -> u64 {
        self.row.holds.column(word).load(self.table.row(rank))
    }
}
