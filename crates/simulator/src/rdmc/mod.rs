//! Scenario: bulk multicast under the adversary (RDMC §2, §3), and predictions of its performance ([`predict`]).
//!
//! The scenario checks that every byte arrives at every receiver, in order, without any change to the memory around
//! it [B1] [B5]; that memory is not touched while another process owns it [F5]; that after deaths at any step all
//! members are notified, the blocks that they report as held are exactly those that have arrived, and the survivors
//! resume from there [B7]; and that offered memory receives the right object or none [B9].

mod application;
mod cluster;
mod contents;
mod plan;
pub(crate) mod prediction;
mod resumption;
#[cfg(test)]
mod tests;

use squall_fabric::Instant;

pub use plan::RdmcPlan;
pub use prediction::{MulticastPrediction, PaperMachines, predict};

use crate::coverage::rule_kinds;
use crate::run::{PlannedScenario, RunOutcome, Violation};
use cluster::RdmcCluster;

/// The scenario.
pub const SCENARIO: PlannedScenario<RdmcPlan> = PlannedScenario {
    name: "rdmc",
    about: "bulk multicast in up to 3 groups of 1 to 9 nodes; pauses, slow links, late memory, deaths and resumption",
    draw: RdmcPlan::draw,
    run,
    faults: |plan| rule_kinds(&plan.rules),
};

/// Runs a plan, and keeps the latest `trace_records_max` events.
#[must_use]
pub fn run(plan: &RdmcPlan, trace_records_max: usize) -> RunOutcome {
    let mut cluster = RdmcCluster::of(plan, trace_records_max);
    let result = match plan.keeps {
        true => resumption::survive(&mut cluster, plan).map(drop),
        false => cluster.run_through(plan),
    };
    RunOutcome {
        violation: result.err().map(|text| Violation { checker: "bulk", text }),
        elapsed: cluster.world.now().since(Instant::from_nanos(0)),
        delivered: cluster.delivered(),
        trace_hash: cluster.world.trace_hash(),
        trace: cluster.world.trace(),
    }
}
