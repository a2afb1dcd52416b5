//! The view: the members of the group (Derecho §2).

use std::fmt;

use squall_fabric::{MirrorKey, NodeId};

use super::{Member, Proposal, RankSet};

/// One view of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The number of the view; views are numbered from 0, without gaps.
    pub id: u64,
    /// The members by rank, the oldest first; at most [`super::MEMBERS_MAX`].
    pub members: Vec<Member>,
    /// The members that wish to leave and hold a state that no other member has yet.
    pub leaving: RankSet,
    /// For each subgroup that may have a state ([`super::MembershipSettings::states`]), the members that hold it: those that held it when the previous view ended \[A8\]. Empty in the first view, in which
    /// every member of a subgroup has its initial state.
    pub holders: Vec<RankSet>,
}

impl View {
    /// Returns the first view.
    #[must_use]
    pub const fn first(members: Vec<Member>) -> Self {
        Self { id: 0, members, leaving: RankSet::EMPTY, holders: Vec::new() }
    }

    /// Returns the members that hold the state of the subgroup with this number, in the order of their ranks.
    #[must_use]
    pub fn holders(&self, subgroup: u32) -> Vec<NodeId> {
        let holders = self.holders.get(subgroup as usize).copied().unwrap_or_default();
        holders.iter().filter_map(|rank| self.members.get(rank)).map(|member| member.node).collect()
    }

    /// Returns whether `node` is a member that wishes to leave.
    #[must_use]
    pub fn is_leaving(&self, node: NodeId) -> bool {
        self.rank(node).is_some_and(|rank| self.leaving.contains(rank))
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
        let next = |ranks: &RankSet| {
            let kept = stay.iter().enumerate().filter(|(_, old)| ranks.contains(**old));
            kept.map(|(new, _)| new).collect::<RankSet>()
        };
        let members = stay.iter().map(|rank| self.members[*rank]).chain(decision.joins.iter().copied());
        Self {
            id: self.id + 1,
            members: members.collect(),
            leaving: next(&decision.leaving),
            holders: decision.holders.iter().map(next).collect(),
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
            removed: RankSet::of(1),
            leaving: RankSet::of(3),
            joins: vec![member(9)],
            holders: [0b1101, 0b0010].map(RankSet::from_bits).to_vec(),
            trims: Vec::new(),
        };
        let next = view.next(&decision);
        assert_eq!(next.nodes(), [0, 2, 3, 9].map(NodeId));
        assert_eq!(next.holders(0), [0, 2, 3].map(NodeId));
        assert!(next.holders(1).is_empty() && next.holders(2).is_empty());
        assert!(next.is_leaving(NodeId(3)) && !next.is_leaving(NodeId(0)) && !next.is_leaving(NodeId(1)));
    }
}
