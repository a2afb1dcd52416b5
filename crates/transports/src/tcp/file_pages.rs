//! Pages of a file as a region, which the kernel sends from and receives into without mapping them.
//!
//! `sendfile` passes the pages themselves to the socket, and two calls of `splice`, with a pipe between them, copy what has arrived
//! into the page cache: one copy at each receiver, none at the sender, and no page of the mapping is touched. Storing through the
//! mapping takes a page fault or its share of a call for each page, and on `tmpfs` the kernel clears each new page before it is
//! overwritten. The mapping is for what these calls do not take: encrypted streams, short payloads, and file systems without them.
//!
//! Pages that are on their way in a socket are those of the file: bytes that change before the receiver has them may arrive changed,
//! as with any range that is stored to before its post is done [F5].

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};
use squall_fabric::region::Access;
use squall_fabric::{Region, RegionId};

use super::TcpFabric;

/// Mapped pages of a file.
#[derive(Debug)]
pub(super) struct FilePages {
    start: NonNull<c_void>,
    bytes: usize,
    file: File,
    /// The file cannot be sent from, or received into, by its descriptor.
    only_mapped: AtomicBool,
}

// SAFETY: it is memory whose contents are accessed as atomics only.
unsafe impl Send for FilePages {}
// SAFETY: as above.
unsafe impl Sync for FilePages {}

/// Bytes of a file that is mapped as a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilePiece<'r> {
    pages: &'r FilePages,
    offset: u64,
    pub(super) length: usize,
}

/// A pipe through which what a socket has received passes into files.
#[derive(Debug)]
pub(super) struct FilePipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl TcpFabric {
    /// Maps the first `bytes` bytes of a file as a region: what lands there is in the file at once. All these
    /// bytes must be allocated in the file while the region lives: a page that the file system cannot provide
    /// may kill the process.
    ///
    /// # Errors
    /// Returns an error if the file is shorter, or the system refuses to map it.
    pub fn map_file(&mut self, file: &File, bytes: usize, access: Access) -> io::Result<Region> {
        map_file(self.region_id(), file, bytes, access)
    }
}

/// Maps the first `bytes` bytes of a file, in the page cache that all processes share. Bytes after the end of
/// the file read as zeros, and stores into them are lost.
///
/// # Errors
/// Returns an error if the file is shorter, or the system refuses.
fn map_file(id: RegionId, file: &File, bytes: usize, access: Access) -> io::Result<Region> {
    if file.metadata()?.len() < bytes as u64 {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "the file is shorter than announced"));
    }
    if bytes == 0 {
        return Ok(Region::heap(id, 1));
    }
    let protection = match access {
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        Access::ReadOnly => ProtFlags::READ,
    };
    let file = file.try_clone()?;
    let null = std::ptr::null_mut();
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { rustix::mm::mmap(null, bytes, protection, MapFlags::SHARED, &file, 0) }?;
    let start = NonNull::new(start).expect("the kernel maps nothing at 0");
    let pages = FilePages { start, bytes, file, only_mapped: AtomicBool::new(!ignores_sigpipe()) };
    // SAFETY: the mapping is of whole pages, so of whole words; it lives as long as the region; it is
    // accessed as atomics only. Other processes may change the file, as other nodes may change a region.
    Ok(unsafe { Region::from_raw(id, start.cast(), bytes.div_ceil(8), access, Arc::new(pages)) })
}

/// Returns whether writing to a connection that has ended leaves this process alive: `sendfile` has no flag that asks for that.
fn ignores_sigpipe() -> bool {
    // SAFETY: a `sigaction` of zeros is valid.
    let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and `found` has space for the answer.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut found) };
    asked == 0 && found.sa_sigaction != libc::SIG_DFL
}

/// Returns bytes of a region as a piece of its file, if it is a file whose descriptor can be used and all of them are in it.
pub(super) fn piece(region: &Region, bytes: Range<usize>) -> Option<FilePiece<'_>> {
    let pages = region.memory().downcast_ref::<FilePages>()?;
    // SYNC: a flag that stands for nothing else.
    if pages.only_mapped.load(Ordering::Relaxed) {
        return None;
    }
    let first = region.pointer(bytes.start / 8).addr().get() + bytes.start % 8 - pages.start.addr().get();
    (first + bytes.len() <= pages.bytes).then_some(FilePiece {
        pages,
        offset: first as u64,
        length: bytes.len(),
    })
}

