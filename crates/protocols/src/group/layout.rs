//! Layouts: which members form which subgroup, as a function of the view (Derecho §2.3, app. A).

use std::fmt;

use squall_fabric::NodeId;

use crate::genuine::mutation::{self, GenuineMutation};
use crate::genuine::{QuorumRule, ShardPlacement};
use crate::membership::{RankSet, SenderSegment, View};
use crate::multicast::{self, DeliveryMode};

/// Identifies a subgroup, or one shard of it, for the life of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubgroupId(pub u32);

impl fmt::Display for SubgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subgroup {}", self.0)
    }
}

/// A subgroup in one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The subgroup's id.
    pub id: SubgroupId,
    /// Its members, by rank in the subgroup; members of the view, each once.
    pub members: Vec<NodeId>,
    /// Its settings; senders are ranks in the subgroup.
    pub settings: multicast::SubgroupSettings,
}

/// A subgroup for which a view has not enough members. The group continues without it until there are more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// The subgroup's id.
    pub id: SubgroupId,
    /// What it waits for, as text.
    pub reason: String,
}

/// Places the subgroups in a view. All members must get the same result, so the layout depends on the view alone, in
/// all cases, including those in which there are too few members \[D6\].
pub trait SubgroupLayout {
    /// Returns the subgroups of `view`, in ascending order of their ids, and those for which it has not enough
    /// members.
    fn place(&self, view: &View) -> (Vec<Placement>, Vec<Unplaced>);

    /// Returns the shards of `view`, always the same number; a member never changes its shard. It is also called for views that do
    /// not come.
    fn shards(&self, _view: &View) -> ShardPlacement {
        ShardPlacement::default()
    }
}

impl<T: Fn(&View) -> (Vec<Placement>, Vec<Unplaced>)> SubgroupLayout for T {
    fn place(&self, view: &View) -> (Vec<Placement>, Vec<Unplaced>) {
        self(view)
    }
}

/// Returns the members that hold the state of each of `subgroups` subgroups in the view with which a group begins again after all its
/// processes have ended: all members of each, since those of a durable one make the state from their logs \[A13\], and those of the others begin with
/// the initial one \[A18\].
#[must_use]
pub fn first_holders(view: &View, layout: &dyn SubgroupLayout, subgroups: usize) -> Vec<RankSet> {
    let mut holders = vec![RankSet::EMPTY; subgroups];
    for Placement { id, members, .. } in layout.place(view).0 {
        holders[id.0 as usize] = members.iter().filter_map(|node| view.rank(*node)).collect();
    }
    holders
}

/// Returns where the words of each subgroup, and after these of each shard, are in the rows and in proposals. Subgroups without
/// common members share columns. A shard has one count, which `quorum` of its members have of all that was delivered \[G10\].
pub(super) fn segments(
    view: &View,
    placements: &[Placement],
    shards: &ShardPlacement,
    quorum: QuorumRule,
) -> Vec<SenderSegment> {
    let mut taken = vec![0; view.members.len()];
    let mut trims = 0;
    let mut segment = |ranks: Vec<usize>, senders: usize, durable: Option<u32>, quorum: usize| {
        let counts = ranks.iter().map(|rank| taken[*rank]).max().unwrap_or(0);
        ranks.iter().for_each(|rank| taken[*rank] = counts + senders);
        trims += senders;
        SenderSegment { counts, trims: trims - senders, senders, ranks, durable, quorum }
    };
    let rank = |node: &NodeId| view.rank(*node).expect("a subgroup's members are in the view");
    let of_subgroup = |placement: &Placement| {
        let durable = (placement.settings.mode == DeliveryMode::Durable).then_some(placement.id.0);
        let ranks: Vec<usize> = placement.members.iter().map(rank).collect();
        let quorum = ranks.len();
        (ranks, placement.settings.senders.len(), durable, quorum)
    };
    let of_shard = |shard: usize| {
        let ranks = shards.members(shard).to_vec();
        let least = match quorum.least(ranks.len()) {
            _ if mutation::is_on(GenuineMutation::TrimOfAll) => ranks.len(),
            least => least,
        };
        (ranks, 1, None, least)
    };
    let all = placements.iter().map(of_subgroup).chain((0..shards.count()).map(of_shard));
    all.map(|(ranks, senders, durable, quorum)| segment(ranks, senders, durable, quorum)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::Member;

    #[test]
    fn shards_share_columns_and_overlapping_subgroups_do_not() {
        let node = |n: u32| NodeId(n);
        let view = View::first((0..4).map(|n| Member { node: node(n), tag: 0 }).collect());
        let placement = |id: u32, members: &[u32]| Placement {
            id: SubgroupId(id),
            members: members.iter().map(|n| node(*n)).collect(),
            settings: multicast::SubgroupSettings::new(members.len(), 8),
        };
        let placements = [placement(0, &[0, 1]), placement(1, &[2, 3]), placement(2, &[1, 2, 3])];
        let shards = ShardPlacement::new(vec![vec![0], vec![], vec![2, 3]]);
        let segments = segments(&view, &placements, &shards, QuorumRule::Majority);
        let places: Vec<_> = segments.iter().map(|segment| (segment.counts, segment.trims)).collect();
        assert_eq!(places, [(0, 0), (0, 2), (2, 4), (2, 7), (0, 8), (5, 9)]);
        let quorums: Vec<usize> = segments.iter().map(|segment| segment.quorum).collect();
        assert_eq!(quorums, [2, 2, 3, 1, 1, 2], "[G10] all of a subgroup, more than half of a shard");
    }
}
