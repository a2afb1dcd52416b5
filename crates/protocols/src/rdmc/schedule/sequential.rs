//! Sequential send: the whole object from the root to one member after the other (RDMC §3).

use super::NEVER;

/// Member `k` gets block `b` in step `(k − 1) · blocks + b`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequentialSchedule {
    pub(super) members: usize,
    pub(super) blocks: u64,
}

impl SequentialSchedule {
    pub(super) fn steps(&self) -> u64 {
        (self.members as u64 - 1) * self.blocks
    }

    pub(super) fn send(&self, _rank: usize, step: u64) -> Option<(usize, u64)> {
        let member = usize::try_from(step / self.blocks).expect("below the number of members") + 1;
        Some((member, step % self.blocks))
    }

    pub(super) fn receive(&self, rank: usize, step: u64) -> Option<(usize, u64)> {
        Some((0, step - self.first_step(rank)))
    }

    pub(super) fn sends_from(&self, rank: usize, from: u64) -> u64 {
        if rank == 0 { from } else { NEVER }
    }

    pub(super) fn receives_from(&self, rank: usize, from: u64) -> u64 {
        if rank == 0 || from >= self.first_step(rank) + self.blocks {
            return NEVER;
        }
        from.max(self.first_step(rank))
    }

    pub(super) fn targets(&self, rank: usize) -> Vec<usize> {
        if rank == 0 { (1..self.members).collect() } else { vec![] }
    }

    pub(super) fn sources(&self, rank: usize) -> Vec<usize> {
        if rank == 0 { vec![] } else { vec![0] }
    }

    pub(super) fn lag(&self, rank: usize) -> u64 {
        self.first_step(rank)
    }

    fn first_step(&self, rank: usize) -> u64 {
        (rank as u64 - 1) * self.blocks
    }
}
