//! The plan of a run: a group and its faults, the objects on it, clients; drawn from a seed.

use std::fmt;

use squall_fabric::sim::{Adversary, Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::group::{Placement, SubgroupId, Unplaced};
use squall_protocols::membership::{PartitionSafety, View};
use squall_protocols::multicast::SubgroupSettings;
use squall_protocols::rdmc;
use squall_protocols::replica::{self, StateTransferSettings, members_of_shard, place};

use super::list::UPDATE_MAX;
use crate::admission::BusPlan;
use crate::explain::Shrink;
use crate::group;

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPlan {
    /// Members, joins, leaves, faults. It has no subgroups and no messages of its own.
    pub group: group::GroupPlan,
    /// Shards of the object.
    pub shards: u32,
    /// Members of each shard.
    pub replicas: usize,
    /// How shards are placed.
    pub layout: ShardLayout,
    /// The window of a shard.
    pub window: usize,
    /// Updates that there is space for in one message, at least.
    pub together: usize,
    /// Updates and queries of each member.
    pub updates: u64,
    /// Clients outside the group.
    pub clients: u32,
    /// Updates and queries of each.
    pub client_jobs: u64,
    /// Updates and queries that a client has under way at a time.
    pub client_window: usize,
    /// Connections of clients that break, of a thousand requests.
    pub breaks_per_mille: u32,
    /// How long a client tries.
    pub client_timeout: Duration,
    /// How often a client that waits asks for the members.
    pub client_period: Duration,
    /// All members are replaced one by one, so slowly that no client has a reason to give up \[A10\].
    pub is_replaced: bool,
    /// Sessions that a shard remembers.
    pub sessions_max: usize,
    /// Between two updates of one member or client, at most.
    pub gap_max: Duration,
    /// How long a member does nothing between two batches that it applies, at most.
    pub take_pause_max: Duration,
    /// How long a state is under way, at most.
    pub transfer_max: Duration,
    /// How long a datagram takes, at most.
    pub datagram_max: Duration,
    /// How long an answer is waited for, at most; often longer than it takes.
    pub patience: Duration,
    /// Bytes that a joiner keeps at most before senders wait.
    pub waiting_bytes_max: usize,
    /// A member that lives, but whose answers to those who ask for a state never come.
    pub hanging: Option<u32>,
}

/// How shards are placed: a function of the view alone \[D6\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardLayout {
    /// As the library places them: few move.
    Rendezvous,
    /// Anywhere, in each view anew: as an application's own function may do.
    Anywhere,
}

