//! When a leader takes over what was proposed before, and when it may drop it (Derecho §3.4; RamCast §3 for copies).

use std::collections::BTreeMap;

use super::club::least_majority;
use super::mutation;
use super::proposal::EndContext;
use super::report::{EndAnswer, EndAnswers};
use super::view::{EndingView, ShardQuorum};
use super::vote::{EndProposal, EndVote, least};
use crate::coverage::{Point, reach};
use crate::members::RankSet;

/// Votes by rank.
pub type RankedVotes<'a> = BTreeMap<usize, &'a EndVote>;

/// Returns what a waiting leader takes over from the members that have promised its ballot \[H11\]: the vote of the highest ballot, if it
/// may have been decided.
#[must_use]
pub fn taken_over(context: &EndContext<'_>, answers: &EndAnswers<'_>) -> Option<EndProposal> {
    let counts = |vote: &&EndVote| match vote.ballot.is_restart() {
        true => !mutant!(IgnoreBallotVotes),
        false => !mutant!(IgnoreLiveVotes),
    };
    let votes = answers.iter().filter_map(|(rank, answer)| Some((*rank, answer.vote.as_ref()?)));
    let votes: RankedVotes<'_> = votes.filter(|(_, vote)| counts(vote)).collect();
    let is_any = mutant!(TakeOverAny);
    take_over(context, answers, &votes, is_any)
}

/// Returns what a live leader takes over \[H12\]: of all echoes that it sees, those of members that it removes included, the one of the
/// latest leader, if it may have been decided by those that stay and those that do not.
#[must_use]
pub fn echo_taken_over(
    context: &EndContext<'_>,
    stay: &EndAnswers<'_>,
    echoes: &RankedVotes<'_>,
) -> Option<EndProposal> {
    mutant!(IgnoreEarlierEcho => return None);
    let is_any = mutant!(TakeOverAnyEcho);
    take_over(context, stay, echoes, is_any)
}

fn take_over(
    context: &EndContext<'_>,
    answers: &EndAnswers<'_>,
    votes: &RankedVotes<'_>,
    is_any: bool,
) -> Option<EndProposal> {
    let highest = match mutant!(TakeOverLowest) {
        true => votes.values().min_by_key(|vote| vote.ballot),
        false => votes.values().max_by_key(|vote| vote.ballot),
    }?;
    let same = votes.iter().filter(|(_, vote)| vote.proposal.value == highest.proposal.value);
    let same: RankedVotes<'_> = same.map(|(rank, vote)| (*rank, *vote)).collect();
    let carries = same.values().map(|vote| vote.proposal.carry.clone());
    let carry = carries.reduce(|a, b| least(&a, &b)).unwrap_or_default();
    let answered: RankSet = answers.keys().copied().collect();
    if !may_be_decided(context.view, highest, &same, answered, &carry) && !is_any {
        reach(Point::EndVoteDropped);
        return None;
    }
    reach(if highest.ballot.is_restart() { Point::EndAcceptanceTakenOver } else { Point::EndEchoTakenOver });
    Some(again(context, answers, highest, carry))
}

/// Returns whether a value may have been decided, for all that is known \[H11\]: those that have voted for it, under any ballot, and those
/// that have not answered are a majority, and of each shard as many of those that it keeps as the least need of any of these votes.
#[must_use]
pub fn may_be_decided(
    view: &EndingView,
    vote: &EndVote,
    same: &RankedVotes<'_>,
    answered: RankSet,
    carry: &[usize],
) -> bool {
    let value = &vote.proposal.value;
    let unheard = view.ranks() - answered;
    let voted: RankSet = same.keys().copied().collect();
    let has_copies = |shard: usize| {
        let is_durable = view.shards[shard].kind.is_durable;
        let copies = same.iter().filter(|(_, vote)| vote.is_copy(is_durable)).map(|(rank, _)| *rank);
        let may_be = copies.collect::<RankSet>() | unheard;
        (may_be & counted(view, value, shard)).len() >= carry.get(shard).copied().unwrap_or(0)
    };
    (voted | unheard).len() >= least_majority(view) && (0..view.shards.len()).all(has_copies)
}

/// Returns the members whose votes count as copies of a shard: those that the value keeps in it \[H13\].
pub(super) fn counted(view: &EndingView, value: &super::EndValue, shard: usize) -> RankSet {
    mutant!(CountCopiesOfAll => return view.shards[shard].members);
    view.kept(value, shard)
}

/// Returns the proposal of a value that is taken over \[H10\]: its need is the least that was asked for, and less for a shard in memory with
/// a majority for quorum, if all but one of those that the value keeps are dead and that one has what counts, or if all are.
fn again(
    context: &EndContext<'_>,
    answers: &EndAnswers<'_>,
    vote: &EndVote,
    carry: Vec<usize>,
) -> EndProposal {
    let (view, value) = (context.view, &vote.proposal.value);
    let need = |shard: usize| {
        let before = carry.get(shard).copied().unwrap_or(0);
        let kind = view.shards[shard].kind;
        if kind.is_durable || kind.quorum == ShardQuorum::All {
            return before;
        }
        let restarted = |rank: &usize| answers.get(rank).is_some_and(|answer| answer.is_restarted);
        let kept = view.kept(value, shard);
        let dead = context.dead | kept.iter().filter(restarted).collect();
        let live = if mutant!(NeedTheDead) { kept } else { kept - dead };
        let has_it = |rank: usize| {
            let counts = |answer: &&EndAnswer| answer.counts.get(shard).cloned().unwrap_or_default();
            answers.get(&rank).is_some_and(|answer| value.is_reached(shard, &counts(answer)))
        };
        match live.len() {
            0 => 0,
            1 if live.iter().all(has_it) => before.min(1),
            _ => before,
        }
    };
    let need: Vec<usize> = (0..view.shards.len()).map(need).collect();
    if need.iter().zip(&carry).any(|(need, before)| need < before) {
        reach(Point::EndNeedLowered);
    }
    EndProposal { value: value.clone(), carry: least(&need, &carry), need }
}
