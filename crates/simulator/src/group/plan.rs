//! The plan of a run: members, joiners, subgroups, workload and faults, drawn from a seed.

use std::fmt;

use squall_fabric::sim::{Adversary, Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::group::{Placement, SubgroupId, Unplaced};
use squall_protocols::membership::{PartitionSafety, View};
use squall_protocols::multicast::{Carrier, DeliveryMode, SubgroupSettings};
use squall_protocols::rdmc;

use super::cluster::UNREACHABLE_AFTER;
use super::draw::{draw_relays, draw_subgroups};
use super::interruption::draw_interruptions;
use super::limits::{CounterLimits, draw_drift, draw_shortage};
use crate::admission::BusPlan;
use crate::coverage::rule_kinds;
use crate::explain::Shrink;
use crate::plan_words;

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// Where it came from.
    pub seed: u64,
    /// Nodes `0..members` form the first view.
    pub members: u32,
    /// When each further node asks to join.
    pub joins: Vec<Duration>,
    /// The nodes that leave, and when.
    pub leaves: Vec<(u32, Duration)>,
    /// The subgroups.
    pub subgroups: Vec<SubgroupPlan>,
    /// Messages of each sender of each subgroup.
    pub messages: u64,
    /// The most messages that a sender commits in one turn.
    pub burst: u64,
    /// How long a sender waits between two turns in which it sends, at most.
    pub gap_max: Duration,
    /// How long a pulling consumer does nothing in between, at most.
    pub consumer_pause_max: Duration,
    /// How long a flush of a disk takes, at most.
    pub flush_max: Duration,
    /// How bodies of large messages are relayed.
    pub relays: rdmc::RdmcSettings,
    /// Members that are silent for this time are suspected.
    pub suspicion_after: Option<Duration>,
    /// When a part of a view continues.
    pub partition_safety: PartitionSafety,
    /// What the fabric does.
    pub adversary: Adversary,
    /// Readers share the owner's memory.
    pub early_sight: bool,
    /// Writes land without the target's processor.
    pub one_sided_progress: bool,
    /// Members see that another one is dying before they lose it.
    pub dies_visibly: bool,
    /// How long paths are cut before the nodes at their ends lose each other.
    pub unreachable_after: Duration,
    /// The faults.
    pub rules: Vec<Rule>,
    /// Where counts begin and end.
    pub limits: CounterLimits,
    /// What joiners and members say to each other beside the group.
    pub bus: BusPlan,
}

/// A subgroup and its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubgroupPlan {
    /// Which.
    pub id: SubgroupId,
    /// The nodes that belong to it when they are in the view, as a set of bits.
    pub nodes: u64,
    /// Those that send.
    pub senders: u64,
    /// Those that pull.
    pub pullers: u64,
    /// Its settings but for the senders.
    pub settings: SubgroupSettings,
}

/// A path that is slower by this brings nothing within a run.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(3600);

/// Messages of the scenario are at most that long.
pub(super) const MESSAGE_MAX: usize = 40;

