//! Scenario: processes that assemble into the first view of a group (Derecho §2.2).
//!
//! Each process runs the production core, [`squall_protocols::assembly`]. Processes start in any order, and there may
//! be more of them than planned members. They crash, stall, are cut off from others, and restart. The messages of a
//! connection arrive in order; a connection breaks when one of its ends dies or its ends are cut off from each other.
//!
//! The scenario checks \[Q1\] that at most one session begins in a run without restarts; \[Q2\] that all processes
//! that begin have the same roster, and that both ends of each link are ends of the same connection; \[Q3\] the
//! ranks; \[Q4\] and \[Q5\] by the state of all processes some time after the last fault: if enough processes remain,
//! a group has begun, and each of them is in it or knows of it; \[Q6\] the time at which each process ends, and the
//! reason.

mod checks;
mod plan;
mod process;
mod world;

pub use plan::{AssemblyEvent, AssemblyPlan};

use crate::run::{PlannedScenario, RunOutcome};

/// The scenario.
pub const SCENARIO: PlannedScenario<AssemblyPlan> = PlannedScenario {
    name: "assembly",
    about: "up to 7 processes with 1 to 4 contacts that assemble for a first view, start late, crash, pause, are cut off and restart",
    draw: AssemblyPlan::draw,
    run,
    faults: AssemblyPlan::faults,
};

/// Runs a plan, and keeps the latest `trace_records_max` events.
#[must_use]
pub fn run(plan: &AssemblyPlan, trace_records_max: usize) -> RunOutcome {
    world::AssemblyWorld::new(plan, trace_records_max).run()
}
