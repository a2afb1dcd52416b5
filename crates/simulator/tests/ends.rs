//! The scenario of ends of views: it holds, everything that it is there for happens, and mutations of the rules are caught (Derecho §3.4).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use squall_fabric::atomics::{AtomicUsize, Ordering};
use squall_protocols::ends::mutation::{EndMutation, with};
use squall_simulator::ends::{EndsMix, EndsPlan, EndsTally, run_and_count};
use squall_simulator::{Scenario as _, ends, sweep};

/// A run in which nothing happens does not settle, so this holds only if the rules act; the tally says that each of them does.
#[test]
fn views_end_under_the_adversary() {
    let mut sum = EndsTally::default();
    for seed in 0..240 {
        let (outcome, tally) = run_and_count(&EndsPlan::draw(seed), 0);
        if let Some(violation) = outcome.violation {
            panic!("seed {seed}: {violation}\n{}", ends::SCENARIO.explain(seed));
        }
        sum += tally;
    }
    println!("{sum:?}");
    assert!(sum.least() > 0 && sum.live > 300 && sum.by_ballot > 100, "{sum:?}");
}

#[test]
fn what_the_scenario_promises_is_reached() {
    let summary = sweep(&ends::SCENARIO, 240..480, 1, |_, _| true);
    assert!(summary.failures.is_empty(), "{:?}", summary.failures);
    assert_eq!(summary.coverage.missing(&ends::SCENARIO.promises()), Vec::<String>::new());
}

/// Faults alone do not make a run fail: with shards of one kind, and whatever the plan leaves out when it is shrunk.
#[test]
fn plans_of_one_kind_and_their_smaller_plans_hold() {
    use squall_simulator::explain::Shrink as _;
    for (seed, mix) in
        (0..8).zip([EndsMix::Memory, EndsMix::Majority, EndsMix::Durable, EndsMix::Any].repeat(2))
    {
        let plan = EndsPlan::of_kind(seed, mix);
        for plan in plan.smaller().into_iter().take(4).chain([plan]) {
            assert_eq!(run_and_count(&plan, 0).0.violation, None, "{plan}");
        }
    }
}

/// The mutations that random runs catch, and a seed from which on they do so soon.
const CAUGHT: &[(EndMutation, u64)] = &[
    (EndMutation::DecideByOneLiveEcho, 5),
    (EndMutation::IgnoreLiveVotes, 172),
    (EndMutation::EndWithHalf, 13),
    (EndMutation::CountStrangers, 50),
    (EndMutation::TrimToMost, 3),
    (EndMutation::TrimToOwn, 6),
    (EndMutation::ReceiveAfterWedge, 0),
    (EndMutation::UseLostPair, 100),
    (EndMutation::CountOldAcknowledgements, 50),
    (EndMutation::GiveUpTooSoon, 27),
    (EndMutation::HoldWithoutBase, 1),
    (EndMutation::KeepAbsent, 0),
    (EndMutation::ResendUnknown, 3),
    (EndMutation::ReplyAtReception, 0),
    (EndMutation::KeepSuspects, 0),
    (EndMutation::TrimMajorityToLeast, 1),
    (EndMutation::EndBelowQuorum, 223),
    (EndMutation::NeedTheDead, 182),
    (EndMutation::KeepEndSilent, 2),
    (EndMutation::CountThoseThatWait, 65),
    (EndMutation::FollowWaitingLeader, 70),
    (EndMutation::PromiseUnwedged, 333),
    (EndMutation::DecideByOneVote, 162),
    (EndMutation::IgnoreBallotVotes, 172),
    (EndMutation::BreakPromise, 2_031),
    (EndMutation::MoveFromHolders, 5),
    (EndMutation::SpareLastHolder, 105),
    (EndMutation::ForgetFloor, 1),
    (EndMutation::TrimLogsToLeast, 4),
    (EndMutation::KeepApart, 8),
    (EndMutation::CountOtherViews, 3),
    (EndMutation::EndForSilence, 0),
    (EndMutation::TrustMemoryOfRestarted, 47),
];

/// Within that many seeds each of them is caught.
const SEEDS: u64 = 12;

/// Returns what a run finds: a violation, or a failed assertion of the rules themselves.
fn found(seed: u64) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| ends::SCENARIO.run(seed))) {
        Ok(outcome) => Some(outcome.violation?.checker.to_owned()),
        Err(_) => Some("assertion".to_owned()),
    }
}

/// Puts each mutation back in turn, on all cores, and fails with those that were missed.
#[test]
#[expect(clippy::disallowed_methods, reason = "each run is in one thread; this spreads them")]
fn mutations_of_the_rules_are_caught() {
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((mutation, first)) = CAUGHT.get(next.fetch_add(1, Ordering::Relaxed)) {
            let caught =
                (*first..first + SEEDS).find_map(|seed| Some((seed, with(*mutation, || found(seed))?)));
            match caught {
                Some((seed, checker)) => println!("{mutation:?}: {checker} at {seed}"),
                None => missed.lock().expect("no panic").push(*mutation),
            }
        }
    };
    std::thread::scope(|threads| {
        (0..std::thread::available_parallelism().map_or(1, usize::from))
            .for_each(|_| drop(threads.spawn(work)));
    });
    let missed = missed.into_inner().expect("no panic");
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

/// Mutations that no run needs to catch.
///
/// Tests of the rule alone catch these (`crates/protocols/src/ends/tests`); random runs show them rarely or never: `WaitWithoutPromise`, `EchoThoughWaiting`, `BreakPromise`,
/// `ProposeUnfollowed`, `TrimMajorityToMost`, `EndWithOneLog`, `NeedNoCopies`, `CountCopiesOfAll`, `TakeOverLowest`, `TakeOverAny`, `TakeOverAnyEcho`,
/// `IgnoreEarlierEcho`, `VoteWithoutContent`, `VoteLeftBehind`, `AdmitFormer`.
#[test]
fn each_mutation_is_caught_by_runs_or_by_a_test_of_its_rule() {
    let tested = [
        EndMutation::WaitWithoutPromise,
        EndMutation::EchoThoughWaiting,
        EndMutation::BreakPromise,
        EndMutation::ProposeUnfollowed,
        EndMutation::TrimMajorityToMost,
        EndMutation::EndWithOneLog,
        EndMutation::NeedNoCopies,
        EndMutation::CountCopiesOfAll,
        EndMutation::TakeOverLowest,
        EndMutation::TakeOverAny,
        EndMutation::TakeOverAnyEcho,
        EndMutation::IgnoreEarlierEcho,
        EndMutation::VoteWithoutContent,
        EndMutation::VoteLeftBehind,
        EndMutation::AdmitFormer,
    ];
    let is_named = |mutation: &&EndMutation| {
        CAUGHT.iter().any(|(caught, _)| caught == *mutation) || tested.contains(mutation)
    };
    let missing: Vec<_> = EndMutation::ALL.iter().filter(|mutation| !is_named(mutation)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
