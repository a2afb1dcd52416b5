//! Slots: a small number for each open object of this member, for immediate values, tokens and bounds (RDMC §3.2).

use squall_fabric::Token;

use super::GroupId;
use super::mutation;
use super::settings::BLOCKS_MAX;

/// The slots and their objects. A slot is free again only when no block and no completion in flight names it.
#[derive(Debug)]
pub(super) struct ObjectSlots {
    /// At most [`SLOTS_MAX`].
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    object: Option<(GroupId, u64)>,
    uses: u32,
}

/// A slot, and the number of its use, since words about a former use may still be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectSlot {
    /// The slot's index.
    pub index: u8,
    /// The number of the use, below 2^24.
    pub uses: u32,
}

impl ObjectSlots {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Takes a slot for object `number` of `group`; returns `None` if all are taken.
    pub(super) fn take(&mut self, group: GroupId, number: u64) -> Option<ObjectSlot> {
        let free = self.entries.iter().position(|entry| entry.object.is_none());
        let index = free.or_else(|| (self.entries.len() < SLOTS_MAX).then_some(self.entries.len()))?;
        if index == self.entries.len() {
            self.entries.push(Entry { object: None, uses: 0 });
        }
        let entry = &mut self.entries[index];
        entry.object = Some((group, number));
        entry.uses = (entry.uses + 1) % USES_MAX;
        Some(ObjectSlot { index: u8::try_from(index).expect("at most 256"), uses: entry.uses })
    }

    pub(super) fn free(&mut self, slot: ObjectSlot) {
        self.entries[usize::from(slot.index)].object = None;
    }

    /// Returns the object that has the slot.
    pub(super) fn object(&self, index: usize) -> Option<(GroupId, u64)> {
        self.entries.get(index)?.object
    }

    /// Returns the number of slots, free or taken.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl ObjectSlot {
    /// Returns the word by which a target reports how far a source may go: in steps below `bound`.
    pub(super) fn word(self, bound: u64) -> u64 {
        u64::from(self.uses) << BOUND_BITS | bound.min((1 << BOUND_BITS) - 1)
    }

    /// Returns the bound in a word that is about this use of the slot, else 0.
    pub(super) fn bound(self, word: u64) -> u64 {
        let is_of_this_use = word >> BOUND_BITS == u64::from(self.uses) || mutant!(StaleBound);
        if is_of_this_use { word & ((1 << BOUND_BITS) - 1) } else { 0 }
    }
}

/// Returns the immediate value of a block, in the slot that its receiver has named.
pub(super) fn immediate(slot: u8, block: u64) -> u32 {
    assert!(block < BLOCKS_MAX, "block {block} of at most {BLOCKS_MAX}");
    u32::from(slot) << 24 | u32::try_from(block).expect("24 bits")
}

/// Returns slot and block of an immediate value.
pub(super) fn slot_and_block(immediate: u32) -> (usize, u64) {
    (immediate as usize >> 24, u64::from(immediate & 0xff_ffff))
}

/// Returns the token of a block that was posted for the object in `slot`, to its `target`th target.
pub(super) fn token(slot: u8, target: usize) -> Token {
    Token((target as u64) << 8 | u64::from(slot))
}

/// Returns slot and target of a token.
pub(super) fn slot_and_target(token: Token) -> (usize, usize) {
    ((token.0 & 0xff) as usize, usize::try_from(token.0 >> 8).expect("a token of this module"))
}

/// As many as 8 bits of an immediate value can name.
pub(super) const SLOTS_MAX: usize = 256;
/// By the time a use number recurs, words of its former use have long arrived.
const USES_MAX: u32 = 1 << 24;
/// A million members and [`BLOCKS_MAX`] blocks sent one after the other have fewer steps.
const BOUND_BITS: u32 = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for (slot, block) in [(0, 0), (255, BLOCKS_MAX - 1), (7, 1 << 23)] {
            assert_eq!(slot_and_block(immediate(slot, block)), (usize::from(slot), block));
        }
        assert_eq!(slot_and_target(token(255, 511)), (255, 511));
        let slot = ObjectSlot { index: 3, uses: USES_MAX - 1 };
        assert_eq!(slot.bound(slot.word(12_345_678_901)), 12_345_678_901);
        assert_eq!(ObjectSlot { uses: 5, ..slot }.bound(slot.word(7)), 0, "another use");
    }

    #[test]
    fn a_slot_has_one_object() {
        let mut slots = ObjectSlots::new();
        let taken: Vec<_> = (0..300).filter_map(|number| slots.take(GroupId(1), number)).collect();
        assert_eq!(taken.len(), SLOTS_MAX);
        slots.free(taken[17]);
        let again = slots.take(GroupId(2), 5).expect("one is free");
        assert_eq!((again.index, again.uses), (17, taken[17].uses + 1));
        assert_eq!(slots.take(GroupId(2), 6), None);
        assert_eq!((slots.object(17), slots.object(256)), (Some((GroupId(2), 5)), None));
    }
}
