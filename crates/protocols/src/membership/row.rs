//! The row of a member in its view's table (Derecho §3.4, Table 1).

use std::ops::Range;

use squall_fabric::layout::Columns;
use squall_fabric::{Column, Region, RowLayout};

use super::{Proposal, RankSet};
use crate::mutation;
use crate::sst::StateTable;

/// The layout of each member's row.
#[derive(Clone, Debug)]
pub struct MembershipRow {
    /// Rises while the member lives, and after everything else that it writes here: a reader that finds it unchanged
    /// has missed nothing.
    pub heartbeat: Column<u64>,
    /// The ranks that the member does not hear. This set and the next three are adjacent, since they are pushed together.
    pub accused: SetColumn,
    /// The ranks that any member accuses, as far as this member knows. Its own rank in the set is its answer.
    pub disputed: SetColumn,
    /// The disputed ranks whose answer the member has heard.
    pub vouched: SetColumn,
    /// The ranks that the member no longer follows: those that it accuses, and those that no longer lead. Its own
    /// rank is in the set once it has resigned.
    pub suspected: SetColumn,
    /// The member has stalled, and does not blame the members that accuse it \[V15\]. Posted before its answer.
    pub concedes: Column<bool>,
    /// The member wishes to leave, and the view is to end for that: the wish is new, or others hold every state that
    /// it holds.
    pub leaving: Column<bool>,
    /// The ranks whose consumers hold the member up for too long.
    pub slow: SetColumn,
    /// What makes the member slow ([`Membership::set_hindrance`](super::Membership::set_hindrance)).
    pub hindrance: Column<u64>,
    /// The view is on the member's disk, and so is everything of earlier views that counts in its durable subgroups \[T19\].
    pub whole: Column<bool>,
    /// The states that the member holds, by their subgroups' numbers, as bit sets; the value once it has wedged
    /// counts.
    pub holds: Columns<u64>,
    /// How many indexes of each sender it has, in the subgroups that it is in ([`SenderSegment::counts`]).
    pub counts: Columns<u64>,
    /// The member has wedged, and waits for a majority: it echoes nothing more \[H1\].
    pub waits: Column<bool>,
    /// Not empty: the member has wedged; announces `counts` to each of its ranks, which have not missed them: a reader that was accused
    /// before it attached may see only this set \[S2\].
    pub wedged: SetColumn,
    /// Places for the proposals that the member echoes, in the order in which it does. None is used twice: what is stored there may be
    /// on its way to a reader for long.
    proposals: Vec<usize>,
    /// One more than the rank of the leader whose proposal the member has echoed last; announces it.
    pub echoed: Column<u64>,
    /// One more than the rank of the leader whose proposal is decided, and which the member has echoed.
    pub decided: Column<u64>,
    /// The number of trims of a proposal.
    pub trims: usize,
    /// The number of states whose holders a proposal lists.
    pub states: usize,
    /// The number of members.
    members: usize,
    /// The number of words of the whole row.
    pub words: usize,
}

/// A set of ranks in a row, which only grows. A reader that sees a part of a change sees a set between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetColumn {
    first: usize,
    words: usize,
}

impl SetColumn {
    /// Returns its words in the row.
    #[must_use]
    pub const fn range(self) -> Range<usize> {
        self.first..self.first + self.words
    }

    /// Loads the set from `row`.
    #[must_use]
    pub fn load(self, row: &Region) -> RankSet {
        RankSet::from_words(self.range().map(|word| row.load(word)))
    }

    /// Returns whether the set in `row` is `set`, whose ranks are those of the view.
    #[must_use]
    pub fn is(self, row: &Region, set: &RankSet) -> bool {
        self.range().map(|word| row.load(word)).eq(set.words(64 * self.words))
    }

    /// Returns whether the set contains `rank`, with one load.
    #[must_use]
    pub fn contains(self, row: &Region, rank: usize) -> bool {
        rank / 64 < self.words && row.load(self.first + rank / 64) >> (rank % 64) & 1 == 1
    }

    /// Returns whether no rank is in the set.
    #[must_use]
    pub fn is_empty(self, row: &Region) -> bool {
        self.range().all(|word| row.load(word) == 0)
    }

    /// Stores the set into the member's own row, for [`StateTable::publish`].
    pub(super) fn note(self, table: &mut StateTable, set: &RankSet) {
        for (i, word) in set.words(64 * self.words).enumerate() {
            table.note(Column::<u64>::at(self.first + i), word);
        }
    }

    /// Stores the set, which readers get with the next flush.
    pub(super) fn raise(self, table: &mut StateTable, set: &RankSet) {
        self.note(table, set);
        table.publish(self.range());
    }
}

