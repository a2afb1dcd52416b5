//! Scenario: a group with durable subgroups whose processes all die, most of them for good, and which a person continues from one log
//! (Derecho §3.4, "Total failures", which does not look at this).
//!
//! Until then it is a run of the scenario [`crate::group`], as in [`crate::revival`]. Then some folders are left, the ends of some of which
//! are lost; of those from which the group can continue ([`squall_protocols::restart::Register::salvage`]) the one whose log goes
//! furthest is taken. From then on it is a run of the scenario [`crate::restart`]: the process starts alone, others join with empty
//! folders, and they all die again.
//!
//! Checked, besides all that these two scenarios check:
//! - *kept*: what the log has of the last view counts, all of earlier views does, and nothing of shards that it does not have; so what was
//!   delivered and is in this log is delivered by all afterwards \[P1\];
//! - *refused*: a log is refused if it lacks a part of an earlier view, if its process is no member of its view, and if it can restart
//!   alone; and else it is not;
//! - *apart*: the group has another number, and the process none of its earlier promises and votes;
//! - the view that begins is none in which the process was live \[T8\].

use std::collections::BTreeMap;
use std::fmt;

use squall_fabric::sim::Prng;
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::membership::RankSet;
use squall_protocols::multicast::DeliveryMode;
use squall_protocols::restart::{DurableView, LogState, Register, Salvage, SalvageError, SalvagedShard};

use crate::explain::Shrink;
use crate::group::{GroupPlan, remains_at};
use crate::restart::{RestartLayout, RestartPlan, RestartRemains, TailDamage};
use crate::revival::one_after_the_other;
use crate::run::{PlannedScenario, RunOutcome, Violation};

/// The scenario.
pub const SCENARIO: PlannedScenario<SalvagePlan> = PlannedScenario {
    name: "salvage",
    about: "a group with durable subgroups that has lost most of its logs, and continues from one of those that are left",
    draw: SalvagePlan::draw,
    run,
    faults: SalvagePlan::faults,
};

/// A run of a group, and what comes after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SalvagePlan {
    /// The group.
    pub group: GroupPlan,
    /// When all its processes die.
    pub end: Duration,
    /// The processes whose folders are left.
    pub left: u64,
    /// How many sequences of the last view each of these loses at the end of its log, in turn.
    pub losses: [u64; 3],
    /// What happens afterwards; the first process is the one that continues, the others join it.
    pub restart: RestartPlan,
}

impl SalvagePlan {
    /// The plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x5a17);
        let mut group = GroupPlan::draw(seed);
        group.subgroups[0].settings.mode = DeliveryMode::Durable;
        let longest = [500_000, 4_000_000, 12_000_000][prng.index(3)];
        let end = Duration::from_nanos(prng.below(longest));
        let left = prng.below(1 << 16) | 1 << prng.index(8);
        let losses = [0; 3].map(|_: u64| if prng.chance(300) { prng.below(5) } else { 0 });
        let mut restart = RestartPlan::draw(seed);
        restart.strikes.truncate(prng.index(3));
        restart.strikes.iter_mut().for_each(|strike| strike.forgetful = None);
        restart.damage = TailDamage::None;
        restart.layout = RestartLayout::Everywhere;
        restart.leaves.clear();
        Self { group, end, left, losses, restart }
    }

    fn faults(&self) -> Vec<&'static str> {
        let group = self.group.faults().into_iter().filter(|fault| *fault != "durable messages");
        let losses = (self.losses != [0; 3]).then_some("loss of the end of a log");
        let strikes = (!self.restart.strikes.is_empty()).then_some("deaths during the restart");
        group.chain(losses).chain(strikes).collect()
    }
}

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &SalvagePlan, trace_records_max: usize) -> RunOutcome {
    let (before, remains) = remains_at(&plan.group, Instant::from_nanos(0) + plan.end, trace_records_max);
    if before.violation.is_some() || remains.disks.is_empty() {
        return before;
    }
    let after = match continue_from(plan, &remains) {
        Ok(Some((restart, left))) => crate::restart::resume(&restart, &left, trace_records_max),
        Ok(None) => return before,
        Err(violation) => return RunOutcome { violation: Some(violation), ..before },
    };
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

/// A folder that is left: its register and what its log has, of which the register's shards count.
struct LeftLog<'a> {
    register: &'a Register,
    counts: BTreeMap<(u64, usize), u64>,
    state: LogState,
}