impl GroupPlan {
    /// The plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x9209);
        let is_takeover = prng.chance(300);
        let mut plan = if is_takeover {
            Self::draw_takeover(seed, &mut prng)
        } else {
            Self::draw_usual(seed, &mut prng)
        };
        plan.rules.extend(draw_shortage(seed, u64::from(plan.nodes())));
        plan.rules.extend(draw_interruptions(seed, u64::from(plan.nodes())));
        plan.draw_durable(&mut Prng::new(seed ^ 0xd15c));
        plan
    }

    /// Makes some subgroups durable.
    fn draw_durable(&mut self, prng: &mut Prng) {
        self.flush_max = Duration::from_micros([20, 200, 2_000][prng.index(3)]);
        if self.limits.is_low() {
            // Each of many views costs four writes, one after the other.
            self.flush_max = Duration::from_micros(20);
        }
        let ordered =
            self.subgroups.iter_mut().filter(|subgroup| subgroup.settings.mode == DeliveryMode::Atomic);
        ordered.filter(|_| prng.chance(250)).for_each(|subgroup| {
            subgroup.settings.mode = DeliveryMode::Durable;
        });
    }

    /// The durable subgroups, in the order in which the register has them.
    pub(crate) fn durable(&self) -> Vec<SubgroupId> {
        let is_durable = |plan: &&SubgroupPlan| plan.settings.mode == DeliveryMode::Durable;
        self.subgroups.iter().filter(is_durable).map(|plan| plan.id).collect()
    }

    fn draw_usual(seed: u64, prng: &mut Prng) -> Self {
        let members = 1 + u32::try_from(prng.index(5)).expect("few");
        let joins =
            (0..prng.below(4)).map(|_| Duration::from_nanos(prng.below(3_000_000))).collect::<Vec<_>>();
        let nodes = u64::from(members) + joins.len() as u64;
        let leaves =
            (0..prng.below(2)).map(|_| (node(prng, nodes), Duration::from_nanos(prng.below(3_000_000))));
        let leaves = leaves.collect();
        let is_quiet = prng.chance(500);
        let suspicion_after = (!is_quiet).then(|| Duration::from_nanos(400_000 + prng.below(3_000_000)));
        Self {
            seed,
            members,
            leaves,
            relays: draw_relays(seed),
            subgroups: draw_subgroups(seed, prng),
            messages: prng.below(50),
            burst: 1 + prng.below(8),
            gap_max: Duration::from_nanos(if prng.chance(300) { 0 } else { prng.below(150_000) }),
            consumer_pause_max: Duration::from_nanos(prng.below(200_000)),
            flush_max: Duration::ZERO,
            suspicion_after,
            partition_safety: PartitionSafety::Majority,
            adversary: Adversary { clock_drift_max: draw_drift(seed), ..Adversary::drawn(prng) },
            early_sight: prng.chance(500),
            one_sided_progress: prng.chance(750),
            dies_visibly: false,
            unreachable_after: UNREACHABLE_AFTER,
            rules: draw_rules(prng, nodes),
            limits: CounterLimits::draw(seed),
            bus: BusPlan::draw(seed),
            joins,
        }
    }

    /// A view that ends because a node joins or leaves, with leaders that die or are lost at any step of that. There
    /// is little else in such a run, so that most posts are steps of the agreement.
    fn draw_takeover(seed: u64, prng: &mut Prng) -> Self {
        let members = 3 + u32::try_from(prng.index(3)).expect("few");
        let soon = Duration::from_nanos(prng.below(100_000));
        let crash = |prng: &mut Prng, node: u32| {
            let when = RuleTrigger::Post { node, nth: 1 + prng.below(120) };
            Rule { when, what: Verdict::Crash(node) }
        };
        let slow = |prng: &mut Prng, from: u32, to: u32| {
            let extra = Duration::from_nanos(prng.below(4_000_000));
            let when = RuleTrigger::At(Instant::from_nanos(prng.below(200_000)));
            Rule { when, what: Verdict::Slow { from, to, extra } }
        };
        let other = 1 + u32::try_from(prng.index(members as usize - 1)).expect("few");
        let is_lost = prng.chance(400);
        let rules = match is_lost {
            true => vec![slow(prng, 0, 1), slow(prng, 1, 0), slow(prng, other, 0), crash(prng, other)],
            false => vec![crash(prng, 0), crash(prng, other)],
        };
        let (joins, leaves) = match prng.chance(700) {
            true => (vec![soon], vec![]),
            false => (vec![], vec![(members - 1, soon)]),
        };
        let mut subgroups = draw_subgroups(seed, prng);
        subgroups.truncate(1);
        Self {
            seed,
            members,
            joins,
            leaves,
            relays: draw_relays(seed),
            subgroups,
            messages: prng.below(3),
            burst: 2,
            gap_max: Duration::ZERO,
            consumer_pause_max: Duration::ZERO,
            flush_max: Duration::ZERO,
            suspicion_after: is_lost.then(|| Duration::from_nanos(200_000 + prng.below(400_000))),
            partition_safety: PartitionSafety::Majority,
            adversary: Adversary::drawn(prng),
            early_sight: prng.chance(300),
            one_sided_progress: prng.chance(750),
            dies_visibly: false,
            unreachable_after: UNREACHABLE_AFTER,
            rules,
            limits: CounterLimits::draw(seed),
            bus: BusPlan::draw(seed),
        }
    }

    /// `members` members that send a few messages each in one subgroup, and nothing that disturbs them: something to add
    /// faults to.
    #[must_use]
    pub fn calm(seed: u64, members: u32) -> Self {
        let settings =
            SubgroupSettings { window: 4, window_bytes: 400, ..SubgroupSettings::new(1, MESSAGE_MAX) };
        let all =
            SubgroupPlan { id: SubgroupId(0), nodes: u64::MAX, senders: u64::MAX, pullers: 0, settings };
        let adversary = Adversary {
            delay_max: Duration::from_micros(3),
            scatter_per_mille: 600,
            pieces_max: 4,
            late_source_per_mille: 500,
            late_notice_max: Duration::from_micros(20),
            glimpse_per_mille: 200,
            poll_gap_max: Duration::from_micros(2),
            ..Adversary::default()
        };
        Self {
            seed,
            members,
            joins: Vec::new(),
            leaves: Vec::new(),
            relays: rdmc::RdmcSettings::default(),
            subgroups: vec![all],
            messages: 3,
            burst: 2,
            gap_max: Duration::from_micros(20),
            consumer_pause_max: Duration::ZERO,
            flush_max: Duration::ZERO,
            suspicion_after: None,
            partition_safety: PartitionSafety::Majority,
            adversary,
            early_sight: false,
            one_sided_progress: seed.is_multiple_of(2),
            dies_visibly: false,
            unreachable_after: UNREACHABLE_AFTER,
            rules: Vec::new(),
            limits: CounterLimits::usual(),
            bus: BusPlan::calm(Duration::from_micros(2)),
        }
    }

    /// All nodes of the run.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.members + u32::try_from(self.joins.len()).expect("few")
    }

    /// The most views that may have the members of the one before \[V12\]: the joiner that a view ended for may be lost.
    #[must_use]
    pub fn unchanged_views_max(&self) -> usize {
        let messages = self.messages * u64::from(self.nodes()) * self.subgroups.len() as u64;
        self.joins.len() + self.rules.len() + usize::try_from(self.limits.views(messages)).expect("few")
    }

    /// Whether members can be suspected that live, or lose each other.
    #[must_use]
    pub fn has_false_suspicion(&self) -> bool {
        let stops = |rule: &Rule| matches!(rule.what, Verdict::Partition(_) | Verdict::Pause { .. });
        self.suspicion_after.is_some() || self.rules.iter().any(stops)
    }

    /// What can happen in the run, by kinds.
    pub(crate) fn faults(&self) -> Vec<&'static str> {
        let relays =
            |plan: &SubgroupPlan| plan.settings.large.is_some_and(|large| large.carrier == Carrier::Relayed);
        let others = [
            ("join", !self.joins.is_empty()),
            ("leave", !self.leaves.is_empty()),
            ("suspicion", self.suspicion_after.is_some()),
            ("clocks of different rates", self.adversary.clock_drift_max > 0),
            ("no partition safety", self.partition_safety == PartitionSafety::Off),
            ("relayed messages", self.subgroups.iter().any(relays)),
            ("durable messages", !self.durable().is_empty()),
            ("views of few indexes", self.limits.is_low()),
            ("views of high numbers", self.limits.first_view > 0),
        ];
        let others = others.into_iter().filter_map(|(kind, is_there)| is_there.then_some(kind));
        rule_kinds(&self.rules).into_iter().chain(others).collect()
    }

    /// How many nodes crash.
    #[must_use]
    pub fn crashes(&self) -> usize {
        self.rules.iter().filter(|rule| matches!(rule.what, Verdict::Crash(_))).count()
    }

    /// The latest instant at which something new happens, with the time that its effect lasts.
    #[must_use]
    pub fn last_fault(&self) -> Duration {
        let end = |rule: &Rule| match (&rule.when, &rule.what) {
            // What never arrives has no effect after the others have noticed that.
            (RuleTrigger::At(at), Verdict::Slow { extra, .. }) if *extra >= FOR_EVER => at.as_nanos(),
            (RuleTrigger::At(at), Verdict::Pause { span, .. } | Verdict::Slow { extra: span, .. }) => {
                at.as_nanos() + span.as_nanos() as u64
            }
            (RuleTrigger::At(at), _) => at.as_nanos(),
            _ => 0,
        };
        let faults = self.rules.iter().map(end).map(Duration::from_nanos);
        let leaves = self.leaves.iter().map(|(_, at)| *at);
        faults.chain(leaves).chain(self.joins.iter().copied()).max().unwrap_or_default()
    }

    /// The layout.
    #[must_use]
    pub fn place(subgroups: &[SubgroupPlan], view: &View) -> (Vec<Placement>, Vec<Unplaced>) {
        let (mut placements, mut unplaced) = (Vec::new(), Vec::new());
        for subgroup in subgroups {
            let members: Vec<NodeId> =
                view.nodes().into_iter().filter(|node| has(subgroup.nodes, *node)).collect();
            if members.is_empty() {
                unplaced.push(Unplaced { id: subgroup.id, reason: "it has no members".into() });
                continue;
            }
            let senders = members.iter().enumerate().filter(|(_, node)| has(subgroup.senders, **node));
            let senders: Vec<usize> = senders.map(|(rank, _)| rank).collect();
            if senders.is_empty() {
                unplaced.push(Unplaced { id: subgroup.id, reason: "it has no senders".into() });
                continue;
            }
            let settings = SubgroupSettings { senders, ..subgroup.settings.clone() };
            placements.push(Placement { id: subgroup.id, members, settings });
        }
        (placements, unplaced)
    }
}

