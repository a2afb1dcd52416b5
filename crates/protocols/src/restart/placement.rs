//! Which members have which durable shard in the next view (Derecho app. A): a shard stays with logs that have it.

use std::fmt;

use squall_fabric::NodeId;

use super::mutation;
use super::view_end::{DurableView, copies_needed};
use crate::coverage::{Point, reach};
use crate::membership::RankSet;

/// The layout of the group: for the members of a view, by rank, the members of each durable shard.
pub struct DurablePlacement(Box<PlacementFunction>);

type PlacementFunction = dyn Fn(&[NodeId]) -> Vec<RankSet> + Send;

impl DurablePlacement {
    /// A layout. It is a function of the members alone.
    #[must_use]
    pub fn new(layout: impl Fn(&[NodeId]) -> Vec<RankSet> + Send + 'static) -> Self {
        Self(Box::new(layout))
    }

    /// The view with this number of these members.
    #[must_use]
    pub fn view(&self, number: u64, members: Vec<NodeId>) -> DurableView {
        let shards = (self.0)(&members);
        DurableView { number, members, shards }
    }
}

impl fmt::Debug for DurablePlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DurablePlacement")
    }
}

/// The next view, in which each shard keeps as many of its logs as it needs, however the layout moves it \[T20\]: of its members that
/// are in the next view those with the whole shard first, then those with a part.
///
/// `stay` are the ranks that stay; `whole` are by rank the shards for which a member has the base.
pub(super) fn keep_holders(
    view: &DurableView,
    stay: RankSet,
    whole: &[Vec<bool>],
    next: DurableView,
) -> DurableView {
    let mut next = next;
    mutant!(MoveAway => return next);
    for (shard, members) in view.shards.iter().enumerate() {
        let kept = *members & stay & view.kept(&next);
        let has_base = |rank: &usize| whole[*rank][shard];
        let (with, without): (Vec<usize>, Vec<usize>) = kept.iter().partition(has_base);
        let needed = copies_needed(kept.len());
        let place = |rank: &usize| next.rank(view.members[*rank]).expect("it is kept");
        let holders: RankSet = with.iter().chain(&without).map(place).take(needed).collect();
        // Members that the layout wants count, too, if they have the same.
        let wanted: Vec<usize> =
            with.iter().filter(|rank| next.shards[shard].contains(place(rank))).copied().collect();
        if wanted.len() < needed && !holders.is_subset(&next.shards[shard]) {
            reach(Point::HolderKept);
            next.shards[shard] |= holders;
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::super::mutation::{RestartMutation, with};
    use super::super::register::tests::view;
    use super::*;

    #[test]
    fn a_shard_that_moves_keeps_two_logs() {
        let mut present = view(0, &[0, 1, 2, 3]);
        present.shards = vec![RankSet::from_bits(0b0111)];
        let next =
            |shard: u64| DurableView { shards: vec![RankSet::from_bits(shard)], ..view(1, &[1, 2, 3, 9]) };
        let stay = RankSet::from_bits(0b1110);
        let kept = |whole, shard| {
            keep_holders(&present, stay, &vec![vec![whole]; 4], next(shard)).shards[0].words(4).sum::<u64>()
        };
        assert_eq!(kept(true, 0b1100), 0b1111, "members 1 and 2 stay in it");
        assert_eq!(with(RestartMutation::MoveAway, || kept(true, 0b1100)), 0b1100);
        assert_eq!(kept(true, 0b0011), 0b0011);
        assert_eq!(kept(false, 0b1000), 0b1011, "a part is better than nothing");
    }
}
