//! Adopted memory: memory of the user, which no fabric has allocated [F13].
//!
//! It need not begin at a page boundary, but a device requires that a word has the same offset within its
//! page in the address that a writer names. So the region's id contains the offset of the region within its
//! first page, and with it every grant.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use squall_fabric::atomics::AtomicU64;
use squall_fabric::region::Access;
use squall_fabric::{Region, RegionId};

/// The keeper of an adopted region: the region that the user passed, which keeps the memory alive.
#[derive(Debug)]
pub(crate) struct AdoptedMemory(#[expect(dead_code, reason = "it only keeps the memory alive")] Region);

impl AdoptedMemory {
    /// Returns `memory` as a region whose id contains `number`, which must be below [`NUMBERS_MAX`].
    ///
    /// # Panics
    /// Panics if the memory is read-only.
    pub(crate) fn region(memory: &Region, number: u64) -> Region {
        assert!(memory.access() == Access::ReadWrite, "{memory:?} cannot be adopted: it is read-only");
        let (base, words) = (memory.pointer(0), memory.words());
        let keeper: Arc<dyn Any + Send + Sync> = Arc::new(Self(memory.clone()));
        // SAFETY: it is the memory of a region, which the keeper holds.
        unsafe { Region::from_raw(named(number, base), base, words, Access::ReadWrite, keeper) }
    }

    /// Returns whether `region` is adopted.
    #[inline]
    pub(crate) fn is_behind(region: &Region) -> bool {
        region.memory().is::<Self>()
    }
}

/// Advises the kernel to move the memory into huge pages where possible, because it will be transferred
/// often: another process that reads it looks up each page, which takes as long as copying it (of 64 MiB, a
/// bare program reads 6 GB/s from pages of 4 KiB and 17 GB/s from huge ones; EPYC). The words do not change.
/// The advice may have no effect: kernels before 6.1 do not support it, and not all memory can be moved.
pub(crate) fn gather_pages(region: &Region) {
    let begin = region.pointer(0).as_ptr().addr().next_multiple_of(HUGE_PAGE_BYTES);
    let end = region.pointer(region.words()).as_ptr().addr() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if begin < end {
        let start = region.pointer(0).as_ptr().with_addr(begin);
        // SAFETY: whole pages inside the region; the advice changes neither contents nor addresses.
        unsafe { libc::madvise(start.cast(), end - begin, MADV_COLLAPSE) };
    }
}

/// Returns the number of words in its first page that precede a region with this id.
pub(crate) fn skip_words(id: RegionId) -> u64 {
    id.0 >> NUMBER_BITS
}

fn named(number: u64, base: NonNull<AtomicU64>) -> RegionId {
    assert!(number < NUMBERS_MAX, "the region number {number} does not fit an id");
    let skip = base.as_ptr().addr() % PAGE_BYTES / 8;
    RegionId((skip as u64) << NUMBER_BITS | number)
}

/// That of x86-64; with larger pages a device refuses memory that does not begin at a page boundary.
const PAGE_BYTES: usize = 4096;
/// That of x86-64, and of aarch64 with pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// The kernel's number of this advice; libc has a name for it with some C libraries only.
const MADV_COLLAPSE: libc::c_int = 25;
const NUMBER_BITS: u32 = 55;
const NUMBERS_MAX: u64 = 1 << NUMBER_BITS;
const _: () = assert!(PAGE_BYTES / 8 <= 1 << (64 - NUMBER_BITS), "the offset within a page fits the id");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathered_pages_keep_their_words() {
        for words in [1, HUGE_PAGE_BYTES / 8, 5 * HUGE_PAGE_BYTES / 8 + 3] {
            let region = Region::heap(RegionId(1), words);
            (0..words).for_each(|word| region.store(word, 3 * word as u64));
            gather_pages(&region);
            assert!((0..words).all(|word| region.load(word) == 3 * word as u64));
        }
    }

    #[test]
    fn the_id_contains_the_offset_within_the_page() {
        let all = Region::heap(RegionId(9), 1024);
        for skip in [0, 1, 77] {
            let base = all.pointer(skip);
            let keeper = all.memory().clone();
            // SAFETY: a part of the region, which its memory keeps alive.
            let part = unsafe { Region::from_raw(RegionId(0), base, 8, Access::ReadWrite, keeper) };
            let region = AdoptedMemory::region(&part, 5);
            assert!(AdoptedMemory::is_behind(&region) && !AdoptedMemory::is_behind(&part));
            assert_eq!(skip_words(region.id()) * 8, base.as_ptr().addr() as u64 % 4096);
            assert_eq!(region.id().0 % NUMBERS_MAX, 5);
        }
    }
}
