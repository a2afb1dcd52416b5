//! Tests of the scenarios' coverage: every point is promised by one of them, and a point that is no longer reached is
//! reported.

use squall_protocols::mutation::{self, GroupMutation};
use squall_simulator::coverage::{LogPoint, Point, RULE_KINDS};
use squall_simulator::{Scenario as _, multicast, scenarios, sweep};

#[test]
fn every_point_and_every_kind_of_fault_is_promised() {
    let promises: Vec<_> = scenarios().iter().map(|scenario| scenario.promises()).collect();
    let is_promised = |point: &&Point| promises.iter().any(|promises| promises.points.contains(point));
    let missing: Vec<_> = Point::ALL.iter().filter(|point| !is_promised(point)).collect();
    assert!(missing.is_empty(), "no scenario has to reach {missing:?}");
    let is_promised = |point: &&LogPoint| promises.iter().any(|promises| promises.log_points.contains(point));
    let missing: Vec<_> = LogPoint::ALL.iter().filter(|point| !is_promised(point)).collect();
    assert!(missing.is_empty(), "no scenario has to reach {missing:?}");
    let is_drawn = |kind: &&str| promises.iter().any(|promises| promises.faults.contains(kind));
    let missing: Vec<_> = RULE_KINDS.iter().filter(|kind| !is_drawn(kind)).collect();
    assert!(missing.is_empty(), "no scenario has to draw {missing:?}");
}

#[test]
fn a_point_that_is_no_longer_reached_is_named() {
    let promises = multicast::SCENARIO.promises();
    let missing = || sweep(&multicast::SCENARIO, 0..300, usize::MAX, |_, _| true).coverage.missing(&promises);
    assert_eq!(missing(), Vec::<String>::new());
    let missing = mutation::with(GroupMutation::NoNulls, missing);
    assert_eq!(missing, ["NullsSent (A round that others have begun is filled by nulls)"]);
}

/// Each run counts once for a point, however often it reaches it, and points reached before the run do not count.
#[test]
fn runs_are_counted_and_not_hits() {
    let summary = sweep(&multicast::SCENARIO, 0..40, usize::MAX, |_, _| true);
    let freed = summary.coverage.points[&Point::WordsFreed];
    assert!((20..=40).contains(&freed), "{freed} of 40 runs");
    let (_, again) = multicast::SCENARIO.run_and_count(0);
    assert!(again.points.values().chain(again.faults.values()).all(|runs| *runs == 1), "{again:?}");
}
