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

pub use plan::{Event, Plan};

use crate::coverage;
use crate::run::{Outcome, Planned};

/// The scenario.
pub const SCENARIO: Planned<Plan> = Planned {
    name: "assembly",
    about: "up to 7 processes with 1 to 4 contacts that meet for a first view, start late, crash, pause, part and start again",
    draw: Plan::draw,
    run,
    faults: Plan::faults,
    promises: coverage::ASSEMBLY,
};

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &Plan, trace_records_max: usize) -> Outcome {
    world::World::new(plan, trace_records_max).run()
}
