//! Every known mutation, put back into the protocols, is caught within a stated number of seeds, because a checker
//! that has never failed is not trusted.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use squall_fabric::atomics::{AtomicUsize, Ordering};
use squall_protocols::admission::mutation::AdmissionMutation;
use squall_protocols::genuine::mutation::GenuineMutation;
use squall_protocols::replica::mutation::ReplicaMutation;
use squall_protocols::restart::mutation::RestartMutation;
use squall_protocols::{admission, assembly, mutation};
use squall_simulator::{
    self as simulator, RunOutcome, Scenario, alive, genuine, group, join, large, outage, replica, restart,
    revival, salvage, scenarios, takeover,
};

/// The number of seeds within which each mutation must be caught.
const SEEDS: u64 = 2000;

/// Returns what a run finds: a violation, or a failed assertion of the protocol itself.
fn found(run: impl FnOnce() -> RunOutcome) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => Some(outcome.violation?.to_string()),
        Err(panic) => {
            Some(format!("assertion: {}", panic.downcast_ref::<String>().cloned().unwrap_or_default()))
        }
    }
}

fn run(scenario: &dyn Scenario, seed: u64) -> Option<String> {
    Some(format!("{} {seed}: {}", scenario.name(), found(|| scenario.run(seed))?))
}

/// Returns what catches a mutation first. All scenarios run each seed before any runs the next one.
fn caught(scenarios: &[Box<dyn Scenario>]) -> Option<String> {
    (0..SEEDS).find_map(|seed| scenarios.iter().find_map(|scenario| run(scenario.as_ref(), seed)))
}

fn caught_in(scenario: &dyn Scenario, first_seed: u64) -> Option<String> {
    (first_seed..first_seed + SEEDS).find_map(|seed| run(scenario, seed))
}

/// Mutations that no run catches before this one, of dozens or hundreds: the search begins there.
type Late<M> = [(M, u64)];

fn first_seed<M: Copy + PartialEq>(late: &Late<M>, mutation: M) -> u64 {
    late.iter().find(|(other, _)| *other == mutation).map_or(0, |(_, seed)| *seed)
}

/// The runs at which such a search begins hold without a mutation.
fn assert_clean<M>(scenario: &dyn Scenario, late: &Late<M>) {
    late.iter().for_each(|(_, seed)| assert_eq!(run(scenario, *seed), None));
}

/// Puts each mutation back in turn, on all cores, and fails with those that were missed.
#[expect(clippy::disallowed_methods, reason = "each run is in one thread; this spreads them")]
fn check<M: Copy + Debug + Sync>(mutations: &[M], caught: impl Fn(M) -> Option<String> + Sync) {
    // Assertions of the protocol may catch a mutation first; their messages would only be noise.
    std::panic::set_hook(Box::new(|_| ()));
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(mutation) = mutations.get(next.fetch_add(1, Ordering::Relaxed)) {
            match caught(*mutation) {
                Some(text) => println!("{mutation:?}: {text}"),
                None => missed.lock().expect("no panic").push(format!("{mutation:?}")),
            }
        }
    };
    std::thread::scope(|threads| {
        (0..std::thread::available_parallelism().map_or(1, usize::from))
            .for_each(|_| drop(threads.spawn(work)));
    });
    let _ = std::panic::take_hook();
    let missed = missed.into_inner().expect("no panic");
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

