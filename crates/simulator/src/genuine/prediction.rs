//! Predictions: the production core under a cost model, with senders in a closed or an open loop (RamCast §5).
//!
//! The model charges what the fabric cannot see: loads of other members' words, those of records and timestamps, and the core's own
//! work for each message, which is an input ([`ShardExperiment::work`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use squall_fabric::sim::{CostModel, Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::{Duration, Fabric, Instant, NodeId};
use squall_protocols::genuine::{
    GenuineCarryover, GenuineMember, GenuineSendError, GenuineSettings, QuorumRule, ShardPlacement,
};
use squall_protocols::membership::{Member, View};

/// How senders send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardLoad {
    /// Each has this many messages under way, and sends the next one when all members of the shards of one have delivered it.
    Closed(usize),
    /// Each sends a message after a random time with this mean, whatever has become of the ones before.
    Open(Duration),
}

/// One experiment.
#[derive(Clone, Debug)]
pub struct ShardExperiment {
    /// The number of shards.
    pub shards: usize,
    /// The number of members of each.
    pub replicas: usize,
    /// The number of senders, which are in no shard; with 0 the members of the shards send.
    pub clients: usize,
    /// The number of shards that a message is for: a random one, or that of its sender, and the next ones.
    pub destinations: usize,
    /// How many of a thousand messages are for that many shards; the others are for one.
    pub several_per_mille: u64,
    /// Bytes of a message.
    pub size: usize,
    /// The number of messages of each sender.
    pub messages: u64,
    /// How they are sent.
    pub load: ShardLoad,
    /// Whose acknowledgements a delivery waits for.
    pub quorum: QuorumRule,
    /// The members' clocks are wrong by up to that.
    pub skew_max: Duration,
    /// The core's own work for each delivery.
    pub work: Duration,
    /// The hardware.
    pub cost: CostModel,
    /// The seed of all random choices.
    pub seed: u64,
}

/// The machines of RamCast (§5.2), as far as the paper describes them: a link of 10 Gb/s. It has no time of one write; a message to
/// one group takes its clients 7 µs, which are four writes in a row, so Spindle's 1.73 µs are taken, and Spindle's 1 µs for each post.
pub const RAMCAST: CostModel =
    CostModel { wire_4_kib_ns: 5_000, link_bytes_per_us: 1_250, ..CostModel::SPINDLE };

/// The core's own work for each message of 64 bytes: sending, giving a timestamp and delivering it took one process 0.77 µs on an AMD EPYC
/// (`squall bench genuine --shards 1 --replicas 1 --destinations 1`), and 0.36 µs since nothing is allocated for it. Each delivery is charged
/// with more than all of that.
pub const GENUINE_WORK: Duration = Duration::from_nanos(1_000);

/// The same of a subgroup, by the same command: 0.11 µs.
pub const ORDERED_WORK: Duration = Duration::from_nanos(110);

impl ShardExperiment {
    /// Returns the experiment of RamCast's figure 5 with one client: groups of three, messages of 64 bytes to all of them.
    #[must_use]
    pub const fn ramcast(shards: usize) -> Self {
        Self {
            shards,
            replicas: 3,
            clients: 1,
            destinations: shards,
            several_per_mille: 1000,
            size: 64,
            messages: 300,
            load: ShardLoad::Closed(1),
            quorum: QuorumRule::All,
            skew_max: Duration::ZERO,
            work: GENUINE_WORK,
            cost: RAMCAST,
            seed: 1,
        }
    }

    fn members(&self) -> usize {
        self.shards * self.replicas + self.clients
    }

    fn sends(&self, rank: usize) -> bool {
        if self.clients == 0 { true } else { rank >= self.shards * self.replicas }
    }

    const fn window(&self) -> usize {
        match self.load {
            ShardLoad::Closed(window) => window,
            ShardLoad::Open(_) => 64,
        }
    }
}

/// The prediction of an experiment.
#[derive(Clone, Debug)]
pub struct ShardPrediction {
    /// Messages of all senders together.
    pub messages: u64,
    /// Virtual time from the first message until all members of all shards have delivered the last one, and its sender knows.
    pub seconds: f64,
    /// Messages per second; each counts once, however many members deliver it.
    pub messages_per_second: f64,
    /// From sending until the sender knows that all members of all destination shards have delivered, in nanoseconds, sorted.
    pub known_ns: Vec<u64>,
    /// From sending until the sender has delivered, if it is a member of a destination shard, in nanoseconds, sorted.
    pub own_ns: Vec<u64>,
    /// From sending until a member of each destination shard has delivered, in nanoseconds, sorted: of messages to one shard.
    pub single_ns: Vec<u64>,
    /// The same of messages to several.
    pub several_ns: Vec<u64>,
    /// Writes of all members for each message.
    pub writes: f64,
}

