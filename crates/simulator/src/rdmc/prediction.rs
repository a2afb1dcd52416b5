//! Predicted times: the clusters of the paper in the simulator's cost model (RDMC §4, fig. 4 and 6–15).
//!
//! The memory of whole clusters does not fit a test, so bytes are scaled: a block of 1 MB is simulated as one of 4192
//! bytes on links that are slower by the same factor, while the times of processors and wires are not scaled. Control
//! messages take longer on the links by the same factor, so the predictions are pessimistic. Objects of up to a megabyte are
//! predicted as they are.

use squall_fabric::sim::{CostModel, SimConfig};
use squall_fabric::{Duration, Instant};

use super::cluster::RdmcCluster;
use super::plan::RdmcGroupPlan;
use squall_protocols::rdmc::schedule::Algorithm;

/// A time by which even the slowest schedule of the figures is done.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of bytes that are simulated as one.
const SCALE: u64 = 250;
/// The scaled size of a megabyte (2^20 bytes).
pub(crate) const MB: u64 = 4192;

/// A cluster of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperMachines {
    /// Its name in the paper.
    pub name: &'static str,
    /// The speed of each link in one direction in Gb/s, according to the paper.
    pub gigabits: u64,
}

/// The predicted times of a multicast, from the call of `send`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastPrediction {
    /// The time until the last receiver has the object.
    pub last: Duration,
    /// The time until the first receiver has it.
    pub first: Duration,
}

/// Predicts one object of `bytes` bytes to `members` members, the root included. Sizes are rounded to 2000 bytes.
///
/// # Panics
/// If there are fewer than two members, or a block is empty.
#[must_use]
pub fn predict(
    machines: PaperMachines,
    algorithm: Algorithm,
    members: u32,
    bytes: u64,
    block_bytes: u64,
) -> MulticastPrediction {
    assert!(members > 1 && block_bytes > 0, "there must be a receiver and a block");
    let scaled = |bytes: u64| 8 * (bytes as f64 / (8 * SCALE) as f64).round().max(1.0) as u64;
    let MulticastTiming { last, first } =
        machines.multicast(algorithm, members, scaled(bytes), scaled(block_bytes));
    MulticastPrediction { last, first }
}

/// The times of a simulated multicast.
pub(crate) struct MulticastTiming {
    /// From the call of `send` to the last and to the first receiver's upcall.
    pub(crate) last: Duration,
    pub(crate) first: Duration,
}

impl PaperMachines {
    /// A Lawrence Livermore cluster with 20 Gb/s (4x QDR).
    pub const SIERRA: Self = Self { name: "Sierra", gigabits: 20 };
    /// A cluster of the University of Texas with 40 Gb/s (FDR).
    pub const STAMPEDE: Self = Self { name: "Stampede", gigabits: 40 };
    /// A cluster of Cornell with 100 Gb/s (EDR).
    pub const FRACTUS: Self = Self { name: "Fractus", gigabits: 100 };

    /// Returns the model in which `scale` bytes are simulated as one, and packets are `packet_bytes` simulated ones.
    fn config(self, scale: u64, packet_bytes: u64) -> SimConfig {
        // 100 Gb/s are 12500 bytes per microsecond, or 50 scaled ones.
        let link_bytes_per_us = self.gigabits * 125 / scale;
        let wire_byte_ns = CostModel::SPINDLE.wire_byte_ns;
        let wire_4_kib_ns = wire_byte_ns + 4095 * 1000 / link_bytes_per_us;
        let cost = CostModel { link_bytes_per_us, wire_4_kib_ns, packet_bytes, ..CostModel::SPINDLE };
        SimConfig { cost, ..SimConfig::hardware() }
    }

    /// Returns the time of `bytes` (scaled) on a link.
    pub(crate) fn link(self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes * 2000 / self.gigabits)
    }

    /// Predicts one object of `bytes` (scaled) to `members` members.
    pub(crate) fn multicast(
        self,
        algorithm: Algorithm,
        members: u32,
        bytes: u64,
        block_bytes: u64,
    ) -> MulticastTiming {
        let load =
            RdmcLoad { members, senders: 1, sizes: vec![bytes], block_bytes, in_flight_bytes: 2 * 4192 };
        let received = load.run(self.config(SCALE, 256), algorithm);
        let [first, last] = [received.iter().min(), received.iter().max()].map(|after| *after.expect("some"));
        MulticastTiming { last, first }
    }

    /// Predicts the time until all members have all objects of a load whose bytes are simulated as they are, or scaled.
    pub(crate) fn all_received(self, load: &RdmcLoad, is_scaled: bool) -> Duration {
        let config = if is_scaled { self.config(SCALE, 256) } else { self.config(1, 4096) };
        load.run(config, Algorithm::Pipeline).into_iter().max().expect("there are receivers")
    }

    /// Returns the throughput of the object in Gb/s, until the last receiver has it.
    pub(crate) fn rate(self, bytes: u64, timing: &MulticastTiming) -> f64 {
        self.link(bytes).as_secs_f64() / timing.last.as_secs_f64() * self.gigabits as f64
    }
}

/// Members that all send at once, each to all others, in a group of its own.
pub(crate) struct RdmcLoad {
    pub(crate) members: u32,
    /// The first members send.
    pub(crate) senders: u32,
    /// The objects of each sender.
    pub(crate) sizes: Vec<u64>,
    pub(crate) block_bytes: u64,
    pub(crate) in_flight_bytes: u64,
}

impl RdmcLoad {
    /// Returns when each object came to each receiver, from the call of `send`.
    fn run(&self, config: SimConfig, algorithm: Algorithm) -> Vec<Duration> {
        let mut cluster = RdmcCluster::new(1, config, self.members);
        let group = |sender: u32| {
            let nodes: Vec<u32> = (0..self.members).map(|place| (sender + place) % self.members).collect();
            let mut group =
                RdmcGroupPlan::new(u64::from(sender) + 1, &nodes, algorithm.into(), self.block_bytes, &[]);
            group.settings.in_flight_bytes = self.in_flight_bytes;
            group
        };
        let groups: Vec<RdmcGroupPlan> = (0..self.senders).map(group).collect();
        for group in &groups {
            cluster.create(group, |_| Vec::new());
        }
        cluster.run().expect("the groups are created");
        let begins: Vec<Instant> = groups.iter().map(|group| cluster.send(group, &self.sizes)).collect();
        cluster.run_until(PATIENCE, |_| false).expect("no checker fails");
        let received = cluster.nodes.iter().flat_map(|node| node.received.iter());
        let begin = *begins.iter().min().expect("there are senders");
        let received: Vec<Duration> = received.map(|(_, at)| at.since(begin)).collect();
        let expected = self.senders as usize * self.sizes.len() * (self.members as usize - 1);
        assert_eq!(received.len(), expected, "all have received all");
        received
    }
}
