//! When the end of a view is decided, and what a member needs before it votes (Derecho §3.4; RamCast §3 for copies).

use super::club::least_majority;
use super::mutation;
use super::takeover::{RankedVotes, counted};
use super::value::EndValue;
use super::view::{EndingView, ShardQuorum};
use super::vote::EndVote;
use crate::members::RankSet;

/// Returns the vote that has been decided, if these votes decide any \[H13\]: one ballot has the votes of a majority of the view, and of each
/// shard as many of those that its value keeps as it asks for.
///
/// Nothing but votes has a part in it, so all that count them find the same, however late: not which members live, wait or are heard.
#[must_use]
pub fn decided<'a>(view: &EndingView, votes: &RankedVotes<'a>) -> Option<&'a EndVote> {
    votes.values().copied().find(|vote| is_decided(view, vote, votes))
}

/// Returns whether the votes for the ballot of `vote` decide it.
#[must_use]
pub fn is_decided(view: &EndingView, vote: &EndVote, votes: &RankedVotes<'_>) -> bool {
    let yes = || votes.iter().filter(|(_, other)| other.ballot == vote.ballot);
    let enough = match vote.ballot.is_restart() {
        true if mutant!(DecideByOneVote) => return true,
        false if mutant!(DecideByOneLiveEcho) => return true,
        _ => least_majority(view),
    };
    let has_copies = |shard: usize| {
        let is_durable = view.shards[shard].kind.is_durable;
        let copies: RankSet =
            yes().filter(|(_, vote)| vote.is_copy(is_durable)).map(|(rank, _)| *rank).collect();
        let need = vote.proposal.need.get(shard).copied().unwrap_or(0);
        (copies & counted(view, &vote.proposal.value, shard)).len() >= need
    };
    yes().count() >= enough && (0..view.shards.len()).all(has_copies)
}

/// Returns whether the member with rank `own` has what it needs to vote for `value`, or to install it \[H14\]: of each shard that is durable,
/// or has a majority for quorum, and in which the value keeps it, everything up to the trims. `counts` has by shard what it has of each
/// column. A member that has restarted needs nothing of shards in memory, and is no copy of them \[H20\].
#[must_use]
pub fn has_content(
    view: &EndingView,
    value: &EndValue,
    own: usize,
    counts: &[Vec<u64>],
    is_restarted: bool,
) -> bool {
    mutant!(VoteWithoutContent => return true);
    lacking(view, value, own, counts, is_restarted).is_none()
}

/// Returns the first shard of which the member lacks a part.
#[must_use]
pub fn lacking(
    view: &EndingView,
    value: &EndValue,
    own: usize,
    counts: &[Vec<u64>],
    is_restarted: bool,
) -> Option<usize> {
    let needs = |shard: &usize| {
        let kind = view.shards[*shard].kind;
        let in_memory = !kind.is_durable && (is_restarted || kind.quorum == ShardQuorum::All);
        !in_memory && view.kept(value, *shard).contains(own)
    };
    let has = |shard: usize| counts.get(shard).is_some_and(|counts| value.is_reached(shard, counts));
    (0..view.shards.len()).filter(needs).find(|shard| !has(*shard))
}