impl ShardPrediction {
    /// Returns the latency that a part of the messages does not exceed: `0.5` is the median; 0 without messages.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "few"
    )]
    pub fn quantile(sorted: &[u64], part: f64) -> u64 {
        let place = (sorted.len() as f64 * part).ceil() as usize;
        sorted.get(place.saturating_sub(1)).copied().unwrap_or(0)
    }
}

/// What is known of messages under way, over all members.
#[derive(Debug, Default)]
struct Track {
    /// By sender and number: when it was sent, its destinations, and those of which no member has delivered it.
    sent: BTreeMap<(u32, u64), (Instant, u64, u64)>,
    single_ns: Vec<u64>,
    several_ns: Vec<u64>,
}

impl Track {
    /// A member of a shard delivers a message.
    fn on_delivery(&mut self, key: (u32, u64), shard: usize, now: Instant) {
        let Some((sent, destinations, left)) = self.sent.get_mut(&key) else { return };
        *left &= !(1 << shard);
        if *left == 0 {
            let took = nanos(now.since(*sent));
            let is_single = destinations.count_ones() == 1;
            if is_single { &mut self.single_ns } else { &mut self.several_ns }.push(took);
            self.sent.remove(&key);
        }
    }
}

struct Node {
    fabric: SimFabric,
    member: GenuineMember,
    shard: Option<usize>,
    sender: Option<LoadSender>,
}

/// What a sender has yet to send.
struct LoadSender {
    prng: Prng,
    unsent: u64,
    /// In an open loop: when the next message comes.
    next: Instant,
    /// When each message under way was sent.
    under_way: std::collections::VecDeque<Instant>,
    known: u64,
    known_ns: Vec<u64>,
    own_ns: Vec<u64>,
}

/// Runs an experiment.
///
/// # Panics
/// If the run makes no more progress, or there are more shards than [`squall_protocols::genuine::SHARDS_MAX`].
#[must_use]
pub fn predict(experiment: &ShardExperiment) -> ShardPrediction {
    let config = SimConfig { cost: experiment.cost.clone(), ..SimConfig::hardware() };
    let count = u32::try_from(experiment.members()).expect("few members");
    let world = SimWorld::new(experiment.seed, config, count);
    let track = Rc::new(RefCell::new(Track::default()));
    let mut nodes: Vec<Node> = (0..count).map(|rank| Node::new(experiment, &world, rank)).collect();
    let mut began = None;
    let mut posts = 0;
    let is_done = |node: &Node| node.sender.as_ref().is_none_or(LoadSender::is_done);
    while !nodes.iter().all(is_done) {
        let next = world.next_poll(Instant::from_nanos(u64::MAX));
        let i = next.expect("there are events until everything is delivered") as usize;
        if began.is_none() && nodes.iter().all(|node| node.member.is_ready()) {
            began = Some(world.now());
            posts = nodes.iter().map(|node| node.fabric.counters().posts).sum();
        }
        let (worked, deadline) = nodes[i].step(experiment, began.is_some(), &track);
        world.rest(u32::try_from(i).expect("few members"), worked, deadline);
    }
    let ended = nodes.iter().filter(|node| node.sender.is_some()).map(|node| node.fabric.now()).max();
    let seconds = ended.expect("there are senders").since(began.expect("it began")).as_secs_f64();
    let sum: u64 = nodes.iter().map(|node| node.fabric.counters().posts).sum();
    let senders = || nodes.iter().filter_map(|node| node.sender.as_ref());
    let messages = experiment.messages * senders().count() as u64;
    let mut known_ns: Vec<u64> = senders().flat_map(|sender| sender.known_ns.clone()).collect();
    let mut own_ns: Vec<u64> = senders().flat_map(|sender| sender.own_ns.clone()).collect();
    let Track { mut single_ns, mut several_ns, .. } = track.take();
    let all = [&mut known_ns, &mut own_ns, &mut single_ns, &mut several_ns];
    all.into_iter().for_each(|times| times.sort_unstable());
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let (rate, writes) = (messages as f64 / seconds, (sum - posts) as f64 / messages as f64);
    ShardPrediction {
        messages,
        seconds,
        messages_per_second: rate,
        known_ns,
        own_ns,
        single_ns,
        several_ns,
        writes,
    }
}

impl Node {
    fn new(experiment: &ShardExperiment, world: &SimWorld, rank: u32) -> Self {
        let mut fabric = world.fabric(rank);
        let member = |node: u32| Member { node: NodeId(node), tag: u64::from(node) };
        let members = u32::try_from(experiment.members()).expect("few members");
        let view = View::first((0..members).map(member).collect());
        let ranks = |shard: usize| (shard * experiment.replicas..(shard + 1) * experiment.replicas).collect();
        let placement = ShardPlacement::new((0..experiment.shards).map(ranks).collect());
        let shard = placement.shard_of(rank as usize);
        let settings = GenuineSettings {
            quorum: experiment.quorum,
            ..GenuineSettings::new(experiment.window(), experiment.size)
        };
        let before = GenuineCarryover::default();
        let mut member = GenuineMember::new(&mut fabric, &view, placement, settings, true, before);
        let mut prng = Prng::new(experiment.seed ^ 0x10ad ^ u64::from(rank) << 32);
        // All clocks are right or slow: none can be before the beginning.
        let skew = prng.below(1 + nanos(experiment.skew_max));
        member.set_time_base(Duration::from_nanos(nanos(experiment.skew_max) - skew));
        let sender = experiment.sends(rank as usize).then(|| LoadSender {
            prng,
            unsent: experiment.messages,
            next: Instant::from_nanos(0),
            under_way: std::collections::VecDeque::new(),
            known: 0,
            known_ns: Vec::new(),
            own_ns: Vec::new(),
        });
        Self { fabric, member, shard, sender }
    }

