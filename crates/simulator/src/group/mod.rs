//! Scenario: a group whose members crash, pause, part, join and leave (Derecho §2, §3.4).
//!
//! Checked: \[V1\]–\[V4\], \[V7\], \[D6\] by [`crate::checker::Views`], \[V5\] \[V8\] by the state of all nodes some time after
//! the last fault, \[O6\] by the absence of corruption, completeness of what living senders have sent.

mod app;
mod cluster;
mod plan;

pub use cluster::{Fate, UNREACHABLE_AFTER};
pub use plan::{Plan, SubgroupPlan};

use crate::explain;
use crate::run::{Outcome, Scenario};

/// The scenario.
#[derive(Clone, Copy, Debug)]
pub struct Groups;

impl Scenario for Groups {
    fn name(&self) -> &'static str {
        "group"
    }

    fn about(&self) -> &'static str {
        "1 to 5 members and up to 3 joiners, overlapping subgroups; crashes, pauses, partitions, joins, leaves"
    }

    fn run(&self, seed: u64) -> Outcome {
        run(&Plan::draw(seed), 0)
    }

    fn explain(&self, seed: u64) -> String {
        explain::explain(&Plan::draw(seed), run)
    }
}

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &Plan, trace_records_max: usize) -> Outcome {
    cluster::Cluster::new(plan, trace_records_max).drive()
}

/// Runs a plan, and says what has become of each node.
#[must_use]
pub fn run_to_fates(plan: &Plan) -> (Outcome, Vec<Fate>) {
    let mut cluster = cluster::Cluster::new(plan, 0);
    let outcome = cluster.drive();
    (outcome, cluster.fates())
}
