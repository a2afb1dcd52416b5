//! Memory that processes share: sealed anonymous files, mapped by their owner and passed to peers by
//! descriptor.
//!
//! Nothing has a name in any file system, so nothing remains when a process dies. Every address range is
//! reserved first and mapped over afterwards, in one step of the kernel: a concurrent reader sees the old
//! pages or the new ones, never a hole.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::mutex::lock;
use squall_fabric::region::Access;
use squall_fabric::{Region, RegionId};

use super::wire::ShmViolation;
use crate::pages::{HUGE_PAGE_BYTES, MANY_BYTES, Pages};
use crate::shortage;

/// A range of addresses of this process, over which files are mapped.
#[derive(Debug)]
pub(super) struct FileMapping(Arc<Pages>);

impl FileMapping {
    /// Reserves read-only zero pages for at least `bytes`, aligned so that offset `offset` of a file can be
    /// mapped at their beginning with huge pages.
    pub(super) fn reserve(bytes: usize, offset: u64) -> io::Result<Self> {
        Ok(Self(Arc::new(Pages::reserve(bytes, offset, ProtFlags::READ)?)))
    }

    /// Maps `file` from `offset` over the reserved range and has all pages touched, so that the data path
    /// causes no page faults. After an error the range reads as zeros again.
    pub(super) fn place(&self, file: BorrowedFd<'_>, offset: u64, access: Access) -> io::Result<()> {
        let placed = self.try_place(file, offset, access);
        if placed.is_err() {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            let (base, bytes) = (self.base().as_ptr(), self.bytes());
            // SAFETY: the range is owned; its words are atomics that may change at any time anyway.
            unsafe { rustix::mm::mmap_anonymous(base, bytes, ProtFlags::READ, flags) }?;
        }
        placed
    }

    fn try_place(&self, file: BorrowedFd<'_>, offset: u64, access: Access) -> io::Result<()> {
        let protection = match access {
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Access::ReadOnly => ProtFlags::READ,
        };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range is owned; its words are atomics that may change at any time anyway.
        unsafe { rustix::mm::mmap(self.base().as_ptr(), self.bytes(), protection, flags, file, offset) }?;
        if self.bytes() >= HUGE_PAGE_BYTES {
            // Only advice: many machines do not allow huge pages here.
            let _ = self.0.advise(Advice::LinuxHugepage);
        }
        if access == Access::ReadWrite {
            // A forked child must not write what only its parent may write.
            self.0.advise(Advice::LinuxDontFork)?;
        }
        self.0.touch_in_time(access)
    }

    /// Makes a reserved range writable for this process only.
    pub(super) fn make_private(&self) -> io::Result<()> {
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range is owned, and holds private zero pages.
        unsafe { rustix::mm::mprotect(self.base().as_ptr(), self.bytes(), flags) }?;
        // Otherwise copy-on-write could replace a page that a device writes.
        self.0.advise(Advice::LinuxDontFork)?;
        self.0.touch_in_time(Access::ReadWrite)
    }

    /// Reserves a private range of the same size, touched and writable by this process.
    pub(super) fn private_twin(&self) -> io::Result<Self> {
        let twin = Pages::reserve(self.bytes(), 0, ProtFlags::READ | ProtFlags::WRITE)?;
        if twin.bytes() >= HUGE_PAGE_BYTES {
            // Only advice, as in `try_place`.
            let _ = twin.advise(Advice::LinuxHugepage);
        }
        twin.touch(Access::ReadWrite)?;
        Ok(Self(Arc::new(twin)))
    }

