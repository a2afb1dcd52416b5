//! Scenario: one subgroup under the adversary (Derecho §3.4, Spindle §3).
//!
//! It checks [O1] order, [O2] [O3] contents, [O4] stability, [O5] and [O6] by the contents that slow consumers read,
//! [N1]–[N7] and liveness by complete delivery in bounded virtual time, [N4] quiescence, and [S1]–[S4] through all of
//! these.

mod cluster;
mod plan;

use squall_fabric::sim::{CostModel, SimConfig};

pub use plan::MulticastPlan;
pub(crate) use plan::draw_piece_bytes;

use crate::run::{PlannedScenario, RunOutcome};

/// The scenario.
pub const SCENARIO: PlannedScenario<MulticastPlan> = PlannedScenario {
    name: "multicast",
    about: "one subgroup of 1 to 5 members in all modes, with pauses, slow links, slow consumers and crashes",
    draw: MulticastPlan::draw,
    run,
    faults: MulticastPlan::faults,
};

/// Runs a plan, and keeps the latest `trace_records_max` events.
#[must_use]
pub fn run(plan: &MulticastPlan, trace_records_max: usize) -> RunOutcome {
    let config = SimConfig {
        adversary: Some(plan.adversary.clone()),
        cost: CostModel::FREE,
        early_sight: plan.early_sight,
        one_sided_progress: plan.one_sided_progress,
        rules: plan.rules.clone(),
        trace_records_max,
        ..SimConfig::hardware()
    };
    cluster::MulticastCluster::new(plan, config).run()
}