/// Whether a set of bits has `node`.
pub(super) fn has(nodes: u64, node: NodeId) -> bool {
    nodes.checked_shr(node.0).is_some_and(|nodes| nodes & 1 == 1)
}

fn node(prng: &mut Prng, nodes: u64) -> u32 {
    u32::try_from(prng.below(nodes)).expect("few")
}

/// A few faults among `nodes` nodes.
pub(crate) fn draw_rules(prng: &mut Prng, nodes: u64) -> Vec<Rule> {
    let mut rules = Vec::new();
    let time = |prng: &mut Prng| RuleTrigger::At(Instant::from_nanos(prng.below(3_000_000)));
    let post = |prng: &mut Prng, node: u32| RuleTrigger::Post { node, nth: 1 + prng.below(400) };
    for _ in 0..prng.below(4) {
        let victim = node(prng, nodes);
        let (when, what) = match prng.below(8) {
            // A leader at any of its steps: it posts most when a view ends.
            0..3 => (post(prng, victim), Verdict::Crash(victim)),
            3 => (time(prng), Verdict::Crash(victim)),
            4 => {
                let span = Duration::from_nanos(prng.below(8_000_000));
                (time(prng), Verdict::Pause { node: victim, span })
            }
            5 => {
                let (from, to) = (victim, node(prng, nodes));
                let extra = Duration::from_nanos(prng.below(400_000));
                (time(prng), Verdict::Slow { from, to, extra })
            }
            _ => {
                let side = prng.draw();
                let part = |of: bool| {
                    (0..u32::try_from(nodes).expect("few")).filter(|n| (side >> n & 1 == 1) == of).collect()
                };
                let at = prng.below(3_000_000);
                let heal = at + prng.below(6_000_000);
                rules.push(Rule { when: RuleTrigger::At(Instant::from_nanos(heal)), what: Verdict::Heal });
                (RuleTrigger::At(Instant::from_nanos(at)), Verdict::Partition(vec![part(true), part(false)]))
            }
        };
        rules.push(Rule { when, what });
    }
    rules
}

