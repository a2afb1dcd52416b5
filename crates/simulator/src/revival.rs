//! Scenario: a group with durable subgroups whose processes all die at one moment, and come back from their disks (Derecho §3.4,
//! "Total failures").
//!
//! Until that moment it is a run of the scenario [`crate::group`]: the groups that ship write their registers and logs. From then on
//! it is a run of the scenario [`crate::restart`], from what is found on the disks, with the core of restarts that ships. So this
//! scenario says whether what a group leaves on its disks, in the middle of anything, is what a restart needs. Messages lost, further
//! deaths and damaged logs come as they do there.
//!
//! Checked: everything that the two scenarios check. Above all: the restart continues the one chain of views, the one that members
//! have installed; what was delivered before counts afterwards \[P1\]; no process is live twice in a view \[T8\]; and processes that
//! are a quorum come back and deliver.

use std::fmt;

use squall_fabric::sim::{Happening, Prng, TraceRecord};
use squall_fabric::{Duration, Instant};
use squall_protocols::multicast::DeliveryMode;

use crate::explain::Shrink;
use crate::group::{GroupPlan, remains_at};
use crate::outage::OutagePlan;
use crate::restart::{RestartLayout, RestartPlan, RestartRemains, TailDamage};
use crate::run::{PlannedScenario, RunOutcome};

/// The scenario.
pub const SCENARIO: PlannedScenario<RevivalPlan> = PlannedScenario {
    name: "revival",
    about: "a group with durable subgroups whose processes all die at one moment, and restart from what it has left on disk",
    draw: RevivalPlan::draw,
    run,
    faults: RevivalPlan::faults,
};

/// A run of a group, and what comes after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevivalPlan {
    /// The group.
    pub group: GroupPlan,
    /// When all its processes die.
    pub end: Duration,
    /// What happens afterwards; processes are those that are left.
    pub restart: RestartPlan,
}

impl RevivalPlan {
    /// The plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x4e51);
        let mut group = match Prng::new(seed ^ 0x07a6).chance(250) {
            true => OutagePlan::draw(seed).with_faults(),
            false => GroupPlan::draw(seed),
        };
        // One of them is durable, whatever else the plan says, and has all nodes: the first.
        group.subgroups[0].settings.mode = DeliveryMode::Durable;
        let longest = [500_000, 4_000_000, 12_000_000][prng.index(3)];
        let end = Duration::from_nanos(prng.below(longest));
        let mut restart = RestartPlan::draw(seed);
        restart.strikes.truncate(prng.index(3));
        restart.layout = RestartLayout::Chosen;
        restart.leaves.clear();
        Self { group, end, restart }
    }

    fn faults(&self) -> Vec<&'static str> {
        let group = self.group.faults().into_iter().filter(|fault| *fault != "durable messages");
        let damage = (self.restart.damage != TailDamage::None).then_some("damaged log");
        let strikes = (!self.restart.strikes.is_empty()).then_some("deaths during the restart");
        let deaf = (self.restart.deaf != 0).then_some("log that others cannot read");
        group.chain(damage).chain(strikes).chain(deaf).collect()
    }
}

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &RevivalPlan, trace_records_max: usize) -> RunOutcome {
    let (before, remains) = remains_at(&plan.group, Instant::from_nanos(0) + plan.end, trace_records_max);
    if before.violation.is_some() || remains.disks.is_empty() {
        return before;
    }
    let restart = fit(plan, &remains);
    let after = crate::restart::resume(&restart, &remains, trace_records_max);
    let trace = match trace_records_max {
        0 => Vec::new(),
        _ => one_after_the_other(&before, after.trace, &remains),
    };
    RunOutcome {
        violation: after.violation,
        elapsed: before.elapsed + after.elapsed,
        delivered: before.delivered + after.delivered,
        trace_hash: before.trace_hash.rotate_left(1) ^ after.trace_hash,
        trace,
    }
}

/// The records of the group, the death of its processes, and the records of the restart, by one clock.
pub(crate) fn one_after_the_other(
    before: &RunOutcome,
    after: Vec<TraceRecord>,
    remains: &RestartRemains,
) -> Vec<TraceRecord> {
    let died_at = u64::try_from(before.elapsed.as_nanos()).expect("a short run");
    let death = |node: u32| TraceRecord { at_ns: died_at, node, what: Happening::Note("dies".into()) };
    let deaths = remains.disks.iter().map(|(register, _)| death(register.node.0));
    let later = after.into_iter().map(|record| TraceRecord { at_ns: died_at + record.at_ns, ..record });
    before.trace.iter().cloned().chain(deaths).chain(later).collect()
}

/// The plan of a restart, for the processes and subgroups that there are.
fn fit(plan: &RevivalPlan, remains: &RestartRemains) -> RestartPlan {
    let processes = remains.disks.len();
    let durable = plan.group.subgroups.iter().filter(|plan| plan.settings.mode == DeliveryMode::Durable);
    let sets: Vec<(u64, u64)> = durable.map(|plan| (plan.nodes, plan.senders)).collect();
    let mut restart = RestartPlan { processes, members: 0, shards: sets.len(), sets, ..plan.restart.clone() };
    restart.slow.retain(|(from, to, _)| from.max(to) < &processes);
    restart.disks.resize(processes, [1, 1]);
    restart
}

impl Shrink for RevivalPlan {
    fn smaller(&self) -> Vec<Self> {
        let groups = self.group.smaller().into_iter().map(|group| Self { group, ..self.clone() });
        let restarts = self.restart.smaller().into_iter().map(|restart| Self { restart, ..self.clone() });
        groups.chain(restarts).filter(|plan| !plan.group.subgroups.is_empty()).collect()
    }
}

impl fmt::Display for RevivalPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nall processes die after {:?}, and then\n{}", self.group, self.end, self.restart)
    }
}
