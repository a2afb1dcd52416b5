//! Scenario: bulk multicast under the adversary (RDMC §2, §3); and predictions of what it takes ([`predict`]).
//!
//! Checked: every byte at every receiver, in order [B1] [B5], nothing around it touched; memory left alone while it is
//! another's [F5]; after deaths at any step all are told, what they report as held is exactly what has arrived, and the
//! survivors resume from there [B7]; memory that was offered takes the right object or none [B9].

mod application;
mod cluster;
mod contents;
mod plan;
mod prediction;
mod resumption;
#[cfg(test)]
mod tests;

use squall_fabric::Instant;

pub use plan::RdmcPlan;
pub use prediction::{MulticastPrediction, PaperMachines, predict};

use crate::coverage::{self, rule_kinds};
use crate::run::{PlannedScenario, RunOutcome, Violation};
use cluster::RdmcCluster;

/// The scenario.
pub const SCENARIO: PlannedScenario<RdmcPlan> = PlannedScenario {
    name: "rdmc",
    about: "bulk multicast in up to 3 groups of 1 to 9 nodes; pauses, slow links, late memory, deaths and resumption",
    draw: RdmcPlan::draw,
    run,
    faults: |plan| rule_kinds(&plan.rules),
    promises: coverage::RDMC,
};

/// Runs a plan, keeping the latest `trace_records_max` happenings.
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
