//! Accusations, and rows that violate the protocol (not in Derecho §3.4): a member whose row shows a violation is accused, and the
//! reason is kept.
//!
//! The fault model has members that stop, not Byzantine members, so nothing is guaranteed about a group with such a
//! member. But no word that it writes to its row makes another process panic.

use std::collections::BTreeSet;

use squall_fabric::NodeId;

use super::{Membership, Proposal, SenderSegment};
use crate::mutation;

impl Membership {
    /// Accuses a node: this member does not hear it, and one of the two will not be in the next view. Nodes that are not
    /// members are ignored, and so is this one.
    pub fn suspect(&mut self, node: NodeId) {
        match self.view.rank(node) {
            Some(rank) if rank != self.table.rank() => {
                self.dead.insert(rank);
                self.accuse(rank);
            }
            _ => {}
        }
        self.joins.retain(|member| member.node != node);
    }

    pub(super) const fn accuse(&mut self, rank: usize) {
        self.accused.insert(rank);
        self.disputed.insert(rank);
        self.suspected.insert(rank);
    }

    /// Returns the members whose rows violated the protocol, and how, in the order in which that was noticed. They
    /// are accused.
    #[must_use]
    pub fn distrusted(&self) -> &[(NodeId, &'static str)] {
        &self.distrusted
    }

    /// Accuses the member with this rank, which is not this one, because of what it has written.
    pub(super) fn distrust(&mut self, rank: usize, why: &'static str) {
        let node = self.view.members[rank].node;
        if self.distrusted.iter().all(|(other, _)| *other != node) {
            self.distrusted.push((node, why));
        }
        self.suspect(node);
    }

    /// Returns whether a proposal of `leader` in the row of `rank` is valid; accuses `rank` if it is not.
    pub(super) fn accepts(&mut self, rank: usize, leader: usize, proposal: &Proposal) -> bool {
        let own = self.table.rank();
        let has_proposed = leader != own || self.echoed_last() > own;
        let fault = match has_proposed {
            true => self.fault(proposal),
            false => Some("a decision on a proposal that this member would have made, and has not"),
        };
        let Some(why) = fault.filter(|_| rank != own) else { return true };
        self.distrust(rank, why);
        false
    }

    pub(super) fn fault(&self, proposal: &Proposal) -> Option<&'static str> {
        let all = self.all();
        if !proposal.removed.is_subset(&all) {
            return Some("a proposal that removes members that the view does not have");
        }
        let stay = (all - proposal.removed).len();
        if stay + proposal.joins.len() > self.settings.members_max {
            return Some("a proposal of more members than a view may have");
        }
        let mut joins = BTreeSet::new();
        if !proposal.joins.iter().all(|join| self.view.rank(join.node).is_none() && joins.insert(join.node)) {
            return Some("a proposal in which a node joins that is a member, or joins twice");
        }
        let own = self.table.rank();
        if !self.wedged && !proposal.removes(own) && !mutant!(TakeMissedProposal) {
            return Some("a decision before a member that stays has wedged [V2]");
        }
        if !proposal.removes(own) && self.exceeds(proposal, own) {
            return Some("a trim beyond what a member that stays has [V2]");
        }
        None
    }

    /// Returns whether a trim is beyond what this member had when it wedged, where it is to be what all have.
    fn exceeds(&self, proposal: &Proposal, own: usize) -> bool {
        let counts = |segment: &&SenderSegment| segment.ranks.contains(&own) && !segment.may_lack();
        let segments = self.segments.iter().filter(counts);
        segments.into_iter().any(|segment| {
            let trims = &proposal.trims[segment.trims..segment.trims + segment.senders];
            trims
                .iter()
                .enumerate()
                .any(|(i, trim)| *trim > self.row.counts.column(segment.counts + i).load(self.table.own()))
        })
    }

    /// Handles a row of `rank` in which a proposal of `leader` is decided that differs from the one that this member
    /// has echoed: one of the two has changed what it had written.
    pub(super) fn on_contradiction(&mut self, rank: usize, leader: usize, echoed: &Proposal) {
        let own = self.table.rank();
        let guilty = if leader != own && self.load(leader, leader).is_some_and(|own| own != *echoed) {
            leader
        } else {
            rank
        };
        if guilty != own {
            self.distrust(guilty, "two proposals of one leader, or two decisions [V1]");
        }
    }
}
