//! Scenario: a group whose members crash, pause, part, join and leave (Derecho §2, §3.4).
//!
//! Checked: \[V1\]–\[V4\], \[V7\], \[D6\] by [`crate::checker::ViewHistory`], \[V5\] \[V8\] by the state of all nodes some time
//! after the last fault, \[O6\] by the absence of corruption, completeness of what living senders have sent. Nodes join as they
//! do in the scenario [`crate::join`], whatever happens to the members that let them in.

mod app;
mod cluster;
mod draw;
mod fate;
mod health;
mod host;
mod interruption;
mod limits;
mod plan;
mod program;
pub mod slow;
mod stagger;

pub use cluster::UNREACHABLE_AFTER;
pub(crate) use cluster::{GroupCluster, MEMBERS_MAX, STATES};
pub use fate::NodeFate;
pub(crate) use interruption::{draw_interruptions, draw_interruptions_of};
pub use limits::CounterLimits;
pub(crate) use limits::draw_drift;
pub(crate) use plan::{FOR_EVER, draw_rules};
pub use plan::{GroupPlan, SubgroupPlan};
pub(crate) use program::{GroupScene, NodeProgram, RunChecks};
pub(crate) use stagger::stagger;

use app::SendersOnly;

use squall_fabric::Instant;
use squall_fabric::sim::Prng;

use crate::restart::RestartRemains;
use crate::run::{PlannedScenario, RunOutcome};

/// The scenario.
pub const SCENARIO: PlannedScenario<GroupPlan> = PlannedScenario {
    name: "group",
    about: "1 to 5 members and up to 3 joiners, overlapping subgroups; crashes, pauses, partitions, joins, leaves",
    draw: GroupPlan::draw,
    run,
    faults: GroupPlan::faults,
};

/// The same on one host, where a member sees that another one is dying before it loses it.
pub const DYING: PlannedScenario<GroupPlan> = PlannedScenario {
    name: "dying",
    about: "the plans of `group` on one host: the kernel shows that a process is dying before its peers lose it",
    draw: |seed| GroupPlan { dies_visibly: true, early_sight: true, ..GroupPlan::draw(seed) },
    run,
    faults: GroupPlan::faults,
};

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &GroupPlan, trace_records_max: usize) -> RunOutcome {
    cluster_of(plan, trace_records_max).drive()
}

/// Runs a plan, like [`run`], and says what has become of each node.
#[must_use]
pub fn run_to_fates(plan: &GroupPlan, trace_records_max: usize) -> (RunOutcome, Vec<NodeFate>) {
    let mut cluster = cluster_of(plan, trace_records_max);
    let outcome = cluster.drive();
    (outcome, cluster.fates())
}

/// Runs a plan, like [`run_to_fates`], and says also how many messages of total order each node has delivered.
#[must_use]
pub fn run_to_deliveries(
    plan: &GroupPlan,
    trace_records_max: usize,
) -> (RunOutcome, Vec<NodeFate>, Vec<usize>) {
    let mut cluster = cluster_of(plan, trace_records_max);
    let outcome = cluster.drive();
    (outcome, cluster.fates(), cluster.deliveries())
}

fn cluster_of(plan: &GroupPlan, trace_records_max: usize) -> GroupCluster<SendersOnly> {
    GroupCluster::new(plan, trace_records_max, |_, watch| SendersOnly::new(plan, watch))
}

/// Runs a plan until `end`, when all processes die; returns what is left, besides the outcome until then.
#[must_use]
pub(crate) fn remains_at(
    plan: &GroupPlan,
    end: Instant,
    trace_records_max: usize,
) -> (RunOutcome, RestartRemains) {
    let mut cluster = cluster_of(plan, trace_records_max);
    let outcome = cluster.drive_until(end);
    let (mut prng, durable) = (Prng::new(plan.seed ^ 0xdead), plan.durable());
    let mut remains = RestartRemains { first_view: plan.limits.first_view, ..RestartRemains::default() };
    for program in cluster.programs() {
        let (register, counts) = program.disk().crash(&mut prng);
        let shard = |id| durable.iter().position(|other| *other == id).expect("only these have logs");
        let log = counts.into_iter().map(|((view, id), count)| ((view, shard(id)), count)).collect();
        let base = program.disk().base();
        remains.bases.extend(register.as_ref().map(|register| (register.node, base)));
        remains.disks.extend(register.map(|register| (register, log)));
    }
    cluster.checks().recall(&durable, &mut remains);
    (outcome, remains)
}
