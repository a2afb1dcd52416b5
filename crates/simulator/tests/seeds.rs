//! Runs some seeds of every scenario in each test run; CI and `squall simulate` run more (Spindle §3, Derecho §3.4).

use squall_protocols::genuine::mutation::{self, GenuineMutation};
use squall_simulator::coverage::Point;
use squall_simulator::{
    Scenario as _, alive, ends, genuine, group, join, multicast, replica, restart, revival, salvage, sst,
    sweep, takeover,
};

#[test]
fn multicast_holds_under_the_adversary() {
    let summary = sweep(&multicast::SCENARIO, 0..3000, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", multicast::SCENARIO.explain(*seed));
    }
    assert!(summary.delivered > 50_000, "the scenario does too little: {}", summary.delivered);
}

#[test]
fn the_shared_state_table_holds_under_the_adversary() {
    let summary = sweep(&sst::SCENARIO, 0..2000, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", sst::SCENARIO.explain(*seed));
    }
    assert!(summary.delivered > 50_000, "the scenario does too little: {}", summary.delivered);
}

#[test]
fn groups_hold_under_the_adversary() {
    let summary = sweep(&group::SCENARIO, 0..1000, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", group::SCENARIO.explain(*seed));
    }
    assert!(summary.delivered > 50_000, "the scenario does too little: {}", summary.delivered);
}

/// Each of these seeds has found an error once, when records had longer headers: other runs have the same numbers now.
///
/// - 8845: messages that a consumer skips, because they are delivered again, were not released.
/// - 11359: a joiner was gone while a member waited for its disk to wedge, and the member did not continue.
/// - 63084: a member that was accused before it attached saw the decision of a proposal that it had missed, and treated
///   it as one without changes.
///
/// - 49038062, and 49030271 with members that die visibly: a joiner whose leader had died left while the others still decided the view
///   with it, and they lost their majority.
///
/// With members that die visibly, too:
/// - 49013943: a process that waited for an answer got events of nodes that it had no links with, and never slept.
///
/// In the scenario of objects:
/// - 49005172, 49021858: a member that had joined in a view that not all began kept its links with those that left before it arrived,
///   and one that waited for them never learned that it had been removed.
///
/// In the scenario of ends:
/// - 49001602, 49001854: a member of a durable shard without a holder left, and what was before the view with it.
/// - 49003467: one that died while it was leaving did not return, and with it its log.
/// - 49001769, 49015777: one that had returned with its register still counted as dead.
/// - 49013923: a process that had started again heard no report that had been sent before.
/// - 49042764: members delivered between themselves what was given up, and the checker counted it.
///
/// In the scenario of takeovers:
/// - 71043, 78589: a member that had left learned of it late, lost the others and decided alone what is delivered.
///
/// In the scenario of restarts:
/// - 14928: an answer that a process had asked for in an earlier life came into its log, although its core did not count it.
/// - 102000: those that could restart did not within the time. Why is not known; an earlier version did that.
#[test]
fn seeds_that_have_found_something_hold() {
    for seed in [8_845, 11_359, 63_084, 49_038_062] {
        assert_eq!(group::SCENARIO.run(seed).violation, None, "seed {seed}");
    }
    for seed in [49_013_943, 49_030_271, 49_038_062] {
        assert_eq!(group::DYING.run(seed).violation, None, "seed {seed}");
    }
    for seed in [49_005_172, 49_021_858] {
        assert_eq!(replica::SCENARIO.run(seed).violation, None, "seed {seed}");
    }
    for seed in [49_001_602, 49_001_769, 49_001_854, 49_003_467, 49_013_923, 49_015_777, 49_042_764] {
        assert_eq!(ends::SCENARIO.run(seed).violation, None, "seed {seed}");
    }
    for seed in [71_043, 78_589] {
        assert_eq!(takeover::SCENARIO.run(seed).violation, None, "seed {seed}");
    }
    for seed in [14_928, 102_000] {
        assert_eq!(restart::SCENARIO.run(seed).violation, None, "seed {seed}");
    }
}

