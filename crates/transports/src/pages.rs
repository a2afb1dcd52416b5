//! Pages of memory: reserved at once and, if there are many, touched and released by a separate thread.
//!
//! The kernel clears a page when it is first touched, at about 4 GB/s: a window of 256 MiB takes 60 ms on an
//! idle machine and seconds on a busy one. A polling thread that waited for that would show no sign of life
//! meanwhile, and the other members would consider it dead. So it only reserves the addresses. Pages that it
//! uses before the other thread has reached them are cleared on use; nothing depends on which thread touches
//! a page first.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::region::Access;

/// A range of addresses of this process, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Pages {
    base: NonNull<c_void>,
    /// A multiple of the page size, never 0.
    bytes: usize,
}

// SAFETY: it is an address range; its contents are accessed as atomics only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Reserves private zero pages for at least `bytes`, aligned so that offset `offset` of a file can be
    /// mapped at their beginning with huge pages.
    ///
    /// # Errors
    /// Returns an error if there are not enough addresses, or the system does not commit that much memory.
    pub(crate) fn reserve(bytes: usize, offset: u64, protection: ProtFlags) -> io::Result<Self> {
        if bytes > BYTES_MAX {
            return Err(Errno::NOMEM.into());
        }
        let bytes = bytes.max(1).next_multiple_of(rustix::param::page_size());
        let slack = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 0 };
        // Read-only zero pages take no memory.
        let reserve =
            if protection.contains(ProtFlags::WRITE) { MapFlags::empty() } else { MapFlags::NORESERVE };
        let flags = MapFlags::PRIVATE | reserve;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { rustix::mm::mmap_anonymous(null, bytes + slack, protection, flags) }?;
        let phase = usize::try_from(offset % HUGE_PAGE_BYTES as u64).expect("below the huge page size");
        let skip = if slack == 0 { 0 } else { phase.wrapping_sub(start as usize) % HUGE_PAGE_BYTES };
        let base = start.wrapping_byte_add(skip);
        for (unused, length) in [(start, skip), (base.wrapping_byte_add(bytes), slack - skip)] {
            if length > 0 {
                // SAFETY: inside the mapping made above; no other code knows these addresses.
                unsafe { rustix::mm::munmap(unused, length) }?;
            }
        }
        Ok(Self { base: NonNull::new(base).expect("the kernel maps nothing at 0"), bytes })
    }

    /// Returns the first address.
    pub(crate) const fn base(&self) -> NonNull<c_void> {
        self.base
    }

    /// Returns the size in bytes: whole pages.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the words of the range; they may be stored to only where the range is mapped for writing.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped for as long as `self` lives, page-aligned, and accessed as atomics only.
        unsafe { std::slice::from_raw_parts(self.base.cast().as_ptr(), self.bytes / 8) }
    }

    /// Advises the system how the range is used.
    pub(crate) fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        self.advise_part(0..self.bytes, advice)
    }

    /// Touches all pages, so that using them causes no page faults; returns when that is done.
    ///
    /// # Errors
    /// Returns an error if the system cannot provide the pages.
    pub(crate) fn touch(&self, access: Access) -> io::Result<()> {
        self.touch_part(0..self.bytes, access)
    }

    /// Same as [`Pages::touch`], but if there are many pages, another thread touches them.
    ///
    /// # Errors
    /// Same as [`Pages::touch`], if there are few pages.
    pub(crate) fn touch_in_time(self: &Arc<Self>, access: Access) -> io::Result<()> {
        if self.bytes >= MANY_BYTES
            && let Some(keeper) = keeper()
            && keeper.send(Work::Touch(Arc::downgrade(self), access)).is_ok()
        {
            return Ok(());
        }
        self.touch(access)
    }

    fn advise_part(&self, part: Range<usize>, advice: Advice) -> rustix::io::Result<()> {
        let start = self.base.as_ptr().wrapping_byte_add(part.start);
        // SAFETY: inside the range; none of the advices used here changes its contents.
        unsafe { rustix::mm::madvise(start, part.len(), advice) }
    }

    fn touch_part(&self, part: Range<usize>, access: Access) -> io::Result<()> {
        let advice = match access {
            Access::ReadWrite => Advice::LinuxPopulateWrite,
            Access::ReadOnly => Advice::LinuxPopulateRead,
        };
        match self.advise_part(part.clone(), advice) {
            Err(Errno::INVAL) => self.touch_each_page(part, access),
            done => return Ok(done?),
        }
        Ok(())
    }

    /// Touches each page by an access, on kernels before 5.14.
    fn touch_each_page(&self, part: Range<usize>, access: Access) {
        for word in self.words()[part.start / 8..part.end / 8].iter().step_by(rustix::param::page_size() / 8)
        {
            match access {
                Access::ReadWrite => word.fetch_or(0, Ordering::Relaxed),
                Access::ReadOnly => word.load(Ordering::Relaxed),
            };
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let left = Left { base: self.base, bytes: self.bytes };
        if self.bytes < MANY_BYTES {
            return left.give_back();
        }
        let send = |keeper: &Sender<Work>| keeper.send(Work::GiveBack(left)).map_err(|unsent| unsent.0);
        if let Err(Work::GiveBack(left)) = keeper().map_or(Err(Work::GiveBack(left)), send) {
            left.give_back();
        }
    }
}

