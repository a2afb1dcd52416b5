//! Scenario: a member whose consumer stops taking messages, for a while or for good (Derecho §3.4).
//!
//! Checked: under `wait` nothing is lost, no member is removed, and all is delivered when the consumer continues; under
//! `exclude` that member ends as excluded, and the rest delivers all that the rest has sent; a pause that is shorter than
//! the settings allow removes no member. Everything that the scenario `group` checks, too.

use std::cell::RefCell;
use std::fmt;
use std::ops::DerefMut;
use std::rc::Rc;

use squall_fabric::sim::Prng;
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::group::{
    GroupApplication, GroupEnd, Placement, SubgroupId, SubgroupLayout, SubgroupOutlet, Succession, Unplaced,
};
use squall_protocols::membership::{StopReason, View};
use squall_protocols::multicast::{DeliveryMode, Pull};

use super::app::{GroupApp, SendersOnly};
use super::limits::CounterLimits;
use super::plan::GroupPlan;
use super::program::{GroupScene, NodeProgram, RunChecks};
use super::{GroupCluster, NodeFate};
use crate::explain::Shrink;
use crate::run::{PlannedScenario, RunOutcome, Violation};

/// The scenario.
pub const SCENARIO: PlannedScenario<SlowPlan> = PlannedScenario {
    name: "slow",
    about: "3 to 5 members, one of which stops taking messages, for a while or for good; the others wait, or exclude it",
    draw: SlowPlan::draw,
    run,
    faults: SlowPlan::faults,
};

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowPlan {
    /// The group, without faults.
    pub group: GroupPlan,
    /// The member whose consumer stops taking messages.
    pub sleeper: u32,
    /// For how long at a time; `None`: for good.
    pub sleep: Option<Duration>,
    /// How often, from the beginning; in between it takes a few messages.
    pub naps: u32,
}

impl SlowPlan {
    /// The plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x510e);
        let members = 3 + u32::try_from(prng.index(3)).expect("few");
        let sleeper = u32::try_from(prng.index(members as usize)).expect("few");
        let is_excluded = prng.chance(600);
        let sleep = (!is_excluded || prng.chance(400)).then(|| Duration::from_nanos(prng.below(9_000_000)));
        let naps = 1 + u32::try_from(prng.below(4)).expect("few");
        let mut group = GroupPlan::draw(seed);
        group.members = members;
        (group.joins, group.leaves, group.rules) = (Vec::new(), Vec::new(), Vec::new());
        group.suspicion_after = None;
        // By the clock of one who waits, a nap is no longer than that.
        group.adversary.clock_drift_max = group.adversary.clock_drift_max.min(1_000);
        group.subgroups.truncate(1);
        let subgroup = &mut group.subgroups[0];
        (subgroup.nodes, subgroup.senders) = (u64::MAX, u64::MAX);
        subgroup.pullers |= 1 << sleeper;
        subgroup.settings.mode = DeliveryMode::Atomic;
        subgroup.settings.window = 1 + prng.index(5);
        subgroup.settings.large = None;
        subgroup.settings.slow_after = is_excluded.then_some(SLOW_AFTER);
        // More than all windows of a view hold, so that senders are held up; another view would have further windows.
        group.limits.view_indexes_max = CounterLimits::usual().view_indexes_max;
        group.messages = 10 + prng.below(20);
        Self { group, sleeper, sleep, naps }
    }

    /// What can happen in the run, by kinds.
    fn faults(&self) -> Vec<&'static str> {
        let own = if self.excludes() { "consumer that stops for good" } else { "consumer that naps" };
        self.group.faults().into_iter().chain([own]).collect()
    }

    fn excludes(&self) -> bool {
        self.sleep.is_none()
    }
}

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &SlowPlan, trace_records_max: usize) -> RunOutcome {
    let mut cluster = GroupCluster::new(&plan.group, trace_records_max, |_, watch| Slow {
        senders: SendersOnly::new(&plan.group, watch),
        plan: plan.clone(),
        group: Rc::new(plan.group.clone()),
        watch: Rc::clone(watch),
    });
    let outcome = cluster.drive();
    let violation = outcome.violation.clone().or_else(|| check(plan, &cluster.fates()).err());
    RunOutcome { violation, ..outcome }
}

