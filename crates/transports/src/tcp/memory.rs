//! Memory of regions and attachments: zeroed and touched, so that the data path causes no page faults, and in
//! huge pages where it is large ([`crate::pages`]). (With huge pages the kernel and this process need fewer
//! address translations: copies of 10 KiB to 1 MiB run 10 to 25 % faster.)
//!
//! Memory that may hold long payloads begins at a page boundary. The kernel copies what is sent into pages of
//! its own, by `rep movsb`, and an AMD EPYC does that at a twelfth of its speed (3.5 instead of 43 GB/s)
//! where the target is 1 to 15 bytes above the source modulo 4096. A write's header has 40 bytes and usually
//! begins such a page; and what `malloc` returns for a megabyte begins, as a region, 32 bytes into a page.

use std::alloc::Layout;
use std::any::Any;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags};
use squall_fabric::region::Access;
use squall_fabric::{Region, RegionId, Shortage};

use crate::pages::{HUGE_PAGE_BYTES, MANY_BYTES, Pages};
use crate::shortage;

/// Allocates `words` words of zeros.
///
/// # Errors
/// Returns an error if allocation fails.
pub(crate) fn allocate(id: RegionId, words: usize) -> Result<Region, Shortage> {
    if words < PAGE_BYTES / 8 { Ok(Region::heap(id, words)) } else { allocate_pages(id, words) }
}

/// Same as [`allocate`], for memory that a device may use as well: it begins at a page boundary whatever its length, since a device
/// requires that a word has the same offset within its page in this process and in the address that a writer names.
///
/// # Errors
/// As [`allocate`].
pub(crate) fn allocate_pages(id: RegionId, words: usize) -> Result<Region, Shortage> {
    let bytes =
        words.max(1).checked_mul(8).ok_or_else(|| shortage::of_memory(words, &Errno::NOMEM.into()))?;
    let (base, memory): (_, Arc<dyn Any + Send + Sync>) = if bytes < MANY_BYTES {
        let block = Block::new(bytes).ok_or_else(|| shortage::of_memory(words, &Errno::NOMEM.into()))?;
        (block.start.cast(), Arc::new(block))
    } else {
        let pages = many_pages(bytes).map_err(|error| shortage::of_memory(words, &error))?;
        (pages.base().cast(), pages)
    };
    // SAFETY: the memory is large enough, aligned, zeroed, and lives as long as the region; no other code
    // knows it.
    Ok(unsafe { Region::from_raw(id, base, words, Access::ReadWrite, memory) })
}

/// Allocates whole huge pages of zeros, touched by the page thread.
fn many_pages(bytes: usize) -> io::Result<Arc<Pages>> {
    let bytes = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
    let pages = Arc::new(Pages::reserve(bytes, 0, ProtFlags::READ | ProtFlags::WRITE)?);
    // Only advice: not every machine has huge pages.
    let _ = pages.advise(Advice::LinuxHugepage);
    pages.touch_in_time(Access::ReadWrite)?;
    Ok(pages)
}

/// Memory that begins at a page boundary.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is memory whose contents are accessed as atomics only.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Returns `None` if allocation fails.
    fn new(bytes: usize) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES)?;
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).ok()?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) })?;
        // SAFETY: newly allocated memory of this size.
        unsafe { start.write_bytes(0, bytes) };
        Some(Self { start, layout })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed only here.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

const PAGE_BYTES: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_and_small_memory_is_zeroed_and_writable() {
        for words in [
            0,
            1,
            PAGE_BYTES / 8 - 1,
            PAGE_BYTES / 8,
            1000,
            HUGE_PAGE_BYTES / 8 - 1,
            HUGE_PAGE_BYTES / 8,
            HUGE_PAGE_BYTES / 8 + 1,
            1 << 20,
        ] {
            let region = allocate(RegionId(7), words).unwrap();
            assert_eq!((region.id(), region.words()), (RegionId(7), words));
            assert!((0..words).all(|word| region.load(word) == 0));
            (0..words).for_each(|word| region.store(word, word as u64));
            assert!((0..words).all(|word| region.load(word) == word as u64));
        }
    }

    /// When memory did not begin at a page, sending a megabyte took three times as long.
    #[test]
    fn memory_for_long_payloads_begins_at_a_page() {
        for words in [0, 1, PAGE_BYTES / 8 - 1, PAGE_BYTES / 8, 10_000, 100_000, 1 << 17, 1 << 20] {
            let allocate = if words < PAGE_BYTES / 8 { allocate_pages } else { allocate };
            let region = allocate(RegionId(7), words).unwrap();
            assert!(region.pointer(0).addr().get().is_multiple_of(PAGE_BYTES), "{words} words");
        }
    }
}
