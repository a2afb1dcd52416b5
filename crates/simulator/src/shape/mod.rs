//! Scenario: faults of known shapes, whose outcome is known, too (Derecho §2, §3.4).
//!
//! - [`ShapeFault::Partition`]: the network is partitioned, in every possible way, and heals soon, late or never. A
//!   part with a majority continues, with exactly its members; all others stop \[V5\]. If the network heals soon,
//!   nothing happens.
//! - [`ShapeFault::Pause`]: a member pauses for longer than the others wait. They continue without it, and it stops
//!   \[V4\]. Or it pauses for about as long as they wait: then all continue, or all but this one \[V15\].
//! - [`ShapeFault::Mute`]: a member's messages arrive too late, but it hears the others, or all but the leader, whose
//!   decision would exclude it. They continue without it, and it learns from them that it is excluded \[V4\].
//! - [`ShapeFault::Storm`]: eight nodes join, at once or one after the other, and the leader may die meanwhile. All
//!   are admitted, one after the other, in as few views as that takes \[V12\] \[J5\].
//! - [`ShapeFault::Last`]: a member pauses, and meanwhile all others die. It stops, too, but first it delivers
//!   everything that the others had delivered: it has all acknowledged messages \[V14\].
//! - [`ShapeFault::Full`]: a node asks to join a group that has the maximum number of members. It is refused, and the
//!   view does not end \[V12\].
//!
//! All checkers of [`crate::group`] watch, too. The scenario draws from all shapes.

mod partition;

pub use partition::partitions;

use std::fmt;

use squall_fabric::sim::{Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};
use squall_protocols::group::GroupEnd;
use squall_protocols::membership::StopReason;

use crate::explain::Shrink;
use crate::group::{self, GroupPlan, MEMBERS_MAX, NodeFate};
use crate::run::{PlannedScenario, RunOutcome, Violation};

/// The scenario.
pub const SCENARIO: PlannedScenario<ShapeCase> = PlannedScenario {
    name: "shape",
    about: "partitions of all shapes up to 5 members, members that pause or are not heard, eight nodes that join at once, full groups",
    draw,
    run: ShapeCase::run,
    faults: ShapeCase::faults,
};

/// The number of nodes that join in a storm.
const JOINERS: u32 = 8;

/// The maximum number of views of a storm beside one for each joiner: for a leader that dies, and for a joiner that is in a
/// view with it and joins again as another node.
const STORM_VIEWS_MORE: u64 = 2;

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShapeFault {
    /// The network is partitioned, and heals after a while or never.
    Partition {
        /// The parts; nodes of the same part reach each other.
        parts: Vec<Vec<u32>>,
        /// When it heals.
        heal_after: Option<Duration>,
    },
    /// A member pauses.
    Pause {
        /// The member.
        node: u32,
        /// The length of the pause.
        span: Duration,
    },
    /// All messages of a member arrive late.
    Mute {
        /// The member.
        node: u32,
        /// Whether messages of the leader reach it late, too.
        misses_leader: bool,
    },
    /// Eight nodes join.
    Storm {
        /// The time between two joins.
        gap: Duration,
        /// The leader dies just before this post of its own, if any.
        death: Option<u64>,
    },
    /// A member pauses; once everything in flight has arrived, the others die.
    Last {
        /// The member.
        node: u32,
        /// When the pause begins.
        after: Duration,
    },
    /// A node asks to join a group that takes no more members.
    Full,
}

/// A fault in a group of some size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeCase {
    /// Members of the first view.
    pub members: u32,
    /// The fault.
    pub shape: ShapeFault,
    /// The seed from which the order of events is drawn.
    pub seed: u64,
}

/// When the fault begins, while messages are in flight.
const BEGIN: Duration = Duration::from_micros(30);

/// How long members wait for a sign of life, in groups with pauses.
const SUSPICION_AFTER: Duration = Duration::from_micros(400);

