//! One end of a connection: both halves, credits, and the ways in which it ends, without any network
//! (EXS fig. 2–5).

mod exchange;

use std::collections::VecDeque;

use squall_fabric::Instant;

use super::credits::Credits;
use super::receiver::{CompletedReceive, StreamReceiver};
use super::sender::StreamSender;
use super::{
    Completion, PostRefused, ReceiveId, ReceiveMemory, ReceiveOutcome, RingCopy, SendId, SendOutcome,
    SocketFailure, SocketKind, Statistics, StreamSettings, StreamTransfer, TRANSFER_BYTES_MAX,
};

/// One end of a connection, as a pure state machine.
///
/// **Law of driving.** Input: the user's `post_*`, `cancel_*` and [`StreamEnd::end_stream`]; the network's `handle_*`, in the
/// order of the connection's events, each after the receive that it used up is posted again. Output:
/// [`StreamEnd::poll_output`], each output posted on the connection before the next is asked for; [`StreamEnd::poll_copy`],
/// each copy made and confirmed by [`StreamEnd::on_copied`] before anything else; [`StreamEnd::poll_completion`]. After an
/// error of `handle_*` call [`StreamEnd::fail`].
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct StreamEnd {
    settings: StreamSettings,
    sender: StreamSender,
    receiver: StreamReceiver,
    credits: Credits,
    statistics: Statistics,
    completions: VecDeque<Completion>,
    next_send: u64,
    next_receive: u64,
    /// Sends that are wholly transferred and not yet known to be placed, in order.
    under_way: VecDeque<SendId>,
    own_end: OwnEnd,
    peer_end: PeerEnd,
    /// The peer took its adverts back and waits for an answer.
    owes_withdrawn: bool,
    /// The length of the head packet, if the peer must learn that it is too long.
    owes_too_long: Option<u64>,
    failure: Option<SocketFailure>,
    /// Nobody else writes to this end's memory any more.
    is_released: bool,
}

/// How far this end's own stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(Hash))]
enum OwnEnd {
    Open,
    /// No more sends; those that wait go first.
    Wanted,
    /// The peer has been told.
    Announced,
    /// The peer has seen it, and with it all data.
    Seen,
}

/// How far the peer's stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum PeerEnd {
    Open,
    /// It has come, with all data before it.
    Come,
    /// The peer has been told that it has come.
    Answered,
}

/// What an end must know of its peer before data can flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerParameters {
    /// The size of its ring.
    pub ring_words: u64,
    /// The most receives that it will have outstanding.
    pub receives_max: usize,
    /// Receives that it has posted for messages and transfers.
    pub credits: u32,
    /// How many of these, at both ends, are used up by the introduction.
    pub credits_used: u32,
    /// Whether it advertises again when its ring is empty ([`StreamSettings::renewal`]).
    pub renews: bool,
}

/// Something to post on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOutput {
    /// A send of the message that [`StreamEnd::poll_output`] has filled in.
    Message,
    /// A write with immediate. If it is the last of its send, its completion is wanted: [`StreamEnd::handle_placed`].
    Transfer(StreamTransfer),
}

impl StreamEnd {
    /// An end that has heard nothing of its peer.
    ///
    /// # Panics
    /// If the settings do not pass [`StreamSettings::check`].
    #[must_use]
    pub fn new(settings: StreamSettings) -> Self {
        settings.check().expect("checked settings");
        Self {
            sender: StreamSender::new(&settings),
            receiver: StreamReceiver::new(&settings),
            credits: Credits::new(settings.credits),
            settings,
            statistics: Statistics::default(),
            completions: VecDeque::new(),
            next_send: 0,
            next_receive: 0,
            under_way: VecDeque::new(),
            own_end: OwnEnd::Open,
            peer_end: PeerEnd::Open,
            owes_withdrawn: false,
            owes_too_long: None,
            failure: None,
            is_released: false,
        }
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &StreamSettings {
        &self.settings
    }

    /// What has been done so far.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Counts a transfer that has been shifted, if it has.
    pub(super) fn count_shifted(&mut self, is_shifted: bool) {
        self.statistics.shifted += u64::from(is_shifted);
    }

    /// Why the connection failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<SocketFailure> {
        self.failure
    }