/// Unit tests of the rules catch these, in `group/tests.rs` of the protocols if no other file is named. What they need is rare in
/// runs, or does not happen there:
///
/// - `TakeEarliestProposal` (`agreement.rs`): three leaders die, each at one of a few posts. None of 120,000 runs of takeovers
///   has that.
/// - `OneJoinPerView` and `EndFullView`: a leader is asked to admit several joiners, or one into a full group. Admission asks
///   for neither.
/// - `ProposeUnaccepted`: a member still follows the first leader, and decides its proposal, when the next leader proposes and
///   knows of none.
/// - `LeadForEver`: several members report that they do not hear a leader, just after it has proposed.
/// - `VouchUnheard`: two members do not hear a third one, and the second one finds that only when the first one's report has
///   ended a view.
/// - `MissLateReader`: a member is accused by all but one before it attaches.
/// - `SuspectBeforeVote` (`membership/tests.rs`): a restart finds a vote that a later leader has not seen.
/// - `ForgetLastWords` (`membership/tests.rs`): a member dies between its last words and the heartbeat after them.
/// - `AwaitLoss`: each dying member is lost in the end, only later.
/// - `RecordAgain`: the flight recorder only watches.
/// - `CutUnproven` (`membership/cut.rs`): links among hundreds of members fail at random, so that no least cover is found within bounds.
/// - `SearchCutShort` (`membership/cut.rs`, and a run of `tests/large.rs`): a group of dozens parts, and nearly half of it is lost.
/// - `TakeMissedProposal` (`proposal.rs`): a member attaches between a proposal and the decision of the others to continue without it.
/// - `MuteUntilDue` (`membership/tests.rs`): a joiner opens its first view late, with a slow clock, and a member with a fast one waits for it.
/// - `OwnAreNoNews` (`multicast/pull.rs`): the simulator's consumers look without being woken.
/// - `EndWithoutCopies`, `AdoptAnyEcho` (`membership/row.rs`, `membership/waiting/values.rs`): the member that alone has what a shard counts dies
///   between the decision and the next view, and those that it hears have accused it meanwhile.
/// - `ForgetEchoAtWait` (`membership/waiting/values.rs`): a view is decided live at one member, and that comes back from an outage last.
const UNIT_TESTED: [mutation::GroupMutation; 19] = [
    mutation::GroupMutation::EndWithoutCopies,
    mutation::GroupMutation::AdoptAnyEcho,
    mutation::GroupMutation::ForgetEchoAtWait,
    mutation::GroupMutation::OwnAreNoNews,
    mutation::GroupMutation::MuteUntilDue,
    mutation::GroupMutation::SearchCutShort,
    mutation::GroupMutation::CutUnproven,
    mutation::GroupMutation::ForgetLastWords,
    mutation::GroupMutation::AwaitLoss,
    mutation::GroupMutation::RecordAgain,
    mutation::GroupMutation::SuspectBeforeVote,
    mutation::GroupMutation::TakeMissedProposal,
    mutation::GroupMutation::TakeEarliestProposal,
    mutation::GroupMutation::OneJoinPerView,
    mutation::GroupMutation::EndFullView,
    mutation::GroupMutation::ProposeUnaccepted,
    mutation::GroupMutation::LeadForEver,
    mutation::GroupMutation::VouchUnheard,
    mutation::GroupMutation::MissLateReader,
];

/// Returns the one scenario that has what a mutation needs, or the one that catches it after dozens or hundreds of seeds of all, and the
/// seed at which the search for it begins there.
fn place(mutation: mutation::GroupMutation) -> Option<(&'static dyn Scenario, u64)> {
    use mutation::GroupMutation;
    Some(match mutation {
        GroupMutation::TakePartEarly | GroupMutation::HearEarly => (&join::SCENARIO, 0),
        GroupMutation::ReadyWhileEnding => (&join::SCENARIO, 82),
        GroupMutation::JoinWithoutEnd => (&revival::SCENARIO, 69),
        // 65 members, and in the other two groups many subgroups: larger groups take seconds.
        GroupMutation::FirstPieceOnly => (&large::SCENARIO, 176),
        GroupMutation::ForgetIdle => (&large::SCENARIO, 2),
        GroupMutation::SleepUnlooked => (&large::SCENARIO, 13),
        // No member of a durable subgroup stays in a view.
        GroupMutation::TrimOrphan => (&group::SCENARIO, 614),
        // Shards with a majority for quorum lose members.
        GroupMutation::EndWithoutQuorum => (&genuine::SCENARIO, 381),
        GroupMutation::TrimTooHigh => (&genuine::SCENARIO, 588),
        // All paths fail, and the members that know how the view has ended come back last.
        GroupMutation::StopForSilence => (&outage::SCENARIO, 0),
        GroupMutation::KeepEndSecret => (&outage::SCENARIO, 4675),
        // What is on disks when all die in an outage.
        GroupMutation::SayBeforeDisk => (&revival::SCENARIO, 26),
        GroupMutation::TakeOverAccusations => (&alive::SCENARIO, 33),
        GroupMutation::SlowThoughMoving => (&group::slow::SCENARIO, 26),
        GroupMutation::ForgetWish | GroupMutation::RemoveLastHolder => (&replica::SCENARIO, 22),
        _ => return None,
    })
}

