//! Views that end because the leader admits processes, or because numbers are used up (Derecho §2).

use super::{Member, Membership};
use crate::mutation;

impl Membership {
    /// Admits `member` with the next view, if this member leads.
    pub fn admit(&mut self, member: Member) {
        let is_known =
            self.view.rank(member.node).is_some() || self.joins.iter().any(|other| other.node == member.node);
        if !is_known {
            self.joins.push(member);
        }
    }

    /// Ends the view although its members stay, because numbers that begin anew with each view are used up: the
    /// numbers of nodes that a leader assigns \[J1\], or the indexes of messages.
    pub const fn renew(&mut self) {
        self.renewing = true;
    }

    /// Returns whether this member leads, and a joiner waits for which the view has a place.
    pub(super) fn can_admit(&self) -> bool {
        let is_full = self.view.members.len() >= self.settings.members_max && !mutant!(EndFullView);
        self.leads() && !self.joins.is_empty() && !is_full
    }
}
