//! Tests of new values: trims, floors, next members, holders, needs (Derecho §3.4).

use super::*;
use crate::ends::mutation::{EndMutation, with};
use crate::ends::{EndObstacle, NextMembers, new_value};

type Placed = Vec<RankSet>;

/// A new value from the answers of these ranks, with all shards everywhere.
fn ended(
    view: &EndingView,
    answers: &[(usize, EndAnswer)],
    dead: u64,
    is_live: bool,
) -> Result<EndValue, EndObstacle> {
    let shards = view.shards.len();
    let everywhere = move |members: &[Member]| vec![RankSet::all(members.len()); shards];
    let context = context(view, answers[0].0, dead, &everywhere);
    let answers = answers.iter().map(|(rank, answer)| (*rank, answer)).collect();
    new_value(&context, &answers, next(&answers, is_live))
}

fn next(answers: &crate::ends::EndAnswers<'_>, is_live: bool) -> NextMembers {
    NextMembers { keep: answers.keys().copied().collect(), is_live, ..NextMembers::default() }
}

fn counts(all: &[(usize, u64)]) -> Vec<(usize, EndAnswer)> {
    all.iter().map(|(rank, count)| (*rank, answer(&[*count]))).collect()
}

/// [H9]
#[test]
fn what_counts_in_memory_is_the_least_of_each_sender() {
    let view = view(4, &[(BY_SENDER, 0b0111)]);
    let of = |counts: [u64; 4]| EndAnswer {
        counts: vec![counts.to_vec()],
        whole: vec![true],
        ..EndAnswer::default()
    };
    // Rank 3 is no member of the shard.
    let answers =
        [(0, of([5, 2, 3, 0])), (1, of([4, 6, 3, 0])), (2, of([7, 2, 9, 0])), (3, of([0, 0, 0, 0]))];
    let trims = || ended(&view, &answers, 0, false).map(|value| value.trims);
    assert_eq!(trims(), Ok(vec![vec![4, 2, 3, 0]]));
    assert_eq!(with(EndMutation::TrimToMost, trims), Ok(vec![vec![7, 6, 9, 0]]));
    assert_eq!(with(EndMutation::TrimToOwn, trims), Ok(vec![vec![5, 2, 3, 0]]));
}

/// What a member has that restarted in the view is on no disk [H20].
#[test]
fn what_a_restarted_member_has_counts_in_durable_shards_alone() {
    let view = view(3, &[(MEMORY, 0b111), (DURABLE, 0b111)]);
    let restarted = EndAnswer { is_restarted: true, ..answer(&[0, 6]) };
    let answers = [(0, answer(&[5, 4])), (1, answer(&[7, 5])), (2, restarted)];
    let ended = || ended(&view, &answers, 0, false).expect("all have answered");
    assert_eq!(ended().trims, [[5], [6]]);
    assert_eq!(ended().whole[0], set(0b011));
    assert_eq!(with(EndMutation::TrustMemoryOfRestarted, ended).trims, [[0], [6]]);
}

/// Of Q members that have what was delivered, s may be absent [G10].
#[test]
fn with_a_majority_as_many_as_can_be_left_have_what_counts() {
    let view = view(5, &[(MAJORITY, 0b1_1111)]);
    let trim = |all: &[(usize, u64)]| ended(&view, &counts(all), 0, true).map(|value| value.trims[0][0]);
    let all = [(0, 9), (1, 8), (2, 7), (3, 6), (4, 5)];
    assert_eq!((trim(&all), trim(&all[..4]), trim(&all[..3])), (Ok(7), Ok(8), Ok(9)));
    assert_eq!(trim(&all[..2]), Err(EndObstacle::Quorum(0)));
    assert_eq!(with(EndMutation::TrimMajorityToLeast, || trim(&all)), Ok(5));
    assert_eq!(with(EndMutation::TrimMajorityToMost, || trim(&all)), Ok(9));
    assert_eq!(with(EndMutation::EndBelowQuorum, || trim(&all[..2])), Ok(9));
}

