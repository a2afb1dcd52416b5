//! Tests of the rules by which a view ends, each alone (Derecho §3.4). The scenario `ends` of the simulator has their union.

mod after;
mod turns;
mod values;
mod votes;

use squall_fabric::NodeId;

use super::{
    Ballot, EndAnswer, EndContext, EndProposal, EndValue, EndVote, EndingShard, EndingView, ShardKind,
    ShardQuorum,
};
use crate::members::{Member, RankSet};

const MEMORY: ShardKind = ShardKind { is_durable: false, quorum: ShardQuorum::All, is_timed: true };
const BY_SENDER: ShardKind = ShardKind { is_timed: false, ..MEMORY };
const MAJORITY: ShardKind = ShardKind { quorum: ShardQuorum::Majority, ..MEMORY };
const DURABLE: ShardKind = ShardKind { is_durable: true, ..MEMORY };
const DURABLE_MAJORITY: ShardKind = ShardKind { is_durable: true, ..MAJORITY };

fn member(node: u32) -> Member {
    Member { node: NodeId(node), tag: u64::from(node) }
}

fn set(bits: u64) -> RankSet {
    RankSet::from_bits(bits)
}

/// A view with nodes 0, 1, … and shards of these kinds with these members.
fn view(members: u32, shards: &[(ShardKind, u64)]) -> EndingView {
    let shard = |(kind, bits): &(ShardKind, u64)| EndingShard {
        kind: *kind,
        members: set(*bits),
        whole: set(*bits),
        columns: if kind.is_timed { 1 } else { members as usize },
    };
    EndingView {
        number: 4,
        members: (0..members).map(member).collect(),
        shards: shards.iter().map(shard).collect(),
        floor: 0,
    }
}

/// An answer with one count of each shard, whose states it holds.
fn answer(counts: &[u64]) -> EndAnswer {
    EndAnswer {
        counts: counts.iter().map(|count| vec![*count]).collect(),
        whole: vec![true; counts.len()],
        hears: RankSet::all(64),
        ..EndAnswer::default()
    }
}

/// A value that keeps the members `stay`, each shard at its members among these.
fn value(view: &EndingView, stay: u64, trims: &[u64]) -> EndValue {
    let placed = |shard: &EndingShard| {
        let ranks = set(stay).iter().enumerate().filter(|(_, rank)| shard.members.contains(*rank));
        ranks.map(|(next, _)| next).collect::<RankSet>()
    };
    let placement: Vec<RankSet> = view.shards.iter().map(placed).collect();
    EndValue {
        trims: trims.iter().map(|trim| vec![*trim]).collect(),
        stay: set(stay),
        whole: placement.clone(),
        placement,
        given_up: vec![false; view.shards.len()],
        ..EndValue::default()
    }
}

fn proposal(value: &EndValue, need: &[usize]) -> EndProposal {
    EndProposal { value: std::sync::Arc::new(value.clone()), need: need.to_vec(), carry: need.to_vec() }
}

fn vote(ballot: Ballot, proposal: &EndProposal) -> EndVote {
    EndVote { ballot, proposal: proposal.clone(), is_restarted: false }
}

const fn ballot(round: u64, place: u32) -> Ballot {
    Ballot { round, place }
}

/// A context in which each shard stays where it is, if `view` has its members.
fn context<'a>(
    view: &'a EndingView,
    own: usize,
    dead: u64,
    placement: &'a dyn Fn(&[Member]) -> Vec<RankSet>,
) -> EndContext<'a> {
    EndContext { view, own, dead: set(dead), placement, gives_up_silent: false }
}
