//! Scenario: the network fails for longer than members wait for a sign of life, and comes back (Derecho §3.4).
//!
//! No connection is lost by that: what was written before or meanwhile comes when the paths are joined again, as it does between
//! processes that open their connections again. Checked: no member that lives ends, and none waits in the end \[V17\]; after an
//! outage of all paths that ends everywhere at once all members that live stay; after one that ends pair by pair a majority does, and
//! [`OutageRun::keeps_all`] says whether all do; after one that leaves a majority, that does. Everything that the scenario
//! [`crate::group`] checks, too.

use std::fmt;

use squall_fabric::sim::{Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};
use squall_protocols::membership::RankSet;

use crate::explain::Shrink;
use crate::group::{FOR_EVER, GroupPlan, NodeFate, run_to_fates};
use crate::run::{PlannedScenario, RunOutcome, Violation};

/// The scenario.
pub const SCENARIO: PlannedScenario<OutagePlan> = PlannedScenario {
    name: "outage",
    about: "2 to 5 members; all paths fail, or those of some, and come back at once or pair by pair; members die meanwhile",
    draw: OutagePlan::draw,
    run,
    faults: OutagePlan::faults,
};

/// How paths come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutageReturn {
    /// All at once.
    AtOnce,
    /// One pair after the other, within this time.
    PairByPair(Duration),
}

/// A time in which paths fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When it begins.
    pub begin: Duration,
    /// How long it lasts, until the first path comes back.
    pub span: Duration,
    /// The members that no path reaches; if these are all but one, all paths fail.
    pub alone: Vec<u32>,
    /// How it ends.
    pub back: OutageReturn,
    /// Some paths fail in one direction only.
    pub is_one_way: bool,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutagePlan {
    /// The group, without faults of its own.
    pub group: GroupPlan,
    /// The outages, one after the other.
    pub outages: Vec<Outage>,
    /// The members that die, and when.
    pub deaths: Vec<(u32, Duration)>,
}

impl OutagePlan {
    /// The plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x0a7a6e);
        let members = 2 + u32::try_from(prng.index(4)).expect("few");
        let mut plan = Self::calm(seed, members, &mut prng);
        let suspicion = plan.suspicion();
        let (mut begin, count) = (Duration::from_nanos(prng.below(800_000)), 1 + prng.below(3));
        for _ in 0..count {
            let outage = draw_outage(&mut prng, members, begin, suspicion);
            begin = outage.end() + suspicion.mul_f64(0.1 * prng.below(80) as f64);
            plan.outages.push(outage);
        }
        if prng.chance(300) {
            let victim = u32::try_from(prng.index(members as usize)).expect("few");
            let last = plan.outages.last().map_or(Duration::ZERO, Outage::end).as_nanos() as u64;
            // A view that is ending when the paths fail, or a death at any time.
            let begin = plan.outages[0].begin.as_nanos() as u64;
            let at = if prng.chance(600) {
                begin.saturating_sub(prng.below(60_000))
            } else {
                prng.below(last + 500_000)
            };
            plan.deaths.push((victim, Duration::from_nanos(at)));
        }
        plan
    }

    /// All paths of `members` members fail for some time, once, and come back pair by pair within one suspicion time.
    #[must_use]
    pub fn pair_by_pair(seed: u64, members: u32) -> Self {
        let mut prng = Prng::new(seed ^ 0x9a12);
        let mut plan = Self::calm(seed, members, &mut prng);
        let suspicion = plan.suspicion();
        plan.outages.push(Outage {
            begin: Duration::from_nanos(200_000 + prng.below(400_000)),
            span: suspicion.mul_f64(2.0 + 0.1 * prng.below(40) as f64),
            alone: (0..members).collect(),
            back: OutageReturn::PairByPair(suspicion),
            is_one_way: false,
        });
        plan
    }

    fn calm(seed: u64, members: u32, prng: &mut Prng) -> Self {
        let mut group = GroupPlan::draw(seed);
        group.members = members;
        (group.joins, group.leaves, group.rules) = (Vec::new(), Vec::new(), Vec::new());
        group.suspicion_after = Some(Duration::from_nanos(400_000 + prng.below(1_200_000)));
        group.partition_safety = squall_protocols::membership::PartitionSafety::Majority;
        group.unreachable_after = FOR_EVER;
        let calm = GroupPlan::calm(seed, members).adversary;
        group.adversary = squall_fabric::sim::Adversary {
            clock_drift_max: group.adversary.clock_drift_max.min(10_000),
            ..calm
        };
        // Disks that take as long as a suspicion time are those of other scenarios.
        group.flush_max = group.flush_max.min(group.suspicion_after.unwrap_or_default().mul_f64(0.05));
        Self { group, outages: Vec::new(), deaths: Vec::new() }
    }

    fn suspicion(&self) -> Duration {
        self.group.suspicion_after.unwrap_or_default()
    }

    /// The plan of the group that is run, with the faults.
    pub(crate) fn with_faults(&self) -> GroupPlan {
        let rule = |(at, what)| Rule { when: RuleTrigger::At(Instant::from_nanos(0) + at), what };
        let mut faults: Vec<(Duration, Verdict)> =
            self.deaths.iter().map(|(node, at)| (*at, Verdict::Crash(*node))).collect();
        for (i, outage) in self.outages.iter().enumerate() {
            let mut prng = Prng::new(self.group.seed ^ 0x9a14 ^ i as u64);
            faults.extend(outage.faults(self.group.members, &mut prng));
        }
        GroupPlan { rules: faults.into_iter().map(rule).collect(), ..self.group.clone() }
    }

    fn faults(&self) -> Vec<&'static str> {
        let members = self.group.members as usize;
        let kinds =
            self.outages.iter().map(|outage| match (outage.is_total(self.group.members), outage.back) {
                (true, OutageReturn::AtOnce) => "outage of all paths",
                (true, OutageReturn::PairByPair(_)) => "outage of all paths that ends pair by pair",
                (false, _) if 2 * outage.alone.len() < members => "outage of a minority",
                (false, _) => "outage of a majority",
            });
        let deaths = self.deaths.iter().map(|_| "death in an outage");
        self.with_faults().faults().into_iter().chain(kinds).chain(deaths).collect()
    }
}