impl ShapeCase {
    /// Runs the case, and keeps the latest `trace_records_max` events.
    #[must_use]
    pub fn run(&self, trace_records_max: usize) -> RunOutcome {
        let (mut outcome, fates, delivered) = group::run_to_deliveries(&self.plan(), trace_records_max);
        if outcome.violation.is_none() {
            let judge =
                |text| Violation { checker: "shape", text: format!("{text} after {self:?}: {fates:?}") };
            outcome.violation = self.check(&fates, &delivered).err().map(judge);
        }
        outcome
    }

    /// Returns the plan of the case.
    #[must_use]
    pub fn plan(&self) -> GroupPlan {
        let begin = Instant::from_nanos(0) + BEGIN;
        let rule = |when: RuleTrigger, what: Verdict| Rule { when, what };
        let mut plan =
            GroupPlan { early_sight: self.seed % 3 == 2, ..GroupPlan::calm(self.seed, self.members) };
        match &self.shape {
            ShapeFault::Partition { parts, heal_after } => {
                plan.rules.push(rule(RuleTrigger::At(begin), Verdict::Partition(parts.clone())));
                let heal = heal_after.map(|after| rule(RuleTrigger::At(begin + after), Verdict::Heal));
                plan.rules.extend(heal);
            }
            ShapeFault::Pause { node, span } => {
                plan.suspicion_after = Some(SUSPICION_AFTER);
                let mut begin = begin;
                if *span < SURELY_NOTICED {
                    begin = begin + SUSPICION_AFTER / 2;
                    plan.rules.extend(group::stagger(self.seed, self.members, SUSPICION_AFTER));
                }
                plan.rules.push(rule(RuleTrigger::At(begin), Verdict::Pause { node: *node, span: *span }));
            }
            ShapeFault::Mute { node, misses_leader } => {
                plan.suspicion_after = Some(SUSPICION_AFTER);
                // With shared memory, others see stores that have not been pushed.
                plan.early_sight = false;
                let others = (0..self.members).filter(|other| other != node);
                let slow = |from, to| {
                    rule(RuleTrigger::At(begin), Verdict::Slow { from, to, extra: 10 * SUSPICION_AFTER })
                };
                plan.rules.extend(others.map(|to| slow(*node, to)));
                let leader = u32::from(*node == 0);
                plan.rules.extend(misses_leader.then(|| slow(leader, *node)));
            }
            ShapeFault::Last { node, after } => {
                let paused = begin + *after;
                // Data that waits in a connection may be lost when the connection breaks.
                plan.one_sided_progress = true;
                plan.messages = 30;
                plan.rules.push(rule(
                    RuleTrigger::At(paused),
                    Verdict::Pause { node: *node, span: 2 * CALM_AFTER },
                ));
                let others = (0..self.members).filter(|other| other != node);
                let die = |other| rule(RuleTrigger::At(paused + CALM_AFTER), Verdict::Crash(other));
                plan.rules.extend(others.map(die));
            }
            ShapeFault::Full => {
                plan.messages = 1;
                plan.joins = vec![BEGIN];
            }
            ShapeFault::Storm { gap, death } => {
                plan.joins = (0..JOINERS).map(|i| BEGIN + *gap * i).collect();
                let death = death.map(|nth| rule(RuleTrigger::Post { node: 0, nth }, Verdict::Crash(0)));
                plan.rules.extend(death);
            }
        }
        if !matches!(self.shape, ShapeFault::Partition { .. } | ShapeFault::Mute { .. }) {
            let nodes = u64::from(self.members);
            plan.rules.extend(group::draw_interruptions_of(SUSPICION_AFTER / 16, self.seed, nodes));
        }
        plan
    }

