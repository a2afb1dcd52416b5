//! Scenario: processes that assemble into the first view of a group (Derecho §2.2).
//!
//! Each process runs what ships, [`squall_protocols::assembly`]. Processes start in any order, more of them than members are
//! planned; they crash, stall, are cut off from others, and start again. Messages of a connection are in order; a
//! connection breaks when one of its ends dies or they are cut off from each other.
//!
//! Checked: \[Q1\] one session at most is begun in a run in which nothing starts again; \[Q2\] all that begin have the same roster,
//! and both ends of each link are ends of the same connection; \[Q3\] by the ranks; \[Q4\], \[Q5\] by the state of all
//! processes some time after the last fault: where enough processes are left, a group has begun, and each of them is in
//! it or knows of it; \[Q6\] by the time at which each process ends, and by the reason.

mod checks;
mod plan;
mod process;
mod world;

pub use plan::{AssemblyEvent, AssemblyPlan};

use crate::coverage;
use crate::run::{PlannedScenario, RunOutcome};

/// The scenario.
pub const SCENARIO: PlannedScenario<AssemblyPlan> = PlannedScenario {
    name: "assembly",
    about: "up to 7 processes with 1 to 4 contacts that meet for a first view, start late, crash, pause, part and start again",
    draw: AssemblyPlan::draw,
    run,
    faults: AssemblyPlan::faults,
    promises: coverage::ASSEMBLY,
};

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &AssemblyPlan, trace_records_max: usize) -> RunOutcome {
    world::AssemblyWorld::new(plan, trace_records_max).run()
}
