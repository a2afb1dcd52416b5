//! What changes in the end of a live view: members that wait are passed over, and copies are asked for (Derecho §3.4).
//!
//! Accusations, wedge, cut and echoes stay as they are in `membership`; what is here are the questions that it asks.

use super::club::least_majority;
use super::decision::is_decided;
use super::mutation;
use super::proposal::{EndContext, EndObstacle, NextMembers, new_value};
use super::report::EndAnswers;
use super::takeover::{RankedVotes, echo_taken_over};
use super::vote::{EndProposal, EndRegister, EndVote};
use super::{Ballot, view::EndingView};
use crate::coverage::{Point, reach};
use crate::members::RankSet;

/// Why a member goes over to waiting \[H1\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It hears no majority of the view, or none that takes part.
    Minority,
    /// All members that it hears and that take part have resigned.
    Leaderless,
    /// As leader: its cut leaves no majority, no quorum or no holder of a shard.
    Obstacle(EndObstacle),
    /// As leader: all members that it hears and that can have echoed, and copies are missing.
    CopiesMissing,
    /// No process that it reaches has what it needs for its echo.
    ContentMissing,
    /// A member leads a ballot.
    BallotLed,
}

/// Returns whether a live member has to wait because of the members that it hears, those that wait among them \[H1\].
#[must_use]
pub fn hears_too_few(view: &EndingView, heard: RankSet, waiting: RankSet) -> bool {
    let able = if mutant!(CountThoseThatWait) { heard } else { heard - waiting };
    able.len() < least_majority(view)
}

/// Returns whether a member may begin to wait: it has wedged, so that its counts are final before it promises anything \[H2\].
#[must_use]
pub fn may_wait(is_wedged: bool) -> bool {
    is_wedged || mutant!(PromiseUnwedged)
}

/// Returns whether a live member waits because another leads a ballot \[H1\].
#[must_use]
pub fn joins_ballots(led: Option<Ballot>) -> bool {
    let is_off = mutant!(CountThoseThatWait) || mutant!(FollowWaitingLeader);
    led.is_some_and(Ballot::is_restart) && !is_off
}

/// Returns the members that a live member no longer follows: those that it suspects, and those that wait, which count as resigned
/// \[H3\].
#[must_use]
pub fn resigned(suspected: RankSet, waiting: RankSet) -> RankSet {
    mutant!(FollowWaitingLeader => return suspected);
    suspected | waiting
}

/// What a live leader knows of a member that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Following {
    /// It has wedged.
    pub is_wedged: bool,
    /// The members that it no longer follows.
    pub suspected: RankSet,
    /// It waits.
    pub waits: bool,
}

impl Following {
    /// Returns whether the member echoes no leader below `leader` any more: it suspects them all \[D1\], or waits, which is a promise
    /// above all live ballots \[H3\].
    #[must_use]
    pub fn follows(&self, leader: usize) -> bool {
        let below = RankSet::all(leader);
        self.is_wedged && (below.is_subset(&self.suspected) || self.waits || mutant!(ProposeUnfollowed))
    }

    /// Returns whether an echo for `leader` can still come from the member.
    #[must_use]
    pub const fn can_echo(&self, leader: usize) -> bool {
        !self.suspected.contains(leader) && !self.waits
    }
}

/// Returns what a live leader proposes, when all that stay follow it: what an earlier leader may have decided \[H12\], or else a new value.
/// `stay` has the answers of those that stay; `echoes` all echoes that the leader sees.
///
/// # Errors
/// If members are missing: then the leader waits \[H1\].
pub fn live_proposal(
    context: &EndContext<'_>,
    stay: &EndAnswers<'_>,
    echoes: &RankedVotes<'_>,
    joins: Vec<crate::members::Member>,
) -> Result<EndProposal, EndObstacle> {
    if let Some(taken) = echo_taken_over(context, stay, echoes) {
        return Ok(taken);
    }
    let next = NextMembers { keep: stay.keys().copied().collect(), joins, is_live: true };
    new_value(context, stay, next).map(|value| EndProposal::new(context.view, value, stay))
}

/// Returns whether a live member votes for a leader's proposal. It must hold what the value keeps first ([`super::has_content`]).
#[must_use]
pub fn may_echo(register: &EndRegister, leader: usize) -> bool {
    u32::try_from(leader).is_ok_and(|rank| register.may_vote(Ballot::live(rank)))
}

/// What the echoes for a live proposal amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveTally {
    /// Echoes are awaited.
    Awaited,
    /// The end is decided.
    Decided,
    /// All that can have echoed, a majority, and copies are missing: the leader waits \[H1\].
    CopiesMissing,
}

/// Returns what the echoes for `vote` amount to. `expected` are the members that are heard, kept or leaving, and can still echo: a live
/// member waits for these, so that the votes of a decision are as many as can be \[T7\]. Safety rests on the votes alone \[H13\].
#[must_use]
pub fn live_tally(
    view: &EndingView,
    vote: &EndVote,
    echoes: &RankedVotes<'_>,
    expected: RankSet,
) -> LiveTally {
    mutant!(DecideByOneLiveEcho => return LiveTally::Decided);
    let yes = echoes.iter().filter(|(_, echo)| echo.ballot == vote.ballot).map(|(rank, _)| *rank);
    let yes: RankSet = yes.collect();
    if !expected.is_subset(&yes) || yes.len() < least_majority(view) {
        return LiveTally::Awaited;
    }
    if is_decided(view, vote, echoes) {
        return LiveTally::Decided;
    }
    reach(Point::EndCopiesMissing);
    LiveTally::CopiesMissing
}

/// Returns the members that are suspected when a view begins: none \[H15\].
#[must_use]
pub fn first_suspects(_before: RankSet) -> RankSet {
    mutant!(KeepSuspects => return _before);
    RankSet::EMPTY
}

/// Returns whether a member receives and acknowledges what comes over a connection in its view: not after it has wedged \[H2\], and not
/// from a member that it has lost in this view \[H5\].
#[must_use]
pub fn may_receive(is_wedged: bool, is_lost: bool) -> bool {
    (!is_wedged || mutant!(ReceiveAfterWedge)) && (!is_lost || mutant!(UseLostPair))
}

/// Returns what a word of a member's row acknowledges in `view`, which is nothing if it is of another view \[H5\] \[H15\].
#[must_use]
pub fn acknowledged(view: u64, of_view: u64, word: u64) -> u64 {
    if view == of_view || mutant!(CountOldAcknowledgements) { word } else { 0 }
}

/// How far a client's request has come at the member that would answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestStage {
    /// The member has it.
    Received,
    /// It has been delivered, so that every end of the view has it.
    Delivered,
}

/// Returns whether a request is answered \[H21\].
#[must_use]
pub fn may_reply(stage: RequestStage) -> bool {
    stage == RequestStage::Delivered || mutant!(ReplyAtReception)
}
