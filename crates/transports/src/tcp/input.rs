//! Input: the incoming stream of one peer, cut into headers and payloads.
//!
//! All peers share one receive buffer, which therefore stays in the cache; bytes that a peer's last read left
//! over, fewer than a header, are kept with the peer. Payloads are stored from the buffer as they arrive; the
//! rest of a long one is read directly into its region.

use std::ptr::NonNull;

use squall_fabric::atomics::{AtomicU64, Ordering, fence};
use squall_fabric::{Region, mutant};

use super::connection::TcpReceive;
use super::file_pages::FilePipe;
use super::frame::{HEADER_WORDS_MAX, WriteFrame};
use super::mutation;

/// The buffer into which all streams are read.
#[derive(Debug)]
pub(super) struct ReceiveBuffer {
    words: Box<[u64]>,
    /// Empty; made when a file is received into for the first time.
    pub(super) pipe: Option<FilePipe>,
}

/// The state of one stream between two reads.
#[derive(Debug)]
pub(super) struct StreamInput {
    /// Received and not used: an incomplete header, or an incomplete word of a payload.
    rest: [u8; 8 * HEADER_WORDS_MAX],
    /// `rest_length < rest.len()`
    rest_length: usize,
    /// The frame whose payload has not arrived completely.
    pub(super) payload: Option<FramePayload>,
    /// Whether the last payload was long, so that the next may be, too.
    pub(super) expects_long: bool,
    /// How many words of the stream are handled \[C3\], and of how many the peer knows.
    pub(super) handled: u64,
    acknowledged: u64,
    /// Whether the peer may hold a reference to the last payload, and to one that has ended.
    is_reference: bool,
    ended_reference: bool,
}

/// A frame whose header has been handled.
#[derive(Debug)]
pub(super) struct FramePayload {
    pub(super) target: PayloadTarget,
    /// Words that are still to arrive.
    pub(super) words: usize,
}

/// The destination of a payload.
#[derive(Debug)]
pub(super) enum PayloadTarget {
    /// Words of an attachment, from `next` on.
    Attachment { attachment: u32, next: u32 },
    /// Words under a grant, which is looked up again for each part; `frame` describes what is still to be
    /// written.
    Grant { frame: WriteFrame },
    /// The memory of a posted receive, from word `next` of it on.
    Receive { connection: u32, receive: TcpReceive, next: usize, length: u32, signal: bool },
    /// The last stalled post of a connection.
    Stall { connection: u32 },
    /// Nowhere: the connection has ended.
    Discard,
}

impl PayloadTarget {
    /// Returns the connection to which the payload belongs.
    pub(super) fn connection(&self) -> Option<u32> {
        match *self {
            Self::Grant { frame: WriteFrame { connection, .. } }
            | Self::Receive { connection, .. }
            | Self::Stall { connection } => Some(connection),
            Self::Attachment { .. } | Self::Discard => None,
        }
    }
}

impl ReceiveBuffer {
    pub(super) fn new() -> Self {
        Self { words: vec![0; BUFFER_WORDS].into(), pipe: None }
    }

    /// Returns the first `count` words.
    pub(super) fn words(&self, count: usize) -> &[u64] {
        &self.words[..count]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = size_of_val(&*self.words);
        // SAFETY: the buffer's own memory, which is initialised, and for which any bytes are valid words.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), bytes) }
    }
}

impl StreamInput {
    /// Returns the state at the beginning of a stream.
    pub(super) fn new() -> Self {
        Self {
            rest: [0; 8 * HEADER_WORDS_MAX],
            rest_length: 0,
            payload: None,
            expects_long: false,
            handled: 0,
            acknowledged: 0,
            is_reference: false,
            ended_reference: false,
        }
    }

    /// Drops the bytes left over, which a connection that is gone has brought: the next one begins at a word. A payload of which a part
    /// has arrived is continued \[C8\].
    pub(super) fn drop_rest(&mut self) {
        mutant!(ForgetPayload => self.payload = None);
        mutant!(KeepRest => return);
        self.rest_length = 0;
    }

    /// Notes that the payload has arrived.
    pub(super) fn end_payload(&mut self) -> Option<FramePayload> {
        self.ended_reference |= self.is_reference;
        self.payload.take()
    }

    /// Returns how many words are handled, if the peer is to be sent that: with other output sooner than by itself \[C4\].
    pub(super) fn take_handled(&mut self, with_output: bool) -> Option<u64> {
        let unknown = self.handled - self.acknowledged;
        let is_due = unknown >= ACKNOWLEDGED_ALONE
            || with_output && (unknown >= ACKNOWLEDGED_WORDS_MIN as u64 || self.ended_reference);
        is_due.then(|| self.state_handled())
    }

    /// Returns how many words are handled: the peer is sent that.
    pub(super) fn state_handled(&mut self) -> u64 {
        (self.acknowledged, self.ended_reference) = (self.handled, false);
        self.handled
    }