/// [K13]
#[test]
fn the_longest_of_enough_logs_counts() {
    let restart = |kind, all: &[(usize, EndAnswer)]| {
        ended(&view(5, &[(kind, 0b1_1111)]), all, 0, false).map(|value| value.trims[0][0])
    };
    let mut all = counts(&[(0, 9), (1, 8), (2, 7)]);
    assert_eq!(restart(DURABLE, &all[..2]), Ok(9));
    assert_eq!(restart(DURABLE, &all[..1]), Err(EndObstacle::Logs(0)));
    assert_eq!(with(EndMutation::EndWithOneLog, || restart(DURABLE, &all[..1])), Ok(9));
    assert_eq!(with(EndMutation::TrimLogsToLeast, || restart(DURABLE, &all)), Ok(7));
    assert_eq!(restart(DURABLE_MAJORITY, &all[..2]), Err(EndObstacle::Logs(0)));
    assert_eq!(restart(DURABLE_MAJORITY, &all), Ok(9));
    all[2].1.is_damaged = true;
    assert_eq!(restart(DURABLE_MAJORITY, &all), Err(EndObstacle::Logs(0)));
    assert_eq!(restart(DURABLE, &all), Ok(9));
    let live = ended(&view(5, &[(DURABLE, 0b1_1111)]), &all, 0, true).map(|value| value.trims[0][0]);
    assert_eq!(live, Ok(7), "all that stay have it");
}

/// No member of a durable shard is kept: its part of the view cannot end [K8].
#[test]
fn a_durable_shard_without_a_member_that_stays_has_no_end() {
    let view = view(3, &[(DURABLE, 0b100)]);
    let live = ended(&view, &counts(&[(0, 0), (1, 0)]), 0b100, true);
    assert_eq!(live, Err(EndObstacle::Logs(0)));
}

/// [K6]
#[test]
fn floors_cover_all_earlier_trims() {
    let floor = |before| {
        let view = EndingView { floor: before, ..view(2, &[(MEMORY, 0b11), (BY_SENDER, 0b11)]) };
        ended(&view, &[(0, answer(&[7, 90])), (1, answer(&[8, 90]))], 0, true).map(|value| value.floor)
    };
    assert_eq!((floor(0), floor(20)), (Ok(7), Ok(20)), "counts of messages are no times");
    assert_eq!(with(EndMutation::ForgetFloor, || floor(20)), Ok(7));
}

/// A state is given up when all that may hold it are known to be dead, and not when they are only silent [A7].
#[test]
fn a_shard_is_given_up_when_all_its_holders_are_dead() {
    let view = view(4, &[(MEMORY, 0b1100)]);
    let end = |dead| ended(&view, &counts(&[(0, 0), (1, 0)]), dead, false).map(|value| value.given_up[0]);
    assert_eq!((end(0b0100), end(0b1100)), (Err(EndObstacle::Holder(0)), Ok(true)));
    assert_eq!(with(EndMutation::GiveUpTooSoon, || end(0)), Ok(true));
    // One that is there, and has never had the state, is no holder [H19].
    let joiner = EndAnswer { whole: vec![false], ..answer(&[0]) };
    let answers = [(0, answer(&[0])), (1, answer(&[0])), (2, joiner)];
    let end = |dead| ended(&view, &answers, dead, false).map(|value| (value.given_up[0], value.whole[0]));
    assert_eq!(end(0), Err(EndObstacle::Holder(0)));
    assert_eq!(end(0b1000), Ok((true, set(0b111))), "its state begins anew at all of its members");
    assert_eq!(with(EndMutation::HoldWithoutBase, || end(0)), Ok((false, set(0b100))));
}

/// The time for that has passed, and no shard is durable.
#[test]
fn a_shard_of_silent_holders_is_given_up_if_that_is_set() {
    let silent = |shards: &[(ShardKind, u64)]| {
        let view = view(3, shards);
        let count = shards.len();
        let everywhere = move |members: &[Member]| vec![RankSet::all(members.len()); count];
        let context = EndContext { gives_up_silent: true, ..context(&view, 0, 0, &everywhere) };
        let some = [answer(&vec![0; count]), answer(&vec![0; count])];
        let answers = some.iter().enumerate().collect();
        new_value(&context, &answers, next(&answers, false)).map(|value| value.given_up[0])
    };
    assert_eq!(silent(&[(MEMORY, 0b100)]), Ok(true));
    assert_eq!(silent(&[(MEMORY, 0b100), (DURABLE, 0b111)]), Err(EndObstacle::Holder(0)));
}