/// An outage that begins then.
pub(crate) fn draw_outage(prng: &mut Prng, members: u32, begin: Duration, suspicion: Duration) -> Outage {
    let tenths = if prng.chance(200) { 200 } else { 40 };
    let span = suspicion.mul_f64(0.1 * (1 + prng.below(tenths)) as f64);
    let side = RankSet::from_bits(prng.draw());
    let alone: Vec<u32> = match prng.chance(500) {
        true => (0..members).collect(),
        false => {
            side.iter().filter_map(|node| u32::try_from(node).ok()).filter(|node| *node < members).collect()
        }
    };
    let within = suspicion.mul_f64(0.1 * (1 + prng.below(30)) as f64);
    let back = if prng.chance(500) { OutageReturn::AtOnce } else { OutageReturn::PairByPair(within) };
    Outage { begin, span, alone, back, is_one_way: prng.chance(250) }
}

impl Outage {
    fn is_total(&self, members: u32) -> bool {
        self.alone.len() + 1 >= members as usize
    }

    /// When all paths are back.
    #[must_use]
    pub fn end(&self) -> Duration {
        let within = match self.back {
            OutageReturn::AtOnce => Duration::ZERO,
            OutageReturn::PairByPair(within) => within,
        };
        self.begin + self.span + within
    }

    /// The faults of the outage, and when they come.
    pub(crate) fn faults(&self, members: u32, prng: &mut Prng) -> Vec<(Duration, Verdict)> {
        let pairs = (0..members).flat_map(|a| (a + 1..members).map(move |b| (a, b)));
        let cut = pairs.filter(|(a, b)| self.alone.contains(a) || self.alone.contains(b));
        let mut faults = Vec::new();
        for (a, b) in cut {
            let late = match self.back {
                OutageReturn::AtOnce => Duration::ZERO,
                OutageReturn::PairByPair(within) => {
                    Duration::from_nanos(prng.below(1 + within.as_nanos() as u64))
                }
            };
            let (begin, back) = (self.begin, self.begin + self.span + late);
            if self.is_one_way && prng.chance(600) {
                let (from, to) = if prng.chance(500) { (a, b) } else { (b, a) };
                let extra = back - begin;
                faults.push((begin, Verdict::Slow { from, to, extra }));
                faults.push((back, Verdict::Slow { from, to, extra: Duration::ZERO }));
            } else {
                faults.push((begin, Verdict::Cut { a, b }));
                faults.push((back, Verdict::Mend { a, b }));
            }
        }
        faults
    }
}

/// What has become of a run, besides its outcome.
#[derive(Clone, Debug)]
pub struct OutageRun {
    /// The outcome, without the checks of this scenario.
    pub outcome: RunOutcome,
    /// By member.
    pub fates: Vec<NodeFate>,
}