impl MembershipRow {
    /// Returns the row's layout in a view of `members` members with these segments, and with `states` subgroups that
    /// may have a state; it is the same at all members.
    #[must_use]
    pub fn new(members: usize, segments: &[SenderSegment], states: usize) -> Self {
        let counts = segments.iter().map(|segment| segment.counts + segment.senders).max().unwrap_or(0);
        let trims = segments.iter().map(|segment| segment.senders).sum();
        let mut layout = RowLayout::new();
        let heartbeat = layout.column();
        let each = RankSet::words_for(members);
        let opinions = layout.block(4 * each);
        let set = |first| SetColumn { first, words: each };
        let [accused, disputed, vouched, suspected] = [0, 1, 2, 3].map(|i| set(opinions + i * each));
        let (leaving, slow) = (layout.column(), set(layout.block(each)));
        let (holds, counts) = (layout.list(states.div_ceil(64)), layout.list(counts));
        let wedged = set(layout.block(each));
        let (echoed, decided, concedes) = (layout.column(), layout.column(), layout.column());
        let (waits, hindrance, whole) = (layout.column(), layout.column(), layout.column());
        let places = if members > ALL_LEADERS { SOME_LEADERS } else { members };
        let proposals = (0..places).map(|_| layout.block(Proposal::words(members, trims, states))).collect();
        let words = layout.words();
        Self {
            heartbeat,
            accused,
            disputed,
            vouched,
            suspected,
            concedes,
            leaving,
            slow,
            hindrance,
            whole,
            waits,
            holds,
            counts,
            wedged,
            proposals,
            echoed,
            decided,
            trims,
            states,
            members,
            words,
        }
    }

    /// Returns the words of a member's opinions of the others.
    #[must_use]
    pub fn opinions(&self) -> Range<usize> {
        self.accused.first..self.suspected.range().end
    }

    /// Returns the first word of the place for the proposal that the member echoes after `echoes` others.
    ///
    /// # Panics
    /// If there is no place for it ([`MembershipRow::has_place`]).
    pub(super) fn proposal(&self, echoes: usize) -> usize {
        self.proposals[echoes]
    }

    /// Returns whether there is a place for another proposal after `echoes`: always in a view of up to 64 members.
    pub(super) fn has_place(&self, echoes: usize) -> bool {
        echoes < self.proposals.len()
    }

    /// Loads the proposal of `leader` from `row`, if it has arrived here.
    pub(super) fn load_proposal(&self, row: &Region, leader: usize) -> Option<Proposal> {
        let tag = |first: &&usize| Proposal::leader(row, **first, self.members);
        let wanted = leader as u64 + 1;
        let mut place = self.proposals.iter().find(|first| tag(first) == wanted);
        mutant!(TakeMissedProposal => place = place.or_else(|| self.proposals.iter().find(|first| tag(first) == 0)));
        Proposal::load(row, *place?, self.members, self.trims, self.states)
    }
}

/// A view with up to this many members has a place for the proposal of each leader.
const ALL_LEADERS: usize = 64;

/// A larger one has places for this many: its rows would be large, and that many leaders do not die one after the other while one view
/// ends. If they do, members echo nothing more, and the view does not end.
const SOME_LEADERS: usize = 8;

/// The senders of one subgroup or shard, in the rows and in the proposals. Shards without common members share
/// columns, since each member is in only one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderSegment {
    /// The first of its columns in [`MembershipRow::counts`].
    pub counts: usize,
    /// The first of its indices in [`Proposal::trims`].
    pub trims: usize,
    /// The number of its senders.
    pub senders: usize,
    /// The ranks of its members.
    pub ranks: Vec<usize>,
    /// The subgroup's number, if it is durable: then the view cannot end without a member that has its log \[T5\].
    pub durable: Option<u32>,
    /// At least this many of its members have what any of them has delivered: all, or in a shard also a majority \[G10\].
    /// `0 <= quorum <= ranks.len()`, if there are members.
    pub quorum: usize,
}

impl SenderSegment {
    /// Returns whether a member may lack what others have delivered, so that it gets it from them when the view ends \[G11\].
    pub(super) const fn may_lack(&self) -> bool {
        self.quorum < self.ranks.len()
    }

    /// Returns whether a live end with these echoes keeps what it counts, whatever member dies then \[H13\]: two members that stay in the
    /// shard have echoed, and so have it, or its only one. Where all members that stay have it, no echo has to say so.
    pub(super) fn has_copies(&self, echoes: RankSet, removed: RankSet) -> bool {
        let kept = self.ranks.iter().copied().collect::<RankSet>() - removed;
        mutant!(EndWithoutCopies => return true);
        !self.may_lack() || (echoes & kept).len() >= kept.len().min(2)
    }

    /// Returns how many of its members are among `lost`, if these may be all that have what was delivered: then the view cannot end
    /// \[G10\].
    pub(super) fn lost_quorum(&self, lost: RankSet) -> Option<usize> {
        let count = self.ranks.iter().filter(|rank| lost.contains(**rank)).count();
        (self.may_lack() && count >= self.quorum).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::GroupMutation;

    /// Of a shard of three two count. The leader alone has what it proposes; two that are removed, and so need not have it, echo it, and those
    /// that stay have accused the leader: it dies, and what was decided is nowhere.
    #[test]
    fn an_end_needs_copies_of_what_a_shard_counts() {
        let segment = |quorum| SenderSegment {
            counts: 0,
            trims: 0,
            senders: 1,
            ranks: vec![0, 1, 2],
            durable: None,
            quorum,
        };
        let set = |ranks: &[usize]| ranks.iter().copied().collect::<RankSet>();
        let removed = set(&[3, 4]);
        let alone = || segment(2).has_copies(set(&[0, 3, 4]), removed);
        assert!(!alone());
        assert!(mutation::with(GroupMutation::EndWithoutCopies, alone));
        assert!(segment(2).has_copies(set(&[0, 2, 3]), removed));
        assert!(segment(2).has_copies(set(&[0, 3, 4]), set(&[1, 2])), "its only one");
        assert!(segment(2).has_copies(set(&[3, 4]), set(&[0, 1, 2])), "no member of it stays");
        assert!(segment(3).has_copies(set(&[3, 4, 5]), removed), "all that stay have what counts");
    }
}
