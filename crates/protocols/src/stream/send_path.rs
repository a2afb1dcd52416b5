//! The posts that wait for space in a connection's queue: at most one message and one transfer, each until it is
//! posted completely (EXS §II.B).

use squall_fabric::{ConnId, Duration, Fabric, PostError, Region, Token};

use super::posting::{PostContext, PostSignal, PostSignals, Posting, RecentBytes, ShiftBuffer};
use super::{MESSAGE_BYTES_MAX, SendId, StreamMessage};

/// The path of posts from one end to its connection.
#[derive(Debug)]
pub(super) struct SendPath {
    signals: PostSignals,
    staging: ShiftBuffer,
    pub(super) history: RecentBytes,
    posting: Option<Posting>,
    /// A message that is reused in both directions; it holds nothing between calls.
    pub(super) message: StreamMessage,
    bytes: Box<[u8; MESSAGE_BYTES_MAX]>,
    /// The length of the message in `bytes` that is not posted yet; 0 if there is none.
    unsent: usize,
    /// Whether that message answers the peer's end of stream, and whether its completion is wanted.
    is_answer: bool,
    wants_done: bool,
    /// Whether such an answer is in the peer's memory.
    pub(super) has_answered_end: bool,
}

impl SendPath {
    pub(super) fn new() -> Self {
        Self {
            signals: PostSignals::default(),
            staging: ShiftBuffer::default(),
            history: RecentBytes::default(),
            posting: None,
            message: StreamMessage::default(),
            bytes: Box::new([0; MESSAGE_BYTES_MAX]),
            unsent: 0,
            is_answer: false,
            wants_done: false,
            has_answered_end: false,
        }
    }

    /// Queues the message in `self.message`.
    pub(super) fn put_message(&mut self) {
        assert!(self.unsent == 0, "one message at a time");
        self.unsent = self.message.encode(&mut self.bytes[..]);
        self.is_answer = self.message.end_seen;
        self.wants_done = self.is_answer;
    }

    /// Queues the introduction, whose round trip is measured.
    pub(super) fn put_hello(&mut self, bytes: &[u8]) {
        assert!(self.unsent == 0, "one message at a time");
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        (self.unsent, self.wants_done) = (bytes.len(), true);
    }

    /// Takes a transfer, and posts as much of it as there is space for. A reference to its memory costs a locked
    /// instruction, which waits for all earlier stores, so the path takes one only for a transfer that has to wait.
    #[inline]
    pub(super) fn put_transfer<F: Fabric>(
        &mut self,
        fabric: &mut F,
        conn: ConnId,
        mut posting: Posting<&Region>,
    ) {
        assert!(self.is_empty(), "one transfer at a time");
        let (signals, staging) = (&mut self.signals, &mut self.staging);
        // An error will recur when the rest is posted.
        if posting.post(&mut PostContext { fabric, conn, signals, staging }) != Ok(true) {
            self.posting = Some(posting.into_owned());
        }
    }

    /// Returns whether nothing waits to be posted.
    pub(super) fn is_empty(&self) -> bool {
        self.unsent == 0 && self.posting.is_none()
    }

    /// Posts what waits, as far as there is space; returns true if nothing waits any more.
    pub(super) fn flush<F: Fabric>(&mut self, fabric: &mut F, conn: ConnId) -> Result<bool, PostError> {
        if self.unsent > 0 {
            let signal = self.wants_done.then(|| self.signals.next_token());
            fabric.send(conn, &self.bytes[..self.unsent], signal)?;
            if self.wants_done {
                let has_answered_end = self.is_answer;
                self.signals.expect_small(fabric, PostSignal { has_answered_end, ..PostSignal::default() });
            }
            self.unsent = 0;
        }
        let Some(posting) = &mut self.posting else { return Ok(true) };
        let (signals, staging) = (&mut self.signals, &mut self.staging);
        let is_posted = posting.post(&mut PostContext { fabric, conn, signals, staging })?;
        if is_posted {
            self.posting = None;
        }
        Ok(is_posted)
    }

    /// Returns whether a post whose round trip is measured is in flight.
    pub(super) fn awaits_probe(&self) -> bool {
        self.signals.awaits_probe()
    }

    /// Returns the time between the measured post and its completion, if `token` is that of the measured post.
    pub(super) fn round_trip<F: Fabric>(&mut self, fabric: &F, token: Token) -> Option<Duration> {
        self.signals.round_trip(fabric, token)
    }

    /// Handles the completion of a post and all posts before it, and returns the last send that is thereby placed.
    #[inline]
    pub(super) fn on_done(&mut self, token: Token) -> Option<SendId> {
        let mut placed = None;
        while let Some(signal) = self.signals.take(token) {
            self.staging.free(signal.staged);
            self.has_answered_end |= signal.has_answered_end;
            placed = signal.placed.or(placed);
        }
        placed
    }
}
