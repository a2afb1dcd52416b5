//! The scenario of outages: members that lose their majority wait for it, and continue together (Derecho §3.4).

use squall_simulator::outage::{self, OutagePlan, run_to_end};
use squall_simulator::{Scenario as _, group, salvage, sweep};

#[test]
fn outages_end_no_member() {
    let summary = sweep(&outage::SCENARIO, 0..300, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", outage::SCENARIO.explain(*seed));
    }
    assert!(summary.delivered > 30_000, "{} messages", summary.delivered);
}

/// A ballot that is led as soon as a majority hears each other would leave out those that come back a moment later.
#[test]
fn paths_that_come_back_one_by_one_leave_no_member_out() {
    for members in [3, 5] {
        let kept = (0..100).filter(|seed| {
            let run = run_to_end(&OutagePlan::pair_by_pair(*seed, members), 0);
            assert_eq!(run.outcome.violation, None, "seed {seed}");
            run.keeps_all()
        });
        let kept = kept.count();
        assert!(kept >= 99, "all of {members} members are kept in {kept} of 100 outages");
    }
}

/// - 768, 1986: a member that waits hears no other, so that it learned of no accusation and answered none, and the others could not tell whom
///   to remove.
/// - 7051: a ballot that had been led in vain before an outage proposed as soon as a majority had answered after it, without one that was
///   heard a moment later.
/// - 9268: members that had entered the next view stopped saying how the last one had ended when they accused those that still waited in it.
/// - 8527: members that learned only after an outage how the view before had ended continued without the one that had waited in the next.
/// - 49044966: nor did they learn that it waited, since it had said so before they came.
/// - 10880: a member stopped to start again with one that had died a moment before.
/// - group 1630, salvage 1987: a view in which no member of a durable subgroup was left ended without the votes on disks.
#[test]
fn seeds_that_have_found_something_hold() {
    for seed in [768, 1_986, 7_051, 8_527, 9_268, 10_880, 49_044_966] {
        assert_eq!(outage::SCENARIO.run(seed).violation, None, "outage {seed}");
    }
    assert_eq!(group::SCENARIO.run(1_630).violation, None);
    assert_eq!(salvage::SCENARIO.run(1_987).violation, None);
}
