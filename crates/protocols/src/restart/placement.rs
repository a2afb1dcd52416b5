//! Which members have which durable shard in the next view (Derecho app. A): a shard stays with logs that have it.

use std::fmt;

use squall_fabric::NodeId;

use super::mutation;
use super::view_end::{DurableView, copies_needed, count, ranks_of};
use crate::coverage::{Point, reach};

/// The layout of the group: for the members of a view, by rank, the members of each durable shard, as sets of ranks.
pub struct DurablePlacement(Box<PlacementFunction>);

type PlacementFunction = dyn Fn(&[NodeId]) -> Vec<u64> + Send;

impl DurablePlacement {
    /// A layout. It is a function of the members alone.
    #[must_use]
    pub fn new(layout: impl Fn(&[NodeId]) -> Vec<u64> + Send + 'static) -> Self {
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
    stay: u64,
    whole: &[Vec<bool>],
    next: DurableView,
) -> DurableView {
    let mut next = next;
    mutant!(MoveAway => return next);
    for (shard, members) in view.shards.iter().enumerate() {
        let kept = members & stay & view.kept(&next);
        let has_base = |rank: &usize| whole[*rank][shard];
        let (with, without): (Vec<usize>, Vec<usize>) = ranks_of(kept).partition(has_base);
        let needed = copies_needed(count(kept)) as usize;
        let place = |rank: &usize| next.rank(view.members[*rank]).expect("it is kept");
        let holders: u64 = with.iter().chain(&without).map(place).map(|rank| 1 << rank).take(needed).sum();
        // Members that the layout wants count, too, if they have the same.
        let wanted: Vec<usize> =
            with.iter().filter(|rank| next.shards[shard] >> place(rank) & 1 == 1).copied().collect();
        if wanted.len() < needed && next.shards[shard] & holders != holders {
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
        present.shards = vec![0b0111];
        let next = |shards| DurableView { shards: vec![shards], ..view(1, &[1, 2, 3, 9]) };
        let kept =
            |whole, shards| keep_holders(&present, 0b1110, &vec![vec![whole]; 4], next(shards)).shards[0];
        assert_eq!(kept(true, 0b1100), 0b1111, "members 1 and 2 stay in it");
        assert_eq!(with(RestartMutation::MoveAway, || kept(true, 0b1100)), 0b1100);
        assert_eq!(kept(true, 0b0011), 0b0011);
        assert_eq!(kept(false, 0b1000), 0b1011, "a part is better than nothing");
    }
}
