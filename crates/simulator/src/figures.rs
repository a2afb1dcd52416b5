//! Predictions: runs the production cores under the cost model of Spindle's testbed (Spindle §4).
//!
//! The testbed has 16 machines on a 12.5 GB/s switch. Each node has a polling thread that evaluates all its
//! subgroups, and an application thread that sends as fast as the window allows. The model charges here what the
//! fabric cannot see: loads of other members' words, and the application's work for each message.

mod disk;

use std::cell::RefCell;
use std::rc::Rc;

use squall_fabric::sim::{CostModel, SimConfig, SimFabric, SimWorld};
use squall_fabric::window::WindowWriter;
use squall_fabric::{Core, Duration, Fabric, Instant, MirrorKey, NodeId};
use squall_protocols::multicast::{Message, MulticastCounters, Subgroup, SubgroupSettings, ViewStart};

pub use disk::DiskModel;
use disk::ModelLog;

/// One experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The number of members; all are in all subgroups.
    pub members: usize,
    /// The settings of the active subgroups; its `message_max` is the size of the messages.
    pub settings: SubgroupSettings,
    /// The number of messages that each sender sends in each active subgroup.
    pub messages: u64,
    /// The number of active subgroups, which have the same settings; at least 1.
    pub active: usize,
    /// The number of further subgroups in which no member sends.
    pub inactive: usize,
    /// How long each sender waits after each message, by position among the senders. A sender with a delay sends
    /// until the others are done.
    pub delays: Vec<Duration>,
    /// Whether each sender sends its next message only once its last one is delivered at itself.
    pub singly: bool,
    /// The cores' own work for each delivery.
    pub work: Duration,
    /// The hardware.
    pub cost: CostModel,
    /// The disk of each member, of which each active subgroup has its own; for subgroups in mode `durable`.
    pub disk: Option<DiskModel>,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Experiment {
    /// Returns the experiment that most of Spindle's figures vary: `members` members that all send, messages of 10
    /// KB, a window of 100, and all optimisations on.
    #[must_use]
    pub fn spindle(members: usize) -> Self {
        let settings = SubgroupSettings {
            window: 100,
            window_bytes: usize::MAX,
            ..SubgroupSettings::new(members, 10 * 1024)
        };
        Self {
            members,
            settings,
            messages: 300,
            active: 1,
            inactive: 0,
            delays: Vec::new(),
            singly: false,
            work: Duration::ZERO,
            cost: CostModel::SPINDLE,
            disk: None,
            seed: 1,
        }
    }
}

/// The prediction of an experiment.
#[derive(Clone, Debug)]
pub struct FigurePrediction {
    /// The number of messages that each member has delivered.
    pub messages: u64,
    /// Virtual time from the first send to the last delivery at all members, in seconds.
    pub seconds: f64,
    /// Messages delivered per second and member.
    pub messages_per_second: f64,
    /// Bytes delivered per second and member.
    pub bytes_per_second: f64,
    /// Messages of senders without a delay, delivered per second and member.
    pub prompt_messages_per_second: f64,
    /// The times from a send to its delivery at the sender, in nanoseconds, sorted.
    pub latency_ns: Vec<u64>,
    /// The counters of member 0 in the first subgroup.
    pub counters: MulticastCounters,
    /// The number of writes that member 0 has posted.
    pub posts: u64,
    /// The time that member 0 has spent on posting, in nanoseconds.
    pub posting_ns: u64,
}

