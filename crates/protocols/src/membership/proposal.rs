//! A leader's proposal: the trim, and the members that leave and join (Derecho §3.4).

use std::ops::Range;

use squall_fabric::{NodeId, Region};

use super::Member;
use crate::mutation;

/// The largest number of joiners that one change admits; more wait for the next change.
pub const JOINS_MAX: usize = 16;

/// The number of words before the joiners: the members removed, one more than the number of joiners, and the members
/// leaving.
const HEAD: usize = 3;

/// How a view ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The ranks that are not in the next view, as a bit set.
    pub removed: u64,
    /// The ranks that wish to leave and are in the next view, because they hold a state that no other member has.
    pub leaving: u64,
    /// The members that are new in the next view.
    pub joins: Vec<Member>,
    /// For each subgroup that may have a state, the ranks that hold it and are in the next view \[A8\].
    pub holders: Vec<u64>,
    /// How many indexes of each sender of each subgroup are delivered in this view ([`super::SenderSegment::trims`]).
    pub trims: Vec<u64>,
}

impl Proposal {
    /// Returns the number of words of a proposal with `trims` trims about `states` states.
    pub(super) const fn words(trims: usize, states: usize) -> usize {
        HEAD + 2 * JOINS_MAX + states + trims
    }

    /// Returns whether the member with this rank is not in the next view.
    #[must_use]
    pub const fn removes(&self, rank: usize) -> bool {
        self.removed >> rank & 1 == 1
    }

    /// Writes the proposal to `row` from word `first` on; returns the words that were written.
    pub(super) fn store(&self, row: &Region, first: usize) -> Range<usize> {
        row.store(first, self.removed);
        row.store(first + 1, self.joins.len() as u64 + 1);
        row.store(first + 2, self.leaving);
        for (i, member) in self.joins.iter().enumerate() {
            row.store(first + HEAD + 2 * i, u64::from(member.node.0));
            row.store(first + HEAD + 2 * i + 1, member.tag);
        }
        let lists = first + HEAD + 2 * JOINS_MAX;
        for (i, word) in self.holders.iter().chain(&self.trims).enumerate() {
            row.store(lists + i, *word);
        }
        first..lists + self.holders.len() + self.trims.len()
    }

    /// Reads a proposal with `trims` trims about `states` states that [`Proposal::store`] has written; returns `None`
    /// if it has not arrived here.
    pub(super) fn load(row: &Region, first: usize, trims: usize, states: usize) -> Option<Self> {
        let missed = mutant!(TakeMissedProposal).then_some(0);
        let joins = row.load(first + 1).checked_sub(1).or(missed)?;
        let joins = usize::try_from(joins).map_or(JOINS_MAX, |joins| joins.min(JOINS_MAX));
        let join = |i: usize| {
            let node = NodeId(u32::try_from(row.load(first + HEAD + 2 * i)).unwrap_or(u32::MAX));
            Member { node, tag: row.load(first + HEAD + 2 * i + 1) }
        };
        let lists = first + HEAD + 2 * JOINS_MAX;
        let list = |words: Range<usize>| words.map(|i| row.load(lists + i)).collect();
        Some(Self {
            removed: row.load(first),
            leaving: row.load(first + 2),
            joins: (0..joins).map(join).collect(),
            holders: list(0..states),
            trims: list(states..states + trims),
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
        let row = Region::heap(RegionId(1), 100);
        let joins = vec![Member { node: NodeId(7), tag: 9 }, Member { node: NodeId(8), tag: 0 }];
        let (holders, trims) = (vec![0b11, 0], vec![3, u64::MAX, 0]);
        let proposal = Proposal { removed: 0b101, leaving: 0b10, joins, holders, trims };
        let load = || Proposal::load(&row, 5, 3, 2);
        assert_eq!(load(), None, "it has not arrived, which is not a proposal without changes [S2]");
        assert!(mutation::with(GroupMutation::TakeMissedProposal, || load().is_some()));
        assert_eq!(proposal.store(&row, 5).len(), Proposal::words(3, 2));
        assert_eq!(load(), Some(proposal));
    }
}
