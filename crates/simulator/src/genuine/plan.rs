//! The plan of a run: shards, members, workload and faults, drawn from a seed.

use std::fmt;

use squall_fabric::sim::{Adversary, Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};
use squall_protocols::genuine::{
    GenuineSettings, PART_HEADER_BYTES, QuorumRule, SHARDS_MAX, UPDATE_HEADER_BYTES,
};
use squall_protocols::membership::RankSet;

use crate::admission::BusPlan;
use crate::explain::Shrink;
use crate::group::{GroupPlan, draw_drift, draw_interruptions, draw_rules};
use crate::plan_words;

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenuinePlan {
    /// Nodes, joins, leaves, workload, adversary and faults; it has no subgroups. Nodes are processes here, by their places.
    pub group: GroupPlan,
    /// How many shards there are.
    pub shards: usize,
    /// The shard of each node, if it is in one.
    pub homes: Vec<Option<usize>>,
    /// The nodes that send.
    pub senders: RankSet,
    /// The sets of destinations that messages have.
    pub destinations: Vec<u64>,
    /// The settings.
    pub settings: GenuineSettings,
    /// How long a joiner in its first view takes to ask for the state, at most.
    pub request_max: Duration,
    /// How long the state of a joiner is on its way, at most.
    pub transfer_max: Duration,
    /// Words that pass between nodes are counted.
    pub counts_words: bool,
    /// The time that nodes take for the common one differs by up to that.
    pub time_error_max: Duration,
    /// The only thing that happens: a follower pauses, and a majority is enough.
    pub standstill: Option<FollowerStandstill>,
    /// All paths fail for longer than members wait, and come back at once: all members stay.
    pub keeps_all: bool,
}

/// A follower of a shard pauses: the others deliver meanwhile whatever is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerStandstill {
    /// The node.
    pub node: u32,
    /// When it continues.
    pub end: Instant,
    /// A message that was sent this long before is delivered by all others.
    pub bound: Duration,
}

/// The payloads of messages are at most that long.
pub(super) const MESSAGE_MAX: usize = 40;

