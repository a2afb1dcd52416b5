//! The chooser: schedule and block size by object, group and transport (RDMC §4.2, fig. 6, 10 and 11).
//!
//! It predicts the time of each schedule with each block size, by a model of three numbers, and chooses the shortest.
//! A step over a network takes a latency and the time of a block on a link. Where links are the memory of one host,
//! all members share its bandwidth: then the sum of all blocks counts, not the number of steps.

use super::{Algorithm, Schedule, TransferPlan};

/// The properties of the transport that carries the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportProfile {
    /// From the post of a block to the post of its relay, beyond the time on the link, in nanoseconds.
    pub step_ns: u64,
    /// The bandwidth at which one member can send, and at the same time receive, in bytes per microsecond.
    pub bytes_per_us: u64,
    /// Whether all members share that bandwidth: they are processes of one host.
    pub shared: bool,
}

impl TransportProfile {
    /// An RDMA network of 100 Gb/s.
    pub const VERBS: Self = Self { step_ns: 5_000, bytes_per_us: 12_500, shared: false };
    /// TCP on a network of 10 Gb/s.
    pub const TCP: Self = Self { step_ns: 60_000, bytes_per_us: 1_200, shared: false };
    /// The memory of one host.
    pub const SHM: Self = Self { step_ns: 1_000, bytes_per_us: 10_000, shared: true };

    /// Predicts how long an object of `bytes` bytes takes to `members` members, in nanoseconds.
    ///
    /// # Panics
    /// If `block_bytes` is 0 or there is no member.
    #[must_use]
    pub fn predict_ns(&self, algorithm: Algorithm, members: usize, bytes: u64, block_bytes: u64) -> u64 {
        let blocks = bytes.div_ceil(block_bytes);
        let plan = TransferPlan::new(&algorithm.into(), members, blocks);
        let copies = (members as u64 - 1) * blocks;
        let on_link = if self.shared { copies } else { plan.steps() };
        let block_ns = block_bytes.min(bytes) * 1000 / self.bytes_per_us;
        plan.steps() * self.step_ns + on_link * block_ns
    }
}

/// The chooser's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleChoice {
    /// The schedule.
    pub schedule: Schedule,
    /// The size of a block in bytes, a multiple of 8.
    pub block_bytes: u64,
}

/// Returns the fastest schedule and block size for objects of about `bytes` bytes in a group of `members` members.
///
/// # Panics
/// If there is no member.
#[must_use]
pub fn choose(bytes: u64, members: usize, transport: TransportProfile) -> ScheduleChoice {
    let sizes = (BLOCK_BYTES_MIN.ilog2()..=BLOCK_BYTES_MAX.ilog2()).map(|log| 1 << log);
    // Of equal candidates the first is chosen: the simplest algorithm, the largest block.
    let candidates =
        ALGORITHMS.iter().flat_map(|algorithm| sizes.clone().rev().map(move |size| (*algorithm, size)));
    let (algorithm, block_bytes) = candidates
        .min_by_key(|(algorithm, size)| transport.predict_ns(*algorithm, members, bytes, *size))
        .expect("there are candidates");
    ScheduleChoice { schedule: algorithm.into(), block_bytes }
}

/// The simplest first.
const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::Sequential, Algorithm::Tree, Algorithm::Chain, Algorithm::Pipeline];
/// Below this the processor's work for each block costs more than its bytes.
pub(super) const BLOCK_BYTES_MIN: u64 = 1 << 14;
/// Above this nothing is gained, and more data is lost when a relay dies.
pub(super) const BLOCK_BYTES_MAX: u64 = 1 << 22;