/// The plan and the disks of the group that continues from one of the logs that are left; none if it can continue from none.
fn continue_from(
    plan: &SalvagePlan,
    remains: &RestartRemains,
) -> Result<Option<(RestartPlan, RestartRemains)>, Violation> {
    let mut best: Option<(u64, LeftLog<'_>, Salvage)> = None;
    for (place, (register, counts)) in remains.disks.iter().enumerate() {
        if plan.left >> (place % 64) & 1 == 0 {
            continue;
        }
        let log = left(register, counts, plan.losses[place % 3], remains);
        let outcome = register.salvage(&log.state, register.group + 1, false);
        check(&log, &outcome)?;
        if let Ok(salvage) = outcome {
            let kept = salvage.shards.iter().map(|shard| match shard {
                SalvagedShard::Kept { sequences, .. } => *sequences,
                SalvagedShard::Lost => 0,
            });
            let reach = register.view().number << 32 | kept.sum::<u64>();
            if best.as_ref().is_none_or(|(furthest, ..)| *furthest < reach) {
                best = Some((reach, log, salvage));
            }
        }
    }
    Ok(best.map(|(_, log, salvage)| resumed(plan, remains, &log, salvage)))
}

/// What a process finds of its log when the end of its last view is lost.
fn left<'a>(
    register: &'a Register,
    counts: &BTreeMap<(u64, usize), u64>,
    loss: u64,
    remains: &RestartRemains,
) -> LeftLog<'a> {
    let shards = register.view().shards.len();
    let (mut counts, mut state) = (counts.clone(), LogState::new(shards));
    for ((view, _), count) in &mut counts {
        *count = count.saturating_sub(if *view == register.view().number { loss } else { 0 });
    }
    for shard in 0..shards {
        remains.begin_of(register, shard).into_iter().for_each(|begin| state.cover(shard, begin));
    }
    counts.iter().for_each(|((view, shard), count)| state.raise(*shard, *view, *count));
    state.cut(&register.record.chain);
    LeftLog { register, counts, state }
}

fn violation(checker: &'static str, text: String) -> Violation {
    Violation { checker, text }
}

/// Whether the outcome is what this log and this register allow.
fn check(log: &LeftLog<'_>, outcome: &Result<Salvage, SalvageError>) -> Result<(), Violation> {
    let (register, view) = (log.register, log.register.view());
    let own: Vec<usize> = view.shards_of(register.node).collect();
    // Not by what ships: the trims of the views before, one by one.
    let lacks = |shard: usize| {
        register.record.chain.of_shard(shard).any(|(ended, trim)| {
            ended >= log.state.shards[shard].base.view && log.state.shards[shard].count(ended) < trim
        }) || log.state.shards[shard].base.view < register.record.chain.first()
    };
    let expected = match view.rank(register.node) {
        None => Some("no member"),
        Some(_) if view.members.len() == 1 => Some("a quorum"),
        Some(_) => own.iter().any(|shard| lacks(*shard)).then_some("a hole"),
    };
    let found = match outcome {
        Ok(_) => None,
        Err(SalvageError::NoMember) => Some("no member"),
        Err(SalvageError::IsQuorum) => Some("a quorum"),
        Err(SalvageError::Hole { .. }) => Some("a hole"),
    };
    if found != expected {
        let text = format!("{} is refused for {found:?}, and there is {expected:?}", register.node);
        return Err(violation("refused", text));
    }
    let Ok(Salvage { register: salvaged, shards, .. }) = outcome else { return Ok(()) };
    let is_apart = salvaged.group != register.group && salvaged.promise.is_none() && salvaged.vote.is_none();
    if !is_apart || salvaged.is_damaged() || salvaged.node != register.node {
        return Err(violation("apart", format!("{} continues as {salvaged:?}", register.node)));
    }
    for (shard, is) in shards.iter().enumerate() {
        let held = log.state.shards[shard].count(view.number);
        let counts = |ended: u64| salvaged.record.chain.trim_of(ended, shard);
        let is_right = match *is {
            SalvagedShard::Kept { sequences, .. } => {
                own.contains(&shard) && sequences == held && counts(view.number) == Some(held)
            }
            SalvagedShard::Lost => {
                !own.contains(&shard) && salvaged.record.chain.of_shard(shard).next().is_none()
            }
        };
        if !is_right {
            let text = format!("{}: {is:?} of shard {shard}, of which the log has {held}", register.node);
            return Err(violation("kept", text));
        }
    }
    Ok(())
}

