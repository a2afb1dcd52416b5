//! Leaders die at each step of their protocol, by enumeration (Derecho §3.4).
//!
//! The steps are counted: if one is no longer reached, because the protocol or the plan has changed, a test fails.

use std::collections::BTreeMap;

use squall_simulator::takeover::{
    TakeoverCase, TakeoverChange, TakeoverStep, TakeoverTally, enumerate, enumerate_pieces,
};

/// The steps of every leader that ends a view with others.
const ALWAYS: [TakeoverStep; 6] = [
    TakeoverStep::Counts,
    TakeoverStep::Wedge,
    TakeoverStep::Proposal,
    TakeoverStep::Echo,
    TakeoverStep::Decision,
    TakeoverStep::Heartbeat,
];

fn cases(members: u32, seed: u64) -> impl Iterator<Item = TakeoverCase> {
    let each = move |shared| TakeoverChange::ALL.map(|change| TakeoverCase { members, change, shared, seed });
    [false, true].into_iter().flat_map(each)
}

fn assert_none_failed(tally: &TakeoverTally) {
    if let Some((plan, violation)) = tally.failures.first() {
        panic!("{} of {} runs fail, the first: {violation}\n{plan}", tally.failures.len(), tally.runs);
    }
}

fn assert_reached(steps: &BTreeMap<TakeoverStep, u64>, expected: &[TakeoverStep], whose: &str) {
    let missing: Vec<&TakeoverStep> = expected.iter().filter(|step| !steps.contains_key(step)).collect();
    assert!(missing.is_empty(), "{whose} never dies at {missing:?}, only at {steps:?}");
}

#[test]
fn a_leader_dies_before_each_of_its_posts() {
    let mut all = TakeoverTally::default();
    for case in (2..=5).flat_map(|members| (0..3).flat_map(move |seed| cases(members, seed))) {
        let mut tally = TakeoverTally::default();
        enumerate(&case, 0, &mut tally);
        assert_none_failed(&tally);
        let losses = if case.change == TakeoverChange::TwoLosses { 2 } else { 1 };
        if case.members > losses + 1 {
            assert_reached(&tally.first, &ALWAYS, &format!("the leader of {case:?}"));
        }
        all.runs += tally.runs;
        tally.first.into_iter().for_each(|(step, runs)| *all.first.entry(step).or_default() += runs);
    }
    println!("{} runs, deaths before {:?}", all.runs, all.first);
    let rest =
        [TakeoverStep::Multicast, TakeoverStep::Suspicion, TakeoverStep::ViewNotice, TakeoverStep::NextView];
    assert_reached(&all.first, &rest, "a leader");
}

/// Both leaders die, at each pair of posts of the first leader and the next one, in groups in which a third member is
/// left. This test takes a sample of the first leader's posts; CI takes all.
#[test]
fn two_leaders_die_one_after_the_other() {
    two_leaders(9, 0..1);
}

/// This takes more than a minute; CI runs it with `--release --ignored`.
#[test]
#[ignore = "long; CI runs it in release"]
fn two_leaders_die_one_after_the_other_everywhere() {
    two_leaders(1, 0..3);
}

fn two_leaders(every: usize, seeds: std::ops::Range<u64>) {
    let mut tally = TakeoverTally::default();
    for case in (3..=5).flat_map(|members| seeds.clone().flat_map(move |seed| cases(members, seed))) {
        enumerate(&case, every, &mut tally);
        assert_none_failed(&tally);
    }
    println!("{} runs, deaths before {:?} and then {:?}", tally.runs, tally.first, tally.second);
    assert_reached(&tally.second, &ALWAYS, "the next leader");
    let rest =
        [TakeoverStep::Multicast, TakeoverStep::Suspicion, TakeoverStep::ViewNotice, TakeoverStep::NextView];
    assert_reached(&tally.second, &rest, "the next leader");
}

/// Some words of a push arrive and some do not, at one reader and not at the others.
#[test]
fn a_leader_dies_between_the_pieces_of_its_pushes() {
    let mut tally = TakeoverTally::default();
    for case in (2..=5).flat_map(|members| (1..=2).flat_map(move |seed| cases(members, seed))) {
        enumerate_pieces(&case, &mut tally);
        assert_none_failed(&tally);
    }
    println!("{} runs", tally.runs);
    assert!(tally.torn > 1000, "too few pieces: {}", tally.torn);
}
