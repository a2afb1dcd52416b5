//! Schedules: which member sends which block to which other in which step (RDMC §3, fig. 3).
//!
//! A schedule divides a multicast into steps. In one step a member sends at most one block and receives at most one.
//! Everything here is a pure function of (schedule, members, blocks, rank, step): each member computes its own part
//! without knowing about the others (RDMC app. A (1)). Steps are an order, not a clock: a session makes its own sends
//! in the order of steps, each as soon as it holds the block, so some members run ahead of others (app. A (2)).
//!
//! **Invariants**, tested for every group of up to 130 members and up to 64 blocks:
//! - \[B1\] each block reaches each member exactly once, nothing is sent before it is held, both ends agree;
//! - \[B2\] in one step a member sends at most one block and receives at most one;
//! - \[B3\] the binomial pipeline takes `blocks + ⌈log2 members⌉ − 1` steps, for every number of members, and with one
//!   block it is a binomial tree;
//! - \[B4\] in the binomial pipeline of two blocks or more all members but the root finish within one step of each
//!   other;
//! - \[B5\] one member, or no block, is a schedule of no steps;
//! - \[B6\] the first block of a member always comes from the same peer, however many blocks there are.

mod chain;
mod chooser;
mod hybrid;
mod pipeline;
mod sequential;
#[cfg(test)]
mod tests;
mod topology;
mod tree;

pub use chooser::{ScheduleChoice, TransportProfile, choose};
pub use hybrid::HybridSchedule;
pub use topology::Topology;

use chain::ChainSchedule;
use pipeline::PipelineSchedule;
use sequential::SequentialSchedule;
use tree::TreeSchedule;

/// One block sent from one member to another in one step, as one of the two sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTransfer {
    /// The step, from 0.
    pub step: u64,
    /// The rank of the other member.
    pub peer: usize,
    /// The block, from 0.
    pub block: u64,
}

/// An algorithm that turns a multicast into unicasts (RDMC §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// The root sends the whole object to one member after the other.
    Sequential,
    /// A bucket brigade: each member relays each block to the next.
    Chain,
    /// Whole objects along a binomial tree: the holders double in each round.
    Tree,
    /// Blocks along rotating binomial trees in a hypercube (app. A): all members send and receive all the time.
    Pipeline,
}

/// How a group multicasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// One algorithm over all members.
    Flat(Algorithm),
    /// Two levels: one algorithm between racks, one within each (§3.1).
    Hybrid(HybridSchedule),
}

impl From<Algorithm> for Schedule {
    fn from(algorithm: Algorithm) -> Self {
        Self::Flat(algorithm)
    }
}

/// A schedule for a number of members and blocks. Rank 0 is the root, which holds all blocks at the beginning.
#[derive(Clone, Debug)]
pub struct TransferPlan {
    levels: Levels,
}

#[derive(Clone, Debug)]
enum Levels {
    One(Flat),
    Two { hybrid: HybridSchedule, blocks: u64 },
}

impl TransferPlan {
    /// Returns the plan of `schedule` for `members` members and `blocks` blocks.
    ///
    /// # Panics
    /// If there is no member, or if the topology of a hybrid has another number of members.
    #[must_use]
    pub fn new(schedule: &Schedule, members: usize, blocks: u64) -> Self {
        assert!(members > 0, "a group has members");
        let levels = match schedule {
            Schedule::Flat(algorithm) => Levels::One(Flat::new(*algorithm, members, blocks)),
            Schedule::Hybrid(hybrid) => {
                assert_eq!(hybrid.topology().members(), members, "the topology names each member once");
                Levels::Two { hybrid: hybrid.clone(), blocks }
            }
        };
        Self { levels }
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        match &self.levels {
            Levels::One(flat) => flat.steps(),
            Levels::Two { hybrid, blocks } => hybrid.steps(*blocks),
        }
    }

    /// Returns what `rank` sends in `step`.
    #[must_use]
    pub fn send(&self, rank: usize, step: u64) -> Option<BlockTransfer> {
        self.next_send(rank, step).filter(|transfer| transfer.step == step)
    }

    /// Returns what `rank` receives in `step`.
    #[must_use]
    pub fn receive(&self, rank: usize, step: u64) -> Option<BlockTransfer> {
        self.next_receive(rank, step).filter(|transfer| transfer.step == step)
    }

    /// Returns the first send of `rank` in step `from` or later.
    #[must_use]
    pub fn next_send(&self, rank: usize, from: u64) -> Option<BlockTransfer> {
        match &self.levels {
            Levels::One(flat) => flat.next_send(rank, from),
            Levels::Two { hybrid, blocks } => hybrid.next_send(*blocks, rank, from),
        }
    }