impl ReplicaPlan {
    /// The plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x0b1ec7);
        let clients = u32::try_from(prng.below(4)).expect("few");
        let micros = |prng: &mut Prng, most: u64| Duration::from_micros(1 + prng.below(most));
        let (slow, long) = ([5, 50, 800][prng.index(3)], [30, 300, 1500, 4000][prng.index(4)]);
        let datagrams = [60, 60, 6000][prng.index(3)];
        let mut plan = Self {
            group: draw_group(seed, clients, &mut prng),
            shards: 1 + u32::try_from(prng.below(2)).expect("few"),
            replicas: 1 + prng.index(3),
            layout: if prng.chance(300) { ShardLayout::Rendezvous } else { ShardLayout::Anywhere },
            window: 1 + prng.index(8),
            together: 1,
            updates: prng.below(20),
            clients,
            client_jobs: prng.below(20),
            client_window: 1,
            breaks_per_mille: 0,
            // All of them together in less time than a run takes when no member answers any more.
            client_timeout: micros(&mut prng, 8_000),
            client_period: Duration::from_millis(1),
            is_replaced: false,
            sessions_max: [2, 3, 1024][prng.index(3)],
            gap_max: micros(&mut prng, 400),
            take_pause_max: micros(&mut prng, slow),
            transfer_max: micros(&mut prng, long),
            datagram_max: micros(&mut prng, datagrams),
            patience: micros(&mut prng, 1500) + Duration::from_micros(2 * datagrams + long),
            waiting_bytes_max: if prng.chance(200) { 100 } else { 1 << 20 },
            hanging: None,
        };
        if prng.chance(600) {
            plan.hand_over(&mut prng);
            if prng.chance(600) {
                plan.bequeath(&mut prng);
            }
        } else {
            plan.group.bus = BusPlan::draw(seed);
        }
        // Of their own, so that other plans do not depend on them.
        let (mut further, mut wandering) = (Prng::new(seed ^ 0x4011), Prng::new(seed ^ 0x77a4d));
        if further.chance(250) {
            plan.roll(&mut further);
        } else if wandering.chance(150) {
            plan.wander(&mut wandering);
        }
        if further.chance(150) {
            plan.hanging = u32::try_from(further.below(u64::from(plan.group.nodes()))).ok();
        }
        let mut streaming = Prng::new(seed ^ 0x51de);
        plan.together = 1 + streaming.index(4);
        plan.client_window = [1, 4, 32][streaming.index(3)];
        plan.breaks_per_mille = [0, 20, 200][streaming.index(3)];
        if plan.client_window > 1 && streaming.chance(400) {
            // Bursts, in which many are under way.
            plan.client_jobs *= 2;
            plan.gap_max = Duration::from_micros(1 + streaming.below(20));
        }
        let mut replacing = Prng::new(seed ^ 0x5ecce5);
        if replacing.chance(60) {
            plan.replace(&mut replacing);
        }
        plan
    }

    /// All first members are replaced one by one, while the clients are idle, and ask for the members occasionally, or busy,
    /// and learn of the members by their answers alone.
    fn replace(&mut self, prng: &mut Prng) {
        let step = Duration::from_micros(3_000 + prng.below(3_000));
        let members = 1 + u32::try_from(prng.index(3)).expect("few");
        let group = &mut self.group;
        group.members = members;
        group.joins = (0..members).map(|nth| step * (2 * nth + 1)).collect();
        group.leaves = (0..members).map(|nth| (nth, step * (2 * nth + 2))).collect();
        (group.rules, group.suspicion_after) = (Vec::new(), None);
        group.bus = BusPlan::calm(Duration::from_micros(2));
        let span = step * (2 * members + 1);
        (self.client_period, self.gap_max, self.client_jobs) = if prng.chance(500) {
            (step / 4, span, 3)
        } else {
            let gap = Duration::from_micros(300);
            (span + step, gap, u64::try_from(span.as_nanos() / gap.as_nanos()).expect("few"))
        };
        (self.clients, self.updates, self.sessions_max) = (1 + u32::from(prng.chance(500)), 2, 1024);
        (self.replicas, self.waiting_bytes_max, self.hanging) = (1 + prng.index(3), 1 << 20, None);
        (self.take_pause_max, self.transfer_max) = (Duration::from_micros(50), Duration::from_micros(300));
        (self.datagram_max, self.patience) = (Duration::from_micros(60), Duration::from_millis(1));
        (self.client_timeout, self.is_replaced) = (Duration::from_millis(30), true);
        (self.client_window, self.breaks_per_mille) = (1, 0);
        // With clocks that differ, the last known member might leave before a client asks again.
        self.group.adversary.clock_drift_max = 0;
    }

    /// A rolling restart: joins and graceful leaves in quick succession, while the transfer of each state takes long. No
    /// member dies, so nothing may be lost.
    fn roll(&mut self, prng: &mut Prng) {
        let micros = |prng: &mut Prng, most: u64| Duration::from_micros(1 + prng.below(most));
        (self.shards, self.replicas) = ([1, 2, 8][prng.index(3)], 1 + prng.index(3));
        (self.updates, self.client_jobs) = (2 + prng.below(8), prng.below(8));
        (self.datagram_max, self.transfer_max) = (micros(prng, 60), micros(prng, 4_000));
        self.patience = self.transfer_max + Duration::from_micros(300);
        let group = &mut self.group;
        group.members = 1 + u32::try_from(prng.index(4)).expect("few");
        let (span, most) = (100 + prng.below(4_000), 1 + prng.below(8));
        group.joins = (0..most).map(|_| micros(prng, span)).collect();
        let mut nodes: Vec<u32> = (0..group.nodes()).collect();
        if prng.chance(500) {
            prng.shuffle(&mut nodes);
        }
        nodes.truncate(prng.index(nodes.len()));
        let late = prng.below(span);
        group.leaves =
            nodes.into_iter().map(|node| (node, micros(prng, span) + Duration::from_micros(late))).collect();
        (group.rules, group.suspicion_after) = (Vec::new(), None);
    }

    /// Little but joiners that wait for the state, several at a time, while shards move and providers die: most of what is
    /// said about lost states happens here.
    fn hand_over(&mut self, prng: &mut Prng) {
        let micros = |prng: &mut Prng, most: u64| Duration::from_micros(1 + prng.below(most));
        (self.layout, self.replicas) = (ShardLayout::Anywhere, 2 + prng.index(2));
        (self.datagram_max, self.transfer_max) = (micros(prng, 4_000), micros(prng, 100));
        self.patience = Duration::from_micros(200) + (self.datagram_max * 2 + self.transfer_max) * 3;
        (self.updates, self.client_jobs) = (prng.below(4), prng.below(4));
        let group = &mut self.group;
        let nodes = group.nodes();
        group.members = (2 + u32::try_from(prng.index(3)).expect("few")).min(nodes);
        group.joins = (0..nodes - group.members).map(|_| micros(prng, 1_500)).collect();
        group.leaves.truncate(1);
        let death = |prng: &mut Prng, at: u64| {
            let at = Instant::from_nanos(0) + Duration::from_micros(at + prng.below(1_500));
            let victim = u32::try_from(prng.below(u64::from(nodes))).expect("few");
            Rule { when: RuleTrigger::At(at), what: Verdict::Crash(victim) }
        };
        group.rules = (0..1 + prng.below(3)).map(|nth| death(prng, 300 + nth * 600)).collect();
        (group.suspicion_after, group.partition_safety) = (None, PartitionSafety::Off);
    }

    /// Those who have the states at first go, one soon after the other, while two or three joiners ask them and each other
    /// for many of them: what one has from the dead, another must not take for lost.
    fn bequeath(&mut self, prng: &mut Prng) {
        self.shards = 8;
        let group = &mut self.group;
        group.members = 1 + u32::try_from(prng.index(2)).expect("few");
        group.joins = (0..2 + prng.below(2)).map(|_| Duration::from_micros(1 + prng.below(50))).collect();
        let begin = 200 + prng.below(3_000);
        let death = |victim| {
            let at = Instant::from_nanos(0) + Duration::from_micros(begin + prng.below(200));
            Rule { when: RuleTrigger::At(at), what: Verdict::Crash(victim) }
        };
        group.rules = (0..group.members).map(death).collect();
    }

    /// Shards that move from member to member as fast as states do, while all send: a member that leaves a shard has something
    /// under way.
    fn wander(&mut self, prng: &mut Prng) {
        let micros = |prng: &mut Prng, most: u64| Duration::from_micros(1 + prng.below(most));
        (self.layout, self.shards) = (ShardLayout::Anywhere, 1 + u32::try_from(prng.below(2)).expect("few"));
        self.replicas = 1 + prng.index(2);
        (self.updates, self.gap_max) = (20 + prng.below(40), micros(prng, 60));
        (self.datagram_max, self.transfer_max) = (micros(prng, 10), micros(prng, 20));
        let group = &mut self.group;
        group.members = (2 + u32::try_from(prng.index(3)).expect("few")).min(group.nodes());
        let joins = 4 + prng.below(8);
        group.joins = (1..=joins).map(|nth| Duration::from_micros(nth * 200 + prng.below(200))).collect();
        group.leaves.truncate(1);
        (group.rules, group.suspicion_after) = (Vec::new(), None);
    }

    /// What can happen in the run, by kinds.
    pub(super) fn faults(&self) -> Vec<&'static str> {
        let others = [
            ("state provider that hangs", self.hanging.is_some()),
            ("shards that move", self.layout == ShardLayout::Anywhere),
            ("clients", self.clients > 0),
            ("clients with many updates under way", self.clients > 0 && self.client_window > 1),
            ("connections that break", self.clients > 0 && self.breaks_per_mille > 0),
            ("few sessions", self.sessions_max < 10),
            ("few bytes kept", self.waiting_bytes_max < 1000),
        ];
        let others = others.into_iter().filter_map(|(kind, is_there)| is_there.then_some(kind));
        self.group.faults().into_iter().chain(others).collect()
    }

    /// The members of a shard in a view.
    #[must_use]
    pub fn members_of(&self, shard: u32, view: &View) -> Vec<NodeId> {
        place(view, shard, &view.nodes(), |nodes| match self.layout {
            ShardLayout::Rendezvous => members_of_shard(shard, self.replicas, nodes),
            ShardLayout::Anywhere => {
                let mut chosen = nodes.to_vec();
                let source = self.group.seed ^ view.id << 8 ^ u64::from(shard);
                Prng::new(source).shuffle(&mut chosen);
                chosen.truncate(self.replicas);
                chosen
            }
        })
    }

    /// The longest message.
    #[must_use]
    pub const fn message_max(&self) -> usize {
        self.together * UPDATE_MAX
    }

    /// What all members have set.
    pub(super) fn settings(&self) -> replica::ReplicaSettings {
        replica::ReplicaSettings { sessions_max: self.sessions_max, ..replica::ReplicaSettings::default() }
    }

    /// How long a query waits for a member to come to the asker's view.
    pub(super) const fn query_patience(&self) -> Duration {
        Duration::from_micros(150)
    }

    /// How patient joiners of a shard are.
    pub(super) fn transfer_settings(&self) -> StateTransferSettings {
        let (pause, pause_max) = (Duration::from_micros(100), Duration::from_micros(6_400));
        StateTransferSettings { silence: self.patience, silence_max: self.patience * 4, pause, pause_max }
    }

    /// The layout.
    #[must_use]
    pub fn place(&self, view: &View) -> (Vec<Placement>, Vec<Unplaced>) {
        let place = |shard| {
            let members = self.members_of(shard, view);
            let settings = SubgroupSettings {
                window: self.window,
                window_bytes: self.window * (self.message_max() + 16),
                senders: (0..members.len()).collect(),
                ..SubgroupSettings::new(members.len(), self.message_max())
            };
            Placement { id: SubgroupId(shard), members, settings }
        };
        ((0..self.shards).map(place).collect(), Vec::new())
    }
}

