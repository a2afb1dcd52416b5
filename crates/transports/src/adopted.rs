//! Adopted memory: the user's own, which no fabric has allocated [F13].
//!
//! It need not begin at a page, but a device wants a word's place within its page to be the same in the address that a
//! writer names. So the region's name says where in its page the region begins, and with it every grant.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use squall_fabric::atomics::AtomicU64;
use squall_fabric::region::Access;
use squall_fabric::{Region, RegionId};

/// What is behind an adopted region: the region that the user gave, which keeps the memory alive.
#[derive(Debug)]
pub(crate) struct AdoptedMemory(#[expect(dead_code, reason = "it only keeps the memory alive")] Region);

impl AdoptedMemory {
    /// `memory` as a region with the name `number`, which is below [`NUMBERS_MAX`].
    ///
    /// # Panics
    /// If it is read-only.
    pub(crate) fn region(memory: &Region, number: u64) -> Region {
        assert!(memory.access() == Access::ReadWrite, "{memory:?} cannot be adopted: it is read-only");
        let (base, words) = (memory.pointer(0), memory.words());
        let keeper: Arc<dyn Any + Send + Sync> = Arc::new(Self(memory.clone()));
        // SAFETY: it is the memory of a region, which the keeper holds.
        unsafe { Region::from_raw(named(number, base), base, words, Access::ReadWrite, keeper) }
    }

    /// Whether `region` is adopted.
    #[inline]
    pub(crate) fn is_behind(region: &Region) -> bool {
        region.memory().is::<Self>()
    }
}

/// Asks the kernel to put what it can of the memory into huge pages, as it is to be moved often: another process that
/// reads it looks each page up, which takes as long as to copy it (of 64 MiB a bare program fetches 6 GB/s from pages of 4 KiB
/// and 17 from huge ones; EPYC). The words stay
/// what they are. It is a wish: kernels before 6.1 do not know it, and not all memory can be moved.
pub(crate) fn gather_pages(region: &Region) {
    let begin = region.pointer(0).as_ptr().addr().next_multiple_of(HUGE_PAGE_BYTES);
    let end = region.pointer(region.words()).as_ptr().addr() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if begin < end {
        let start = region.pointer(0).as_ptr().with_addr(begin);
        // SAFETY: whole pages inside the region; the advice changes no content and no address.
        unsafe { libc::madvise(start.cast(), end - begin, libc::MADV_COLLAPSE) };
    }
}

/// The words of its first page before a region with this name.
pub(crate) fn skip_words(id: RegionId) -> u64 {
    id.0 >> NUMBER_BITS
}

fn named(number: u64, base: NonNull<AtomicU64>) -> RegionId {
    assert!(number < NUMBERS_MAX, "a region's number {number}");
    let skip = base.as_ptr().addr() % PAGE_BYTES / 8;
    RegionId((skip as u64) << NUMBER_BITS | number)
}

/// x86-64's; with larger pages a device refuses what does not begin at one of them.
const PAGE_BYTES: usize = 4096;
/// Of x86-64, and of aarch64 with pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;
const NUMBER_BITS: u32 = 55;
const NUMBERS_MAX: u64 = 1 << NUMBER_BITS;
const _: () = assert!(PAGE_BYTES / 8 <= 1 << (64 - NUMBER_BITS), "the words before a region fit its name");

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
    fn the_name_tells_the_place_in_the_page() {
        let all = Region::heap(RegionId(9), 1024);
        for skip in [0, 1, 77] {
            let base = all.pointer(skip);
            let keeper = all.memory().clone();
            // SAFETY: a part of the region, which its memory keeps.
            let part = unsafe { Region::from_raw(RegionId(0), base, 8, Access::ReadWrite, keeper) };
            let region = AdoptedMemory::region(&part, 5);
            assert!(AdoptedMemory::is_behind(&region) && !AdoptedMemory::is_behind(&part));
            assert_eq!(skip_words(region.id()) * 8, base.as_ptr().addr() as u64 % 4096);
            assert_eq!(region.id().0 % NUMBERS_MAX, 5);
        }
    }
}
