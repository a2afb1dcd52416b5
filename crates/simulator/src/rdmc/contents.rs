//! The contents of objects, so that every byte can be checked at every receiver (RDMC §2, property 4).

use squall_fabric::Fabric;

use squall_protocols::rdmc::{HeldBlocks, ObjectMemory, RdmcObject};

/// Returns word `i` of object `number` of the stream `key`.
pub(super) fn word(key: u64, number: u64, i: usize) -> u64 {
    let mixed = (key ^ number << 40 ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1
}

/// The value of words that have not been written. It is even, unlike every word of an object.
pub(super) const POISON: u64 = 0xdead_beef_dead_beee;
/// The number of words before and after an object that must not change.
const MARGIN: usize = 3;

/// Returns unwritten memory for an object.
pub(super) fn empty(fabric: &mut impl Fabric, object_words: usize) -> ObjectMemory {
    let region = fabric.register(object_words + 2 * MARGIN);
    (0..region.words()).for_each(|i| region.store(i, POISON));
    ObjectMemory { region, first: MARGIN }
}

/// Returns memory that contains an object.
pub(super) fn full(fabric: &mut impl Fabric, key: u64, number: u64, bytes: u64) -> ObjectMemory {
    let words = usize::try_from(bytes.div_ceil(8)).expect("small");
    let memory = empty(fabric, words);
    (0..words).for_each(|i| memory.region.store(memory.first + i, word(key, number, i)));
    memory
}

/// Overwrites memory that a member has released, which no one may read any more.
pub(super) fn spoil(memory: &ObjectMemory) {
    (0..memory.region.words()).for_each(|i| memory.region.store(i, POISON));
}

/// Checks that the held blocks are correct, and that the memory around the object is untouched. Of blocks that are
/// not held some words may have landed, which must be correct [F11].
pub(super) fn check(
    key: u64,
    object: &RdmcObject,
    memory: &ObjectMemory,
    held: &HeldBlocks,
    block_words: usize,
) -> Result<(), String> {
    let words = object.words();
    for i in 0..memory.region.words() {
        let place = i.checked_sub(memory.first).filter(|place| *place < words);
        let right = place.map_or(POISON, |place| word(key, object.number, place));
        let is_held = place.is_some_and(|place| held.contains((place / block_words) as u64));
        let found = memory.region.load(i);
        if found != right && (is_held || found != POISON) {
            let total = memory.region.words();
            return Err(format!(
                "[B1] word {i} of {total} of {object:?} is {found:#x} instead of {right:#x}"
            ));
        }
    }
    Ok(())
}

/// Returns all words.
pub(super) fn snapshot(memory: &ObjectMemory) -> Vec<u64> {
    (0..memory.region.words()).map(|i| memory.region.load(i)).collect()
}