/// A group whose views change often: where no member comes or goes, no state moves.
fn draw_group(seed: u64, clients: u32, prng: &mut Prng) -> group::GroupPlan {
    let span = 500_000 + prng.below(3_000_000);
    let time = |prng: &mut Prng| Duration::from_nanos(prng.below(span));
    let members = 1 + u32::try_from(prng.index(4)).expect("few");
    let joins: Vec<Duration> = (0..prng.below(8)).map(|_| time(prng)).collect();
    let nodes = u64::from(members) + joins.len() as u64;
    let any = |prng: &mut Prng| u32::try_from(prng.below(nodes)).expect("few");
    let leaves = (0..prng.below(3)).map(|_| (any(prng), time(prng))).collect();
    let mut rules = group::draw_rules(prng, nodes);
    for rule in &mut rules {
        if let Verdict::Partition(parts) = &mut rule.what {
            let client_nodes = nodes..nodes + u64::from(clients);
            client_nodes
                .for_each(|client_node| parts[prng.index(2)].push(u32::try_from(client_node).expect("few")));
        }
    }
    rules.extend(group::draw_interruptions(seed, nodes));
    // Members that die some time later, perhaps while they give a state.
    for _ in 0..prng.below(3) {
        let at = Instant::from_nanos(0) + time(prng);
        rules.push(Rule { when: RuleTrigger::At(at), what: Verdict::Crash(any(prng)) });
    }
    let is_quiet = prng.chance(600);
    if !is_quiet && prng.chance(500) {
        // One that is excluded while it has something under way.
        let (node, at) = (any(prng), Instant::from_nanos(0) + time(prng));
        let span = Duration::from_micros(2_000 + prng.below(6_000));
        rules.push(Rule { when: RuleTrigger::At(at), what: Verdict::Pause { node, span } });
    }
    let mut plan = group::GroupPlan {
        seed,
        members,
        joins,
        leaves,
        relays: rdmc::RdmcSettings::default(),
        subgroups: Vec::new(),
        messages: 0,
        burst: 1,
        gap_max: Duration::ZERO,
        consumer_pause_max: Duration::ZERO,
        flush_max: Duration::ZERO,
        suspicion_after: (!is_quiet).then(|| Duration::from_nanos(400_000 + prng.below(2_000_000))),
        partition_safety: PartitionSafety::Majority,
        adversary: Adversary { clock_drift_max: group::draw_drift(seed), ..Adversary::drawn(prng) },
        early_sight: prng.chance(500),
        one_sided_progress: prng.chance(750),
        dies_visibly: false,
        unreachable_after: crate::group::UNREACHABLE_AFTER,
        rules,
        limits: group::CounterLimits::usual(),
        bus: BusPlan::calm(Duration::from_micros(2)),
    };
    if !plan.has_false_suspicion() && prng.chance(600) {
        // No member is lost that lives, so small groups need not stop.
        plan.partition_safety = PartitionSafety::Off;
    }
    plan
}

