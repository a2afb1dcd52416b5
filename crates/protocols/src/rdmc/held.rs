//! The blocks of an object that a member holds (RDMC §3; resumption [B7]).

use super::BlockSummary;
use super::message::WINDOW_BLOCKS;

/// A set of blocks of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBlocks {
    /// A bit for each block.
    bits: Vec<u64>,
    blocks: u64,
    /// `count <= blocks`.
    count: u64,
}

impl HeldBlocks {
    /// Returns the set of none of `blocks` blocks.
    #[must_use]
    pub fn none(blocks: u64) -> Self {
        Self { bits: vec![0; word(blocks + 63)], blocks, count: 0 }
    }

    /// Returns the set of all of `blocks` blocks.
    #[must_use]
    pub fn all(blocks: u64) -> Self {
        let mut held = Self::none(blocks);
        (0..blocks).for_each(|block| assert!(held.insert(block), "each once"));
        held
    }

    /// Returns the number of blocks of the object.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the number of blocks that are held.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether all blocks are held.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.count == self.blocks
    }

    /// Returns whether `block` is held.
    #[must_use]
    pub fn contains(&self, block: u64) -> bool {
        block < self.blocks && self.bits[word(block)] >> (block % 64) & 1 == 1
    }

    /// Adds a block; returns false if it is already held or the object has no such block.
    pub fn insert(&mut self, block: u64) -> bool {
        if block >= self.blocks || self.contains(block) {
            return false;
        }
        self.bits[word(block)] |= 1 << (block % 64);
        self.count += 1;
        true
    }

    /// For a mutation: the last block that is held is not.
    pub(super) fn forget_last(&mut self) {
        if let Some(block) = (0..self.blocks).rev().find(|block| self.contains(*block)) {
            self.bits[word(block)] &= !(1 << (block % 64));
            self.count -= 1;
        }
    }

    /// Returns the part that a message can describe: all blocks up to the first missing one, and some after it.
    pub(super) fn summary(&self) -> BlockSummary {
        let prefix = (0..self.blocks).find(|block| !self.contains(*block)).unwrap_or(self.blocks);
        let mut summary = BlockSummary { prefix, window: [0; WINDOW_BLOCKS as usize / 64] };
        for i in (0..WINDOW_BLOCKS).filter(|i| self.contains(prefix + i)) {
            summary.window[word(i)] |= 1 << (i % 64);
        }
        summary
    }

    /// Forgets the blocks that the summary cannot describe; the sources will send them again.
    pub(super) fn cut_to_summary(&mut self) {
        let summary = self.summary();
        let mut held = Self::none(self.blocks);
        for block in (0..self.blocks).filter(|block| self.contains(*block) && summary.contains(*block)) {
            held.insert(block);
        }
        *self = held;
    }
}

fn word(block: u64) -> usize {
    usize::try_from(block / 64).expect("as many as fit memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_inserted_once() {
        let mut held = HeldBlocks::none(70);
        assert!(held.insert(69) && !held.insert(69) && !held.insert(70));
        assert!(held.contains(69) && !held.contains(5) && !held.contains(1 << 30));
        assert_eq!((held.count(), held.is_all()), (1, false));
        assert!(HeldBlocks::all(70).is_all() && HeldBlocks::none(0).is_all());
    }

    #[test]
    fn a_summary_describes_the_beginning_and_some_more() {
        let mut held = HeldBlocks::none(2000);
        (0..100).chain([101, 300, 611, 612, 613, 1999]).for_each(|block| assert!(held.insert(block)));
        let summary = held.summary();
        assert_eq!(summary.prefix, 100);
        let reported: Vec<u64> = (100..3000).filter(|block| summary.contains(*block)).collect();
        assert_eq!(
            reported,
            [101, 300, 611],
            "the window begins at the first missing block and has 512 blocks"
        );
        held.cut_to_summary();
        assert_eq!(held.count(), 103);
        assert_eq!(held.summary(), summary);
        assert!(HeldBlocks::all(7).summary().contains(6) && !HeldBlocks::none(7).summary().contains(0));
    }
}
