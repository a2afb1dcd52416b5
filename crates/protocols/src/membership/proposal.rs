//! A leader's proposal: the trim, and the members that leave and join (Derecho §3.4).

use std::ops::Range;

use squall_fabric::{NodeId, Region};

use super::{Member, RankSet};
use crate::mutation;

/// The largest number of joiners that one change admits; more wait for the next change.
pub const JOINS_MAX: usize = 16;

/// The number of words before the joiners: the members removed; one more than the number of joiners, and in the upper half one more than
/// the rank of the leader; and the members leaving.
const fn head_words(members: usize) -> usize {
    2 * RankSet::words_for(members) + 1
}

/// Where the upper half of that word begins.
const LEADER: u32 = 32;

/// How a view ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The ranks that are not in the next view.
    pub removed: RankSet,
    /// The ranks that wish to leave and are in the next view, because they hold a state that no other member has.
    pub leaving: RankSet,
    /// The members that are new in the next view.
    pub joins: Vec<Member>,
    /// For each subgroup that may have a state, the ranks that hold it and are in the next view \[A8\].
    pub holders: Vec<RankSet>,
    /// How many indexes of each sender of each subgroup are delivered in this view ([`super::SenderSegment::trims`]).
    pub trims: Vec<u64>,
}

impl Proposal {
    /// Returns the number of words of a proposal with `trims` trims about `states` states, in a view of `members` members.
    pub(super) const fn words(members: usize, trims: usize, states: usize) -> usize {
        head_words(members) + 2 * JOINS_MAX + states * RankSet::words_for(members) + trims
    }

    /// Returns whether the member with this rank is not in the next view.
    #[must_use]
    pub const fn removes(&self, rank: usize) -> bool {
        self.removed.contains(rank)
    }

    /// Writes the proposal of `leader` in a view of `members` members to `row` from word `first` on; returns the words that were
    /// written.
    pub(super) fn store(&self, row: &Region, first: usize, leader: usize, members: usize) -> Range<usize> {
        let tag = (leader as u64 + 1) << LEADER | (self.joins.len() as u64 + 1);
        let head = self.removed.words(members).chain([tag]).chain(self.leaving.words(members));
        let joins = self.joins.iter().flat_map(|member| [u64::from(member.node.0), member.tag]);
        let holders = self.holders.iter().flat_map(|holders| holders.words(members));
        for (i, word) in head.chain(joins).enumerate() {
            row.store(first + i, word);
        }
        let lists = first + head_words(members) + 2 * JOINS_MAX;
        let mut end = lists;
        for word in holders.chain(self.trims.iter().copied()) {
            row.store(end, word);
            end += 1;
        }
        first..end
    }

    /// Returns one more than the rank of the leader whose proposal is stored from word `first` on, or 0 if none has arrived here.
    pub(super) fn leader(row: &Region, first: usize, members: usize) -> u64 {
        row.load(first + RankSet::words_for(members)) >> LEADER
    }

    /// Reads a proposal with `trims` trims about `states` states that [`Proposal::store`] has written; returns `None`
    /// if it has not arrived here.
    pub(super) fn load(
        row: &Region,
        first: usize,
        members: usize,
        trims: usize,
        states: usize,
    ) -> Option<Self> {
        let set = |word: usize| {
            RankSet::from_words((word..word + RankSet::words_for(members)).map(|i| row.load(i)))
        };
        let each = RankSet::words_for(members);
        let missed = mutant!(TakeMissedProposal).then_some(0);
        let joins = (row.load(first + each) & ((1 << LEADER) - 1)).checked_sub(1).or(missed)?;
        let joins = usize::try_from(joins).map_or(JOINS_MAX, |joins| joins.min(JOINS_MAX));
        let head = first + head_words(members);
        let join = |i: usize| {
            let node = NodeId(u32::try_from(row.load(head + 2 * i)).unwrap_or(u32::MAX));
            Member { node, tag: row.load(head + 2 * i + 1) }
        };
        let lists = head + 2 * JOINS_MAX;
        Some(Self {
            removed: set(first),
            leaving: set(first + each + 1),
            joins: (0..joins).map(join).collect(),
            holders: (0..states).map(|state| set(lists + state * each)).collect(),
            trims: (lists + states * each..lists + states * each + trims).map(|i| row.load(i)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::GroupMutation;
    use squall_fabric::RegionId;

    #[test]
    fn a_proposal_is_loaded_as_it_was_stored() {
        for members in [4, 64, 65, 1000] {
            let words = Proposal::words(members, 3, 2);
            let row = Region::heap(RegionId(1), 5 + words);
            let joins = vec![Member { node: NodeId(7), tag: 9 }, Member { node: NodeId(8), tag: 0 }];
            let set = |ranks: &[usize]| ranks.iter().copied().collect::<RankSet>();
            let (holders, trims) = (vec![set(&[0, members - 1]), RankSet::EMPTY], vec![3, u64::MAX, 0]);
            let (removed, leaving) = (set(&[0, members - 2]), set(&[1, members - 1]));
            let proposal = Proposal { removed, leaving, joins, holders, trims };
            let load = || Proposal::load(&row, 5, members, 3, 2);
            assert_eq!(load(), None, "it has not arrived, which is not a proposal without changes [S2]");
            assert!(mutation::with(GroupMutation::TakeMissedProposal, || load().is_some()));
            assert_eq!(proposal.store(&row, 5, 2, members).len(), words);
            assert_eq!((load(), Proposal::leader(&row, 5, members)), (Some(proposal), 3));
        }
    }
}