/// Whether just the member is gone that has stopped for good.
fn check(plan: &SlowPlan, fates: &[NodeFate]) -> Result<(), Violation> {
    for (node, fate) in (0..).zip(fates) {
        let is_gone = *fate == NodeFate::Ended(GroupEnd::Stopped(StopReason::Excluded));
        let should_be = plan.excludes() && node == plan.sleeper;
        if is_gone != should_be {
            let text = format!(
                "node {node} is {fate:?}, and should{} be excluded",
                if should_be { "" } else { " not" }
            );
            return Err(Violation { checker: "slow", text });
        }
    }
    Ok(())
}

struct Slow {
    senders: SendersOnly,
    plan: SlowPlan,
    group: Rc<GroupPlan>,
    watch: Rc<RefCell<RunChecks>>,
}

impl GroupScene for Slow {
    type Program = Sleeper;

    fn program(&mut self, place: u32, node: NodeId) -> Sleeper {
        let sleep = if place == self.plan.sleeper { self.plan.sleep } else { Some(Duration::ZERO) };
        Sleeper {
            app: GroupApp::new(node, &self.group, &self.watch),
            sleep,
            naps: self.plan.naps,
            begun: None,
        }
    }

    fn layout(&self) -> Box<dyn SubgroupLayout + Send> {
        self.senders.layout()
    }

    fn delivered(&self) -> u64 {
        self.senders.delivered()
    }

    fn excuses(&self, node: NodeId, ended: GroupEnd) -> bool {
        ended == GroupEnd::Stopped(StopReason::Excluded) && node.0 == self.plan.sleeper
    }

    fn check_complete(&self, present: &[(NodeId, &Sleeper)]) -> Result<(), Violation> {
        let present: Vec<_> = present.iter().map(|(node, sleeper)| (*node, &sleeper.app)).collect();
        self.senders.check_complete(&present)
    }
}

/// A program that takes few messages at first.
struct Sleeper {
    app: GroupApp,
    /// For how long at a time; `None`: for good.
    sleep: Option<Duration>,
    naps: u32,
    /// When this nap began, by the node's clock.
    begun: Option<Instant>,
}

impl Sleeper {
    /// When it takes messages; `None`: never.
    fn wakes_at(&self) -> Option<Instant> {
        Some(self.begun? + self.sleep?)
    }
}

impl NodeProgram for Sleeper {
    fn come_as(&mut self, node: NodeId) {
        self.app.come_as(node);
    }

    fn arrive(&mut self) {
        self.app.arrive();
    }

    fn send(&mut self, now: Instant, prng: &mut Prng) -> bool {
        self.app.send(now, prng)
    }

    fn consume(&mut self, now: Instant, prng: &mut Prng) -> bool {
        self.begun.get_or_insert(now);
        if self.wakes_at().is_none_or(|at| now < at) {
            return false;
        }
        let worked = self.app.consume(now, prng);
        if worked && self.naps > 1 {
            self.naps -= 1;
            self.begun = Some(now);
        }
        worked
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let wakes_at = self.wakes_at().filter(|at| *at > now);
        self.app.next_deadline(now).into_iter().chain(wakes_at).min()
    }

    fn is_done(&self) -> bool {
        self.app.is_done()
    }
}

impl GroupApplication for Sleeper {
    type Deliver = <GroupApp as GroupApplication>::Deliver;

    fn outlet(&mut self, id: SubgroupId) -> SubgroupOutlet<Self::Deliver> {
        self.app.outlet(id)
    }

    fn install(&mut self, view: &View, placements: &[Placement], unplaced: &[Unplaced]) {
        self.app.install(view, placements, unplaced);
    }

    fn succession(&mut self, id: SubgroupId) -> impl DerefMut<Target = Succession> {
        self.app.succession(id)
    }

    fn take_pull(&mut self, id: SubgroupId, pull: Pull) {
        self.app.take_pull(id, pull);
    }

    fn leave_subgroup(&mut self, id: SubgroupId, deliver: Option<Self::Deliver>) {
        self.app.leave_subgroup(id, deliver);
    }
}

impl Shrink for SlowPlan {
    fn smaller(&self) -> Vec<Self> {
        self.group.smaller().into_iter().map(|group| Self { group, ..self.clone() }).collect()
    }
}

impl fmt::Display for SlowPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "node {} takes nothing for {:?} (none: for good), {} times\n{}",
            self.sleeper, self.sleep, self.naps, self.group
        )
    }
}

/// Longer than any pause of the plans and what the adversary adds.
const SLOW_AFTER: Duration = Duration::from_millis(15);