impl Shrink for ReplicaPlan {
    fn smaller(&self) -> Vec<Self> {
        let with = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            plan
        };
        let groups = self.group.smaller().into_iter();
        let mut plans: Vec<Self> = groups.map(|group| with(&|plan| plan.group = group.clone())).collect();
        plans.push(with(&|plan| plan.clients = plan.clients.saturating_sub(1)));
        plans.push(with(&|plan| plan.client_jobs /= 2));
        plans.push(with(&|plan| plan.updates /= 2));
        plans.push(with(&|plan| plan.shards = 1));
        plans.push(with(&|plan| plan.client_window = 1));
        plans.push(with(&|plan| plan.breaks_per_mille = 0));
        plans.push(with(&|plan| plan.waiting_bytes_max = usize::MAX));
        plans.push(with(&|plan| plan.hanging = None));
        plans.retain(|plan| plan != self);
        plans
    }
}

impl fmt::Display for ReplicaPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.group.fmt(f)?;
        let Self { shards, replicas, layout, window, updates, clients, client_jobs, .. } = self;
        let Self { together, client_window, breaks_per_mille, .. } = self;
        writeln!(
            f,
            "  {shards} shards of {replicas} replicas, {layout:?}, window {window} of {together} updates each"
        )?;
        writeln!(
            f,
            "  clients have {client_window} under way, connections break at {breaks_per_mille} of 1000 requests"
        )?;
        writeln!(
            f,
            "  {updates} updates and queries of each member, {client_jobs} of each of {clients} clients"
        )?;
        let Self { client_timeout, sessions_max, gap_max, take_pause_max, .. } = self;
        let Self { client_period, is_replaced, .. } = self;
        writeln!(f, "  clients ask every {client_period:?}, members are replaced: {is_replaced}")?;
        writeln!(f, "  clients try for {client_timeout:?}, {sessions_max} sessions, gaps up to {gap_max:?}")?;
        let Self { transfer_max, datagram_max, patience, waiting_bytes_max, hanging, .. } = self;
        writeln!(
            f,
            "  appliers pause {take_pause_max:?}, states take {transfer_max:?}, datagrams {datagram_max:?}, patience {patience:?}, joiners keep {waiting_bytes_max} bytes, hanging {hanging:?}"
        )
    }
}