impl GenuinePlan {
    /// The plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x6e41);
        let mut plan = Self::draw_shape(seed, &mut prng);
        let nodes = u64::from(plan.group.nodes());
        match prng.below(5) {
            0 => plan.calm_down(&mut prng),
            1 => plan.add_deaths(&mut prng),
            _ => plan.group.rules = draw_rules(&mut prng, nodes),
        }
        if prng.chance(150) {
            plan.add_slow_shard(&mut prng);
        }
        if prng.chance(500) {
            plan.add_late_state(&mut prng);
        }
        if !plan.group.joins.is_empty() && prng.chance(150) {
            plan.add_lost_state(&mut prng);
        }
        plan.draw_majority();
        if plan.group.suspicion_after.is_some() {
            plan.group.rules.extend(draw_interruptions(seed, nodes));
        }
        plan.settings.has_states = !Prng::new(seed ^ 0x57a7e).chance(400);
        if plan.settings.has_states {
            plan.settings.message_max = UPDATE_HEADER_BYTES + plan.shards * (PART_HEADER_BYTES + MESSAGE_MAX);
        }
        plan.draw_later_request();
        plan.draw_outages();
        plan
    }

    /// What a process adds to its own time to get the common one.
    pub(super) fn time_base(&self, place: u32) -> Duration {
        let most = u64::try_from(self.time_error_max.as_nanos()).expect("some years");
        Duration::from_nanos(Prng::new(self.group.seed ^ u64::from(place) << 40 ^ 0x71e).below(1 + most))
    }

    /// Shards and workload, without faults.
    fn draw_shape(seed: u64, prng: &mut Prng) -> Self {
        let shards = [1, 2, 2, 2, 3, 3, 4, 8][prng.index(8)];
        let most = if shards > 4 { 2 } else { [2, 3, 3, 5][prng.index(4)] };
        let mut homes = Vec::new();
        for shard in 0..shards {
            homes.extend(std::iter::repeat_n(Some(shard), 1 + prng.index(most)));
        }
        homes.extend(prng.chance(200).then_some(None));
        homes.truncate(MEMBERS);
        prng.shuffle(&mut homes);
        let members = u32::try_from(homes.len()).expect("few");
        let joins: Vec<Duration> = (0..prng.below(6).saturating_sub(3))
            .map(|_| Duration::from_nanos(prng.below(2_000_000)))
            .collect();
        homes.extend(joins.iter().map(|_| Some(prng.index(shards))));
        let nodes = homes.len() as u64;
        let leaves = (0..u64::from(prng.chance(200))).map(|_| {
            (u32::try_from(prng.below(nodes)).expect("few"), Duration::from_nanos(prng.below(2_000_000)))
        });
        let leaves = leaves.collect();
        let set =
            |prng: &mut Prng| (prng.draw() & prng.draw() | 1 << prng.index(shards)) & ((1 << shards) - 1);
        let is_quiet = prng.chance(500);
        let group = GroupPlan {
            joins,
            leaves,
            subgroups: Vec::new(),
            messages: prng.below(16),
            burst: 1 + prng.below(6),
            gap_max: Duration::from_nanos(if prng.chance(300) { 0 } else { prng.below(150_000) }),
            suspicion_after: (!is_quiet).then(|| Duration::from_nanos(400_000 + prng.below(3_000_000))),
            adversary: Adversary { clock_drift_max: draw_drift(seed), ..Adversary::drawn(prng) },
            early_sight: prng.chance(400),
            one_sided_progress: prng.chance(750),
            bus: BusPlan::draw(seed),
            ..GroupPlan::calm(seed, members)
        };
        let destinations = (0..1 + prng.below(4)).map(|_| set(prng)).collect();
        let window = [1, 2, 3, 4, 12][prng.index(5)];
        // Clocks that agree, as machines keep them, and some that are wrong by years.
        let errors = if prng.chance(300) { [0, 5_000] } else { [1_000_000, 2_000_000_000_000_000_000] };
        let time_error_max = Duration::from_nanos(errors[Prng::new(seed ^ 0xc10c).index(2)]);
        let window_bytes = if prng.chance(500) { 1 + prng.index(600) } else { usize::MAX };
        let settings = GenuineSettings {
            window_bytes,
            has_states: true,
            // Not by the run's own source of chance, so that nothing else depends on it.
            express: Prng::new(seed ^ 0xe5).chance(650),
            ..GenuineSettings::new(window, MESSAGE_MAX)
        };
        Self {
            shards,
            homes,
            senders: RankSet::from_bits(prng.draw() | prng.draw()),
            destinations,
            settings,
            request_max: Duration::ZERO,
            transfer_max: Duration::from_nanos(prng.below(300_000)),
            time_error_max,
            standstill: None,
            keeps_all: false,
            counts_words: !group.early_sight && prng.chance(200),
            group,
        }
    }

    /// Nothing ends the first view.
    fn calm_down(&mut self, prng: &mut Prng) {
        let group = &mut self.group;
        group.suspicion_after = None;
        self.homes.truncate(group.members as usize);
        group.joins.clear();
        group.leaves.clear();
        if prng.chance(600) {
            self.settings.quorum = QuorumRule::Majority;
            if prng.chance(500) {
                self.add_slow_member(prng);
            }
        }
    }

    /// Members that die one soon after the other, each just before one of its posts.
    fn add_deaths(&mut self, prng: &mut Prng) {
        let nodes = u64::from(self.group.members);
        let first = 1 + prng.below(500);
        for _ in 0..1 + prng.below(2) {
            // The leader of the view, or any member.
            let node = if prng.chance(400) { 0 } else { u32::try_from(prng.below(nodes)).expect("few") };
            let nth = first + prng.below(60);
            self.group.rules.push(Rule { when: RuleTrigger::Post { node, nth }, what: Verdict::Crash(node) });
        }
    }

    /// What the others write comes late to one member, so that the others of its shard are a quorum before it acknowledges.
    fn add_slow_member(&mut self, prng: &mut Prng) {
        let members = u64::from(self.group.members);
        let to = u32::try_from(prng.below(members)).expect("few");
        let extra = Duration::from_nanos(prng.below(100_000));
        for from in (0..self.group.members).filter(|from| *from != to) {
            let when = RuleTrigger::At(Instant::from_nanos(0));
            self.group.rules.push(Rule { when, what: Verdict::Slow { from, to, extra } });
        }
    }

    /// What the others write comes late to all members of a shard.
    fn add_slow_shard(&mut self, prng: &mut Prng) {
        let (shard, extra) = (prng.index(self.shards), Duration::from_nanos(prng.below(100_000)));
        let nodes = self.group.nodes();
        let is_in = |node: &u32| self.homes[*node as usize] == Some(shard);
        for to in (0..nodes).filter(is_in) {
            for from in (0..nodes).filter(|from| *from != to) {
                let when = RuleTrigger::At(Instant::from_nanos(0));
                self.group.rules.push(Rule { when, what: Verdict::Slow { from, to, extra } });
            }
        }
    }

    /// The state of a joiner is taken while messages of its first views are under way: some are in it that the joiner has not
    /// delivered, if it comes faster than their acknowledgements.
    fn add_late_state(&mut self, prng: &mut Prng) {
        self.request_max = Duration::from_nanos(1 + prng.below(100_000));
        if prng.chance(700) {
            self.transfer_max = Duration::from_nanos(prng.below(2_000));
            // It joins before all has been sent.
            self.group.bus = BusPlan::calm(Duration::from_nanos(1 + prng.below(5_000)));
            self.group.joins.iter_mut().for_each(|at| *at /= 8);
            self.add_slow_words(prng);
        }
    }

    /// A joiner asks for the state so late that a sender whose messages it has delivered is gone: the state provider has forgotten
    /// their numbers.
    fn draw_later_request(&mut self) {
        let mut prng = Prng::new(self.group.seed ^ 0x1a7e);
        if self.group.joins.is_empty() || !self.settings.has_states || !prng.chance(150) {
            return;
        }
        self.request_max = Duration::from_nanos(1 + prng.below(6_000_000));
        self.group.messages = self.group.messages.max(8);
        let sender = u32::try_from(prng.below(u64::from(self.group.members))).expect("few");
        self.senders.insert(sender as usize);
        let late = Duration::from_nanos(prng.below(1_500_000));
        let when = RuleTrigger::At(Instant::from_nanos(0) + self.group.joins[0] + late);
        self.group.rules.push(Rule { when, what: Verdict::Crash(sender) });
    }

    /// A joiner hears one of the members late.
    fn add_slow_words(&mut self, prng: &mut Prng) {
        for to in self.group.members..self.group.nodes() {
            let from = u32::try_from(prng.below(u64::from(self.group.members))).expect("few");
            let extra = Duration::from_nanos(prng.below(100_000));
            let when = RuleTrigger::At(Instant::from_nanos(0));
            self.group.rules.push(Rule { when, what: Verdict::Slow { from, to, extra } });
        }
    }

    /// The members of a joiner's shard die while it joins.
    fn add_lost_state(&mut self, prng: &mut Prng) {
        let members = self.group.members as usize;
        let (at, home) = (self.group.joins[0], self.homes[members]);
        for node in (0..self.group.members).filter(|node| self.homes[*node as usize] == home) {
            let late = Duration::from_nanos(prng.below(1 + 20 * self.group.bus.delay_max.as_nanos() as u64));
            let when = RuleTrigger::At(Instant::from_nanos(0) + at + late);
            self.group.rules.push(Rule { when, what: Verdict::Crash(node) });
        }
    }

    fn has_large_shard(&self) -> bool {
        let members = |shard: usize| self.homes.iter().filter(|home| **home == Some(shard)).count();
        (0..self.shards).any(|shard| members(shard) > 64)
    }

    /// What can happen in the run, by kinds.
    pub(crate) fn faults(&self) -> Vec<&'static str> {
        let own = [
            ("counted words", self.counts_words),
            ("late request for the state", !self.request_max.is_zero()),
            ("wrong clocks", !self.time_error_max.is_zero()),
            ("member of no shard", self.homes.contains(&None)),
            ("eight shards", self.shards == 8),
            ("as many shards as there may be", self.shards == SHARDS_MAX),
            ("shard of more than 64 members", self.has_large_shard()),
            ("shards without states", !self.settings.has_states),
            ("majority", self.settings.quorum == QuorumRule::Majority),
            ("follower that stalls", self.standstill.is_some()),
            ("outage of all paths", self.keeps_all),
        ];
        let own = own.into_iter().filter_map(|(kind, is_there)| is_there.then_some(kind));
        self.group.faults().into_iter().chain(own).collect()
    }
}

