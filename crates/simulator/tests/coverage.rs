//! Tests of the scenarios' coverage: every point is promised by one of them, and a point that is no longer reached is
//! reported.

use std::process::Command;

use squall_protocols::mutation::{self, GroupMutation};
use squall_simulator::coverage::{LogPoint, Point, RULE_KINDS, SNAPSHOT, updated};
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
    let reached = || sweep(&multicast::SCENARIO, 0..300, usize::MAX, |_, _| true).coverage;
    assert_eq!(reached().missing(&promises), Vec::<String>::new());
    let reached = mutation::with(GroupMutation::NoNulls, reached);
    let missing = reached.missing(&promises);
    assert_eq!(missing, ["NullsSent (A round that others have begun is filled by nulls)"]);
    // An update of the snapshot takes that point from the scenario, and shows it as a line that has gone.
    let count = |snapshot: &str| snapshot.matches("\npoint NullsSent\n").count();
    assert_eq!(count(&updated(SNAPSHOT, "multicast", &reached)), count(SNAPSHOT) - 1);
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

/// What CI judges a scenario by: exit status and text.
#[test]
fn runs_that_reach_too_little_fail() {
    let check = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_squall-coverage")).args(arguments).output();
        let output = output.expect("it can be started");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let (code, names) = check(&[]);
    assert_eq!((code, names.lines().count()), (Some(0), scenarios().len()));
    let (code, text) = check(&["multicast", "300"]);
    assert!(code == Some(0) && text.starts_with("multicast: 300 seeds, "), "{code:?}: {text}");
    let (code, text) = check(&["multicast", "1"]);
    assert!(code == Some(1) && text.contains("\nnever reached: "), "{code:?}: {text}");
    for arguments in [&["none", "1"][..], &["multicast"], &["multicast", "many"]] {
        assert_eq!(check(arguments).0, Some(2), "{arguments:?}");
    }
}

#[test]
fn faults_of_a_sweep_are_text() {
    let sweep = || sweep(&multicast::SCENARIO, 0..300, 1, |_, _| true);
    let summary = sweep();
    assert_eq!(summary.violations(&multicast::SCENARIO), []);
    assert_eq!(summary.unreached(&multicast::SCENARIO), []);
    let summary = mutation::with(GroupMutation::NoNulls, sweep);
    let [violation] = &summary.violations(&multicast::SCENARIO)[..] else { panic!("{summary:?}") };
    assert_eq!(violation.headline, "seed 0 violates liveness:");
    assert!(violation.details.ends_with("\n  squall explain 0 --scenario multicast"), "{violation}");
    let unreached = summary.unreached(&multicast::SCENARIO);
    assert!(unreached.iter().any(|fault| fault.to_string().starts_with("never reached: NullsSent (")));
}