/// Has the pages of some words mapped by one call, if they are a file's: a page fault for each of them costs more than copying into it.
/// The words are about to be stored to.
pub(super) fn expect_stores(region: &Region, words: Range<usize>) {
    if !region.memory().is::<FilePages>() {
        return;
    }
    let start = region.pointer(words.start).cast::<u8>();
    let before = start.as_ptr().addr() % rustix::param::page_size();
    let (start, bytes) = (start.as_ptr().wrapping_byte_sub(before), before + 8 * words.len());
    // An error means that the pages are mapped by faults, which report what the file system cannot provide.
    // SAFETY: pages of the mapping, whose contents do not change.
    let _ = unsafe { rustix::mm::madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) };
}

impl FilePiece<'_> {
    /// Sends some prefix of the piece; returns its length, 0 if it has to be sent through the mapping from now on.
    pub(super) fn send(&self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut offset = self.offset;
        match rustix::fs::sendfile(socket, &self.pages.file, Some(&mut offset), self.length) {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the file has become shorter")),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                self.use_mapping();
                Ok(0)
            }
            sent => Ok(sent?),
        }
    }

    /// Returns its first bytes.
    pub(super) fn first(self, bytes: usize) -> Self {
        Self { length: self.length.min(bytes), ..self }
    }

    /// Returns the word that holds the last of the first `bytes` bytes, which is not whole.
    pub(super) fn last_word(&self, bytes: usize) -> [u8; 8] {
        let word = (usize::try_from(self.offset).expect("inside the mapping") + bytes) / 8;
        // SAFETY: inside the mapping.
        let word = unsafe { self.pages.start.cast::<AtomicU64>().add(word) };
        // SAFETY: the words of the mapping are atomics.
        let word = unsafe { word.as_ref() };
        word.load(Ordering::Relaxed).to_le_bytes()
    }

    /// Fills some prefix of the piece with what the socket has received; returns its length, 0 at the end of the stream. After an error
    /// something may be left in the pipe.
    pub(super) fn receive(&self, socket: BorrowedFd<'_>, pipe: &FilePipe) -> io::Result<usize> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let received = splice(socket, None, &pipe.writer, None, self.length, flags)?;
        let mut passed = 0;
        while passed < received {
            let mut offset = self.offset + passed as u64;
            let taken =
                splice(&pipe.reader, None, &self.pages.file, Some(&mut offset), received - passed, flags);
            passed += match taken {
                Err(Errno::INTR) => 0,
                Ok(0) | Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    self.use_mapping();
                    self.copy_rest(pipe, passed..received)?
                }
                taken => taken?,
            };
        }
        Ok(received)
    }

    /// Stores what is left in the pipe through the mapping.
    fn copy_rest(&self, pipe: &FilePipe, rest: Range<usize>) -> io::Result<usize> {
        let first = usize::try_from(self.offset).expect("inside the mapping") + rest.start;
        let target = self.pages.start.as_ptr().cast::<u8>().wrapping_add(first);
        // SAFETY: inside the mapping, whose words are atomics, to which no exclusive references exist; the kernel stores into them as
        // another process does into shared memory.
        let read =
            unsafe { libc::read(rustix::fd::AsRawFd::as_raw_fd(&pipe.reader), target.cast(), rest.len()) };
        match usize::try_from(read) {
            Ok(read) if read > 0 => Ok(read),
            Ok(_) => Err(ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    fn use_mapping(&self) {
        // SYNC: a flag that stands for nothing else.
        self.pages.only_mapped.store(true, Ordering::Relaxed);
    }
}

impl FilePipe {
    pub(super) fn new() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // The system may allow less.
        let _ = fcntl_setpipe_size(writer.as_fd(), PIPE_BYTES);
        Ok(Self { reader, writer })
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        // SAFETY: mapped in `map_file`, and no region over it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// As much as one read takes, and as any user may have.
const PIPE_BYTES: usize = 1 << 20;
