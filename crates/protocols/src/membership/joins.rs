//! Views that end because the leader lets processes in, or for new numbers (Derecho §2).

use super::{MEMBERS_MAX, Member, Membership};
use crate::mutation::{GroupMutation, is_on};

impl Membership {
    /// Lets `member` in with the next view, if this member leads.
    pub fn admit(&mut self, member: Member) {
        let is_known =
            self.view.rank(member.node).is_some() || self.joins.iter().any(|other| other.node == member.node);
        if !is_known {
            self.joins.push(member);
        }
    }

    /// Ends the view although its members stay, since counts that begin anew with a view are used up: the numbers of nodes that
    /// a leader gives \[J1\], or the indexes of messages.
    pub const fn renew(&mut self) {
        self.renewing = true;
    }

    /// Whether it leads and somebody waits that there is a place for.
    pub(super) fn can_admit(&self) -> bool {
        let is_full = self.view.members.len() >= MEMBERS_MAX && !is_on(GroupMutation::EndFullView);
        self.leads() && !self.joins.is_empty() && !is_full
    }
}
