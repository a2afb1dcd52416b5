//! Votes, and the register of an acceptor: the one place in which a member of a view commits itself (Derecho §3.4).

use std::sync::Arc;

use super::Ballot;
use super::mutation;
use super::value::EndValue;

/// What a leader proposes under its ballot.
///
/// Two proposals of one value are for the same end, whatever they ask for: `need` and `carry` are no part of the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndProposal {
    /// How the view ends.
    pub value: Arc<EndValue>,
    /// By shard, how many of the members that the value keeps in it have to vote under this ballot for the end to be decided \[H10\].
    pub need: Vec<usize>,
    /// By shard, the least need that the proposer knows of any ballot for this value; in a vote, the least that the voter knows.
    pub carry: Vec<usize>,
}

/// A vote for how a view ends: an echo of a live proposal, or the acceptance of one that a waiting leader has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndVote {
    /// The ballot under which the value is voted for.
    pub ballot: Ballot,
    /// What is voted for.
    pub proposal: EndProposal,
    /// Whether the voter has restarted in this view, so that it holds nothing of shards in memory: its vote is no copy of these
    /// \[H20\].
    pub is_restarted: bool,
}

impl EndVote {
    /// Returns whether the vote says that the voter has what the value keeps of a shard of which it is kept.
    #[must_use]
    pub fn is_copy(&self, is_durable: bool) -> bool {
        is_durable || !self.is_restarted
    }
}

/// What an acceptor has committed itself to in one view \[H1\] \[H7\]. It is empty when a view begins. In a group with a durable
/// subgroup it is on the disk before it is visible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndRegister {
    promise: Option<Ballot>,
    vote: Option<EndVote>,
}

impl EndRegister {
    /// Returns the register with what was read from a disk.
    #[must_use]
    pub const fn restored(promise: Option<Ballot>, vote: Option<EndVote>) -> Self {
        Self { promise, vote }
    }

    /// Returns the highest ballot that this acceptor follows; it accepts no lower one.
    #[must_use]
    pub const fn promise(&self) -> Option<Ballot> {
        self.promise
    }

    /// Returns the latest vote.
    #[must_use]
    pub const fn vote(&self) -> Option<&EndVote> {
        self.vote.as_ref()
    }

    /// The member begins to wait: a promise above the ballots of all live leaders \[H2\].
    pub fn wait(&mut self) {
        mutant!(WaitWithoutPromise => return);
        self.promise = self.promise.max(Some(Ballot::WAITS));
    }

    /// Promises to follow `ballot`, if it is above the own promise; returns whether it is \[H7\].
    pub fn follow(&mut self, ballot: Ballot) -> bool {
        let is_higher = Some(ballot) > self.promise;
        if is_higher {
            self.promise = Some(ballot);
        }
        is_higher
    }

    /// Returns whether this acceptor may vote under `ballot`: it is not below the promise, and the own vote is lower \[H14\].
    #[must_use]
    pub fn may_vote(&self, ballot: Ballot) -> bool {
        let is_new = self.vote.as_ref().is_none_or(|vote| vote.ballot < ballot);
        mutant!(EchoThoughWaiting if !ballot.is_restart() => return is_new);
        mutant!(BreakPromise => return self.vote.as_ref().is_none_or(|vote| vote.ballot != ballot));
        is_new && Some(ballot) >= self.promise
    }

    /// Votes under `ballot`, if [`EndRegister::may_vote`] allows it. The vote carries the least need that this acceptor has seen in
    /// a vote for this value \[H10\].
    pub fn vote_for(&mut self, ballot: Ballot, mut proposal: EndProposal, is_restarted: bool) -> bool {
        if !self.may_vote(ballot) {
            return false;
        }
        if let Some(earlier) = self.vote.as_ref().filter(|vote| vote.proposal.value == proposal.value) {
            proposal.carry = least(&proposal.carry, &earlier.proposal.carry);
        }
        self.promise = self.promise.max(Some(ballot));
        self.vote = Some(EndVote { ballot, proposal, is_restarted });
        true
    }
}

/// Returns the lesser numbers, by shard.
pub(super) fn least(some: &[usize], others: &[usize]) -> Vec<usize> {
    some.iter().zip(others).map(|(one, other)| *one.min(other)).collect()
}