/// Returns a run that catches a mutation which needs several rare events in a row.
///
/// - `ForgetPause`: a member pauses for about as long as the others wait, between its last store in a view and the
///   next view, and one of the others accuses it just before it is back.
/// - `BlendProposal` and `IgnoreEarlierProposal`: two leaders die in a row, at posts that few runs have.
/// - `DecideDeparted`: a member that leaves learns of the decision so late that the others have disconnected it.
/// - `MuteWhileOpening`: those that are not heard while a view opens wait, and mostly all are kept.
/// - `LeaveThoseThatWait`: all paths fail when one member knows how the view has ended, and the others do not yet.
fn rare(mutation: mutation::GroupMutation) -> Option<fn() -> RunOutcome> {
    use mutation::GroupMutation;
    Some(match mutation {
        GroupMutation::ForgetPause => || alive::SCENARIO.run(24_407),
        GroupMutation::BlendProposal | GroupMutation::IgnoreEarlierProposal => {
            || takeover::SCENARIO.run(1_331)
        }
        GroupMutation::DecideDeparted => || takeover::SCENARIO.run(961),
        GroupMutation::LeaveThoseThatWait => || outage::SCENARIO.run(8_527),
        GroupMutation::MuteWhileOpening => || group::SCENARIO.run(6_984),
        _ => return None,
    })
}

#[test]
fn every_mutation_is_caught() {
    let mut scenarios = scenarios();
    // Other scenarios have all of their views, too, and smaller groups.
    let others = [
        join::SCENARIO.name,
        revival::SCENARIO.name,
        large::SCENARIO.name,
        large::MEDIUM.name,
        genuine::LARGE.name,
    ];
    scenarios.retain(|scenario| !others.contains(&scenario.name()));
    let caught = |mutation| match (rare(mutation), place(mutation)) {
        _ if UNIT_TESTED.contains(&mutation) => Some("a unit test".into()),
        (Some(run), _) => found(run),
        (None, Some((scenario, first_seed))) => caught_in(scenario, first_seed),
        (None, None) => caught(&scenarios),
    };
    check(mutation::GroupMutation::ALL, |mutation| mutation::with(mutation, || caught(mutation)));
}

/// Otherwise these runs would prove nothing.
#[test]
fn runs_with_rare_events_hold_without_a_mutation() {
    for mutation in mutation::GroupMutation::ALL {
        assert_eq!(rare(*mutation).and_then(found), None, "{mutation:?}");
        let place = place(*mutation).filter(|(_, first_seed)| *first_seed > 0);
        assert_eq!(place.and_then(|(scenario, seed)| run(scenario, seed)), None, "{mutation:?}");
    }
    assert_eq!(run(&replica::SCENARIO, WITH_EARLY_UPDATE), None);
    for seed in [WITH_FORGOTTEN_TRIMS, WITH_LONE_DECISION, WITH_EARLY_ACCEPTANCE] {
        assert_eq!(run(&restart::SCENARIO, seed), None);
    }
    assert_clean(&replica::SCENARIO, LATE_IN_OBJECTS);
    assert_clean(&join::SCENARIO, LATE_IN_ADMISSION);
    assert_clean(&genuine::SCENARIO, LATE_IN_GENUINE);
    assert_clean(&genuine::SCENARIO, LATE_OF_VIEWS_IN_GENUINE);
    assert_clean(&restart::SCENARIO, LATE_IN_RESTARTS);
}

/// A run of objects that catches `ApplyEarly`: an update gets into the order of its shard before an earlier one of its client.
const WITH_EARLY_UPDATE: u64 = 135;

const LATE_IN_OBJECTS: &Late<ReplicaMutation> =
    &[(ReplicaMutation::AskOutOfOrder, 91), (ReplicaMutation::DenyUnknown, 650)];