/// All members of a shard with a majority for quorum have lost their memory: then nothing of it is left, and the others continue.
#[test]
fn a_majority_shard_that_is_wholly_gone_is_given_up() {
    let view = view(5, &[(MAJORITY, 0b0111), (DURABLE, 0b1_1000)]);
    let restarted = EndAnswer { is_restarted: true, ..answer(&[0, 0]) };
    let mut answers = vec![(3, answer(&[0, 4])), (4, answer(&[0, 5])), (2, restarted)];
    let end = |answers: &[_], dead| ended(&view, answers, dead, false).map(|value| value.given_up);
    assert_eq!(end(&answers, 0b01), Err(EndObstacle::Quorum(0)), "rank 1 may be there");
    assert_eq!(end(&answers, 0b11), Ok(vec![true, false]));
    answers.push((1, answer(&[9, 0])));
    assert_eq!(end(&answers, 0b01), Err(EndObstacle::Quorum(0)));
}

/// [A9]
#[test]
fn a_leaver_that_alone_holds_a_state_stays() {
    let view = view(3, &[(MEMORY, 0b011)]);
    let leaver = EndAnswer { leaves: true, ..answer(&[3]) };
    let end = |other: bool| {
        let other = EndAnswer { whole: vec![other], ..answer(&[3]) };
        let answers = [(0, leaver.clone()), (1, other), (2, answer(&[0]))];
        ended(&view, &answers, 0, false).map(|value| (value.left, value.leaving))
    };
    assert_eq!(end(true), Ok((set(0b001), set(0))));
    assert_eq!(end(false), Ok((set(0), set(0b001))));
    let let_go = with(EndMutation::SpareLastHolder, || end(false));
    assert_eq!(let_go, Err(EndObstacle::Holder(0)), "it answered, and is not kept");
}

/// [K19]
#[test]
fn a_shard_that_moves_keeps_two_holders() {
    let view = view(4, &[(MEMORY, 0b0111)]);
    let moved = |to: u64, whole: [bool; 3]| {
        let elsewhere = move |_: &[Member]| -> Placed { vec![set(to)] };
        let context = context(&view, 0, 0, &elsewhere);
        let of = |rank: usize| EndAnswer { whole: vec![whole.get(rank) == Some(&true)], ..answer(&[0]) };
        let all: Vec<EndAnswer> = (0..4).map(of).collect();
        let answers = all.iter().enumerate().collect();
        new_value(&context, &answers, next(&answers, true)).map(|value| (value.placement[0], value.whole[0]))
    };
    assert_eq!(moved(0b1000, [true; 3]), Ok((set(0b1011), set(0b0011))));
    assert_eq!(
        moved(0b1000, [false, true, true]),
        Ok((set(0b1110), set(0b0110))),
        "those that hold it first"
    );
    assert_eq!(moved(0b1011, [true; 3]), Ok((set(0b1011), set(0b0011))));
    let lost = with(EndMutation::MoveFromHolders, || moved(0b1000, [true; 3]));
    assert_eq!(lost, Err(EndObstacle::Holder(0)));
}

/// A member that has not answered is not kept, whatever the layout.
#[test]
fn the_next_members_have_answered() {
    let view = view(3, &[(MEMORY, 0b111)]);
    let stay = || ended(&view, &counts(&[(0, 1), (2, 1)]), 0, false).map(|value| value.stay);
    assert_eq!(stay(), Ok(set(0b101)));
    assert_eq!(with(EndMutation::KeepAbsent, stay), Ok(set(0b111)));
}

/// [H10]
#[test]
fn two_copies_are_asked_for_where_not_all_have_what_counts() {
    let view =
        view(4, &[(MEMORY, 0b1111), (MAJORITY, 0b0111), (DURABLE, 0b1100), (DURABLE_MAJORITY, 0b1110)]);
    let restarted = EndAnswer { is_restarted: true, ..answer(&[0; 4]) };
    let all = [answer(&[0; 4]), restarted, answer(&[0; 4]), answer(&[0; 4])];
    let answers = all.iter().enumerate().collect();
    let need = |stay, is_live| {
        let value = EndValue { is_live, ..value(&view, stay, &[0; 4]) };
        EndProposal::new(&view, value, &answers).need
    };
    assert_eq!((need(0b1111, true), need(0b1111, false)), (vec![0, 2, 0, 2], vec![0, 2, 2, 2]));
    assert_eq!(need(0b1011, false), [0, 1, 1, 2], "a restarted member is no copy in memory");
    assert_eq!(with(EndMutation::NeedNoCopies, || need(0b1111, true)), [0; 4]);
}
