//! Hybrids of two levels: one algorithm between racks, one within each (RDMC §3.1, Derecho §3.1).
//!
//! The leaders of the racks form a group of their own, and so do the members of each rack, whose root is its leader.
//! Even steps belong to the level between racks, odd ones to the level within. A rack begins just late enough that
//! its leader holds every block before it has to send it: both levels run at the same time.
//!
//! `Deviation:` the paper disseminates within a rack after the leader has the whole object. Here the levels
//! overlap, so that a large object takes about as long as a leader needs to send it twice.

use std::sync::Arc;

use super::{Algorithm, BlockTransfer, Flat, NEVER, Topology};

/// A topology with an algorithm for each level. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HybridSchedule {
    topology: Arc<Topology>,
    between: Algorithm,
    within: Algorithm,
}

impl HybridSchedule {
    /// Returns a hybrid of `between` for the racks and `within` for each rack.
    #[must_use]
    pub fn new(topology: Topology, between: Algorithm, within: Algorithm) -> Self {
        Self { topology: Arc::new(topology), between, within }
    }

    /// Returns the topology.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the algorithm between racks.
    #[must_use]
    pub const fn between(&self) -> Algorithm {
        self.between
    }

    /// Returns the algorithm within racks.
    #[must_use]
    pub const fn within(&self) -> Algorithm {
        self.within
    }

    pub(super) fn steps(&self, blocks: u64) -> u64 {
        let racks = (0..self.topology.racks()).map(|rack| {
            let inner = self.inner(rack, blocks).steps();
            if inner == 0 { 0 } else { 2 * (self.inner_begin(rack, blocks) + inner) }
        });
        let outer = self.outer(blocks).steps();
        racks.max().unwrap_or(0).max((2 * outer).saturating_sub(1))
    }

    pub(super) fn next_send(&self, blocks: u64, rank: usize, from: u64) -> Option<BlockTransfer> {
        self.next(blocks, rank, from, Flat::next_send)
    }

    pub(super) fn next_receive(&self, blocks: u64, rank: usize, from: u64) -> Option<BlockTransfer> {
        self.next(blocks, rank, from, Flat::next_receive)
    }

    pub(super) fn targets(&self, blocks: u64, rank: usize) -> Vec<usize> {
        self.peers(blocks, rank, Flat::targets)
    }

    pub(super) fn sources(&self, blocks: u64, rank: usize) -> Vec<usize> {
        self.peers(blocks, rank, Flat::sources)
    }

    /// Returns the first transfer of either level in step `from` or later.
    fn next(
        &self,
        blocks: u64,
        rank: usize,
        from: u64,
        next: impl Fn(&Flat, usize, u64) -> Option<BlockTransfer>,
    ) -> Option<BlockTransfer> {
        let (rack, place) = self.topology.place(rank);
        let begin = self.inner_begin(rack, blocks);
        let inner_from = (from / 2).saturating_sub(begin);
        let inner = next(&self.inner(rack, blocks), place, inner_from).map(|transfer| BlockTransfer {
            step: 2 * (begin + transfer.step) + 1,
            peer: self.topology.rack(rack)[transfer.peer],
            ..transfer
        });
        let outer = (place == 0).then(|| next(&self.outer(blocks), rack, from.div_ceil(2))).flatten();
        let outer = outer.map(|transfer| BlockTransfer {
            step: 2 * transfer.step,
            peer: self.topology.leader(transfer.peer),
            ..transfer
        });
        let step = |transfer: &Option<BlockTransfer>| transfer.map_or(NEVER, |transfer| transfer.step);
        if step(&outer) < step(&inner) { outer } else { inner }
    }

    fn peers(&self, blocks: u64, rank: usize, peers: impl Fn(&Flat, usize) -> Vec<usize>) -> Vec<usize> {
        let (rack, place) = self.topology.place(rank);
        let inner = peers(&self.inner(rack, blocks), place);
        let mut found: Vec<usize> = inner.into_iter().map(|place| self.topology.rack(rack)[place]).collect();
        if place == 0 {
            let outer = peers(&self.outer(blocks), rack);
            found.extend(outer.into_iter().map(|rack| self.topology.leader(rack)));
        }
        found
    }

    fn outer(&self, blocks: u64) -> Flat {
        Flat::new(self.between, self.topology.racks(), blocks)
    }

    fn inner(&self, rack: usize, blocks: u64) -> Flat {
        Flat::new(self.within, self.topology.rack(rack).len(), blocks)
    }

    /// Returns the odd step in which the rack's own plan begins: its step `t` is the `begin + t`th odd step. Roots
    /// send block `b` in their step `b` or later, and the leader has it after outer step `b + lag`.
    fn inner_begin(&self, rack: usize, blocks: u64) -> u64 {
        self.outer(blocks).lag(rack)
    }
}