    /// Returns the kinds of events that can happen in the run.
    fn faults(&self) -> Vec<&'static str> {
        let own = match self.shape {
            ShapeFault::Partition { .. } => "partition of a known shape",
            ShapeFault::Pause { span, .. } if span < SURELY_NOTICED => {
                "pause for about as long as others wait"
            }
            ShapeFault::Pause { .. } => "long pause",
            ShapeFault::Mute { misses_leader: false, .. } => "mute member",
            ShapeFault::Mute { misses_leader: true, .. } => "mute member that does not hear the leader",
            ShapeFault::Storm { .. } => "storm of joiners",
            ShapeFault::Last { .. } => "all others die",
            ShapeFault::Full => "full group",
        };
        self.plan().faults().into_iter().chain([own]).collect()
    }

    fn check(&self, fates: &[NodeFate], delivered: &[usize]) -> Result<(), String> {
        match &self.shape {
            ShapeFault::Partition { parts, heal_after } => self.check_parts(fates, parts, *heal_after),
            ShapeFault::Pause { node, span } => self.check_pause(fates, *node, *span),
            ShapeFault::Mute { node, .. } => self.check_mute(fates, *node),
            ShapeFault::Storm { death, .. } => self.check_storm(fates, *death),
            ShapeFault::Last { node, .. } => self.check_last(fates, delivered, *node),
            ShapeFault::Full => self.check_full(fates),
        }
    }

    fn check_parts(
        &self,
        fates: &[NodeFate],
        parts: &[Vec<u32>],
        heal_after: Option<Duration>,
    ) -> Result<(), String> {
        let all: Vec<u32> = (0..self.members).collect();
        if heal_after.is_some_and(|after| after < group::UNREACHABLE_AFTER) {
            return expect_members(
                fates,
                &all,
                "[V1] the network healed in time, but not all members continue",
            );
        }
        for part in parts {
            if part.len() > self.members as usize / 2 {
                expect_members(fates, part, "[V5] the majority does not continue")?;
            } else {
                expect_stopped(fates, part, "[V5] a minority continues")?;
            }
        }
        Ok(())
    }

    fn check_pause(&self, fates: &[NodeFate], node: u32, span: Duration) -> Result<(), String> {
        if span < SURELY_NOTICED && matches!(fates[node as usize], NodeFate::Member(_)) {
            let all: Vec<u32> = (0..self.members).collect();
            return expect_members(
                fates,
                &all,
                "[V15] one member pauses and remains, but not all members continue",
            );
        }
        let others: Vec<u32> = (0..self.members).filter(|other| *other != node).collect();
        expect_members(fates, &others, "[V8] the others do not continue")?;
        match fates[node as usize] {
            // The others have disconnected it. It may notice that before it reads their accusations.
            NodeFate::Ended(GroupEnd::Stopped(StopReason::Excluded | StopReason::Minority { .. })) => Ok(()),
            _ => Err(format!("[V4] node {node} has not learned that it is excluded")),
        }
    }

    fn check_mute(&self, fates: &[NodeFate], node: u32) -> Result<(), String> {
        let others: Vec<u32> = (0..self.members).filter(|other| *other != node).collect();
        expect_members(fates, &others, "[V8] the others do not continue")?;
        // It reads their accusations long before they disconnect it.
        match fates[node as usize] {
            NodeFate::Ended(GroupEnd::Stopped(StopReason::Excluded)) => Ok(()),
            _ => Err(format!("[V4] node {node} has not learned from the others that it is excluded")),
        }
    }

    fn check_storm(&self, fates: &[NodeFate], death: Option<u64>) -> Result<(), String> {
        let living = |node: &u32| fates[*node as usize] != NodeFate::Dead;
        let lonely = self.members == 1 && death.is_some();
        // The group ends with a leader that dies alone, or before any other member has joined.
        if lonely || (self.members == 2 && !living(&0)) {
            return Ok(());
        }
        let all: Vec<u32> = (0..self.members + JOINERS).filter(living).collect();
        expect_members(fates, &all, "[V8] not all nodes are admitted")?;
        let most = u64::from(JOINERS) + death.map_or(0, |_| STORM_VIEWS_MORE);
        match &fates[all[0] as usize] {
            NodeFate::Member(view) if view.id > most => Err(format!("[V12] it took {} views", view.id)),
            _ => Ok(()),
        }
    }
}