    /// Moves the pages of `other`, made read-only, over this range in one step.
    pub(super) fn replace_by(&self, other: Self) -> io::Result<()> {
        assert_eq!(self.bytes(), other.bytes(), "ranges of one size");
        let other = Arc::into_inner(other.0).expect("a private range has one owner");
        // SAFETY: the range is owned, and no code writes it any more.
        unsafe { rustix::mm::mprotect(other.base().as_ptr(), other.bytes(), MprotectFlags::READ) }?;
        let flags = MremapFlags::MAYMOVE;
        let (from, to) = (other.base().as_ptr(), self.base().as_ptr());
        // SAFETY: both ranges are owned; readers of this range see the old words or the new ones.
        unsafe { rustix::mm::mremap_fixed(from, other.bytes(), self.bytes(), flags, to) }?;
        // The kernel has unmapped the old range; unmapping it again could hit a new mapping.
        std::mem::forget(other);
        Ok(())
    }

    /// Returns its first word.
    pub(super) fn first_word(&self) -> NonNull<AtomicU64> {
        self.base().cast()
    }

    /// Returns all its words; they may be stored to only if it was placed for writing.
    pub(super) fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }

    fn base(&self) -> NonNull<c_void> {
        self.0.base()
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// Memory of this process that it can share: a mapping and the file behind it.
#[derive(Debug)]
pub(super) struct ShmSegment {
    mapping: FileMapping,
    file: Mutex<OwnedFd>,
}

impl ShmSegment {
    /// Allocates `words` zeroed words.
    pub(super) fn new(words: usize) -> io::Result<Arc<Self>> {
        let bytes = words.checked_mul(8).ok_or(Errno::NOMEM)?;
        let mapping = FileMapping::reserve(bytes, 0)?;
        let file = new_file(mapping.bytes())?;
        mapping.place(file.as_fd(), 0, Access::ReadWrite)?;
        Ok(Arc::new(Self { mapping, file: Mutex::new(file) }))
    }

    /// Returns its first word.
    pub(super) fn base(&self) -> NonNull<AtomicU64> {
        self.mapping.first_word()
    }

    /// Returns all its words.
    pub(super) fn words(&self) -> &[AtomicU64] {
        self.mapping.words()
    }

    /// Returns the memory as a region of this process.
    pub(super) fn region(self: &Arc<Self>, id: RegionId, words: usize) -> Region {
        assert!(words <= self.mapping.bytes() / 8, "{words} words of {} bytes", self.mapping.bytes());
        // SAFETY: mapped for reading and writing for as long as the segment lives.
        unsafe { Region::from_raw(id, self.mapping.first_word(), words, Access::ReadWrite, self.clone()) }
    }

    /// Returns the segment behind `region`, if it has one.
    pub(super) fn of(region: &Region) -> Option<Arc<Self>> {
        region.memory().clone().downcast().ok()
    }

    /// Returns whether there is a segment behind `region`.
    #[inline]
    pub(super) fn is_behind(region: &Region) -> bool {
        region.memory().is::<Self>()
    }

    /// Returns the file, to be sent to a peer.
    pub(super) fn file(&self) -> MutexGuard<'_, OwnedFd> {
        lock(&self.file)
    }

    /// Seals the file so that no process can map it for writing any more, not even this one; the existing
    /// mapping remains.
    ///
    /// # Panics
    /// Panics if the segment was shared with writers before.
    pub(super) fn seal_for_readers(&self) -> io::Result<()> {
        let file = self.file();
        let seals = rustix::fs::fcntl_get_seals(&*file)?;
        assert!(
            seals.contains(SealFlags::FUTURE_WRITE) || !seals.contains(SealFlags::SEAL),
            "a region that peers may write cannot be a mirror too"
        );
        if !seals.contains(SealFlags::SEAL) {
            rustix::fs::fcntl_add_seals(&*file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        }
        Ok(())
    }

    /// Seals the file so that it may be passed to writers, none of which can change that.
    ///
    /// # Panics
    /// Panics if the segment is a mirror.
    pub(super) fn seal_for_writers(&self) -> io::Result<()> {
        let file = self.file();
        let seals = rustix::fs::fcntl_get_seals(&*file)?;
        assert!(!seals.contains(SealFlags::FUTURE_WRITE), "a mirror has one writer: its owner");
        if !seals.contains(SealFlags::SEAL) {
            rustix::fs::fcntl_add_seals(&*file, SealFlags::SEAL)?;
        }
        Ok(())
    }

    /// Moves the words to pages that no other process has mapped, at the same addresses. Later stores of
    /// other processes into the old pages are not visible to any reader.
    pub(super) fn move_to_new_pages(&self) -> io::Result<()> {
        let mut file = self.file();
        let new_file = new_file(self.mapping.bytes())?;
        let copy = FileMapping::reserve(self.mapping.bytes(), 0)?;
        copy.place(new_file.as_fd(), 0, Access::ReadWrite)?;
        for (old, new) in self.mapping.words().iter().zip(copy.words()) {
            new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        rustix::fs::fcntl_add_seals(&new_file, SealFlags::SEAL)?;
        self.mapping.place(new_file.as_fd(), 0, Access::ReadWrite)?;
        *file = new_file;
        Ok(())
    }
}

/// Maps `words` words of a peer's file from word `first`. The file must be sealed against shrinking, so that
/// its owner cannot remove pages from the mapping.
pub(super) fn map_peer_file(
    file: &OwnedFd,
    first: u64,
    words: u64,
    access: Access,
) -> Result<Region, ShmViolation> {
    check_peer_file(file, first, words)?;
    let page_words = rustix::param::page_size() as u64 / 8;
    let skip = first % page_words;
    let offset = (first - skip) * 8;
    let bytes =
        usize::try_from((skip + words) * 8).map_err(|_| ShmViolation("a file beyond the address space"))?;
    let map = || {
        let mapping = FileMapping::reserve(bytes, offset)?;
        mapping.place(file.as_fd(), offset, access)?;
        Ok(mapping)
    };
    let mapping = map().map_err(|error: io::Error| match shortage::is_shortage(&error) {
        // The shortage is not the peer's fault.
        true => shortage::shortage(&format!("memory for {bytes} bytes of a peer's"), &error).unwind(),
        false => ShmViolation("a file that cannot be mapped"),
    })?;
    let (skip, words) = (skip as usize, words as usize);
    // SAFETY: `skip` words are inside the mapping, see `bytes` above.
    let base = unsafe { mapping.first_word().add(skip) };
    // SAFETY: mapped as `access` says for as long as the mapping lives.
    Ok(unsafe { Region::from_raw(INTERNAL, base, words, access, Arc::new(mapping)) })
}

/// Checks that words `first..first + words` of a peer's file can be mapped and cannot be removed.
pub(super) fn check_peer_file(file: &OwnedFd, first: u64, words: u64) -> Result<(), ShmViolation> {
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| ShmViolation("a file without seals"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(ShmViolation("a file that could shrink"));
    }
    let end = first.checked_add(words).and_then(|end| end.checked_mul(8));
    let end = end.ok_or(ShmViolation("a range beyond the address space"))?;
    let size = rustix::fs::fstat(file).map_err(|_| ShmViolation("a file of unknown size"))?.st_size;
    if u64::try_from(size).is_ok_and(|size| end <= size) {
        Ok(())
    } else {
        Err(ShmViolation("a file that is smaller than announced"))
    }
}

fn new_file(bytes: usize) -> io::Result<OwnedFd> {
    let file = anonymous_file()?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    if bytes >= MANY_BYTES {
        // The pages are cleared later: a page that is missing then would kill the process.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
    }
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

/// Creates an anonymous file that can be sealed, and never be executed where the kernel knows that: some refuse other files
/// (`vm.memfd_noexec = 2`).
pub(super) fn anonymous_file() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create("squall", flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => Ok(rustix::fs::memfd_create("squall", flags)?),
        created => Ok(created?),
    }
}

/// The id of the transport's own regions, which no protocol sees.
pub(super) const INTERNAL: RegionId = RegionId(0);