/// The mutations of replicated objects, which one scenario catches.
#[test]
fn every_mutation_in_objects_is_caught() {
    use squall_protocols::replica::mutation::with;
    let caught = |mutation| match mutation {
        ReplicaMutation::ApplyEarly => run(&replica::SCENARIO, WITH_EARLY_UPDATE),
        // The scenario's groups do not begin again after all have ended: runs in `replica/tests` catch these.
        ReplicaMutation::RecoverWithoutSessions
        | ReplicaMutation::NumberSessionsAnew
        // So do those of what reads the log.
        | ReplicaMutation::ContinueFromLater
        | ReplicaMutation::ReadBeforeBase
        | ReplicaMutation::ReadToNewest
        | ReplicaMutation::ReadBeyondTrim
        | ReplicaMutation::TrustEachTime
        | ReplicaMutation::ReadUnsettled
        | ReplicaMutation::ReturnEarlier
        | ReplicaMutation::LoseDropped
        // And a unit test of the outbox: members of the scenario report what is refused, and ask no others.
        | ReplicaMutation::OvertakeElsewhere => Some("a unit test".into()),
        _ => caught_in(&replica::SCENARIO, first_seed(LATE_IN_OBJECTS, mutation)),
    };
    check(ReplicaMutation::ALL, |mutation| with(mutation, || caught(mutation)));
}

const LATE_IN_ADMISSION: &Late<AdmissionMutation> = &[
    (AdmissionMutation::AskForEver, 91),
    (AdmissionMutation::WaitForDeadLeader, 95),
    (AdmissionMutation::TakeLost, 1_227),
];

/// The mutations of joiners and of the members that admit them.
///
/// Unit tests (`service.rs`, `joiner/tests.rs`) catch four. `AdmitTwo`: of two candidates the later one replaces the earlier one, which
/// asks again when its report is refused, so that it costs attempts and violates nothing else. `RefuseSilently`: the
/// joiner sees the end of its link, too, and accuses the member from its side. `AbandonReport`: the leader has to die just when it has
/// proposed the joiner, in a group that has no other member to spare. `KeepOutdated`: the joiner asks again later, when it has waited for
/// long enough.
#[test]
fn every_mutation_in_admission_is_caught() {
    use admission::mutation::with;
    let caught = |mutation| match mutation {
        AdmissionMutation::AdmitTwo
        | AdmissionMutation::RefuseSilently
        | AdmissionMutation::AbandonReport
        | AdmissionMutation::KeepOutdated => Some("a unit test".into()),
        _ => caught_in(&join::SCENARIO, first_seed(LATE_IN_ADMISSION, mutation)),
    };
    check(AdmissionMutation::ALL, |mutation| with(mutation, || caught(mutation)));
}

/// The mutations of assembly. Its runs are short, so there can be more of them. `TakeStaleReport` has a unit test:
/// the member whose report crosses its release has to be the last to link again.
#[test]
fn every_mutation_in_assembly_is_caught() {
    use assembly::mutation::{AssemblyMutation, with};
    let caught = || (0..10 * SEEDS).find_map(|seed| run(&simulator::assembly::SCENARIO, seed));
    check(AssemblyMutation::ALL, |mutation| match mutation {
        AssemblyMutation::TakeStaleReport => Some("a unit test".into()),
        _ => with(mutation, caught),
    });
}

/// A run of shards that catches `ForgetLog`: a member that lacks a part of its shard's log learns that a proposal is decided when the others
/// are in the next view.
const WITH_LATE_FETCH: u64 = 30_192;

/// A run of large shards that catches `WrapRanks`: a member that lacks a part of its shard's log hears the others of the shard, and does not
/// hear two whose ranks are the same modulo 64.
const WITH_RANKS_A_WORD_APART: u64 = 28;

const LATE_IN_GENUINE: &Late<GenuineMutation> = &[
    (GenuineMutation::QuorumWithoutLeader, 83),
    (GenuineMutation::AcknowledgeFirst, 92),
    (GenuineMutation::ForgetPosition, 117),
    (GenuineMutation::AwaitAll, 121),
    (GenuineMutation::PassMissingRecord, 146),
    (GenuineMutation::PassUnordered, 146),
    (GenuineMutation::TrimOfAll, 154),
    (GenuineMutation::SkipFetch, 154),
    (GenuineMutation::AdmitWithoutState, 162),
    (GenuineMutation::HalfSuffices, 227),
    (GenuineMutation::CountLostShard, 846),
];

const LATE_OF_VIEWS_IN_GENUINE: &Late<mutation::GroupMutation> =
    &[(mutation::GroupMutation::DecideAlone, 395)];

