//! A file as a region: what is sent from it and what lands in it passes by the file's descriptor, and none of it is mapped.
//!
//! Others may cut a file while it is sent or received, and a disk may fail. An access to a mapped page that is gone would end the process;
//! a system call reports it. So the region is addresses only, behind which there is nothing of the file.
//!
//! Unencrypted streams send by `sendfile`, which passes the pages themselves to the socket, and receive by two calls of `splice` with a pipe
//! between them: one copy at each receiver, none at the sender. Encrypted streams, and systems without these calls, copy through memory.
//!
//! **Failures.** What cannot be read is sent as zeros: the owner of the file finds out when it reads it, too. What cannot be written is
//! noted, and the receiver asks for it ([`TcpFabric::file_failure`]).
//!
//! Pages that are on their way in a socket are those of the file: bytes that change before the receiver has them may arrive changed,
//! as with any range that is stored to before its post is done [F5].

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_fabric::mutex::lock;
use squall_fabric::region::Access;
use squall_fabric::{Region, RegionId};

use super::TcpFabric;
use super::output::as_bytes;

/// A file, and the addresses that stand for it.
#[derive(Debug)]
pub(super) struct FilePages {
    start: NonNull<c_void>,
    bytes: usize,
    file: File,
    /// The kernel does not pass its pages to or from sockets.
    only_copied: AtomicBool,
    /// Why something is not in the file.
    failure: Mutex<Option<io::Error>>,
}

// SAFETY: it is a range of addresses, whose contents are accessed as atomics only, if at all.
unsafe impl Send for FilePages {}
// SAFETY: as above.
unsafe impl Sync for FilePages {}

/// Bytes of a region that is a file. The last ones may be behind the end of the file, which need not end with a whole word: they are zeros.
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
    /// Makes a region of the first `bytes` bytes of a file: what lands there is in the file at once, and what is sent is read from there.
    /// Loads and stores of this process do not reach the file.
    ///
    /// # Errors
    /// Returns an error if the file is shorter, or the system has no addresses for it.
    pub fn file_region(&mut self, file: &File, bytes: usize, access: Access) -> io::Result<Region> {
        file_region(self.region_id(), file, bytes, access)
    }

    /// Takes the error because of which what has landed in a region is not in its file.
    pub fn file_failure(&self, region: &Region) -> Option<io::Error> {
        lock(&region.memory().downcast_ref::<FilePages>()?.failure).take()
    }
}