impl Shrink for GroupPlan {
    fn smaller(&self) -> Vec<Self> {
        let mut plans = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            plans.push(plan);
        };
        for i in 0..self.rules.len() {
            with(&|plan| drop(plan.rules.remove(i)));
        }
        for i in 0..self.leaves.len() {
            with(&|plan| {
                plan.leaves.remove(i);
            });
        }
        for i in 1..self.subgroups.len() {
            with(&|plan| drop(plan.subgroups.remove(i)));
        }
        if !self.joins.is_empty() && self.rules.is_empty() {
            with(&|plan| {
                plan.joins.pop();
            });
        }
        for keep in [0, self.messages / 2, self.messages.saturating_sub(1)] {
            if keep < self.messages {
                with(&|plan| plan.messages = keep);
            }
        }
        if self.suspicion_after.is_some() {
            with(&|plan| plan.suspicion_after = None);
        }
        if self.dies_visibly {
            with(&|plan| plan.dies_visibly = false);
        }
        if self.subgroups.iter().any(|subgroup| subgroup.settings.large.is_some()) {
            with(&|plan| plan.subgroups.iter_mut().for_each(|subgroup| subgroup.settings.large = None));
        }
        if self.subgroups.iter().any(|subgroup| subgroup.pullers != 0) {
            with(&|plan| plan.subgroups.iter_mut().for_each(|subgroup| subgroup.pullers = 0));
        }
        if self.limits != CounterLimits::usual() {
            with(&|plan| plan.limits = CounterLimits::usual());
        }
        let calm = Adversary { delay_max: self.adversary.delay_max, ..Adversary::default() };
        if calm != self.adversary {
            with(&|plan| plan.adversary = calm.clone());
        }
        plans
    }
}

