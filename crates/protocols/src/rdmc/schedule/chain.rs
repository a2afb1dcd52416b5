//! Chain send: each member relays block by block, like a bucket brigade (RDMC §3).

use super::NEVER;

/// Member `r` passes block `b` on to `r + 1` in step `r + b`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainSchedule {
    pub(super) members: usize,
    pub(super) blocks: u64,
}

impl ChainSchedule {
    pub(super) fn steps(&self) -> u64 {
        self.blocks + self.members as u64 - 2
    }

    pub(super) fn send(&self, rank: usize, step: u64) -> Option<(usize, u64)> {
        Some((rank + 1, step - rank as u64))
    }

    pub(super) fn receive(&self, rank: usize, step: u64) -> Option<(usize, u64)> {
        Some((rank - 1, step + 1 - rank as u64))
    }

    pub(super) fn sends_from(&self, rank: usize, from: u64) -> u64 {
        if rank + 1 == self.members { NEVER } else { self.handles_from(rank, from) }
    }

    pub(super) fn receives_from(&self, rank: usize, from: u64) -> u64 {
        if rank == 0 { NEVER } else { self.handles_from(rank - 1, from) }
    }

    pub(super) fn targets(&self, rank: usize) -> Vec<usize> {
        if rank + 1 == self.members { vec![] } else { vec![rank + 1] }
    }

    pub(super) fn sources(&self, rank: usize) -> Vec<usize> {
        rank.checked_sub(1).into_iter().collect()
    }

    pub(super) fn lag(&self, rank: usize) -> u64 {
        rank as u64 - 1
    }

    /// The link after `rank` is busy in steps `rank..rank + blocks`.
    fn handles_from(&self, rank: usize, from: u64) -> u64 {
        let first = rank as u64;
        if from < first + self.blocks { from.max(first) } else { NEVER }
    }
}
