//! Scenario: the durable log of one process, on a disk that crashes and fails (Derecho §3.4, persistent mode).
//!
//! What ships, [`squall_log`], runs on its simulated disk: a folder is opened and written, the machine crashes at any operation
//! or between two, and the folder is opened again. Writes of frames end in any order. The disk rots, loses and misdirects writes.
//!
//! Checked at each recovery:
//! - *prefix* \[W1\] \[W2\] \[W3\]: the log is a prefix of what was written, with all bytes equal;
//! - *durable* \[W5\] \[W6\] \[W8\]: it has all that was reported as persisted, unless the disk has damaged that;
//! - *verdict* \[W7\]: then it is found damaged, wherever an undamaged frame proves it; without damage it is clean or torn;
//! - *numbers* \[W4\]: no two frames of a log have the same number;
//! - *register* \[W9\]: it is the value of the last change that was completed, or of the one under way;
//! - *checkpoint* \[W10\] \[W11\]: they are as they were written, and cover all that was recycled;
//! - *progress* \[W12\]: on a disk that works all that is appended is persisted;
//! - *versions* \[W14\]: what is wanted of earlier versions is kept.
//!
//! In some lives the folder is copied while it is written, and checked: *backup* \[W13\].

mod backup;
mod checks;
mod cluster;
mod model;
mod notes;
mod plan;
mod rest;

pub use plan::{LifeFault, LogLife, LogPlan, RestFault};

use crate::run::{PlannedScenario, RunOutcome};

/// The scenario.
pub const SCENARIO: PlannedScenario<LogPlan> = PlannedScenario {
    name: "log",
    about: "the durable log of one process, on a disk that crashes at any operation, rots, and loses and misdirects writes",
    draw: LogPlan::draw,
    run,
    faults: LogPlan::faults,
};

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &LogPlan, trace_records_max: usize) -> RunOutcome {
    cluster::LogRun::new(plan, trace_records_max).run()
}