type Upcall = Box<dyn FnMut(Message<'_>)>;

/// The deliveries that one member's upcall has seen.
#[derive(Debug, Default)]
struct Seen {
    messages: u64,
    by_sender: Vec<u64>,
    /// Its own messages, by subgroup.
    own: Vec<u64>,
}

struct Node {
    fabric: SimFabric,
    subgroups: Vec<Subgroup<Upcall>>,
    polled: Vec<u64>,
    /// Those of durable subgroups.
    logs: Vec<ModelLog>,
    seen: Rc<RefCell<Seen>>,
    /// One for each active subgroup in which it sends.
    applications: Vec<Application>,
    /// The handles of the other subgroups, which remain open.
    _others: Vec<Option<WindowWriter>>,
}

/// The application thread of a sender in a subgroup. It has a core of its own, so its work is not charged to the polling thread.
struct Application {
    writer: WindowWriter,
    unsent: u64,
    delay: Duration,
    next: Instant,
    /// When each message in flight was sent.
    sent_at: std::collections::VecDeque<u64>,
    acknowledged: u64,
}

/// Runs an experiment.
///
/// # Panics
/// If the settings do not fit the members, or the run makes no more progress.
#[must_use]
pub fn predict(experiment: &Experiment) -> FigurePrediction {
    let config = SimConfig { cost: experiment.cost.clone(), ..SimConfig::hardware() };
    let world = SimWorld::new(experiment.seed, config, number(experiment.members));
    let mut nodes: Vec<Node> =
        (0..experiment.members).map(|rank| Node::new(experiment, &world, rank)).collect();
    let prompt: Vec<usize> = prompt_senders(experiment);
    let target = experiment.messages * prompt.len() as u64 * experiment.active as u64;
    let mut latency_ns = Vec::new();
    let mut began = None;
    let mut left = nodes.len();
    let mut done = vec![false; nodes.len()];
    while left > 0 {
        let i = world
            .next_poll(Instant::from_nanos(u64::MAX))
            .expect("there are events until everything is delivered") as usize;
        if began.is_none() && nodes[i].subgroups[0].is_ready() {
            began = Some(world.now());
        }
        let (worked, deadline) = nodes[i].step(experiment, &mut latency_ns);
        world.rest(number(i), worked, deadline);
        let delivered: u64 = prompt.iter().map(|sender| nodes[i].seen.borrow().by_sender[*sender]).sum();
        if !done[i] && delivered >= target {
            done[i] = true;
            left -= 1;
        }
    }
    latency_ns.sort_unstable();
    let ended = nodes.iter().map(|node| node.fabric.now()).max().expect("there are members");
    let seconds = ended.since(began.expect("it began")).as_secs_f64();
    summarise(experiment, &nodes, seconds, target, latency_ns)
}

fn summarise(
    experiment: &Experiment,
    nodes: &[Node],
    seconds: f64,
    prompt_messages: u64,
    latency_ns: Vec<u64>,
) -> FigurePrediction {
    let messages = nodes.iter().map(|node| node.seen.borrow().messages).min().expect("there are members");
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let rate = |count: u64| count as f64 / seconds;
    let fabric = nodes[0].fabric.counters();
    FigurePrediction {
        messages,
        seconds,
        messages_per_second: rate(messages),
        bytes_per_second: rate(messages * experiment.settings.message_max as u64),
        prompt_messages_per_second: rate(prompt_messages),
        latency_ns,
        counters: *nodes[0].subgroups[0].counters(),
        posts: fabric.posts,
        posting_ns: fabric.posting_ns,
    }
}

/// Returns the senders without a delay, by rank; all senders if all have one.
fn prompt_senders(experiment: &Experiment) -> Vec<usize> {
    let delay = |place: usize| experiment.delays.get(place).copied().unwrap_or_default();
    let senders = experiment.settings.senders.iter().enumerate();
    let prompt: Vec<usize> =
        senders.filter(|(place, _)| delay(*place).is_zero()).map(|(_, sender)| *sender).collect();
    if prompt.is_empty() { experiment.settings.senders.clone() } else { prompt }
}

impl Node {
    fn new(experiment: &Experiment, world: &SimWorld, rank: usize) -> Self {
        let mut fabric = world.fabric(number(rank));
        let members: Vec<NodeId> = (0..experiment.members).map(|rank| NodeId(number(rank))).collect();
        let (by_sender, own) = (vec![0; experiment.members], vec![0; experiment.active]);
        let seen = Rc::new(RefCell::new(Seen { messages: 0, by_sender, own }));
        let (mut subgroups, mut writers, mut logs) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..experiment.active + experiment.inactive {
            let seen = Rc::clone(&seen);
            let upcall: Upcall = Box::new(move |message| {
                let mut seen = seen.borrow_mut();
                seen.messages += 1;
                seen.by_sender[message.sender] += 1;
                seen.own[index] += u64::from(message.sender == rank);
            });
            let key = MirrorKey(1 + index as u64);
            // The memory of subgroups in which no member sends need not be simulated.
            let mut settings = experiment.settings.clone();
            if index >= experiment.active {
                settings.window_bytes = 0;
            }
            let (mut subgroup, writer) =
                Subgroup::new(&mut fabric, key, &members, settings, ViewStart::default(), upcall);
            if let Some(disk) = experiment.disk.filter(|_| index < experiment.active) {
                let log = ModelLog::new(disk);
                subgroup.keep_log(Box::new(log.clone()));
                logs.push(log);
            }
            subgroups.push(subgroup);
            writers.push(writer);
        }
        let place = experiment.settings.senders.iter().position(|sender| *sender == rank);
        let application = |place: usize, writer: &mut Option<WindowWriter>| {
            let delay = experiment.delays.get(place).copied().unwrap_or_default();
            Application {
                writer: writer.take().expect("this member sends"),
                // A delayed sender sends until the others are done.
                unsent: if delay.is_zero() { experiment.messages } else { u64::MAX },
                delay,
                next: Instant::from_nanos(0),
                sent_at: std::collections::VecDeque::new(),
                acknowledged: 0,
            }
        };
        let active = writers.iter_mut().take(experiment.active);
        let applications =
            place.map_or_else(Vec::new, |place| active.map(|writer| application(place, writer)).collect());
        let polled = vec![0; subgroups.len()];
        Self { fabric, subgroups, polled, logs, seen, applications, _others: writers }
    }

    /// Performs one evaluation of all predicates, as the polling thread does.
    fn step(&mut self, experiment: &Experiment, latency_ns: &mut Vec<u64>) -> (bool, Option<Instant>) {
        let mut events = Vec::new();
        self.fabric.poll(&mut |event| events.push(event));
        let mut worked = !events.is_empty();
        for event in &events {
            for subgroup in &mut self.subgroups {
                subgroup.handle_event(&mut self.fabric, event);
            }
        }
        let now = self.fabric.now();
        let confirmed = self.logs.iter().filter_map(|log| log.pass(now)).min();
        if self.subgroups.iter().all(Subgroup::is_ready) {
            worked |= self.send(experiment);
        }
        for (subgroup, polled) in self.subgroups.iter_mut().zip(&mut self.polled) {
            let before = subgroup.counters().messages_delivered;
            worked |= subgroup.poll(&mut self.fabric) > 0;
            let delivered = subgroup.counters().messages_delivered - before;
            self.fabric.charge(experiment.work * u32::try_from(delivered).expect("a window"));
            // For each delivered message, the thread loads its header and its first word.
            let words = subgroup.counters().words_polled + 2 * subgroup.counters().messages_delivered;
            self.fabric.charge_loads(words - *polled);
            *polled = words;
        }
        self.note_own_deliveries(latency_ns);
        let next = self.applications.iter().filter(|app| app.unsent > 0 && !app.delay.is_zero());
        (worked, next.map(|app| app.next).chain(confirmed).min())
    }

    /// Runs the applications, which fill their windows.
    fn send(&mut self, experiment: &Experiment) -> bool {
        let now = self.fabric.now();
        let mut sent = false;
        for app in &mut self.applications {
            sent |= app.send(experiment, now);
        }
        sent
    }

    fn note_own_deliveries(&mut self, latency_ns: &mut Vec<u64>) {
        let now = self.fabric.now().as_nanos();
        for (app, own) in self.applications.iter_mut().zip(&self.seen.borrow().own) {
            while app.acknowledged < *own {
                app.acknowledged += 1;
                latency_ns.push(now - app.sent_at.pop_front().expect("it was sent"));
            }
        }
    }
}

impl Application {
    fn send(&mut self, experiment: &Experiment, now: Instant) -> bool {
        let mut sent = false;
        while self.unsent > 0 && now >= self.next {
            if experiment.singly && !self.sent_at.is_empty() {
                break;
            }
            if self.writer.send(experiment.settings.message_max, |_| ()).is_err() {
                break;
            }
            self.unsent -= 1;
            self.sent_at.push_back(now.as_nanos());
            sent = true;
            if !self.delay.is_zero() {
                self.next = now + self.delay;
            }
        }
        sent
    }
}

fn number(i: usize) -> u32 {
    u32::try_from(i).expect("few members")
}
