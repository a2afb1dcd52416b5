//! Scenario: genuine multicast between the shards of a group, under the adversary, with crashes, pauses, partitions, joins and
//! leaves (RamCast §2.2, §3). Processes join by what ships ([`crate::admission`]), each into the shard that the plan has for it.
//!
//! Checked: integrity, uniform agreement, uniform prefix order and acyclic order over all nodes, dead ones among them; that what
//! was delivered before a message was sent comes before it; \[G15\] positions; \[G16\] that no word passes between nodes that a
//! message does not concern; after the last fault one view, in which all that its members have sent is delivered by all members of
//! the destination shards; if shards have states, these are the parts of an object: \[G18\] each update is applied once, at one position, to
//! equal states, and \[G19\] its caller gets the replies of all its shards; \[G6\] if a majority is enough, it delivers while a follower stalls; \[V5\] \[V8\] \[V10\] \[J5\]–\[J8\] as in [`crate::group`]. [`steps`] counts write delays, and [`prediction`] runs the
//! core under a cost model.

mod caller;
mod checks;
mod cluster;
mod end;
mod large;
mod majority;
mod outage;
mod plan;
pub mod prediction;
mod program;
pub mod steps;

pub use plan::GenuinePlan;

use crate::run::{PlannedScenario, RunOutcome};

/// The scenario.
pub const SCENARIO: PlannedScenario<GenuinePlan> = PlannedScenario {
    name: "genuine",
    about: "messages to several of 1 to 8 shards in one order; crashes, pauses, partitions, joins, leaves",
    draw: GenuinePlan::draw,
    run,
    faults: GenuinePlan::faults,
};

/// The scenario in large groups.
pub const LARGE: PlannedScenario<GenuinePlan> = PlannedScenario {
    name: "genuine-large",
    about: "messages to shards of up to 96 members, or to up to 64 shards, in one order; deaths of ranks in several words",
    draw: GenuinePlan::draw_large,
    run,
    faults: GenuinePlan::faults,
};

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &GenuinePlan, trace_records_max: usize) -> RunOutcome {
    cluster::GenuineCluster::new(plan, trace_records_max).run()
}
