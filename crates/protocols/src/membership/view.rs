//! The view: the members of the group (Derecho §2).

use std::fmt;

use squall_fabric::{MirrorKey, NodeId};

use super::Proposal;

/// The largest number of members of a group: a set of ranks is one word.
pub const MEMBERS_MAX: usize = 64;

/// A member of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// The process; another incarnation of it has another node.
    pub node: NodeId,
    /// The number by which the application knows the member; layouts may use it.
    pub tag: u64,
}

/// One view of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The number of the view; views are numbered from 0, without gaps.
    pub id: u64,
    /// The members by rank, the oldest first; at most [`MEMBERS_MAX`].
    pub members: Vec<Member>,
    /// The members that wish to leave and hold a state that no other member has yet, as a set of ranks.
    pub leaving: u64,
    /// For each subgroup that may have a state ([`super::MembershipSettings::states`]), the members that hold it, as
    /// a set of ranks: those that held it when the previous view ended \[A8\]. Empty in the first view, in which
    /// every member of a subgroup has its initial state.
    pub holders: Vec<u64>,
}

impl View {
    /// Returns the first view.
    #[must_use]
    pub const fn first(members: Vec<Member>) -> Self {
        Self { id: 0, members, leaving: 0, holders: Vec::new() }
    }

    /// Returns the members that hold the state of the subgroup with this number, in the order of their ranks.
    #[must_use]
    pub fn holders(&self, subgroup: u32) -> Vec<NodeId> {
        let holders = self.holders.get(subgroup as usize).copied().unwrap_or(0);
        let holds = |(rank, _): &(usize, &Member)| holders >> rank & 1 == 1;
        self.members.iter().enumerate().filter(holds).map(|(_, member)| member.node).collect()
    }

    /// Returns whether `node` is a member that wishes to leave.
    #[must_use]
    pub fn is_leaving(&self, node: NodeId) -> bool {
        self.rank(node).is_some_and(|rank| self.leaving >> rank & 1 == 1)
    }

    /// Returns the rank of `node`, if it is a member.
    #[must_use]
    pub fn rank(&self, node: NodeId) -> Option<usize> {
        self.members.iter().position(|member| member.node == node)
    }

    /// Returns the members' nodes, by rank.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeId> {
        self.members.iter().map(|member| member.node).collect()
    }

    /// Returns the view after this one, as decided: members that stay keep their order, and joiners come last.
    #[must_use]
    pub fn next(&self, decision: &Proposal) -> Self {
        let stay: Vec<usize> = (0..self.members.len()).filter(|rank| !decision.removes(*rank)).collect();
        // The same members by their ranks in the next view.
        let next =
            |ranks: u64| stay.iter().enumerate().fold(0, |next, (new, old)| next | (ranks >> old & 1) << new);
        let members = stay.iter().map(|rank| self.members[*rank]).chain(decision.joins.iter().copied());
        Self {
            id: self.id + 1,
            members: members.collect(),
            leaving: next(decision.leaving),
            holders: decision.holders.iter().map(|holders| next(*holders)).collect(),
        }
    }

    /// Returns the key of the mirror for `purpose` in this view; purpose 0 is membership's own.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets of ranks name the same members after a change as before, and no others.
    #[test]
    fn holders_keep_their_states_under_new_ranks() {
        let member = |node: u32| Member { node: NodeId(node), tag: 0 };
        let view = View::first((0..4).map(member).collect());
        let decision = Proposal {
            removed: 0b0010,
            leaving: 0b1000,
            joins: vec![member(9)],
            holders: vec![0b1101, 0b0010],
            trims: Vec::new(),
        };
        let next = view.next(&decision);
        assert_eq!(next.nodes(), [0, 2, 3, 9].map(NodeId));
        assert_eq!(next.holders(0), [0, 2, 3].map(NodeId));
        assert!(next.holders(1).is_empty() && next.holders(2).is_empty());
        assert!(next.is_leaving(NodeId(3)) && !next.is_leaving(NodeId(0)) && !next.is_leaving(NodeId(1)));
    }
}
