//! The acceptor of a restart's proposal: promise, transfer, acceptance (Derecho §3.4, "Total failures").

use super::leader::leading;
use super::member::{RestartMembers, Restarter};
use super::mutation;
use super::view_end::{ViewEnd, Vote};
use crate::coverage::{Point, reach};

impl Restarter {
    /// Follows the leader with the highest ballot: promises, and accepts what it proposes.
    pub(super) fn accept(&mut self, members: &RestartMembers) {
        self.awaited = None;
        if !self.file.durable().is_member() {
            return;
        }
        let Some(report) = leading(members).map(|rank| &members[&rank]) else { return };
        let Some(ballot) = report.lead else { return };
        // [T12] The answer, which is the report, follows when the promise is on the disk.
        self.file.change().promise(ballot);
        if self.file.wanted().promise != Some(ballot) {
            return;
        }
        let is_accepted = self.file.wanted().vote.as_ref().is_some_and(|vote| vote.ballot == ballot);
        let Some(end) = report.proposal.as_ref().filter(|_| !is_accepted) else { return };
        // [T15] First what counts has to be on the own disk, in the shards of which this process is a member.
        if !self.holds(end) && !mutant!(AcceptBeforeTransfer) {
            reach(Point::AcceptanceAwaitsLog);
            self.awaited = Some(end.trims.clone());
            return;
        }
        self.file.change().vote(Vote { ballot, end: end.clone() });
    }

    /// Whether all that the end counts on is on the own disk.
    fn holds(&self, end: &ViewEnd) -> bool {
        let (view, log) = (self.view(), self.log.durable());
        view.shards_of(self.node()).all(|shard| log.shards[shard].count(view.number) >= end.trims[shard])
    }
}