/// A member stalls for about as long as the others wait, one of them accuses it, and that healthy accuser stays \[V15\]: in
/// views that end for no other reason (8, 138), with a pause that begins in the previous view (24407), and in a group with other
/// faults. With `NeverConcede` each of these runs fails.
#[test]
fn a_member_that_stalled_goes_and_not_its_accuser() {
    for seed in [8, 138, 24_407] {
        assert_eq!(alive::SCENARIO.run(seed).violation, None, "seed {seed}");
    }
    assert_eq!(group::SCENARIO.run(16_992).violation, None);
}

#[test]
fn slow_consumers_are_waited_for_or_excluded() {
    let summary = sweep(&group::slow::SCENARIO, 0..1000, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", group::slow::SCENARIO.explain(*seed));
    }
    assert!(summary.delivered > 50_000, "the scenario does too little: {}", summary.delivered);
}

#[test]
fn genuine_multicast_holds_under_the_adversary() {
    let summary = sweep(&genuine::SCENARIO, 0..1000, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", genuine::SCENARIO.explain(*seed));
    }
    assert!(summary.delivered > 75_000, "the scenario does too little: {}", summary.delivered);
}

/// The only member of a joiner's shard dies between the joiner's request and its report. The leader lets its candidate go, which
/// asks again and is not admitted: no joiner comes into a shard whose state is lost \[G14\].
#[test]
fn a_joiner_of_a_shard_without_its_state_need_not_arrive() {
    let (outcome, reached) = genuine::SCENARIO.run_and_count(726);
    assert_eq!(outcome.violation, None);
    let points = [Point::CandidateUntaken, Point::JoinUntaken];
    assert!(points.iter().all(|point| reached.points.contains_key(point)), "{reached:?}");
    let caught = mutation::with(GenuineMutation::AdmitWithoutState, || genuine::SCENARIO.run(726).violation);
    assert_eq!(caught.map(|violation| violation.checker), Some("admission"));
}

/// A view ends in which a joiner of a shard only stands by: with a majority for quorum messages are in without its acknowledgement, and its
/// application, which has not arrived, does not hear them \[J8\].
#[test]
fn a_joiner_that_stands_by_hears_no_messages_to_its_shard() {
    use squall_protocols::mutation::{GroupMutation, with};
    assert_eq!(genuine::SCENARIO.run(16_464).violation, None);
    let caught = with(GroupMutation::HearEarly, || genuine::SCENARIO.run(16_464).violation);
    assert_eq!(caught.map(|violation| violation.checker), Some("attempts"));
}

#[test]
fn takeovers_hold_under_the_adversary() {
    let summary = sweep(&takeover::SCENARIO, 0..1500, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", takeover::SCENARIO.explain(*seed));
    }
}

#[test]
fn joins_hold_under_the_adversary() {
    let summary = sweep(&join::SCENARIO, 0..500, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", join::SCENARIO.explain(*seed));
    }
    assert!(summary.delivered > 10_000, "the scenario does too little: {} views", summary.delivered);
}

#[test]
fn restarts_hold_under_the_adversary() {
    let summary = sweep(&restart::SCENARIO, 0..1000, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", restart::SCENARIO.explain(*seed));
    }
    assert!(summary.delivered > 20_000, "the scenario does too little: {}", summary.delivered);
}

/// This test also checks that every kind of event of the scenario has occurred.
#[test]
fn objects_hold_under_the_adversary() {
    let mut sum = replica::ReplicaTally::default();
    for seed in 0..1000 {
        let (outcome, tally) = replica::run_and_count(&replica::ReplicaPlan::draw(seed), 0);
        if let Some(violation) = outcome.violation {
            panic!("seed {seed}: {violation}\n{}", replica::SCENARIO.explain(seed));
        }
        sum += tally;
    }
    println!("{sum:?}");
    assert!(sum.least() > 50, "the scenario does too little: {sum:?}");
}

