//! Scenario: processes that join a group, die, stall, leave and rejoin (Derecho §3.3).
//!
//! Each process runs what ships: [`squall_protocols::admission`] on both sides ([`crate::admission`]), and the group. What
//! processes send each other beside the group (requests to join, links, reports) takes its time, is lost with its connection
//! before or after it has arrived, or arrives long after its sender has given up. Strangers that know the secret link under
//! the numbers of others.
//!
//! Checked: \[J1\] by a list of all numbers ever given; \[J2\] in each view that is installed; \[J4\] by what is left at the end;
//! \[J6\] whenever a process is admitted; \[J5\], \[J7\], and with them \[J3\], by the state of all processes some time after the last
//! fault: every process that is to be a member is in one view with the others. No process that the plan leaves alone is removed.

mod cluster;
mod plan;
mod recorder;

pub use plan::{JoinEvent, JoinPlan};

use crate::run::{PlannedScenario, RunOutcome};

/// The scenario.
pub const SCENARIO: PlannedScenario<JoinPlan> = PlannedScenario {
    name: "join",
    about: "3 to 5 members and up to 4 joiners that crash, pause, part, leave and rejoin; requests and links that are lost or late",
    draw: JoinPlan::draw,
    run,
    faults: JoinPlan::faults,
};

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &JoinPlan, trace_records_max: usize) -> RunOutcome {
    cluster::JoinCluster::new(plan, trace_records_max).drive()
}
