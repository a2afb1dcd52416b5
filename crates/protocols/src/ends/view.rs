//! The view that is to end, as its end sees it: members, shards, and which members hold what (Derecho §2, §3.4).

use squall_fabric::NodeId;

use super::value::EndValue;
use crate::members::{Member, RankSet};

/// How many members of a shard have what is delivered in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardQuorum {
    /// All of them.
    All,
    /// More than half of them \[G10\].
    Majority,
}

/// What the end of a view has to know of a kind of shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardKind {
    /// Whether its messages are on disks; else they are in memory, and so is its state.
    pub is_durable: bool,
    /// How many members have what is delivered.
    pub quorum: ShardQuorum,
    /// Whether its counts are timestamps, one for the shard. Else there is a count of messages for each member that sends.
    pub is_timed: bool,
}

impl ShardKind {
    /// Returns the number of members that have what was delivered, of `members`.
    #[must_use]
    pub const fn quorum_of(self, members: usize) -> usize {
        match self.quorum {
            ShardQuorum::All => members,
            ShardQuorum::Majority => members / 2 + 1,
        }
    }
}

/// A shard of the view that is to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndingShard {
    /// Its kind, the same in all views.
    pub kind: ShardKind,
    /// Its members, by rank.
    pub members: RankSet,
    /// Those that the view names as whole: they held everything that is before it when it began \[K11\].
    pub whole: RankSet,
    /// The number of its counts; where they are not timestamps, of its senders.
    pub columns: usize,
}

impl EndingShard {
    /// Returns the member that leads the shard \[K5\].
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        (self.members & self.whole).first().or_else(|| self.members.first())
    }
}

/// The view that is to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndingView {
    /// Views are numbered from 0, without gaps.
    pub number: u64,
    /// The members by rank, the oldest first. Another incarnation of a process is another node.
    pub members: Vec<Member>,
    /// The shards, the same in all views.
    pub shards: Vec<EndingShard>,
    /// The greatest timestamp within a trim of any earlier view: clocks begin above it \[K6\].
    pub floor: u64,
}

impl EndingView {
    /// Returns all ranks.
    #[must_use]
    pub fn ranks(&self) -> RankSet {
        RankSet::all(self.members.len())
    }

    /// Returns the fewest members that are a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// Returns the rank of `node`, if it is a member.
    #[must_use]
    pub fn rank(&self, node: NodeId) -> Option<usize> {
        self.members.iter().position(|member| member.node == node)
    }

    /// Returns whether any shard is durable: then registers are on disks, and a process that died may return as the same acceptor.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.shards.iter().any(|shard| shard.kind.is_durable)
    }

    /// Returns the members of a shard that `value` keeps in it, by their ranks in this view \[K16\].
    #[must_use]
    pub fn kept(&self, value: &EndValue, shard: usize) -> RankSet {
        let placed = value.placement.get(shard).copied().unwrap_or_default();
        let stay = value.stay.iter().enumerate().filter(|(next, _)| placed.contains(*next));
        stay.map(|(_, rank)| rank).collect::<RankSet>() & self.shards[shard].members
    }

    /// Returns the view after this one, if it ends so: members that stay keep their order, and joiners come last.
    #[must_use]
    pub fn next(&self, value: &EndValue) -> Self {
        let members = value.members(self);
        let shard = |(number, shard): (usize, &EndingShard)| EndingShard {
            kind: shard.kind,
            members: value.placement[number],
            whole: value.whole[number],
            columns: if shard.kind.is_timed { 1 } else { members.len() },
        };
        let shards = self.shards.iter().enumerate().map(shard).collect();
        Self { number: self.number + 1, members, shards, floor: value.floor }
    }
}