    /// Returns the first receive of `rank` in step `from` or later.
    #[must_use]
    pub fn next_receive(&self, rank: usize, from: u64) -> Option<BlockTransfer> {
        match &self.levels {
            Levels::One(flat) => flat.next_receive(rank, from),
            Levels::Two { hybrid, blocks } => hybrid.next_receive(*blocks, rank, from),
        }
    }

    /// Returns all sends of `rank`, in the order of steps.
    pub fn sends(&self, rank: usize) -> impl Iterator<Item = BlockTransfer> {
        successors(move |from| self.next_send(rank, from))
    }

    /// Returns all receives of `rank`, in the order of steps.
    pub fn receives(&self, rank: usize) -> impl Iterator<Item = BlockTransfer> {
        successors(move |from| self.next_receive(rank, from))
    }

    /// Returns the ranks to which `rank` sends at least one block, ascending.
    #[must_use]
    pub fn targets(&self, rank: usize) -> Vec<usize> {
        ascending(match &self.levels {
            Levels::One(flat) => flat.targets(rank),
            Levels::Two { hybrid, blocks } => hybrid.targets(*blocks, rank),
        })
    }

    /// Returns the ranks from which `rank` receives at least one block, ascending.
    #[must_use]
    pub fn sources(&self, rank: usize) -> Vec<usize> {
        ascending(match &self.levels {
            Levels::One(flat) => flat.sources(rank),
            Levels::Two { hybrid, blocks } => hybrid.sources(*blocks, rank),
        })
    }
}

/// A plan of one level.
#[derive(Clone, Copy, Debug)]
enum Flat {
    Sequential(SequentialSchedule),
    Chain(ChainSchedule),
    Tree(TreeSchedule),
    Pipeline(PipelineSchedule),
}

macro_rules! each {
    ($self:expr, $plan:ident => $call:expr) => {
        match $self {
            Flat::Sequential($plan) => $call,
            Flat::Chain($plan) => $call,
            Flat::Tree($plan) => $call,
            Flat::Pipeline($plan) => $call,
        }
    };
}

impl Flat {
    fn new(algorithm: Algorithm, members: usize, blocks: u64) -> Self {
        // One member, or no block, is a schedule of no steps [B5].
        let blocks = if members == 1 { 0 } else { blocks };
        match algorithm {
            Algorithm::Sequential => Self::Sequential(SequentialSchedule { members, blocks }),
            Algorithm::Chain => Self::Chain(ChainSchedule { members, blocks }),
            Algorithm::Tree => Self::Tree(TreeSchedule { members, blocks }),
            Algorithm::Pipeline => Self::Pipeline(PipelineSchedule::new(members, blocks)),
        }
    }

    fn steps(&self) -> u64 {
        each!(self, plan => if plan.blocks == 0 { 0 } else { plan.steps() })
    }

    fn next_send(&self, rank: usize, from: u64) -> Option<BlockTransfer> {
        each!(self, plan => first(self.steps(), from, |from| plan.sends_from(rank, from), |step| plan.send(rank, step)))
    }

    fn next_receive(&self, rank: usize, from: u64) -> Option<BlockTransfer> {
        each!(self, plan => {
            first(self.steps(), from, |from| plan.receives_from(rank, from), |step| plan.receive(rank, step))
        })
    }

    fn targets(&self, rank: usize) -> Vec<usize> {
        if self.steps() == 0 { vec![] } else { each!(self, plan => plan.targets(rank)) }
    }

    fn sources(&self, rank: usize) -> Vec<usize> {
        if self.steps() == 0 { vec![] } else { each!(self, plan => plan.sources(rank)) }
    }

    /// Returns the `lag` for which `rank` has block `b` after step `b + lag`, for every `b`.
    fn lag(&self, rank: usize) -> u64 {
        if rank == 0 || self.steps() == 0 { 0 } else { each!(self, plan => plan.lag(rank)) }
    }
}

/// Returns the first transfer in step `from` or later; `jump` skips steps in which there is certainly none.
fn first(
    steps: u64,
    from: u64,
    jump: impl Fn(u64) -> u64,
    transfer: impl Fn(u64) -> Option<(usize, u64)>,
) -> Option<BlockTransfer> {
    let mut step = if from < steps { jump(from) } else { NEVER };
    while step < steps {
        if let Some((peer, block)) = transfer(step) {
            return Some(BlockTransfer { step, peer, block });
        }
        step = jump(step + 1);
    }
    None
}

fn successors(mut next: impl FnMut(u64) -> Option<BlockTransfer>) -> impl Iterator<Item = BlockTransfer> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let transfer = next(from)?;
        from = transfer.step + 1;
        Some(transfer)
    })
}

fn ascending(mut ranks: Vec<usize>) -> Vec<usize> {
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// A step that never occurs.
const NEVER: u64 = u64::MAX;