/// The most members of the first view.
const MEMBERS: usize = 14;

impl Shrink for GenuinePlan {
    fn smaller(&self) -> Vec<Self> {
        // A node's number is its place: so nodes are not taken away.
        let has_all = |group: &GroupPlan| !self.keeps_all || group.rules == self.group.rules;
        let groups = self.group.smaller().into_iter();
        let groups = groups.filter(|group| group.nodes() == self.group.nodes() && has_all(group));
        let mut plans: Vec<Self> = groups.map(|group| Self { group, ..self.clone() }).collect();
        for i in 1..self.destinations.len() {
            let mut plan = self.clone();
            plan.destinations.remove(i);
            plans.push(plan);
        }
        let senders = self.senders.iter().filter(|node| *node < self.group.nodes() as usize);
        plans.extend(senders.map(|node| Self { senders: self.senders.without(node), ..self.clone() }));
        plans
    }
}

impl fmt::Display for GenuinePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.group)?;
        let nodes = self.group.nodes();
        let members =
            |of: Option<usize>| plan_words::nodes(nodes, |node| self.homes.get(node as usize) == Some(&of));
        for shard in 0..self.shards {
            writeln!(f, "  shard {shard}: {}", members(Some(shard)))?;
        }
        if self.homes.contains(&None) {
            writeln!(f, "  in no shard: {}", members(None))?;
        }
        let sends = |node: u32| self.senders.contains(node as usize);
        writeln!(f, "  senders: {}", plan_words::nodes(nodes, sends))?;
        let shards = u32::try_from(self.shards).expect("few");
        for set in &self.destinations {
            let named = plan_words::nodes(shards, |shard| set >> shard & 1 == 1);
            let named = named.replace("nodes", "shards").replace("node", "shard");
            writeln!(f, "  messages to {named}")?;
        }
        let GenuineSettings { quorum, window, has_states, express, message_max, window_bytes } =
            &self.settings;
        let quorum = match quorum {
            QuorumRule::All => "all members of a shard acknowledge",
            QuorumRule::Majority => "a majority of a shard acknowledges",
        };
        let clock = format!("clocks differ by up to {:?}", self.time_error_max);
        let states = if *has_states { "joiners take over states" } else { "shards have no states" };
        let express = if *express { "; a short message that is alone is one write" } else { "" };
        let bytes =
            if *window_bytes == usize::MAX { String::new() } else { format!(" and {window_bytes} bytes") };
        writeln!(
            f,
            "  {quorum}; {clock}; {states}; messages of up to {message_max} bytes, {window}{bytes} under way{express}"
        )?;
        if let Some(FollowerStandstill { node, end, bound }) = self.standstill {
            writeln!(
                f,
                "  node {node} stalls until {:?}; others deliver within {bound:?}",
                end.since(Instant::from_nanos(0))
            )?;
        }
        if *has_states && !self.group.joins.is_empty() {
            let Self { request_max, transfer_max, .. } = self;
            writeln!(
                f,
                "  a joiner asks for its state within {request_max:?}, which takes up to {transfer_max:?}"
            )?;
        }
        Ok(())
    }
}
