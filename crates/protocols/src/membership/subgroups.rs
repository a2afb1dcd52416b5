//! What membership needs of the subgroups of a view (Derecho §3.4).

use squall_fabric::NodeId;

use super::{Proposal, SenderSegment, View};
use crate::ends::Ballot;

/// What members that wait say beside their reports about the logs of subgroups \[G11\].
pub struct LogPeers<'a> {
    /// The words with which they ask, by rank.
    pub asks: &'a [u64],
    /// Returns what a member with this rank counts in a column, if this member hears it.
    pub count: &'a dyn Fn(usize, usize) -> Option<u64>,
}

/// The subgroups of a view, as membership uses them.
pub trait Subgroups<F> {
    /// Freezes the rows of `member`, which is suspected: they never change again here \[S5\].
    fn freeze(&mut self, fabric: &mut F, member: NodeId);

    /// Ends the view: nothing more is sent or acknowledged. Writes how many indexes of each sender this member counts
    /// ([`SenderSegment::counts`](super::SenderSegment::counts)), and which states it holds: from now on until the next view no
    /// other state counts as held \[A8\].
    ///
    /// Returns false, and has written nothing of use, while what it counts is still on its way to the disk \[T4\]: it is called
    /// again until then, and nothing is published in between.
    fn wedge(&mut self, counts: &mut [u64], states: &mut [u64]) -> bool;

    /// Returns whether this member may act in `view`: in a group with durable subgroups the view is on its disk \[T8\]. Until then
    /// the member only shows that it lives.
    fn may_act(&self, _view: &View) -> bool {
        true
    }

    /// Returns whether this member has all that the trims of a proposal hold, which it is about to echo or install, or need not have
    /// it; if not, it gets what it lacks from others meanwhile, and is asked again \[G11\]. A member whose subgroups count what all
    /// members have lacks nothing.
    fn has_log(&mut self, _proposal: &Proposal) -> bool {
        true
    }

    /// Votes for how `view` ends, as the leader of this ballot has proposed, and returns whether the vote is on the disk \[T6\] \[T15\],
    /// as it is at once in a group without durable subgroups. It is called again until then, and nothing of it is published.
    fn vote(
        &mut self,
        _view: &View,
        _segments: &[SenderSegment],
        _ballot: Ballot,
        _proposal: &Proposal,
    ) -> bool {
        true
    }

    /// While this member waits for a majority: sends others what they ask for of its subgroups' logs, and asks for what it lacks of
    /// a proposal ([`Subgroups::has_log`]). Returns the word with which it asks, which only grows, or 0, and the amount of work done.
    fn exchange_log(&mut self, _fabric: &mut F, _peers: &LogPeers<'_>) -> (u64, usize) {
        (0, 0)
    }

    /// Promises to vote under no ballot below this one, and returns whether that is on the disk \[T12\]. It is called again until then,
    /// and nothing of it is published.
    fn promise(&mut self, _ballot: Ballot) -> bool {
        true
    }

    /// Returns whether `view` is on this member's disk, and so is everything of earlier views that counts in its durable subgroups
    /// \[T19\]; that stays so.
    fn has_whole_log(&self, _view: &View) -> bool {
        false
    }

    /// Adds the states that this member holds by now, by their subgroups' numbers; returns whether there may be more
    /// than at the last call. A state that is added is held until the view ends.
    fn hold(&mut self, states: &mut [u64]) -> bool;
}
