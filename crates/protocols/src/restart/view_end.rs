//! The end of a view: what a live view change and a restart decide alike (Derecho §3.4, "Total failures").

use squall_fabric::NodeId;

use crate::ends::Ballot;
use crate::membership::RankSet;

/// A view as the register keeps it: its members, and which of them had which durable shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurableView {
    /// Views are numbered from 0, without gaps.
    pub number: u64,
    /// By rank; at most [`MEMBERS_MAX`](crate::membership::MEMBERS_MAX). Empty in a process that knows no view yet.
    pub members: Vec<NodeId>,
    /// For each durable shard its members.
    pub shards: Vec<RankSet>,
}

impl DurableView {
    /// The rank of `node`, if it is a member.
    #[must_use]
    pub fn rank(&self, node: NodeId) -> Option<usize> {
        self.members.iter().position(|member| *member == node)
    }

    /// All ranks, as a set.
    #[must_use]
    pub fn ranks(&self) -> RankSet {
        RankSet::all(self.members.len())
    }

    /// The fewest members that are a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// Whether `node` is a member of the shard.
    #[must_use]
    pub fn has_shard(&self, node: NodeId, shard: usize) -> bool {
        self.rank(node).is_some_and(|rank| self.shards[shard].contains(rank))
    }

    /// The shards of which `node` is a member.
    pub fn shards_of(&self, node: NodeId) -> impl Iterator<Item = usize> + '_ {
        (0..self.shards.len()).filter(move |shard| self.has_shard(node, *shard))
    }

    /// The ranks, in this view, of those that are members of `other`, too.
    #[must_use]
    pub fn kept(&self, other: &Self) -> RankSet {
        (0..self.members.len()).filter(|rank| other.rank(self.members[*rank]).is_some()).collect()
    }

    /// A number by which this view differs from another one of the same number, which only an older copy of a folder can have led to \[T21\].
    #[must_use]
    pub fn mark(&self) -> u64 {
        let members = self.members.iter().map(|node| u64::from(node.0));
        let shards =
            self.shards.iter().flat_map(|shard| shard.iter().map(|rank| rank as u64).chain([u64::MAX]));
        // FNV-1a by words.
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x100_0000_01b3);
        [self.number]
            .into_iter()
            .chain(members)
            .chain([u64::MAX])
            .chain(shards)
            .fold(0xcbf2_9ce4_8422_2325, mix)
    }

    /// Whether this view is later than `other`, or `other` is none.
    #[must_use]
    pub fn is_after(&self, other: &Self) -> bool {
        let knows = |view: &Self| (!view.members.is_empty(), view.number);
        knows(self) > knows(other)
    }
}

/// How a view ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewEnd {
    /// How many sequences of each durable shard count.
    pub trims: Vec<u64>,
    /// The view after it.
    pub next: DurableView,
    /// Where it was proposed first.
    pub origin: EndOrigin,
}

/// Where the proposal of an end was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOrigin {
    /// In the view while it ran.
    Live,
    /// In a restart.
    Restart,
}

/// A vote for how the present view ends: an echo of a live proposal, or the acceptance of a restart's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vote {
    /// Of the leader that has proposed it.
    pub ballot: Ballot,
    /// What it has proposed.
    pub end: ViewEnd,
}

/// Logs of a shard with `members` members that must be there, or accept, for what is in one of them to survive the loss of one
/// tail \[T13\] \[T16\].
#[must_use]
pub fn copies_needed(members: usize) -> usize {
    members.min(2)
}
