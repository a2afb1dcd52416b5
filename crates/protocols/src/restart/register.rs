//! The register: what a process must never forget about views and votes, in a small file of its own (Derecho §3.4,
//! "Total failures").

use squall_fabric::NodeId;

use super::flushed_log::FetchRequest;
use super::message::RestartMessage;
use super::view_chain::ViewChain;
use super::view_end::{DurableView, ViewEnd, Vote};
use crate::coverage::{Point, reach};
use crate::ends::Ballot;

/// A view, and how the views before it have ended.
///
/// `chain.end() == view.number`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewRecord {
    /// The view.
    pub view: DurableView,
    /// Those before it, back to a checkpoint.
    pub chain: ViewChain,
}

impl ViewRecord {
    /// The record of the view that follows when this one ends so.
    #[must_use]
    pub fn next(&self, end: &ViewEnd) -> Self {
        let mut chain = self.chain.clone();
        chain.push(&end.trims);
        Self { view: end.next.clone(), chain }
    }
}

/// The register of a process.
///
/// A *transition* changes it in memory. The change counts when it is on the disk ([`super::RegisterWriter`]); until then no other
/// process may see it.
///
/// `vote.ballot <= promise`; votes and the promise are about the end of the present view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// The group to which the process belongs: each group that begins anew has another number.
    pub group: u64,
    /// The process, in this incarnation.
    pub node: NodeId,
    /// The number by which the application knows the process as a member ([`crate::membership::Member::tag`]).
    pub tag: u64,
    /// A digest of what the shards are: processes with other ones are no members of this group.
    pub layout: u64,
    /// How often the process has started with this register.
    pub starts: u64,
    /// The view in which the tail of the log was found damaged: of that view it holds what it says, and perhaps more.
    pub damaged_in: Option<u64>,
    /// The present view and the ended ones.
    pub record: ViewRecord,
    /// No proposal below this ballot is accepted any more.
    pub promise: Option<Ballot>,
    /// The vote of the highest ballot.
    pub vote: Option<Vote>,
}

impl Register {
    /// The register of a process that begins in `view`, or that waits to join if the view has no members.
    #[must_use]
    pub fn new(group: u64, node: NodeId, view: DurableView) -> Self {
        let record = ViewRecord { chain: ViewChain::new(view.number), view };
        Self {
            group,
            node,
            tag: 0,
            layout: 0,
            starts: 0,
            damaged_in: None,
            record,
            promise: None,
            vote: None,
        }
    }

    /// The present view.
    #[must_use]
    pub const fn view(&self) -> &DurableView {
        &self.record.view
    }

