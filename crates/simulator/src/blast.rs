//! The blast tool for streams: one end sends messages as fast as it can, and the other receives them (EXS §IV.B).
//!
//! It runs the production cores under a cost model of the paper's testbeds. The model has no caches, and all delays
//! of one kind are equal, so results that are between direct and indirect in the paper are one or the other here.

use squall_fabric::sim::{CostModel, Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::{Channel, Core, Duration, Fabric, Instant, NodeId, Region};
use squall_protocols::stream::{Completion, SocketCore, Statistics, StreamSettings};

pub use squall_protocols::stream::TransferPolicy;

/// How long messages are.
#[derive(Clone, Copy, Debug)]
pub enum MessageSizes {
    /// All messages have this size in bytes.
    Fixed(u64),
    /// An exponential distribution with this mean in bytes, truncated at four times the mean.
    Exponential(u64),
}

/// One run of the tool.
#[derive(Clone, Debug)]
pub struct BlastRun {
    /// The network and the processors.
    pub config: SimConfig,
    /// The settings of both ends.
    pub settings: StreamSettings,
    /// How long messages are.
    pub sizes: MessageSizes,
    /// The number of messages.
    pub messages: u64,
    /// The number of outstanding sends.
    pub sends: usize,
    /// The number of outstanding receives.
    pub receives: usize,
    /// The time from an event until the process that sleeps for it runs.
    pub wake_up: Duration,
    /// The seed from which the sizes are drawn.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct BlastReport {
    /// The throughput from the first send until the receiver has everything.
    pub gigabits_per_second: f64,
    /// The number of bytes sent.
    pub bytes: u64,
    /// The same time, in seconds.
    pub seconds: f64,
    /// The counters of the sender.
    pub sender: Statistics,
    /// The number of bytes that the receiver has copied.
    pub copied_bytes: u64,
    /// The fraction of the time in which the receiver's processor was busy.
    pub receiver_busy: f64,
}

struct Node {
    fabric: SimFabric,
    socket: SocketCore,
    memory: Region,
    slept: bool,
    busy_ns: u64,
}

impl BlastRun {
    /// Returns the run on the paper's two machines with FDR InfiniBand: 1.76 µs one way, 46.5 Gb/s through PCIe,
    /// copies at 3.4 GB/s, and events by notification, which takes some 20 µs to reach a sleeping process.
    #[must_use]
    pub fn fdr(policy: TransferPolicy, sends: usize, receives: usize) -> Self {
        let cost = CostModel {
            post_ns: 500,
            post_receive_ns: 100,
            poll_ns: 100,
            event_ns: 200,
            copy_kib_ns: 300,
            wire_byte_ns: 1_760,
            wire_4_kib_ns: 2_450,
            link_bytes_per_us: 5_812,
            completion_ns: 1_760,
            ..CostModel::SPINDLE
        };
        Self {
            config: SimConfig { cost, ..SimConfig::hardware() },
            settings: StreamSettings {
                policy,
                ring_words: 2 << 20,
                advert_bytes_min: 0,
                copy_bytes_per_us: 3_400,
                ..StreamSettings::default()
            },
            sizes: MessageSizes::Exponential(1 << 20),
            messages: 400,
            sends,
            receives,
            wake_up: Duration::from_micros(20),
            seed: 1,
        }
    }

    /// Returns the run on the paper's two machines with RoCE at 10 Gb/s and 24 ms each way.
    #[must_use]
    pub fn distant(policy: TransferPolicy, sends: usize, receives: usize) -> Self {
        let mut blast = Self::fdr(policy, sends, receives);
        let delay_ns = 24_000_000;
        let cost = &mut blast.config.cost;
        (cost.wire_byte_ns, cost.wire_4_kib_ns, cost.completion_ns) = (delay_ns, delay_ns, delay_ns);
        cost.link_bytes_per_us = 1_250;
        blast.config.receiver_not_ready_after = Duration::from_secs(1);
        blast.settings.ring_words = 8 << 20;
        blast
    }

    /// Runs it in virtual time.
    ///
    /// # Panics
    /// If the settings are invalid, or a stream makes no progress.
    #[must_use]
    pub fn run(&self) -> BlastReport {
        let world = SimWorld::new(self.seed, self.config.clone(), 2);
        let longest = match self.sizes {
            MessageSizes::Fixed(size) => size,
            MessageSizes::Exponential(mean) => 4 * mean,
        };
        let mut nodes = [0, 1].map(|i| {
            let mut fabric = world.fabric(i);
            let socket = SocketCore::new(&mut fabric, NodeId(1 - i), Channel(1), self.settings.clone());
            let memory = fabric.register(longest.div_ceil(8) as usize);
            Node { socket: socket.expect("good settings"), fabric, memory, slept: false, busy_ns: 0 }
        });
        let mut prng = Prng::new(self.seed ^ 0xb1a5);
        let (mut left, mut bytes, mut received) = (self.messages, 0, 0);
        let mut outstanding = [0; 2];
        let mut span = [Instant::default(); 2];
        while let Some(i) = world.next_poll(Instant::from_nanos(u64::MAX / 2)) {
            let is_sender = i == 0;
            let node = &mut nodes[i as usize];
            let begin = node.fabric.now();
            let (events, worked) = node.step(self.wake_up);
            let mut posted = false;
            let has_begun = span[0] > Instant::default() && begin >= span[0];
            for event in events {
                match event {
                    // The receiver has connected first, and its adverts have arrived.
                    Completion::Connected if is_sender => span[0] = begin + HEAD_START,
                    Completion::Send { .. } => outstanding[0] -= 1,
                    Completion::Receive { bytes, .. } => {
                        outstanding[1] -= 1;
                        received += bytes;
                    }
                    _ => {}
                }
            }
            while is_sender && left > 0 && outstanding[0] < self.sends && has_begun {
                let length = self.length(&mut prng);
                node.socket.post_send(&node.memory, 0..length as usize).expect("space");
                (left, bytes) = (left - 1, bytes + length);
                (outstanding[0], posted) = (outstanding[0] + 1, true);
            }
            while !is_sender && outstanding[1] < self.receives {
                let all = 0..longest as usize;
                node.socket.post_receive(&mut node.fabric, &node.memory, all, false).expect("space");
                (outstanding[1], posted) = (outstanding[1] + 1, true);
            }
            let waits = is_sender && !has_begun;
            node.slept = !node.rest(&world, i, worked || posted, waits.then(|| begin + HEAD_START));
            node.busy_ns += node.fabric.now().since(begin).as_nanos() as u64;
            span[1] = node.fabric.now();
            if left == 0 && outstanding[0] == 0 && received == bytes {
                break;
            }
        }
        assert!(
            left == 0 && outstanding[0] == 0,
            "the run makes no progress: {:?}",
            nodes.map(|node| node.socket)
        );
        let span_ns = span[1].since(span[0]).as_nanos() as f64;
        BlastReport {
            gigabits_per_second: bytes as f64 * 8.0 / span_ns,
            bytes,
            seconds: span_ns / 1e9,
            sender: *nodes[0].socket.statistics(),
            copied_bytes: nodes[1].socket.statistics().copied_bytes,
            receiver_busy: nodes[1].busy_ns as f64 / span_ns,
        }
    }

    fn length(&self, prng: &mut Prng) -> u64 {
        match self.sizes {
            MessageSizes::Fixed(size) => size,
            MessageSizes::Exponential(mean) => {
                let uniform = (prng.draw() >> 11) as f64 / (1_u64 << 53) as f64;
                let length = -(1.0 - uniform).ln() * mean as f64;
                (length as u64).clamp(1, 4 * mean)
            }
        }
    }
}

impl Node {
    /// Handles events and lets the socket work; returns the completions, and whether there was any work.
    fn step(&mut self, wake_up: Duration) -> (Vec<Completion>, bool) {
        let mut events = Vec::new();
        let fabric = &mut self.fabric;
        let mut work = fabric.poll(&mut |event| events.push(event));
        if self.slept && work > 0 {
            fabric.charge(wake_up);
        }
        events.iter().for_each(|event| self.socket.handle_event(fabric, event));
        work += self.work();
        let completions: Vec<Completion> = std::iter::from_fn(|| self.socket.poll_completion()).collect();
        let worked = work > 0 || !completions.is_empty();
        (completions, worked)
    }

    fn work(&mut self) -> usize {
        let copied = self.socket.statistics().copied_bytes;
        let work = self.socket.poll(&mut self.fabric);
        self.fabric.charge_copy(self.socket.statistics().copied_bytes - copied);
        work
    }

    /// Posts what is pending, and ends the turn; returns whether another one follows at once.
    fn rest(&mut self, world: &SimWorld, i: u32, worked: bool, look_again: Option<Instant>) -> bool {
        let work = worked | (self.work() > 0);
        let deadline =
            [look_again, Core::<SimFabric>::next_deadline(&self.socket)].into_iter().flatten().min();
        world.rest(i, work, deadline);
        work
    }
}

const HEAD_START: Duration = Duration::from_millis(100);