/// A range that is no longer used.
#[derive(Clone, Copy)]
struct Left {
    base: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: it is an address range, which nothing accesses.
unsafe impl Send for Left {}

impl Left {
    fn give_back(self) {
        // SAFETY: created only by `Pages::drop`, for a range that was its own, and used once.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Work for the page thread, since it takes long.
enum Work {
    Touch(Weak<Pages>, Access),
    GiveBack(Left),
}

/// Returns the thread that touches and releases pages; `None` if the system refused to start one.
fn keeper() -> Option<&'static Sender<Work>> {
    static KEEPER: OnceLock<Option<Sender<Work>>> = OnceLock::new();
    let start = || {
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("squall-pages".into());
        thread.spawn(move || keep(&receiver)).map(|_| sender).ok()
    };
    KEEPER.get_or_init(start).as_ref()
}

fn keep(work: &Receiver<Work>) {
    for work in work {
        match work {
            Work::Touch(pages, access) => touch_by_parts(&pages, access),
            Work::GiveBack(left) => left.give_back(),
        }
    }
}

/// Touches the pages in parts while they are in use: between two parts, other threads can change mappings of
/// the process.
fn touch_by_parts(pages: &Weak<Pages>, access: Access) {
    let mut start = 0;
    while let Some(pages) = pages.upgrade().filter(|pages| start < pages.bytes) {
        let end = (start + PART_BYTES).min(pages.bytes);
        if let Err(error) = pages.touch_part(start..end, access) {
            // A thread that uses the pages gets them then, or an error.
            crate::log::debug!(bytes = pages.bytes, %error, "failed to touch pages in advance");
            return;
        }
        start = end;
    }
}

/// Ranges of at least this size are touched and released by the page thread: 0.3 ms on an idle machine.
pub(crate) const MANY_BYTES: usize = 1 << 20;

/// Touched in one call, which takes some milliseconds.
const PART_BYTES: usize = 8 << 20;

/// More than any process has; below it, no sum of sizes overflows.
const BYTES_MAX: usize = isize::MAX as usize / 2;

/// The size of a huge page on x86-64, and on aarch64 with 4 KiB pages; elsewhere only the alignment is worse.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of pages that are in memory.
    fn resident(pages: &Pages) -> usize {
        let page = rustix::param::page_size();
        let is_there = |part: usize| {
            let start = pages.base.as_ptr().wrapping_byte_add(part * page);
            let mut residence = [0_u8];
            // SAFETY: one page of the range, and one byte for the result.
            let result = unsafe { libc::mincore(start, page, residence.as_mut_ptr()) };
            result == 0 && residence[0] & 1 == 1
        };
        (0..pages.bytes / page).filter(|part| is_there(*part)).count()
    }

    #[test]
    fn many_pages_are_touched_while_their_user_continues() {
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        let pages = Arc::new(Pages::reserve(3 * PART_BYTES + 5000, 0, writable).unwrap());
        pages.words()[7].store(7, Ordering::Relaxed);
        pages.touch_in_time(Access::ReadWrite).unwrap();
        let all = pages.bytes / rustix::param::page_size();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while resident(&pages) < all {
            assert!(std::time::Instant::now() < end, "{} of {all} pages", resident(&pages));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(pages.words()[7].load(Ordering::Relaxed), 7, "touching changes nothing");
        assert!(pages.words().iter().skip(8).all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn unused_pages_are_released() {
        let pages = Arc::new(Pages::reserve(64 * PART_BYTES, 0, ProtFlags::READ | ProtFlags::WRITE).unwrap());
        let start = pages.base.as_ptr().addr();
        pages.touch_in_time(Access::ReadWrite).unwrap();
        drop(pages);
        let is_mapped = || {
            let mut residence = [0_u8];
            // SAFETY: only queries whether the page at an address is mapped.
            (unsafe { libc::mincore(start as *mut c_void, 1, residence.as_mut_ptr()) }) == 0
        };
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while is_mapped() {
            assert!(std::time::Instant::now() < end, "still mapped");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
