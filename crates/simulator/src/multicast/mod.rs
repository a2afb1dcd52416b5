//! Scenario: one subgroup under the adversary (Derecho §3.4, Spindle §3).
//!
//! Checked: [O1] order, [O2] [O3] contents, [O4] stability, [O5] and [O6] by the contents of what slow consumers read,
//! [N1]–[N7] and liveness by complete delivery in bounded virtual time, [N4] quiescence, [S1]–[S4] by the rest.

mod cluster;
mod plan;

use squall_fabric::sim::{CostModel, SimConfig};

pub use plan::Plan;

use crate::coverage;
use crate::run::{Outcome, Planned};

/// The scenario.
pub const SCENARIO: Planned<Plan> = Planned {
    name: "multicast",
    about: "one subgroup of 1 to 5 members in all modes, with pauses, slow links, slow consumers and crashes",
    draw: Plan::draw,
    run,
    faults: Plan::faults,
    promises: coverage::MULTICAST,
};

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &Plan, trace_records_max: usize) -> Outcome {
    let config = SimConfig {
        adversary: Some(plan.adversary.clone()),
        cost: CostModel::FREE,
        early_sight: plan.early_sight,
        one_sided_progress: plan.one_sided_progress,
        rules: plan.rules.clone(),
        trace_records_max,
        ..SimConfig::hardware()
    };
    cluster::Cluster::new(plan, config).run()
}
