//! Input: the incoming stream of one peer, cut into headers and payloads.
//!
//! All peers share one receive buffer, which so stays in the cache; what a peer's last read left over, less than
//! a header, is kept with the peer. Payloads are stored from the buffer as they come; the rest of a long one is
//! read straight into its region.

use std::ptr::NonNull;

use squall_fabric::Region;
use squall_fabric::atomics::{AtomicU64, Ordering, fence};

use super::connection::TcpReceive;
use super::frame::{HEADER_WORDS_MAX, WriteFrame};

/// Where all streams are read to.
#[derive(Debug)]
pub(super) struct ReceiveBuffer {
    words: Box<[u64]>,
}

/// What is left of one stream between two reads.
#[derive(Debug)]
pub(super) struct StreamInput {
    /// Received and not used: an incomplete header, or an incomplete word of a payload.
    rest: [u8; 8 * HEADER_WORDS_MAX],
    /// `rest_length < rest.len()`
    rest_length: usize,
    /// The frame of which payload is still to come.
    pub(super) payload: Option<FramePayload>,
    /// The last payload was long, so that the next may be.
    pub(super) expects_long: bool,
}

/// A frame of which the header is done.
#[derive(Debug)]
pub(super) struct FramePayload {
    pub(super) target: PayloadTarget,
    /// Words that are still to come.
    pub(super) words: usize,
}

/// Where a payload goes.
#[derive(Debug)]
pub(super) enum PayloadTarget {
    /// Words of an attachment, from `next` on.
    Attachment { attachment: u32, next: u32 },
    /// Words under a grant, which is looked up again for each part; `frame` says what is still to be written.
    Grant { frame: WriteFrame },
    /// The memory of a posted receive, from word `next` of it on.
    Receive { connection: u32, receive: TcpReceive, next: usize, length: u32, signal: bool },
    /// The last stalled post of a connection.
    Stall { connection: u32 },
    /// Nowhere: the connection has ended.
    Discard,
}

impl PayloadTarget {
    /// The connection that the payload belongs to.
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
        Self { words: vec![0; BUFFER_WORDS].into() }
    }

    /// The first `count` words.
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
    /// The beginning of a stream.
    pub(super) fn new() -> Self {
        Self { rest: [0; 8 * HEADER_WORDS_MAX], rest_length: 0, payload: None, expects_long: false }
    }

    /// A payload of so many words is to come.
    pub(super) fn expect(&mut self, target: PayloadTarget, words: usize) {
        self.payload = Some(FramePayload { target, words });
        self.expects_long = 8 * words >= LONG_BYTES_MIN;
    }

    /// How much to read into the buffer if it has space for `space` bytes. Behind a long payload mostly comes another, which
    /// goes straight where it belongs if only its header is read first.
    pub(super) fn wanted(&self, space: usize) -> usize {
        let payload = self.payload.as_ref().map_or(0, |payload| 8 * payload.words);
        if self.expects_long { space.min(payload + AHEAD_BYTES) } else { space }
    }

    /// Puts what was left over at the beginning of the buffer; returns its length. It stays left over until
    /// [`StreamInput::keep`] is called.
    pub(super) fn restore(&self, buffer: &mut ReceiveBuffer) -> usize {
        let length = self.rest_length;
        buffer.bytes_mut()[..length].copy_from_slice(&self.rest[..length]);
        length
    }

    /// Keeps what is left over: the bytes of the buffer from `start` to `end`.
    pub(super) fn keep(&mut self, buffer: &mut ReceiveBuffer, start: usize, end: usize) {
        self.rest_length = end - start;
        self.rest[..self.rest_length].copy_from_slice(&buffer.bytes_mut()[start..end]);
    }

    /// The connection that the payload under way belongs to.
    pub(super) fn connection(&self) -> Option<u32> {
        self.payload.as_ref()?.target.connection()
    }

    /// The connection is dead: nothing of its posts lands any more.
    pub(super) fn cancel(&mut self, connection: u32) {
        if self.connection() == Some(connection)
            && let Some(payload) = &mut self.payload
        {
            payload.target = PayloadTarget::Discard;
        }
    }

    /// How many bytes of the payload's next word are still missing, if it has begun; 0 at a word's edge.
    pub(super) fn missing(&self) -> usize {
        assert!(self.payload.is_some() && self.rest_length < 8, "whole words are used at once");
        if self.rest_length == 0 { 0 } else { 8 - self.rest_length }
    }

    /// Takes some of the missing bytes; returns the payload's next word if it is complete now. Fuzzed as `tcp`.
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

/// Stores words of one frame, each whole [F3], after everything that was stored before [F1, F4].
#[inline]
pub(super) fn land(region: &Region, first: usize, words: &[u64]) {
    order_after_earlier_frames();
    for (word, value) in atoms(region, first, words.len()).iter().zip(words) {
        word.store(*value, Ordering::Relaxed);
    }
}

/// To be called before words of a frame are stored without order among them [F2].
#[inline]
pub(super) fn order_after_earlier_frames() {
    // SYNC: pairs with the acquiring `Region::load` of whoever reads one of the words that are stored next: it
    // then also sees all frames that landed before this one.
    fence(Ordering::Release);
}

/// Words of a region.
///
/// # Panics
/// If the range ends beyond the region.
#[inline]
fn atoms(region: &Region, first: usize, count: usize) -> &[AtomicU64] {
    region.check(&(first..first + count));
    let start: NonNull<AtomicU64> = region.pointer(first);
    // SAFETY: inside the region, as was checked, so valid and aligned as `Region` promises; atomics may be shared.
    unsafe { std::slice::from_raw_parts(start.as_ptr(), count) }
}

/// Long payloads go straight into their region.
pub(super) const LONG_BYTES_MIN: usize = 16 << 10;

/// What is read behind a long payload: some headers.
pub(super) const AHEAD_BYTES: usize = 512;

/// 256 KiB: so much is read at a time, in a quarter of a typical second-level cache, and it amortises the system
/// call. It also bounds what one peer can make one poll do.
const BUFFER_WORDS: usize = 32 << 10;
