//! A new value, and what a proposal of it asks for (Derecho §3.4; RamCast §3 for shards with a majority for quorum).

use std::sync::Arc;

use super::mutation;
use super::report::{EndAnswer, EndAnswers};
use super::value::EndValue;
use super::view::{EndingShard, EndingView, ShardQuorum};
use super::vote::EndProposal;
use crate::coverage::{Point, reach};
use crate::members::{Member, RankSet};

/// Why there is no value yet: the leader waits for members \[H1\] \[H9\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndObstacle {
    /// So few members of a shard have answered that one that has what was delivered may not be among them \[G10\].
    Quorum(usize),
    /// Too few logs of a durable shard have answered \[K13\], or none of them would be kept \[K8\].
    Logs(usize),
    /// A holder of a shard's state may be away.
    Holder(usize),
}

/// What a leader proposes from, besides what members have answered.
#[derive(Clone, Copy)]
pub struct EndContext<'a> {
    /// The view.
    pub view: &'a EndingView,
    /// The rank of this member.
    pub own: usize,
    /// The members that are known to be dead: their processes were seen to end, or have answered as another incarnation. Silence
    /// proves nothing.
    pub dead: RankSet,
    /// The layout: for the members of a view, by rank, the members of each shard.
    pub placement: &'a dyn Fn(&[Member]) -> Vec<RankSet>,
    /// Whether shards in memory are given up whose holders are only silent, since the time for that has passed.
    pub gives_up_silent: bool,
}

/// The members that a new value keeps, and those that it admits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextMembers {
    /// The members that have answered, and are kept or leave.
    pub keep: RankSet,
    /// The members that are new: only a live leader admits any \[H19\].
    pub joins: Vec<Member>,
    /// Whether a live leader proposes.
    pub is_live: bool,
}

/// Returns a new value \[H9\], from the answers of those that a live leader keeps, or that have promised a ballot.
///
/// # Errors
/// If members are missing.
pub fn new_value(
    context: &EndContext<'_>,
    answers: &EndAnswers<'_>,
    next: NextMembers,
) -> Result<EndValue, EndObstacle> {
    let view = context.view;
    let trims = (0..view.shards.len()).map(|shard| trims(context, shard, answers, next.is_live));
    let trims = trims.collect::<Result<Vec<_>, _>>()?;
    let keep = if mutant!(KeepAbsent) { view.ranks() } else { next.keep };
    let leavers = keep.iter().filter(|rank| answers.get(rank).is_some_and(|answer| answer.leaves));
    let leavers: RankSet = leavers.collect();
    let left = spared(view, keep, leavers, answers);
    let mut value = EndValue {
        floor: floor(view, &trims),
        trims,
        stay: keep - left,
        left,
        leaving: leavers - left,
        joins: next.joins,
        placement: Vec::new(),
        whole: Vec::new(),
        given_up: vec![false; view.shards.len()],
        is_live: next.is_live,
    };
    value.placement = (context.placement)(&value.members(view));
    value.placement.resize(view.shards.len(), RankSet::EMPTY);
    keep_holders(view, answers, &mut value);
    for shard in 0..view.shards.len() {
        let holds = |rank: &usize| answers.get(rank).is_some_and(|answer| holds(answer, view, shard));
        let kept = view.kept(&value, shard);
        let holders: RankSet = kept.iter().filter(holds).collect();
        if holders.is_empty() {
            value.given_up[shard] = is_given_up(context, shard, answers, kept)?;
        }
        let begins = value.given_up[shard] || view.shards[shard].members.is_empty();
        let whole = if begins { value.placement[shard] } else { ranks_in_next(&value, holders) };
        value.whole.push(whole);
    }
    Ok(value)
}

/// Returns whether a member holds the state of a shard \[H19\] \[H20\].
fn holds(answer: &EndAnswer, view: &EndingView, shard: usize) -> bool {
    let has_base = answer.whole.get(shard).is_some_and(|whole| *whole) || mutant!(HoldWithoutBase);
    has_base && (view.shards[shard].kind.is_durable || !answer.is_restarted)
}

/// Returns the ranks that members of `ranks` have in the next view.
fn ranks_in_next(value: &EndValue, ranks: RankSet) -> RankSet {
    let stay = value.stay.iter().enumerate().filter(|(_, rank)| ranks.contains(*rank));
    stay.map(|(next, _)| next).collect()
}