/// Messages to several shards. At the end of a view they rest on the agreement of all groups \[G11\], whose mutations break them
/// too: two of these are looked for here.
#[test]
fn every_mutation_in_genuine_multicast_is_caught() {
    use squall_protocols::genuine::mutation::with;
    let rare = || run(&genuine::SCENARIO, WITH_LATE_FETCH);
    check(GenuineMutation::ALL, |mutation| match mutation {
        GenuineMutation::ForgetLog => with(mutation, rare),
        GenuineMutation::WrapRanks => with(mutation, || run(&genuine::LARGE, WITH_RANKS_A_WORD_APART)),
        _ => {
            let first_seed = first_seed(LATE_IN_GENUINE, mutation);
            with(mutation, || caught_in(&genuine::SCENARIO, first_seed))
        }
    });
    let of_views = [mutation::GroupMutation::TrimOfOne, mutation::GroupMutation::DecideAlone];
    check(&of_views, |mutation| {
        let first_seed = first_seed(LATE_OF_VIEWS_IN_GENUINE, mutation);
        mutation::with(mutation, || caught_in(&genuine::SCENARIO, first_seed))
    });
}

/// A run of restarts that catches `ForgetTooSoon`: all live members of a shard forget a trim that a process needs which comes
/// back.
const WITH_FORGOTTEN_TRIMS: u64 = 4_317;

/// A run of restarts that catches `DecideByOneAcceptance`: a leader that has decided alone dies, and the others end the view otherwise.
const WITH_LONE_DECISION: u64 = 5_122;

/// A run of restarts that catches `ShowAcceptanceEarly`: a member dies while its acceptance is on the way to its disk, and the leader has
/// decided by it.
const WITH_EARLY_ACCEPTANCE: u64 = 3_621;

const LATE_IN_RESTARTS: &Late<RestartMutation> = &[
    (RestartMutation::PersistBeforeFlush, 76),
    (RestartMutation::DeliverWithoutJoiners, 107),
    (RestartMutation::RestartWithTwo, 216),
    (RestartMutation::NeedOneLog, 237),
    (RestartMutation::IgnoreAcceptances, 274),
    (RestartMutation::ForgetAcceptance, 329),
    (RestartMutation::TrustUncheckedViews, 738),
];

const SALVAGED: [RestartMutation; 6] = [
    RestartMutation::SalvageHole,
    RestartMutation::SalvageLess,
    RestartMutation::SalvageSameGroup,
    RestartMutation::SalvagePromises,
    RestartMutation::SalvageSameView,
    RestartMutation::SalvageOthers,
];

const UNIT_TESTED_IN_RESTARTS: [RestartMutation; 14] = [
    RestartMutation::AskUselessAgain,
    RestartMutation::CountUnflushed,
    RestartMutation::SuspectBeforeEcho,
    RestartMutation::TrustDamaged,
    RestartMutation::LeadByLowestOnly,
    RestartMutation::ForgetPromise,
    RestartMutation::CountOutsiders,
    RestartMutation::RestartWithHalf,
    RestartMutation::AdoptLowest,
    RestartMutation::AdoptAny,
    RestartMutation::PresumeCopies,
    RestartMutation::AcceptBeforeTransfer,
    RestartMutation::DecideWithoutCopies,
    RestartMutation::MoveAway,
];

/// Durable views and restarts. Those of one decision each, which several rare events in a row are needed to show, have unit tests
/// (`crates/protocols/src/restart/tests.rs`, and `live.rs`, `placement.rs`, `register_writer.rs` and `transfer.rs` beside it).
#[test]
fn every_mutation_in_restarts_is_caught() {
    use squall_protocols::restart::mutation::with;
    let is_unit_tested = |mutation| UNIT_TESTED_IN_RESTARTS.contains(&mutation);
    check(RestartMutation::ALL, |mutation| match mutation {
        RestartMutation::ForgetTooSoon => with(mutation, || run(&restart::SCENARIO, WITH_FORGOTTEN_TRIMS)),
        RestartMutation::DecideByOneAcceptance => {
            with(mutation, || run(&restart::SCENARIO, WITH_LONE_DECISION))
        }
        RestartMutation::ShowAcceptanceEarly => {
            with(mutation, || run(&restart::SCENARIO, WITH_EARLY_ACCEPTANCE))
        }
        mutation if is_unit_tested(mutation) => Some("a unit test".into()),
        mutation if SALVAGED.contains(&mutation) => with(mutation, || caught_in(&salvage::SCENARIO, 0)),
        mutation => {
            let first_seed = first_seed(LATE_IN_RESTARTS, mutation);
            with(mutation, || caught_in(&restart::SCENARIO, first_seed))
        }
    });
}