    /// One evaluation, as the polling thread does it.
    fn step(
        &mut self,
        experiment: &ShardExperiment,
        has_begun: bool,
        track: &Rc<RefCell<Track>>,
    ) -> (bool, Option<Instant>) {
        let mut events = Vec::new();
        self.fabric.poll(&mut |event| events.push(event));
        let mut worked = !events.is_empty();
        events.iter().for_each(|event| self.member.handle_event(event));
        if has_begun {
            worked |= self.send(experiment, track);
        }
        let (mut delivered, mut words, shard) = (0, 0, self.shard);
        let mut keys = Vec::new();
        worked |= self.member.poll(&mut self.fabric, usize::MAX, |message| {
            delivered += 1;
            // Two words of the record and two of its header, its bytes, and two for each timestamp.
            let timestamps = 2 * u64::from(message.destinations.count_ones());
            words += 4 + message.bytes.len().div_ceil(8) as u64 + timestamps;
            keys.push((message.sender.0, message.number));
        }) > 0;
        // What the others write: acknowledgements, announcements and reports of each member, the count of each leader's log.
        let polled = 3 * experiment.members() as u64 + experiment.shards as u64;
        self.fabric.charge_loads(polled + words);
        self.fabric.charge(experiment.work * delivered);
        let now = self.fabric.now();
        let mut track = track.borrow_mut();
        for (node, number) in keys {
            track.on_delivery((node, number), shard.expect("it delivers"), now);
            if let Some(sender) = self.sender.as_mut().filter(|_| node == self.fabric.node().0) {
                let place = usize::try_from(number - sender.known).expect("a window");
                sender.own_ns.push(nanos(now.since(sender.under_way[place])));
            }
        }
        let settled = self.member.settled();
        let Some(sender) = &mut self.sender else { return (worked, None) };
        while sender.known < settled {
            sender.known += 1;
            let sent = sender.under_way.pop_front().expect("it was sent");
            sender.known_ns.push(nanos(now.since(sent)));
        }
        let is_open = matches!(experiment.load, ShardLoad::Open(_));
        (worked, Some(sender.next).filter(|_| is_open && has_begun && sender.unsent > 0))
    }

    /// Sends what is due, as far as the windows have space.
    fn send(&mut self, experiment: &ShardExperiment, track: &Rc<RefCell<Track>>) -> bool {
        let (now, own) = (self.fabric.now(), self.shard);
        let Some(sender) = &mut self.sender else { return false };
        let mut has_sent = false;
        while sender.unsent > 0 {
            let sent_at = match experiment.load {
                ShardLoad::Closed(window) if sender.under_way.len() >= window => break,
                ShardLoad::Closed(_) => now,
                ShardLoad::Open(_) if sender.next > now => break,
                ShardLoad::Open(_) if sender.next == Instant::from_nanos(0) => now,
                ShardLoad::Open(_) => sender.next,
            };
            let mut prng = sender.prng.clone();
            let count =
                if prng.below(1000) < experiment.several_per_mille { experiment.destinations } else { 1 };
            let first = own.unwrap_or_else(|| prng.index(experiment.shards));
            let destinations: u64 =
                (0..count).map(|next| 1_u64 << ((first + next) % experiment.shards)).sum();
            match self.member.send(destinations, &vec![1; experiment.size]) {
                Ok(number) => {
                    let key = (self.fabric.node().0, number);
                    track.borrow_mut().sent.insert(key, (sent_at, destinations, destinations));
                }
                Err(GenuineSendError::Full) => break,
                Err(error) => unreachable!("{error}"),
            }
            sender.prng = prng;
            sender.unsent -= 1;
            sender.under_way.push_back(sent_at);
            if let ShardLoad::Open(mean) = experiment.load {
                sender.next = sent_at + sender.draw_gap(mean);
            }
            has_sent = true;
        }
        has_sent
    }
}

impl LoadSender {
    fn is_done(&self) -> bool {
        self.unsent == 0 && self.under_way.is_empty()
    }

    /// A random time, exponentially distributed.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "few"
    )]
    fn draw_gap(&mut self, mean: Duration) -> Duration {
        let part = (self.prng.below(1_000_000) + 1) as f64 / 1_000_000.0;
        Duration::from_nanos((-part.ln() * nanos(mean) as f64) as u64 + 1)
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).expect("a short time")
}