impl OutageRun {
    /// Returns whether all members that live are in one view.
    #[must_use]
    pub fn keeps_all(&self) -> bool {
        let living: Vec<u32> = (0..)
            .zip(&self.fates)
            .filter(|(_, fate)| **fate != NodeFate::Dead)
            .map(|(node, _)| node)
            .collect();
        NodeFate::expect_together(&self.fates, &living).is_ok()
    }
}

/// Runs a plan, keeping the latest `trace_records_max` happenings.
#[must_use]
pub fn run(plan: &OutagePlan, trace_records_max: usize) -> RunOutcome {
    let run = run_to_end(plan, trace_records_max);
    let violation = run.outcome.violation.clone().or_else(|| plan.check(&run).err());
    RunOutcome { violation, ..run.outcome }
}

/// Runs a plan, like [`run`], without the checks of this scenario.
#[must_use]
pub fn run_to_end(plan: &OutagePlan, trace_records_max: usize) -> OutageRun {
    let (outcome, fates) = run_to_fates(&plan.with_faults(), trace_records_max);
    OutageRun { outcome, fates }
}

impl OutagePlan {
    fn check(&self, run: &OutageRun) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation { checker: "outage", text: format!("[V17] {text}") });
        let members = self.group.members as usize;
        let dead = run.fates.iter().filter(|fate| **fate == NodeFate::Dead).count();
        // The views that follow an outage may be smaller, so that the members of one of them may lose their majority for good; and members
        // with logs stop waiting for silent ones when a dead one may come back with its log.
        let living: Vec<u32> = (0..self.group.members)
            .zip(&run.fates)
            .filter(|(_, fate)| **fate != NodeFate::Dead)
            .map(|(node, _)| node)
            .collect();
        let may_stop = 2 * (members - dead) <= members
            || self.may_exclude()
            || self.may_restart()
            || self.group.may_lose_logs(&living);
        if !self.deaths.is_empty() && may_stop {
            return Ok(());
        }
        if self.may_exclude() {
            let together: Vec<u32> = (0..)
                .zip(&run.fates)
                .filter(|(_, fate)| matches!(fate, NodeFate::Member(_)))
                .map(|(node, _)| node)
                .collect();
            let waits = run.fates.contains(&NodeFate::LacksMajority);
            // Those that an excluded one has left count it as dead.
            if (together.is_empty() && !self.may_restart()) || waits {
                return fail(format!(
                    "no member continues, or one waits although all hear each other: {:?}",
                    run.fates
                ));
            }
            return Ok(());
        }
        if run.keeps_all() {
            Ok(())
        } else {
            fail(format!("a member that lives is not kept: {:?}", run.fates))
        }
    }

    /// Whether some outage is so long that members with logs stop in it, to start again with those that died.
    fn may_restart(&self) -> bool {
        let is_long = |outage: &Outage| outage.end() - outage.begin > self.suspicion() * 7;
        !self.group.durable().is_empty() && self.outages.iter().any(is_long)
    }

    /// Whether some outage may be a reason to continue without a member that lives: a majority hears each other, and not it, for as long as
    /// members wait for a sign of life.
    fn may_exclude(&self) -> bool {
        let is_whole = |outage: &Outage| {
            outage.is_total(self.group.members) && outage.back == OutageReturn::AtOnce && !outage.is_one_way
        };
        let is_short = |outage: &Outage| outage.end() - outage.begin < self.suspicion().mul_f64(0.6);
        // Members notice the loss of others one by one.
        let is_noticed_by_all = |outage: &Outage| outage.span > self.suspicion() * 2;
        !self.outages.iter().all(|outage| is_short(outage) || is_whole(outage) && is_noticed_by_all(outage))
    }
}

impl Shrink for OutagePlan {
    fn smaller(&self) -> Vec<Self> {
        let mut plans = Vec::new();
        for i in 0..self.outages.len() {
            let mut plan = self.clone();
            plan.outages.remove(i);
            plans.push(plan);
        }
        for i in 0..self.deaths.len() {
            let mut plan = self.clone();
            plan.deaths.remove(i);
            plans.push(plan);
        }
        let groups = self.group.smaller().into_iter().filter(|group| group.suspicion_after.is_some());
        plans.extend(groups.map(|group| Self { group, ..self.clone() }));
        plans
    }
}

impl fmt::Display for OutagePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.with_faults())
    }
}