/// The disk of the process that continues, and empty ones of others.
fn resumed(
    plan: &SalvagePlan,
    remains: &RestartRemains,
    log: &LeftLog<'_>,
    salvage: Salvage,
) -> (RestartPlan, RestartRemains) {
    let (register, record) = (salvage.register, log.register.record.clone());
    let next = register.view().clone();
    let shards = next.shards.len();
    let own: Vec<usize> = record.view.shards_of(register.node).collect();
    let has = |view: u64, shard: usize| {
        if own.contains(&shard) { log.state.shards[shard].count(view) } else { 0 }
    };
    // A person has accepted that what is in no other log is lost: the rest is not.
    let delivered = remains.delivered.iter().filter(|((view, _), _)| *view <= record.view.number);
    let kept = |((view, shard), count): (&(u64, usize), &u64)| {
        let is_ended = *view < record.view.number && own.contains(shard);
        let kept = if is_ended { *count } else { (*count).min(has(*view, *shard)) };
        ((*view, *shard), kept)
    };
    let delivered = delivered.map(kept).collect();
    let greatest = remains.disks.iter().map(|(register, _)| register.node.0).max().unwrap_or(0);
    let none = DurableView { shards: vec![RankSet::EMPTY; shards], ..DurableView::default() };
    let processes = plan.restart.processes.clamp(2, 5);
    let joiners = (1..processes).map(|place| {
        let node = NodeId(greatest + u32::try_from(place).expect("few processes"));
        let fresh = Register { layout: register.layout, ..Register::new(register.group, node, none.clone()) };
        (fresh, BTreeMap::new())
    });
    let joiners: Vec<_> = joiners.collect();
    let mut views = remains.views.clone();
    views.retain(|view| view.number < next.number);
    views.push(next);
    let disks = [(register, log.counts.clone())].into_iter().chain(joiners).collect();
    let mut restart = RestartPlan { processes, members: 0, shards, sets: Vec::new(), ..plan.restart.clone() };
    restart.slow.retain(|(from, to, _)| from.max(to) < &processes);
    restart.disks.resize(processes, [1, 1]);
    let lived = remains.lived.clone();
    let RestartRemains { first_view, bases, ends, .. } = remains;
    let (bases, ends) = (bases.clone(), ends.clone());
    (restart, RestartRemains { disks, first_view: *first_view, bases, ends, views, delivered, lived })
}

impl Shrink for SalvagePlan {
    fn smaller(&self) -> Vec<Self> {
        let groups = self.group.smaller().into_iter().map(|group| Self { group, ..self.clone() });
        let restarts = self.restart.smaller().into_iter().map(|restart| Self { restart, ..self.clone() });
        let whole = Self { losses: [0; 3], ..self.clone() };
        let wholes = (self.losses != [0; 3]).then_some(whole);
        groups.chain(restarts).chain(wholes).filter(|plan| !plan.group.subgroups.is_empty()).collect()
    }
}

impl fmt::Display for SalvagePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, end, left, losses, restart } = self;
        write!(
            f,
            "{group}\nall processes die after {end:?}; the folders {left:#b} are left, which lose {losses:?}, and then\n{restart}"
        )
    }
}