/// Returns how much counts of each column of a shard.
fn trims(
    context: &EndContext<'_>,
    number: usize,
    answers: &EndAnswers<'_>,
    is_live: bool,
) -> Result<Vec<u64>, EndObstacle> {
    let view = context.view;
    let shard = &view.shards[number];
    let columns = shard.columns;
    let here = shard.members.iter().filter_map(|rank| Some((rank, *answers.get(&rank)?)));
    let in_memory = |answer: &EndAnswer| !answer.is_restarted || mutant!(TrustMemoryOfRestarted);
    let valid = here.filter(|(_, answer)| shard.kind.is_durable || in_memory(answer));
    let valid: Vec<(usize, &EndAnswer)> = valid.collect();
    if shard.members.is_empty() {
        return Ok(vec![0; columns]);
    }
    // Its state is lost with what was delivered in it [A7].
    let is_forgotten = |rank: usize| {
        context.dead.contains(rank) || answers.get(&rank).is_some_and(|answer| answer.is_restarted)
    };
    if !shard.kind.is_durable && valid.is_empty() && shard.members.iter().all(is_forgotten) {
        return Ok(vec![0; columns]);
    }
    let place = if shard.kind.is_durable && !is_live {
        has_logs(shard, &valid).then_some(0).ok_or(EndObstacle::Logs(number))?
    } else {
        place_of_trim(shard, number, valid.len())?
    };
    let trim = |column: usize| {
        let mut counts: Vec<u64> =
            valid.iter().map(|(_, answer)| counts_of(answer, number, column)).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let is_memory = !shard.kind.is_durable && shard.kind.quorum == ShardQuorum::All;
        let is_majority = !shard.kind.is_durable && !is_memory;
        let (most, least) = (counts.first().copied(), counts.last().copied());
        mutant!(TrimToMost if is_memory && !is_live => return most.unwrap_or(0));
        mutant!(TrimMajorityToLeast if is_majority => return least.unwrap_or(0));
        mutant!(TrimMajorityToMost if is_majority => return most.unwrap_or(0));
        mutant!(TrimLogsToLeast if shard.kind.is_durable => return least.unwrap_or(0));
        if mutant!(TrimToOwn) && is_memory && !is_live {
            let own = valid.iter().find(|(rank, _)| *rank == context.own);
            return own.map_or(least.unwrap_or(0), |(_, answer)| counts_of(answer, number, column));
        }
        counts.get(place).copied().unwrap_or(0)
    };
    Ok((0..columns).map(trim).collect())
}

fn counts_of(answer: &EndAnswer, shard: usize, column: usize) -> u64 {
    answer.counts.get(shard).and_then(|counts| counts.get(column)).copied().unwrap_or(0)
}

/// Returns which of the counts of `present` members, the highest first, is the trim \[G10\]: as many of those that have what was
/// delivered are among them. With all for quorum that is the least.
fn place_of_trim(shard: &EndingShard, number: usize, present: usize) -> Result<usize, EndObstacle> {
    let size = shard.members.len();
    let absent = size.saturating_sub(present);
    if shard.kind.is_durable && present == 0 {
        return Err(EndObstacle::Logs(number));
    }
    // Two members have a majority only together: then all have what was delivered.
    if shard.kind.quorum == ShardQuorum::All || size <= 2 {
        return Ok(present.saturating_sub(1));
    }
    let quorum = shard.kind.quorum_of(size);
    if absent >= quorum && !mutant!(EndBelowQuorum) {
        return Err(EndObstacle::Quorum(number));
    }
    Ok(quorum.saturating_sub(absent).max(1) - 1)
}

/// Returns whether the logs that have answered are enough to end a durable shard's part of the view \[K13\]: two, or its only one, and
/// with a majority for quorum one that has what was delivered; as many of them as that are not damaged.
fn has_logs(shard: &EndingShard, answers: &[(usize, &EndAnswer)]) -> bool {
    mutant!(EndWithOneLog => return !answers.is_empty());
    let size = shard.members.len();
    let intersects = size + 1 - shard.kind.quorum_of(size);
    let good = answers.iter().filter(|(_, answer)| !answer.is_damaged).count();
    answers.len() >= size.min(2).max(intersects) && good >= intersects
}

/// Returns the floor of the next view \[K6\].
fn floor(view: &EndingView, trims: &[Vec<u64>]) -> u64 {
    let is_timed = |(shard, _): &(usize, &Vec<u64>)| view.shards[*shard].kind.is_timed;
    let timed = trims.iter().enumerate().filter(is_timed).flat_map(|(_, trims)| trims);
    let highest = timed.copied().max().unwrap_or(0);
    mutant!(ForgetFloor => return highest);
    highest.max(view.floor)
}

/// Returns the leavers among `keep` that can be spared \[A9\], as far as these answers show: a live leader ends the view for them.
#[must_use]
pub fn leavers_spared(view: &EndingView, keep: RankSet, answers: &EndAnswers<'_>) -> RankSet {
    let leaves = |rank: &usize| answers.get(rank).is_some_and(|answer| answer.leaves);
    spared(view, keep, keep.iter().filter(leaves).collect(), answers)
}