    /// Expects a payload of this many words.
    pub(super) fn expect(&mut self, target: PayloadTarget, words: usize) {
        self.payload = Some(FramePayload { target, words });
        self.expects_long = 8 * words >= LONG_BYTES_MIN;
        self.is_reference = words >= ACKNOWLEDGED_WORDS_MIN;
    }

    /// Returns how many bytes to read into the buffer if it has space for `space` bytes. A long payload is
    /// usually followed by another, which is read directly to its destination if only its header is read
    /// first.
    pub(super) fn wanted(&self, space: usize) -> usize {
        let payload = self.payload.as_ref().map_or(0, |payload| 8 * payload.words);
        if self.expects_long { space.min(payload + AHEAD_BYTES) } else { space }
    }

    /// Copies the bytes left over to the beginning of the buffer; returns their number. They remain left over
    /// until [`StreamInput::keep`] is called.
    pub(super) fn restore(&self, buffer: &mut ReceiveBuffer) -> usize {
        let length = self.rest_length;
        buffer.bytes_mut()[..length].copy_from_slice(&self.rest[..length]);
        length
    }

    /// Keeps the bytes left over: those of the buffer from `start` to `end`.
    pub(super) fn keep(&mut self, buffer: &mut ReceiveBuffer, start: usize, end: usize) {
        self.rest_length = end - start;
        self.rest[..self.rest_length].copy_from_slice(&buffer.bytes_mut()[start..end]);
    }

    /// Returns the connection to which the arriving payload belongs.
    pub(super) fn connection(&self) -> Option<u32> {
        self.payload.as_ref()?.target.connection()
    }

    /// Cancels the payload of a dead connection: nothing more of its posts lands.
    pub(super) fn cancel(&mut self, connection: u32) {
        if self.connection() == Some(connection)
            && let Some(payload) = &mut self.payload
        {
            payload.target = PayloadTarget::Discard;
        }
    }

    /// Returns how many bytes of the payload's next word are missing, if it has begun; 0 at a word boundary.
    pub(super) fn missing(&self) -> usize {
        assert!(self.payload.is_some() && self.rest_length < 8, "whole words are used at once");
        if self.rest_length == 0 { 0 } else { 8 - self.rest_length }
    }

    /// Adds some of the missing bytes; returns the payload's next word if it is complete now.
    /// Fuzzed as `tcp`.
    pub(super) fn on_missing(&mut self, bytes: &[u8]) -> Option<u64> {
        self.rest[self.rest_length..][..bytes.len()].copy_from_slice(bytes);
        self.rest_length += bytes.len();
        if self.rest_length < 8 {
            return None;
        }
        self.rest_length = 0;
        Some(u64::from_le_bytes(self.rest[..8].try_into().expect("8 bytes")))
    }

    /// Keeps the first bytes of the payload's next word.
    pub(super) fn keep_begun(&mut self, begun: &[u8]) {
        self.rest_length = begun.len();
        self.rest[..begun.len()].copy_from_slice(begun);
    }
}

/// Stores words of one frame, each whole [F3], after everything stored before [F1, F4].
#[inline]
pub(super) fn land(region: &Region, first: usize, words: &[u64]) {
    order_after_earlier_frames();
    for (word, value) in atoms(region, first, words.len()).iter().zip(words) {
        word.store(*value, Ordering::Relaxed);
    }
}

/// Orders the stores that follow after all earlier frames. Must be called before words of a frame are stored
/// without order among them [F2].
#[inline]
pub(super) fn order_after_earlier_frames() {
    // SYNC: pairs with the acquiring `Region::load` of a reader of one of the words stored next: it then also
    // sees all frames that landed before this one.
    fence(Ordering::Release);
}

/// Returns words of a region.
///
/// # Panics
/// Panics if the range ends beyond the region.
#[inline]
fn atoms(region: &Region, first: usize, count: usize) -> &[AtomicU64] {
    region.check(&(first..first + count));
    let start: NonNull<AtomicU64> = region.pointer(first);
    // SAFETY: inside the region, as checked, so valid and aligned as `Region` promises; atomics may be
    // shared.
    unsafe { std::slice::from_raw_parts(start.as_ptr(), count) }
}

/// Payloads of at least this size are read directly into their region.
pub(super) const LONG_BYTES_MIN: usize = 16 << 10;

/// The bytes to read after a long payload: some headers.
pub(super) const AHEAD_BYTES: usize = 512;

/// What was handled is acknowledged with other output from 1 KiB on, which is also the length from which a payload may be a reference, and by
/// itself from 64 KiB on.
const ACKNOWLEDGED_WORDS_MIN: usize = 128;
const ACKNOWLEDGED_ALONE: u64 = 8 << 10;

/// 256 KiB, the size of one read: a quarter of a typical second-level cache, which amortises the system call.
/// It also bounds the work that one peer can cause in one poll.
const BUFFER_WORDS: usize = 32 << 10;