impl fmt::Display for GroupPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: nodes 0 to {} begin", self.seed, self.members.saturating_sub(1))?;
        for (node, at) in (self.members..).zip(&self.joins) {
            writeln!(f, "  node {node} asks to join after {at:?}")?;
        }
        for (node, at) in &self.leaves {
            writeln!(f, "  node {node} leaves after {at:?}")?;
        }
        let named = |set: u64| plan_words::nodes(self.nodes(), |node| has(set, NodeId(node)));
        for SubgroupPlan { id, nodes, senders, pullers, settings } in &self.subgroups {
            let SubgroupSettings { mode, window, window_bytes, piece_bytes, batching, large, .. } = settings;
            let (mode, batching) = (plan_words::mode(*mode), plan_words::batching(*batching));
            writeln!(
                f,
                "  {id}, {mode}: {}; senders: {}; pulled at: {}",
                named(*nodes),
                named(*senders),
                named(*pullers)
            )?;
            writeln!(
                f,
                "    window of {window} messages and {window_bytes} bytes, pieces of {piece_bytes} bytes, {batching}"
            )?;
            if let Some(large) = large {
                let rdmc::RdmcSettings { block_bytes, schedule, in_flight_bytes } = &self.relays;
                writeln!(f, "    {}", plan_words::large(large))?;
                writeln!(
                    f,
                    "    relays: blocks of {block_bytes} bytes, {in_flight_bytes} under way, schedule {schedule:?}"
                )?;
            }
        }
        let Self { messages, burst, gap_max, consumer_pause_max, .. } = self;
        write!(
            f,
            "  {messages} messages of each sender, in bursts of up to {burst}, up to {gap_max:?} apart"
        )?;
        writeln!(f, "; consumers pause for up to {consumer_pause_max:?}")?;
        let silence =
            self.suspicion_after.map_or("silence is no reason to suspect a member".into(), |after| {
                format!("a member that is silent for {after:?} is suspected")
            });
        let part = match self.partition_safety {
            PartitionSafety::Majority => "only a majority continues",
            PartitionSafety::Off => "any part continues",
        };
        writeln!(f, "  {silence}; {part}")?;
        if self.limits != CounterLimits::usual() {
            let CounterLimits { first_view, view_indexes_max } = self.limits;
            writeln!(
                f,
                "  views are counted from {first_view} and end after {view_indexes_max} messages of a sender"
            )?;
        }
        let sight = if self.early_sight { "readers share memory" } else { "readers hold copies" };
        let progress = if self.one_sided_progress { "at once" } else { "when the target polls" };
        let death = if self.dies_visibly { ", a dying node is seen before it is lost" } else { "" };
        writeln!(f, "  {sight}, writes land {progress}{death}")?;
        f.write_str(&plan_words::adversary(&self.adversary, "  "))?;
        self.rules.iter().try_for_each(|rule| writeln!(f, "  fault {rule}"))
    }
}