impl ShapeCase {
    fn check_last(&self, fates: &[NodeFate], delivered: &[usize], node: u32) -> Result<(), String> {
        expect_stopped(fates, &[node], "[V5] a minority continues")?;
        let most = delivered.iter().max().copied().unwrap_or(0);
        match delivered[node as usize] {
            here if here < most => {
                Err(format!("[V14] node {node} has delivered {here} messages, others {most}"))
            }
            _ => Ok(()),
        }
    }

    fn check_full(&self, fates: &[NodeFate]) -> Result<(), String> {
        let all: Vec<u32> = (0..self.members).collect();
        expect_members(fates, &all, "[V12] a full group has changed")?;
        match &fates[0] {
            NodeFate::Member(view) if view.id > 0 => Err(format!("[V12] {} views were for nothing", view.id)),
            _ => Ok(()),
        }
    }
}

/// The expected outcome holds only for the complete case, so nothing is removed.
impl Shrink for ShapeCase {
    fn smaller(&self) -> Vec<Self> {
        Vec::new()
    }
}

impl fmt::Display for ShapeCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan().fmt(f)
    }
}

/// Checks that `nodes`, and no others, are in one view.
fn expect_members(fates: &[NodeFate], nodes: &[u32], complaint: &str) -> Result<(), String> {
    NodeFate::expect_together(fates, nodes)
        .map_err(|missing| format!("{complaint}: node {missing} is missing"))
}

fn expect_stopped(fates: &[NodeFate], nodes: &[u32], complaint: &str) -> Result<(), String> {
    let has_stopped = |node: &u32| matches!(fates[*node as usize], NodeFate::Ended(GroupEnd::Stopped(_)));
    if nodes.iter().all(has_stopped) { Ok(()) } else { Err(complaint.into()) }
}

/// Draws the case of `seed`.
fn draw(seed: u64) -> ShapeCase {
    let mut prng = Prng::new(seed ^ 0x5ba9e);
    let members = 2 + u32::try_from(prng.index(4)).expect("few");
    let full = u32::try_from(MEMBERS_MAX).expect("few");
    let (members, shape) = match prng.below(5) {
        // A run with the maximum number of members takes as long as some hundred others.
        0 if prng.chance(3) => (full, ShapeFault::Full),
        0 => {
            let partitions = partitions(members);
            let parts = partitions[prng.index(partitions.len())].clone();
            let heal_after = [None, Some(HEAL_SOON), Some(HEAL_LATE)][prng.index(3)];
            (members, ShapeFault::Partition { parts, heal_after })
        }
        1 => {
            let members = members.max(3);
            let node = u32::try_from(prng.below(u64::from(members))).expect("few");
            let micros = if prng.chance(400) { 320 + prng.below(280) } else { 2_000 + prng.below(6_000) };
            (members, ShapeFault::Pause { node, span: Duration::from_micros(micros) })
        }
        2 => {
            let misses_leader = prng.chance(500);
            // A member that hears only one other may disconnect that one before it reads its accusation.
            let members = members.max(if misses_leader { 4 } else { 3 });
            let node = u32::try_from(prng.below(u64::from(members))).expect("few");
            (members, ShapeFault::Mute { node, misses_leader })
        }
        3 => {
            let node = u32::try_from(prng.below(u64::from(members))).expect("few");
            (members, ShapeFault::Last { node, after: Duration::from_micros(prng.below(150)) })
        }
        _ => {
            let gap = Duration::from_micros(if prng.chance(500) { 0 } else { prng.below(1_000) });
            (members, ShapeFault::Storm { gap, death: prng.chance(500).then(|| 1 + prng.below(400)) })
        }
    };
    ShapeCase { members, shape, seed: seed * 3 }
}

/// The shortest pause that all others notice. At the end of a shorter one, some hear the member before they would
/// accuse it.
const SURELY_NOTICED: Duration = Duration::from_micros(800);

/// After this time without messages of the application, nothing is in flight.
const CALM_AFTER: Duration = Duration::from_millis(2);

/// The length of a partition that no member notices.
pub const HEAL_SOON: Duration = Duration::from_millis(1);

/// The length of a partition that heals once all members have noticed it.
pub const HEAL_LATE: Duration = Duration::from_millis(10);
