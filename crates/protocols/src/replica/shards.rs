//! The members of shards, and the shard of each key (Derecho §2.3, app. A).
//!
//! Each pair of shard and member has a weight, a fixed function of their numbers; the members with the greatest
//! weights replicate a shard (rendezvous hashing). This is a function of the view alone [D6], and churn is minimal:
//! when a member leaves, only its shards change, each by the one member that takes its place; when one joins, only
//! the shards that it takes over change, each by the one member that it replaces. The price is balance: a member has
//! `shards · replicas / members` of them only on average; with many shards for each member the load evens out.

use std::cmp::Reverse;

use squall_fabric::NodeId;

use super::mutation;
use crate::membership::View;

/// Returns the members of a shard among `nodes`, in their order there: `replicas` of them, or all if there are fewer.
#[must_use]
pub fn members_of_shard(shard: u32, replicas: usize, nodes: &[NodeId]) -> Vec<NodeId> {
    let mut by_weight: Vec<(u64, NodeId)> = nodes.iter().map(|node| (weight(shard, *node), *node)).collect();
    by_weight.sort_unstable_by(|a, b| b.cmp(a));
    let chosen = &by_weight[..replicas.min(nodes.len())];
    nodes.iter().copied().filter(|node| chosen.iter().any(|(_, other)| other == node)).collect()
}

/// Returns the members of the shard with subgroup `id` in `view`: those that `choose` takes of some candidates, and,
/// if not all of these hold the shard's state, other holders, so that the state stays where it is until it is
/// elsewhere \[A8\]. Members that wish to leave are not candidates if there are others, once there is a state that
/// may have to move.
///
/// As `choose` and `candidates` are functions of the view, this is one.
pub fn place(
    view: &View,
    id: u32,
    candidates: &[NodeId],
    choose: impl FnOnce(&[NodeId]) -> Vec<NodeId>,
) -> Vec<NodeId> {
    let holders = view.holders(id);
    if holders.is_empty() || mutant!(DropLastHolder) {
        return choose(candidates);
    }
    let stay: Vec<NodeId> = candidates.iter().copied().filter(|node| !view.is_leaving(*node)).collect();
    let chosen = choose(if stay.is_empty() { candidates } else { &stay });
    let holding = chosen.iter().filter(|node| holders.contains(node)).count();
    // Holders that stay come first; a shard for which no member is chosen keeps one.
    let mut others: Vec<NodeId> = holders.into_iter().filter(|node| !chosen.contains(node)).collect();
    others.sort_by_key(|node| (view.is_leaving(*node), Reverse(weight(id, *node))));
    others.truncate(chosen.len().max(1).saturating_sub(holding));
    view.nodes().into_iter().filter(|node| chosen.contains(node) || others.contains(node)).collect()
}

fn weight(shard: u32, node: NodeId) -> u64 {
    mix(u64::from(shard) << 32 | u64::from(node.0))
}

/// Returns the shard of a key. The function must never change, since that would move all keys.
///
/// # Panics
/// If there are no shards.
#[must_use]
pub fn shard_of_key(key: &[u8], shards: u32) -> u32 {
    assert!(shards > 0, "a key belongs to one of no shards");
    // FNV-1a spreads over the low bits; `mix` spreads them to the high ones.
    let hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    let scaled = u128::from(mix(hash)) * u128::from(shards);
    u32::try_from(scaled >> 64).expect("below the number of shards")
}

/// Computes the finalizer of `SplitMix64`: each bit of the input changes half of the output's bits on average.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{Member, RankSet};

    fn layout(nodes: &[NodeId], shards: u32, replicas: usize) -> Vec<Vec<NodeId>> {
        (0..shards).map(|shard| members_of_shard(shard, replicas, nodes)).collect()
    }

    /// Returns the number of members of `a` that are not in `b`.
    fn gone(a: &[NodeId], b: &[NodeId]) -> usize {
        a.iter().filter(|node| !b.contains(node)).count()
    }

    /// The bound of the module's doc, exactly, for each single departure and arrival in groups of 1 to 20.
    #[test]
    fn churn_is_the_least_possible() {
        let (shards, replicas) = (32, 3);
        for count in 1..=20 {
            let few: Vec<_> = (0..count).map(NodeId).collect();
            let many: Vec<_> = (0..=count).map(NodeId).collect();
            // Any member may be the one that joins or leaves.
            for odd in &many {
                let others: Vec<_> = many.iter().copied().filter(|node| node != odd).collect();
                for (with, without) in
                    layout(&many, shards, replicas).iter().zip(layout(&others, shards, replicas))
                {
                    assert_eq!(gone(with, &without), usize::from(with.contains(odd)));
                    let replaced = with.contains(odd) && others.len() >= replicas;
                    assert_eq!(gone(&without, with), usize::from(replaced));
                }
            }
            assert!(
                layout(&few, shards, replicas)
                    .iter()
                    .all(|members| { members.len() == replicas.min(few.len()) && members.is_sorted() })
            );
        }
    }

    /// A shard keeps as many holders as it has first choices, and no shard moves to a member that leaves \[A8\].
    #[test]
    fn holders_stay_until_others_hold() {
        let member = |node: u32| Member { node: NodeId(node), tag: 0 };
        let first = View::first((0..5).map(member).collect());
        let shard = |holders: u64, leaving: u64, count: usize| {
            let view = View {
                id: 7,
                leaving: RankSet::from_bits(leaving),
                holders: vec![RankSet::from_bits(holders)],
                ..first.clone()
            };
            let nodes = place(&view, 0, &view.nodes(), |nodes| nodes[..count].to_vec());
            nodes.into_iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(shard(0b00000, 0, 2), [0, 1], "nothing to keep");
        assert_eq!(shard(0b00011, 0, 2), [0, 1]);
        assert_eq!(shard(0b01010, 0, 2), [0, 1, 3]);
        assert_eq!(shard(0b11000, 0, 2), [0, 1, 3, 4]);
        assert_eq!(shard(0b11100, 0, 2).len(), 4, "no more than are needed");
        assert_eq!(shard(0b00001, 0b00001, 2), [0, 1, 2], "a member that leaves is not chosen");
        assert_eq!(shard(0b10001, 0b00001, 1), [1, 4], "holders that stay are kept first");
        assert_eq!(shard(0b00001, 0b11111, 1), [0], "all leave");
        assert_eq!(shard(0b00100, 0, 0), [2], "a state is somewhere");
    }

    /// With many shards for each member, no member has more than half above the average.
    #[test]
    fn load_evens_out() {
        let nodes: Vec<_> = (0..8).map(NodeId).collect();
        let layout = layout(&nodes, 128, 3);
        let load = |node| layout.iter().filter(|members| members.contains(node)).count();
        let average = 128 * 3 / 8;
        assert!(nodes.iter().all(|node| (average / 2..=average * 3 / 2).contains(&load(node))));
    }

    /// Keys spread evenly, and their shards are fixed: they are part of the format of stored data.
    #[test]
    fn keys_spread_over_shards() {
        let mut counts = [0; 5];
        for key in 0..10_000u32 {
            counts[shard_of_key(&key.to_le_bytes(), 5) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (1800..2200).contains(count)), "{counts:?}");
        let places: Vec<_> = ["", "a", "apple", "banana"].map(|key| shard_of_key(key.as_bytes(), 16)).into();
        assert_eq!(places, PLACES);
        assert_eq!(shard_of_key(b"any", 1), 0);
    }

    const PLACES: [u32; 4] = [12, 5, 9, 3];
}
