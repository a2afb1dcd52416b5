//! Scenario: a group whose members crash, pause, part, join and leave (Derecho §2, §3.4).
//!
//! Checked: \[V1\]–\[V4\], \[V7\], \[D6\] by [`crate::checker::Views`], \[V5\] \[V8\] by the state of all nodes some time after
//! the last fault, \[O6\] by the absence of corruption, completeness of what living senders have sent.

mod app;
mod cluster;
mod health;
mod limits;
mod plan;
mod program;
pub mod slow;
mod stagger;

pub(crate) use cluster::{Cluster, STATES};
pub use cluster::{Fate, UNREACHABLE_AFTER};
pub use limits::Limits;
pub(crate) use plan::{FOR_EVER, draw_drift, draw_rules};
pub use plan::{Plan, SubgroupPlan};
pub(crate) use program::{Program, Scene, Watch};
pub(crate) use stagger::stagger;

use app::Senders;

use crate::coverage;
use crate::run::{Outcome, Planned};

/// The scenario.
pub const SCENARIO: Planned<Plan> = Planned {
    name: "group",
    about: "1 to 5 members and up to 3 joiners, overlapping subgroups; crashes, pauses, partitions, joins, leaves",
    draw: Plan::draw,
    run,
    faults: Plan::faults,
    promises: coverage::GROUP,
};

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &Plan, trace_records_max: usize) -> Outcome {
    cluster_of(plan, trace_records_max).drive()
}

/// Runs a plan, like [`run`], and says what has become of each node.
#[must_use]
pub fn run_to_fates(plan: &Plan, trace_records_max: usize) -> (Outcome, Vec<Fate>) {
    let mut cluster = cluster_of(plan, trace_records_max);
    let outcome = cluster.drive();
    (outcome, cluster.fates())
}

/// Runs a plan, like [`run_to_fates`], and says also how many messages of total order each node has delivered.
#[must_use]
pub fn run_to_deliveries(plan: &Plan, trace_records_max: usize) -> (Outcome, Vec<Fate>, Vec<usize>) {
    let mut cluster = cluster_of(plan, trace_records_max);
    let outcome = cluster.drive();
    (outcome, cluster.fates(), cluster.deliveries())
}

fn cluster_of(plan: &Plan, trace_records_max: usize) -> Cluster<Senders> {
    Cluster::new(plan, trace_records_max, |_, watch| Senders::new(plan, watch))
}
