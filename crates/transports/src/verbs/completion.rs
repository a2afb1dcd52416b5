//! Completion queues: where the device reports which posts are done and what has arrived (verbs: CQ), and the
//! channel through which it wakes a sleeping node.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fd::{AsRawFd, BorrowedFd};

use super::device::{VerbsDevice, status};
use super::ffi;

/// A channel that is readable when a completion arrives in a queue that was armed.
pub(super) struct CompletionChannel {
    device: Arc<VerbsDevice>,
    channel: NonNull<ffi::ibv_comp_channel>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Creates a channel that never blocks its reader.
    pub(super) fn new(device: &Arc<VerbsDevice>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open.
        let channel = unsafe { device.library().ibv_create_comp_channel(device.context().as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let channel = Self { device: device.clone(), channel };
        rustix::io::ioctl_fionbio(channel.fd(), true)?;
        Ok(Arc::new(channel))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive as long as `self`.
        let fd = unsafe { self.channel.as_ref() }.fd;
        // SAFETY: as above, and so is its file descriptor.
        unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) }
    }

    /// Takes all notices, so that the channel is not readable any more; returns their number.
    pub(super) fn silence(&self) -> usize {
        let mut notices = 0;
        let mut queue = std::ptr::null_mut();
        let mut context = std::ptr::null_mut();
        let (library, channel) = (self.device.library(), self.channel.as_ptr());
        // SAFETY: the channel is alive, and the call stores two pointers; it does not block.
        while unsafe { library.ibv_get_cq_event(channel, &raw mut queue, &raw mut context) } == 0 {
            // SAFETY: acknowledged once, and the queue is alive: its destruction waits for this.
            unsafe { library.ibv_ack_cq_events(queue, 1) };
            notices += 1;
        }
        notices
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: the queues hold the channel, so they are gone.
        unsafe { self.device.library().ibv_destroy_comp_channel(self.channel.as_ptr()) };
    }
}

/// A completion queue.
pub(super) struct CompletionQueue {
    channel: Arc<CompletionChannel>,
    queue: NonNull<ffi::ibv_cq>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue of at least `entries` entries.
    pub(super) fn new(channel: &Arc<CompletionChannel>, entries: usize) -> io::Result<Arc<Self>> {
        let device = &channel.device;
        let (context, entries) = (device.context().as_ptr(), i32::try_from(entries).expect("a small queue"));
        let no_context = std::ptr::null_mut();
        // SAFETY: the device is open and the channel alive.
        let queue = unsafe {
            device.library().ibv_create_cq(context, entries, no_context, channel.channel.as_ptr(), 0)
        };
        let queue = NonNull::new(queue).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Self { channel: channel.clone(), queue }))
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_cq {
        self.queue.as_ptr()
    }

    /// Takes up to [`BATCH`] completions; returns those that were available.
    pub(super) fn poll<'a>(&self, batch: &'a mut CompletionBatch) -> &'a [ffi::ibv_wc] {
        let poll = self.operations().poll_cq.expect("every device has this operation");
        let most = i32::try_from(BATCH).expect("a small batch");
        // SAFETY: the queue is alive, and the batch has space for this many.
        let taken = unsafe { poll(self.as_ptr(), most, batch.entries.as_mut_ptr()) };
        let taken = usize::try_from(taken).expect("a queue that never overflows can be polled");
        &batch.entries[..taken]
    }

    /// Makes the next completion readable on the channel. Completions that are in the queue already do not
    /// count: poll once more.
    pub(super) fn arm(&self) {
        let arm = self.operations().req_notify_cq.expect("every device has this operation");
        // SAFETY: the queue is alive.
        let armed = status(unsafe { arm(self.as_ptr(), 0) });
        armed.expect("a queue with a channel can be armed");
    }

    fn operations(&self) -> &ffi::ibv_context_ops {
        // SAFETY: the device is open as long as the channel holds it, and its table never changes.
        &unsafe { self.channel.device.context().as_ref() }.ops
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.channel.silence();
        // SAFETY: the queue pairs hold the queue, so they are gone, and all its events are acknowledged.
        unsafe { self.channel.device.library().ibv_destroy_cq(self.as_ptr()) };
    }
}

/// Space for the completions of one call.
pub(super) struct CompletionBatch {
    entries: Box<[ffi::ibv_wc; BATCH]>,
}

impl CompletionBatch {
    pub(super) fn new() -> Self {
        // SAFETY: integers only, for which zeros are valid.
        let empty: ffi::ibv_wc = unsafe { std::mem::zeroed() };
        Self { entries: Box::new([empty; BATCH]) }
    }
}

/// The most completions taken by one call.
pub(super) const BATCH: usize = 32;

/// The completion queues of a node. Queue pairs share them, and each has reserved an entry for every post
/// that it can hold, because a queue that overflows is lost.
pub(super) struct CompletionQueues {
    channel: Arc<CompletionChannel>,
    queues: Vec<Shared>,
    entries_max: usize,
}

struct Shared {
    queue: Arc<CompletionQueue>,
    /// `reserved <= entries_max`
    reserved: usize,
    /// Of these, the entries of ended queue pairs, whose completions may still be in the queue.
    leaving: usize,
}

impl CompletionQueues {
    pub(super) fn new(device: &Arc<VerbsDevice>) -> io::Result<Self> {
        let entries_max = ENTRIES.min(device.completions_max);
        Ok(Self { channel: CompletionChannel::new(device)?, queues: Vec::new(), entries_max })
    }

    pub(super) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    /// Reserves `entries` entries; returns a queue that has them, and its place.
    pub(super) fn reserve(&mut self, entries: usize) -> io::Result<(usize, Arc<CompletionQueue>)> {
        assert!(entries <= self.entries_max, "{entries} entries for one queue pair");
        let large = self.queues.iter().position(|shared| shared.reserved + entries <= self.entries_max);
        let place = match large {
            Some(place) => place,
            None => {
                let queue = CompletionQueue::new(&self.channel, self.entries_max)?;
                self.queues.push(Shared { queue, reserved: 0, leaving: 0 });
                self.queues.len() - 1
            }
        };
        self.queues[place].reserved += entries;
        Ok((place, self.queues[place].queue.clone()))
    }

    /// Releases the entries of an ended queue pair; they are free once the queue has been seen empty.
    pub(super) fn release(&mut self, place: usize, entries: usize) {
        self.queues[place].leaving += entries;
    }

    /// Takes completions of the queue at `place`; fewer than [`BATCH`] mean that it is empty.
    pub(super) fn poll<'a>(&mut self, place: usize, batch: &'a mut CompletionBatch) -> &'a [ffi::ibv_wc] {
        let shared = &mut self.queues[place];
        let completions = shared.queue.poll(batch);
        if completions.len() < BATCH {
            shared.reserved -= std::mem::take(&mut shared.leaving);
        }
        completions
    }

    pub(super) fn arm(&self) {
        self.queues.iter().for_each(|shared| shared.queue.arm());
    }

    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }
}

/// The entries of one completion queue, where the device allows that many.
const ENTRIES: usize = 1 << 14;
