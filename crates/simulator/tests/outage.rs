//! The scenario of outages: members that lose their majority wait for it, and continue together (Derecho §3.4).

use squall_simulator::outage::{self, OutagePlan, run_to_end};
use squall_simulator::{Scenario as _, sweep};

#[test]
fn outages_end_no_member() {
    let summary = sweep(&outage::SCENARIO, 0..300, 1, |_, _| true);
    for (seed, violation) in &summary.failures {
        panic!("seed {seed}: {violation}\n{}", outage::SCENARIO.explain(*seed));
    }
    assert_eq!(summary.coverage.missing(&outage::SCENARIO.promises()), Vec::<String>::new());
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
