//! Binomial tree send: whole objects, the holders double in each round (RDMC §3, fig. 3 left).

use super::NEVER;

/// In round `k`, which has a step for each block, each member `r < 2^k` sends the whole object to `r + 2^k`.
#[derive(Clone, Copy, Debug)]
pub(super) struct TreeSchedule {
    pub(super) members: usize,
    pub(super) blocks: u64,
}

impl TreeSchedule {
    pub(super) fn steps(&self) -> u64 {
        u64::from(self.members.next_power_of_two().ilog2()) * self.blocks
    }

    pub(super) fn send(&self, rank: usize, step: u64) -> Option<(usize, u64)> {
        let round = step / self.blocks;
        Some((rank + (1 << round), step % self.blocks))
    }

    pub(super) fn receive(&self, rank: usize, step: u64) -> Option<(usize, u64)> {
        Some((parent(rank), step % self.blocks))
    }

    pub(super) fn sends_from(&self, rank: usize, from: u64) -> u64 {
        let round = (from / self.blocks).max(u64::from(first_round(rank)));
        let target = (1_usize << round.min(63)).saturating_add(rank);
        if target < self.members { from.max(round * self.blocks) } else { NEVER }
    }

    pub(super) fn receives_from(&self, rank: usize, from: u64) -> u64 {
        if rank == 0 || from >= self.lag(rank) + self.blocks { NEVER } else { from.max(self.lag(rank)) }
    }

    pub(super) fn targets(&self, rank: usize) -> Vec<usize> {
        (first_round(rank)..63)
            .map(|round| rank + (1 << round))
            .take_while(|target| *target < self.members)
            .collect()
    }

    pub(super) fn sources(&self, rank: usize) -> Vec<usize> {
        if rank == 0 { vec![] } else { vec![parent(rank)] }
    }

    pub(super) fn lag(&self, rank: usize) -> u64 {
        u64::from(rank.ilog2()) * self.blocks
    }
}

/// Returns the first round in which `rank` holds the object.
fn first_round(rank: usize) -> u32 {
    rank.checked_ilog2().map_or(0, |round| round + 1)
}

fn parent(rank: usize) -> usize {
    rank - (1 << rank.ilog2())
}