    /// Whether the process is a member of the present view.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.view().rank(self.node).is_some()
    }

    /// Whether the log is known to lack a part of the present view \[T9\].
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged_in == Some(self.view().number)
    }

    /// The process starts: it is to take no message of an earlier start for one of this start, and to remember damage. A log that is
    /// found damaged says "at least" of the present view alone, since the trims show what is missing of earlier ones \[T9\].
    pub fn start(&mut self, is_damaged: bool) {
        self.starts += 1;
        if is_damaged {
            self.damaged_in = Some(self.view().number);
        }
    }

    /// Promises to accept nothing below `ballot`; false if the promise is as high already \[T12\].
    pub fn promise(&mut self, ballot: Ballot) -> bool {
        let is_new = self.promise < Some(ballot);
        if is_new {
            self.promise = Some(ballot);
        }
        is_new
    }

    /// Votes, if no promise and no earlier vote forbids it; false if one does. An echo of a live view's leader \[T6\] and the
    /// acceptance of a restart's proposal \[T15\] are the same.
    ///
    /// # Panics
    /// If the vote is about another view.
    pub fn vote(&mut self, vote: Vote) -> bool {
        assert_eq!(vote.end.next.number, self.view().number + 1, "a vote for the end of another view");
        let is_allowed = self.promise <= Some(vote.ballot)
            && self.vote.as_ref().is_none_or(|earlier| earlier.ballot < vote.ballot);
        if is_allowed {
            self.promise = Some(vote.ballot);
            self.vote = Some(vote);
        }
        is_allowed
    }

    /// The present view has ended so, and the next one is the present one \[T8\].
    ///
    /// # Panics
    /// If it is the end of another view.
    pub fn end_view(&mut self, end: &ViewEnd) {
        assert_eq!(end.next.number, self.view().number + 1, "the end of another view");
        let record = self.record.next(end);
        self.begin(record);
    }

    /// Takes over what another process knows; false if that is not newer \[T10\].
    ///
    /// If the other's list does not reach back to the own present view, the trims of the views between are known to no one any
    /// more: the own list is dropped, and with it all certainty about the own records of these views, until a checkpoint that
    /// covers them is here \[T19\].
    pub fn learn(&mut self, other: &ViewRecord) -> bool {
        if !other.view.is_after(self.view()) {
            return false;
        }
        let own = &self.record.chain;
        let knows_views = !self.view().members.is_empty();
        let mut record = other.clone();
        if knows_views && other.chain.first() > own.end() {
            reach(Point::ListsApart);
        }
        if knows_views {
            record.chain.extend(own);
        }
        self.begin(record);
        true
    }

    /// Takes over what another process knows of earlier views than the own list does, if the lists meet; false if there is nothing
    /// \[T19\].
    pub fn extend(&mut self, other: &ViewChain) -> bool {
        !self.view().members.is_empty() && self.record.chain.extend(other)
    }

    /// What to send, instead of a checkpoint that does not exist, to a process that asks for one since its list does not reach back as
    /// far as this one \[T19\].
    #[must_use]
    pub fn missing_trims(&self, request: FetchRequest) -> Option<RestartMessage> {
        let FetchRequest::Checkpoint { from, .. } = request else { return None };
        (self.record.chain.first() < from).then(|| RestartMessage::Views(Box::new(self.record.clone())))
    }

    /// Forgets the trims of all views before `view`, which a checkpoint of each of the own shards covers. The checkpoints must be on
    /// the disk.
    pub fn forget_before(&mut self, view: u64) {
        self.record.chain.forget_before(view);
    }

    fn begin(&mut self, record: ViewRecord) {
        assert_eq!(record.chain.end(), record.view.number, "the list of ended views has a gap");
        self.record = record;
        (self.promise, self.vote) = (None, None);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::view_end::EndOrigin;
    use super::*;
    use crate::membership::RankSet;

    pub(in super::super) fn view(number: u64, members: &[u32]) -> DurableView {
        let members: Vec<NodeId> = members.iter().copied().map(NodeId).collect();
        let all = RankSet::all(members.len());
        DurableView { number, members, shards: vec![all] }
    }

    pub(in super::super) fn chain(first: u64, trims: &[u64]) -> ViewChain {
        let mut chain = ViewChain::new(first);
        trims.iter().for_each(|trim| chain.push(&[*trim]));
        chain
    }

    pub(in super::super) fn end(trim: u64, next: DurableView) -> ViewEnd {
        ViewEnd { trims: vec![trim], next, origin: EndOrigin::Live }
    }

    #[test]
    fn no_vote_goes_below_a_promise_or_an_earlier_vote() {
        let mut register = Register::new(1, NodeId(0), view(0, &[0, 1, 2]));
        let vote = |ballot| Vote { ballot, end: end(3, view(1, &[0, 1])) };
        assert!(register.vote(vote(Ballot::live(1))));
        assert!(!register.vote(vote(Ballot::live(0))) && !register.vote(vote(Ballot::live(1))));
        let restart = Ballot::above(register.promise, NodeId(2));
        assert!(register.promise(restart) && !register.promise(restart));
        assert!(!register.vote(vote(Ballot::live(2))), "a live leader after a restart has begun");
        assert!(register.vote(vote(restart)));
        register.end_view(&end(3, view(1, &[0, 1])));
        assert_eq!((register.promise, register.vote.clone()), (None, None));
        assert_eq!(register.record.chain, chain(0, &[3]));
    }

    #[test]
    fn lists_of_ended_views_are_joined_where_they_meet() {
        let mut own = Register::new(1, NodeId(0), view(0, &[0, 1]));
        own.end_view(&end(4, view(1, &[0, 1])));
        let mut other = own.record.clone();
        for number in 2..5 {
            other = other.next(&end(number, view(number, &[1])));
        }
        let whole = other.clone();
        // The other has a checkpoint of views 0 and 1: the own list fills the gap exactly up to its own view.
        other.chain = chain(1, &[2, 3, 4]);
        let mut joined = own.clone();
        assert!(joined.learn(&other) && !joined.learn(&other));
        assert_eq!(joined.record, whole);
        // Of view 1 the trim is known to no one.
        other.chain = chain(2, &[3, 4]);
        let mut apart = own.clone();
        assert!(apart.learn(&other));
        assert_eq!(apart.record, other);
        // A process that was there all the time knows it.
        let request = FetchRequest::Checkpoint { shard: 0, from: 2, to: 4 };
        let witness = Register { record: whole.clone(), ..own };
        assert_eq!(witness.missing_trims(request), Some(RestartMessage::Views(Box::new(whole.clone()))));
        assert!(apart.extend(&whole.chain) && !apart.extend(&whole.chain));
        assert_eq!(apart.record, whole);
    }

    #[test]
    fn a_checkpoint_shortens_the_list() {
        let mut register = Register::new(1, NodeId(0), view(0, &[0, 1]));
        for number in 1..6 {
            register.end_view(&end(number, view(number, &[0, 1])));
        }
        register.forget_before(3);
        assert_eq!(register.record.chain, chain(3, &[4, 5]));
        register.forget_before(1);
        register.forget_before(99);
        assert_eq!(register.record.chain, chain(5, &[]));
    }
}