/// Returns whether no member can hold the state of some shard in memory any more, as far as these answers show: a live leader ends the
/// view, so that the next one gives the shard up \[A7\].
#[must_use]
pub fn has_orphan(view: &EndingView, answers: &EndAnswers<'_>, dead: RankSet) -> bool {
    let may_hold = |number: usize, rank: usize| match answers.get(&rank) {
        _ if dead.contains(rank) => false,
        Some(answer) => holds(answer, view, number),
        None => true,
    };
    let is_orphan = |(number, shard): (usize, &EndingShard)| {
        let has_members = !shard.kind.is_durable && !shard.members.is_empty();
        has_members && !shard.members.iter().any(|rank| may_hold(number, rank))
    };
    view.shards.iter().enumerate().any(is_orphan)
}

/// Returns which leavers can be spared \[A9\]: others that stay hold each state that they hold, and that of each durable shard in which they
/// are: as long as no member holds that, what was before the view may be with any of them \[K17\].
fn spared(view: &EndingView, keep: RankSet, leavers: RankSet, answers: &EndAnswers<'_>) -> RankSet {
    mutant!(SpareLastHolder => return if leavers == keep { RankSet::EMPTY } else { leavers });
    let holds_it = |rank: usize, shard: usize| {
        let is_in = view.shards[shard].members.contains(rank);
        is_in && answers.get(&rank).is_some_and(|answer| holds(answer, view, shard))
    };
    let rest = keep - leavers;
    let is_spared = |rank: &usize| {
        let is_replaced = |shard: usize| {
            let of = &view.shards[shard];
            let is_needed = holds_it(*rank, shard) || of.kind.is_durable && of.members.contains(*rank);
            !is_needed || rest.iter().any(|other| holds_it(other, shard))
        };
        (0..view.shards.len()).all(is_replaced)
    };
    leavers.iter().filter(is_spared).collect()
}

/// A shard stays with members that hold it, however the layout moves it, until as many of the members that the layout wants hold it
/// \[K19\]: two, those that hold the state first.
fn keep_holders(view: &EndingView, answers: &EndAnswers<'_>, value: &mut EndValue) {
    mutant!(MoveFromHolders => return);
    for (number, shard) in view.shards.iter().enumerate() {
        let candidates = shard.members & value.stay;
        let has = |rank: &usize| answers.get(rank).is_some_and(|answer| holds(answer, view, number));
        let (with, without): (Vec<usize>, Vec<usize>) = candidates.iter().partition(has);
        let needed = candidates.len().min(2);
        let holders: RankSet = with.iter().chain(&without).take(needed).copied().collect();
        let holders = ranks_in_next(value, holders);
        let with = ranks_in_next(value, with.into_iter().collect());
        if (with & value.placement[number]).len() < needed && !holders.is_subset(&value.placement[number]) {
            reach(Point::EndHolderKept);
            value.placement[number] |= holders;
        }
    }
}

/// Returns whether a shard of which no holder is kept is given up \[A7\]; not as long as a holder may be away.
fn is_given_up(
    context: &EndContext<'_>,
    number: usize,
    answers: &EndAnswers<'_>,
    kept: RankSet,
) -> Result<bool, EndObstacle> {
    let shard = &context.view.shards[number];
    match shard.kind.is_durable {
        _ if shard.members.is_empty() => return Ok(false),
        // Its log is kept; what was before may be with members of earlier views [K17].
        true if !kept.is_empty() => return Ok(false),
        true => return Err(EndObstacle::Logs(number)),
        false => {}
    }
    mutant!(GiveUpTooSoon => return Ok(true));
    let may_hold = |rank: usize| match answers.get(&rank) {
        Some(answer) => holds(answer, context.view, number),
        None if context.dead.contains(rank) => false,
        None => !context.gives_up_silent || context.view.is_durable(),
    };
    if shard.members.iter().any(may_hold) {
        return Err(EndObstacle::Holder(number));
    }
    reach(Point::EndShardGivenUp);
    Ok(true)
}

impl EndProposal {
    /// Returns the proposal of a new value \[H10\].
    #[must_use]
    pub fn new(view: &EndingView, value: EndValue, answers: &EndAnswers<'_>) -> Self {
        let need = |shard| full_need(view, &value, shard, answers);
        let need: Vec<usize> = (0..view.shards.len()).map(need).collect();
        Self { value: Arc::new(value), carry: need.clone(), need }
    }
}

/// Returns how many of those that a new value keeps in a shard have to vote for it: two, or its only one. Of a shard of which all that stay
/// have what counts, none: of one in memory, whose members have all the least count, and of a durable one at a live end. A member that has
/// restarted is no copy of a shard in memory \[H20\].
fn full_need(view: &EndingView, value: &EndValue, shard: usize, answers: &EndAnswers<'_>) -> usize {
    let kind = view.shards[shard].kind;
    let all_have_it = kind.quorum == ShardQuorum::All && (value.is_live || !kind.is_durable);
    let is_majority = kind.quorum == ShardQuorum::Majority;
    if all_have_it || is_majority && mutant!(NeedNoCopies) {
        return 0;
    }
    let is_copy =
        |rank: &usize| kind.is_durable || !answers.get(rank).is_some_and(|answer| answer.is_restarted);
    view.kept(value, shard).iter().filter(is_copy).count().min(2)
}
