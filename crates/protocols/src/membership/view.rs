//! The view: who is in the group (Derecho §2).

use std::fmt;

use squall_fabric::{MirrorKey, NodeId};

use super::Proposal;

/// The most members of a group: a set of ranks is one word.
pub const MEMBERS_MAX: usize = 64;

/// A member of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// The process, in one incarnation.
    pub node: NodeId,
    /// What the application knows the member by; layouts may look at it.
    pub tag: u64,
}

/// One view of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Views are numbered from 0, without gaps.
    pub id: u64,
    /// The members by rank, the oldest first; at most [`MEMBERS_MAX`].
    pub members: Vec<Member>,
}

impl View {
    /// The first view.
    #[must_use]
    pub const fn first(members: Vec<Member>) -> Self {
        Self { id: 0, members }
    }

    /// The rank of `node`, if it is a member.
    #[must_use]
    pub fn rank(&self, node: NodeId) -> Option<usize> {
        self.members.iter().position(|member| member.node == node)
    }

    /// The members' nodes, by rank.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeId> {
        self.members.iter().map(|member| member.node).collect()
    }

    /// The view after this one, as decided: those who stay keep their order, joiners come last.
    #[must_use]
    pub fn next(&self, decision: &Proposal) -> Self {
        let stays = |(rank, _): &(usize, &Member)| !decision.removes(*rank);
        let stay = self.members.iter().enumerate().filter(stays).map(|(_, member)| *member);
        Self { id: self.id + 1, members: stay.chain(decision.joins.iter().copied()).collect() }
    }

    /// The key of the mirror for `purpose` in this view: 0 is membership's own.
    ///
    /// # Panics
    /// If the purpose has more than 20 bits.
    #[must_use]
    pub fn key(&self, purpose: u32) -> MirrorKey {
        assert!(purpose < 1 << 20, "purpose {purpose} of a mirror");
        MirrorKey(self.id << 20 | u64::from(purpose))
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.members.iter().map(|member| member.node.0.to_string()).collect();
        write!(f, "view {} of nodes {}", self.id, nodes.join(", "))
    }
}