fn file_region(id: RegionId, file: &File, bytes: usize, access: Access) -> io::Result<Region> {
    if file.metadata()?.len() < bytes as u64 {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "the file is shorter than announced"));
    }
    if bytes == 0 {
        return Ok(Region::heap(id, 1));
    }
    let file = file.try_clone()?;
    let (null, flags) = (std::ptr::null_mut(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { rustix::mm::mmap_anonymous(null, bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let start = NonNull::new(start?).expect("the kernel maps nothing at 0");
    let only_copied = AtomicBool::new(!ignores_sigpipe());
    let pages = FilePages { start, bytes, file, only_copied, failure: Mutex::new(None) };
    // SAFETY: the mapping is of whole pages, so of whole words; it lives as long as the region; it is accessed as atomics only.
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

/// Returns bytes of a region as a piece of its file, if it is a file.
pub(super) fn piece(region: &Region, bytes: Range<usize>) -> Option<FilePiece<'_>> {
    let pages = region.memory().downcast_ref::<FilePages>()?;
    let first = region.pointer(bytes.start / 8).addr().get() + bytes.start % 8 - pages.start.addr().get();
    Some(FilePiece { pages, offset: first as u64, length: bytes.len() })
}

/// Same as [`super::input::land`], into the file if the region is one.
pub(super) fn land(region: &Region, first: usize, words: &[u64]) {
    match piece(region, 8 * first..8 * (first + words.len())) {
        Some(piece) => piece.write(as_bytes(words)),
        None => super::input::land(region, first, words),
    }
}

/// Copies words of a region, from the file if the region is one.
pub(super) fn copy_out(region: &Region, first: usize, target: &mut [u64]) {
    let Some(piece) = piece(region, 8 * first..8 * (first + target.len())) else {
        return region.copy_out(first, target);
    };
    let mut bytes = [0; COPIED_BYTES];
    for (part, words) in target.chunks_mut(COPIED_BYTES / 8).enumerate() {
        let bytes = &mut bytes[..8 * words.len()];
        piece.read(part * COPIED_BYTES, bytes);
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
    }
}

impl FilePiece<'_> {
    /// Sends some prefix of the piece; returns its length.
    pub(super) fn send(&self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let (mut offset, inside) = (self.offset, self.inside());
        if inside > 0 && !self.is_copied() {
            match rustix::fs::sendfile(socket, &self.pages.file, Some(&mut offset), inside) {
                Err(error @ (Errno::AGAIN | Errno::INTR)) => return Err(error.into()),
                // The file is shorter now, its disk fails, or the system does not do it. If it is the socket, the next call reports it.
                Ok(0) | Err(_) => self.copy_from_now_on(),
                Ok(sent) => return Ok(sent),
            }
        }
        let mut bytes = [0; COPIED_BYTES];
        let bytes = &mut bytes[..self.length.min(COPIED_BYTES)];
        self.read(0, bytes);
        Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?)
    }

    /// Returns its first bytes.
    pub(super) fn first(self, bytes: usize) -> Self {
        Self { length: self.length.min(bytes), ..self }
    }

    /// Reads bytes from place `first` of the piece on. What is not there reads as zeros.
    pub(super) fn read(&self, first: usize, target: &mut [u8]) {
        let (mut done, offset) = (0, self.offset + first as u64);
        while done < target.len() {
            match self.pages.file.read_at(&mut target[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let inside = self.pages.bytes.saturating_sub(usize::try_from(offset).expect("inside the addresses"));
        target[done.min(inside)..].fill(0);
    }

    /// Writes its first bytes, or notes that they cannot be written.
    pub(super) fn write(&self, bytes: &[u8]) {
        let inside = &bytes[..bytes.len().min(self.inside())];
        if let Err(error) = self.pages.file.write_all_at(inside, self.offset) {
            lock(&self.pages.failure).get_or_insert(error);
        }
    }

    /// Fills some prefix of the piece with what the socket has received; returns its length, 0 at the end of the stream. After an error
    /// something may be left in the pipe.
    pub(super) fn receive(&self, socket: BorrowedFd<'_>, pipe: &FilePipe) -> io::Result<usize> {
        // Whole words of the file: behind its end nothing is written.
        let whole = self.inside() / 8 * 8;
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        if whole > 0 && !self.is_copied() {
            match splice(socket, None, &pipe.writer, None, whole, flags) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => self.copy_from_now_on(),
                received => {
                    let received = received?;
                    self.pass(pipe, received)?;
                    return Ok(received);
                }
            }
        }
        let mut bytes = [0; COPIED_BYTES];
        let length = self.length.min(COPIED_BYTES);
        let (received, _) = rustix::net::recv(socket, &mut bytes[..length], RecvFlags::empty())?;
        self.write(&bytes[..received]);
        Ok(received)
    }

    /// Passes what is in the pipe on to the file.
    fn pass(&self, pipe: &FilePipe, received: usize) -> io::Result<()> {
        let (mut passed, flags) = (0, SpliceFlags::NONBLOCK | SpliceFlags::MOVE);
        while passed < received {
            let mut offset = self.offset + passed as u64;
            let rest = received - passed;
            match splice(&pipe.reader, None, &self.pages.file, Some(&mut offset), rest, flags) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => {
                    self.copy_from_now_on();
                    let mut bytes = [0; COPIED_BYTES];
                    let read = rustix::io::read(&pipe.reader, &mut bytes[..rest.min(COPIED_BYTES)])?;
                    if read == 0 {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    Self { offset: self.offset + passed as u64, ..*self }.write(&bytes[..read]);
                    passed += read;
                }
                Ok(taken) => passed += taken,
            }
        }
        Ok(())
    }

    /// How many of its bytes are in the file.
    fn inside(&self) -> usize {
        let offset = usize::try_from(self.offset).expect("inside the addresses");
        self.length.min(self.pages.bytes.saturating_sub(offset))
    }

    fn is_copied(&self) -> bool {
        // SYNC: a flag that stands for nothing else.
        self.pages.only_copied.load(Ordering::Relaxed)
    }

    fn copy_from_now_on(&self) {
        // SYNC: a flag that stands for nothing else.
        self.pages.only_copied.store(true, Ordering::Relaxed);
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
        // SAFETY: mapped in `file_region`, and no region over it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// As much as one read takes, and as any user may have.
const PIPE_BYTES: usize = 1 << 20;
/// A piece that is copied through memory: a record of an encrypted stream, and little enough for the stack.
const COPIED_BYTES: usize = 16 << 10;