    /// Whether both streams have ended, and both ends know it: closing loses nothing.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.own_end == OwnEnd::Seen && self.peer_end == PeerEnd::Answered
    }

    /// The number that the next receive will have.
    #[cfg(test)]
    pub(super) fn next_receive(&self) -> u64 {
        self.next_receive
    }

    /// Lets short sends go through the ring in any case, or all wait for adverts, as if that had proved to be faster.
    #[cfg(test)]
    pub(super) fn prefer_ring(&mut self, prefers: bool) {
        self.sender.patience().prefer_ring(prefers);
    }

    /// Whether the peer has all that was sent and this end has all that the peer sent.
    #[must_use]
    pub fn has_all(&self) -> bool {
        self.own_end == OwnEnd::Seen && self.peer_end != PeerEnd::Open
    }

    /// Whether the peer has all that was sent and knows that it is all.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.own_end == OwnEnd::Seen
    }

    /// Whether all sends are wholly transferred, and the end of the stream told if there is one.
    #[must_use]
    pub fn has_transferred_all(&self) -> bool {
        self.sender.waiting() == 0 && self.own_end != OwnEnd::Wanted
    }

    /// Whether [`StreamEnd::poll_completion`] has something.
    #[inline]
    #[must_use]
    pub fn has_completion(&self) -> bool {
        !self.completions.is_empty()
    }

    /// What [`StreamEnd::poll_completion`] has.
    #[inline]
    pub(super) fn next_completion(&self) -> Option<&Completion> {
        self.completions.front()
    }

    /// Offers `length` bytes to the peer.
    ///
    /// # Errors
    /// [`PostRefused`]; nothing has been posted then.
    #[inline]
    pub fn post_send(&mut self, length: u64) -> Result<SendId, PostRefused> {
        let is_packet = self.settings.kind == SocketKind::Packets;
        match () {
            () if self.failure.is_some() => Err(PostRefused::Closed),
            () if self.own_end != OwnEnd::Open => Err(PostRefused::Ended),
            () if self.sender.waiting() + self.under_way.len() >= self.settings.sends_max => {
                Err(PostRefused::Full)
            }
            () if length == 0 && !is_packet => Err(PostRefused::Empty),
            () if is_packet && length > TRANSFER_BYTES_MAX => Err(PostRefused::TooLong(length)),
            () => {
                let id = SendId(self.next_send);
                self.next_send += 1;
                self.sender.post(id, length);
                Ok(id)
            }
        }
    }

    /// Offers memory for what the peer sends. With `wait_all` it completes only when it is full (or at the end of
    /// the stream); packets ignore that.
    ///
    /// # Errors
    /// [`PostRefused`]; nothing has been posted then.
    pub fn post_receive(&mut self, memory: ReceiveMemory, wait_all: bool) -> Result<ReceiveId, PostRefused> {
        let is_packet = self.settings.kind == SocketKind::Packets;
        match () {
            () if self.failure.is_some() && self.receiver.ring().stored() == 0 => Err(PostRefused::Closed),
            () if self.receiver.waiting() >= self.settings.receives_max => Err(PostRefused::Full),
            () if memory.length == 0 && !is_packet => Err(PostRefused::Empty),
            () => {
                let id = ReceiveId(self.next_receive);
                self.next_receive += 1;
                self.receiver.post(id, memory, wait_all);
                self.settle();
                Ok(id)
            }
        }
    }

    /// Takes back a send of which nothing has been sent; false if it is too late.
    pub fn cancel_send(&mut self, id: SendId) -> bool {
        let cancelled = self.sender.cancel(id);
        if cancelled {
            self.completions.push_back(Completion::Send { id, outcome: SendOutcome::Cancelled });
        }
        cancelled
    }

    /// Takes back a receive \[E7\]; it completes, perhaps with data that came before the peer knew. False if there is
    /// none of that number.
    pub fn cancel_receive(&mut self, id: ReceiveId) -> bool {
        let (found, completed) = self.receiver.cancel(id);
        completed.into_iter().for_each(|completed| self.complete(completed));
        found
    }

    /// Sends nothing more after what is posted (half-close) \[E7\].
    pub fn end_stream(&mut self) {
        self.own_end = self.own_end.max(OwnEnd::Wanted);
    }

    /// When [`StreamEnd::poll_output`] may have something to post though nothing has happened.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.sender.next_deadline().filter(|_| self.failure.is_none() && self.credits.allow_transfer())
    }

    /// Whether there are bytes in the ring.
    #[must_use]
    pub fn has_stored(&self) -> bool {
        self.receiver.has_stored()
    }

    /// The word of the ring where the next indirect transfer lands.
    pub(super) fn next_arrival(&self) -> usize {
        self.receiver.next_arrival()
    }

    /// The next bytes to copy out of the ring, at most `length_max`.
    #[inline]
    #[must_use]
    pub fn poll_copy(&self, length_max: u64) -> Option<RingCopy> {
        self.receiver.next_copy(length_max)
    }

    /// The copy that [`StreamEnd::poll_copy`] asked for is made.
    #[inline]
    pub fn on_copied(&mut self, copy: RingCopy) {
        self.statistics.copied_bytes += copy.length;
        let completed = self.receiver.on_copied(copy.length);
        completed.into_iter().for_each(|completed| self.complete(completed));
        self.settle();
    }

    /// The next thing that is done.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// The connection is unusable. Sends fail now; receives still get what has arrived, and fail after
    /// [`StreamEnd::handle_released`].
    pub fn fail(&mut self, failure: SocketFailure) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(failure);
        let outcome = SendOutcome::Failed(failure);
        for id in self.under_way.drain(..).chain(self.sender.drain()) {
            self.completions.push_back(Completion::Send { id, outcome });
        }
        self.settle();
    }

    /// No peer can write to this end's memory any more.
    pub fn handle_released(&mut self) {
        self.is_released = true;
        self.settle();
    }

    /// Completes receives that can get nothing more.
    #[inline]
    fn settle(&mut self) {
        while let Some(completed) = self.receiver.next_cancelled() {
            self.complete(completed);
        }
        let outcome = match self.failure {
            _ if self.receiver.is_at_end() => ReceiveOutcome::End,
            Some(failure) if self.is_released => ReceiveOutcome::Failed(failure),
            _ => return,
        };
        while let Some(completed) = self.receiver.next_starved(outcome) {
            self.complete(completed);
        }
    }

    #[inline]
    fn complete(&mut self, (id, bytes, outcome): CompletedReceive) {
        self.completions.push_back(Completion::Receive { id, bytes, outcome });
    }
}