/// Group 1514: a request to leave must not be lost when another change ends the view; with `ForgetWish` the run fails. The
/// others have failed once. Group 86109: a node whose group had ended kept its connection to a joining node. Replica 1019: a
/// joiner that had left its shard and returned forgot that a state was in transfer to it, and refused another one, so that
/// the shard was considered lost. 5005137 and 5009543: joiners deferred each other until the time was over. 18, 22, 24 and
/// 25: shards moved before their states did, so that no member could use the states that the last holders had kept.
///
/// Restart 71: a member that knew of a later view voted and decided without a majority. 93: members forgot how a view
/// had ended, which members of another shard that were away did not know yet. 3737 and 4751: a process learned of the
/// views from one that had made a checkpoint of another shard, and found no checkpoint of its own, although others
/// knew the trims.
///
/// Join 26019: a process whose report was lost twice, and whose number a stranger took, gives up, and has a reason to.
///
/// Join 48001123 and 48001345: the leader was cut off with its answer to the report of a joiner, which waited for it and gave no sign of
/// life, so that the group lost two of four.
///
/// Group 48000925: a process that had left waited for a deadline of its relays that had passed, without a pause.
///
/// Six runs failed by faults of the scenarios themselves. Dying 48021448: the processor of a process had an event that nothing took. Group 48008732: a consumer released what it had skipped, and the node did not look
/// again. Dying 48029828: 66 blocks of each message were relayed one by one over a path that was slow for good. Group 91002286: the answer to a joiner was lost at a partition that was shorter
/// than any connection notices. Dying 91000363: a process got a further node in its last microseconds, which lived forever.
/// Revival 91021318: the only member that had the beginning of a log left before the joiner had it, and was expected back.
#[test]
fn what_failed_once_holds() {
    for seed in [48_001_123, 48_001_345] {
        assert_eq!(join::SCENARIO.run(seed).violation, None, "join {seed}");
    }
    for seed in [48_021_448, 48_029_828, 91_000_363] {
        assert_eq!(group::DYING.run(seed).violation, None, "dying {seed}");
    }
    assert_eq!(revival::SCENARIO.run(91_021_318).violation, None);
    // Of the beginning of a log that only a process that is away has.
    assert_eq!(revival::SCENARIO.run(48_052_814).violation, None);
    // A leaver that was put out first came back to leave, again and again.
    assert_eq!(restart::SCENARIO.run(48_041_452).violation, None);
    for seed in [1_514, 86_109, 48_000_925, 48_008_732, 91_002_286] {
        assert_eq!(group::SCENARIO.run(seed).violation, None, "group {seed}");
    }
    for seed in [18, 22, 24, 25, 1_019, 5_005_137, 5_009_543] {
        assert_eq!(replica::SCENARIO.run(seed).violation, None, "replica {seed}");
    }
    for seed in [71, 93, 3_737, 4_751] {
        assert_eq!(restart::SCENARIO.run(seed).violation, None, "restart {seed}");
    }
    assert_eq!(join::SCENARIO.run(26_019).violation, None);
}

/// The same seed gives the same run; otherwise no failure could be explained.
#[test]
fn runs_repeat() {
    for scenario in squall_simulator::scenarios() {
        // A run of the largest groups takes as long as hundreds of others; that one has 65 members.
        let seeds = match scenario.name() {
            "large" => 176..177,
            "genuine-large" => 0..1,
            "medium" => 0..3,
            _ => 0..25,
        };
        for seed in seeds {
            assert_eq!(
                scenario.run(seed).trace_hash,
                scenario.run(seed).trace_hash,
                "{} {seed}",
                scenario.name()
            );
        }
    }
}

/// A group that has lost most of its logs continues from one, with all that is in it.
#[test]
fn groups_continue_from_one_log() {
    let summary = sweep(&salvage::SCENARIO, 0..1000, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", salvage::SCENARIO.explain(*seed));
    }
    assert!(summary.delivered > 10_000, "the scenario does too little: {}", summary.delivered);
}

/// What groups leave on their disks, in the middle of anything, is what a restart needs.
#[test]
fn revivals_hold_under_the_adversary() {
    let summary = sweep(&revival::SCENARIO, 0..1000, 1, |_, _| true);
    assert!(summary.failures.is_empty(), "{:?}", summary.failures);
}
