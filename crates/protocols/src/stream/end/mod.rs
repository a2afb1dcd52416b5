//! One end of a connection: both halves, the credits, and the ways in which it ends, without a network (EXS fig.
//! 2–5).

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
/// **Law of driving.** The input is the user's `post_*`, `cancel_*` and [`StreamEnd::end_stream`], and the network's
/// `handle_*`, in the order of the connection's events, each after the receive that it used up is posted again. The
/// output is [`StreamEnd::poll_output`], each output posted on the connection before the next call;
/// [`StreamEnd::poll_copy`], each copy made and confirmed by [`StreamEnd::on_copied`] before anything else; and
/// [`StreamEnd::poll_completion`]. After an error of a `handle_*` method the driver calls [`StreamEnd::fail`].
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
    /// The sends that are transferred completely and not known to be placed yet, in order.
    under_way: VecDeque<SendId>,
    own_end: OwnEnd,
    peer_end: PeerEnd,
    /// Whether the peer has withdrawn its adverts and waits for an answer.
    owes_withdrawn: bool,
    /// The length of the head packet, if this end must tell the peer that it is too long.
    owes_too_long: Option<u64>,
    failure: Option<SocketFailure>,
    /// Whether the peer can no longer write to this end's memory.
    is_released: bool,
}

/// The progress of the end of this end's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(Hash))]
enum OwnEnd {
    Open,
    /// No more sends are accepted; the pending ones go first.
    Wanted,
    /// The end has been sent to the peer.
    Announced,
    /// The peer has received the end, and with it all data.
    Seen,
}

/// The progress of the end of the peer's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum PeerEnd {
    Open,
    /// The end has been received, with all data before it.
    Come,
    /// The end has been acknowledged to the peer.
    Answered,
}

/// What an end must know about its peer before data can flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerParameters {
    /// The size of its ring.
    pub ring_words: u64,
    /// The maximum number of its outstanding receives.
    pub receives_max: usize,
    /// The number of receives that it has posted for messages and transfers.
    pub credits: u32,
    /// The number of these, at both ends, that the introduction uses up.
    pub credits_used: u32,
    /// Whether it advertises again when its ring is empty ([`StreamSettings::renewal`]).
    pub renews: bool,
}

/// A post for the driver to make on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOutput {
    /// A send of the message that [`StreamEnd::poll_output`] wrote.
    Message,
    /// A write with immediate. If it is the last of its send, the driver reports its completion:
    /// [`StreamEnd::handle_placed`].
    Transfer(StreamTransfer),
}

impl StreamEnd {
    /// Returns an end that knows nothing about its peer.
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

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &StreamSettings {
        &self.settings
    }

    /// Returns the counters of this end.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Counts a transfer that was shifted, if it was.
    pub(super) fn count_shifted(&mut self, is_shifted: bool) {
        self.statistics.shifted += u64::from(is_shifted);
    }

    /// Returns why the connection failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<SocketFailure> {
        self.failure
    }

    /// Returns whether both streams have ended and both ends know it, so that closing loses nothing.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.own_end == OwnEnd::Seen && self.peer_end == PeerEnd::Answered
    }

    /// Returns the number of the next receive.
    #[cfg(test)]
    pub(super) fn next_receive(&self) -> u64 {
        self.next_receive
    }

    /// Makes short sends always go through the ring, or use adverts, as if measurements had shown it to be faster.
    #[cfg(test)]
    pub(super) fn prefer_ring(&mut self, prefers: bool) {
        self.sender.patience().prefer_ring(prefers);
    }

    /// Returns whether the peer has everything that this end sent, and this end has everything that the peer sent.
    #[must_use]
    pub fn has_all(&self) -> bool {
        self.own_end == OwnEnd::Seen && self.peer_end != PeerEnd::Open
    }

    /// Returns whether the peer has everything that this end sent, and its end.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.own_end == OwnEnd::Seen
    }

    /// Returns whether all sends are transferred completely, and the end of the stream is sent if there is one.
    #[must_use]
    pub fn has_transferred_all(&self) -> bool {
        self.sender.waiting() == 0 && self.own_end != OwnEnd::Wanted
    }

    /// Returns whether [`StreamEnd::poll_completion`] would return a completion.
    #[inline]
    #[must_use]
    pub fn has_completion(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Returns the completion that [`StreamEnd::poll_completion`] would return.
    #[inline]
    pub(super) fn next_completion(&self) -> Option<&Completion> {
        self.completions.front()
    }

    /// Posts a send of `length` bytes.
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

    /// Posts a receive into `memory`. With `wait_all` it completes only once it is full, or at the end of the stream;
    /// packets ignore `wait_all`.
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

    /// Cancels a send of which nothing has been sent; returns false if it is too late.
    pub fn cancel_send(&mut self, id: SendId) -> bool {
        let cancelled = self.sender.cancel(id);
        if cancelled {
            self.completions.push_back(Completion::Send { id, outcome: SendOutcome::Cancelled });
        }
        cancelled
    }

    /// Cancels a receive \[E7\]. It completes, perhaps with data that came before the peer learned of the withdrawal.
    /// Returns false if there is no such receive.
    pub fn cancel_receive(&mut self, id: ReceiveId) -> bool {
        let (found, completed) = self.receiver.cancel(id);
        completed.into_iter().for_each(|completed| self.complete(completed));
        found
    }

    /// Ends the stream after the posted sends (half-close) \[E7\].
    pub fn end_stream(&mut self) {
        self.own_end = self.own_end.max(OwnEnd::Wanted);
    }

    /// Returns when [`StreamEnd::poll_output`] may have a post although nothing has happened.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.sender.next_deadline().filter(|_| self.failure.is_none() && self.credits.allow_transfer())
    }

    /// Returns whether there are bytes in the ring.
    #[must_use]
    pub fn has_stored(&self) -> bool {
        self.receiver.has_stored()
    }

    /// Returns the word of the ring where the next indirect transfer lands.
    pub(super) fn next_arrival(&self) -> usize {
        self.receiver.next_arrival()
    }

    /// Returns the next bytes to copy out of the ring, at most `length_max`.
    #[inline]
    #[must_use]
    pub fn poll_copy(&self, length_max: u64) -> Option<RingCopy> {
        self.receiver.next_copy(length_max)
    }

    /// Handles that the copy which [`StreamEnd::poll_copy`] requested has been made.
    #[inline]
    pub fn on_copied(&mut self, copy: RingCopy) {
        self.statistics.copied_bytes += copy.length;
        let completed = self.receiver.on_copied(copy.length);
        completed.into_iter().for_each(|completed| self.complete(completed));
        self.settle();
    }

    /// Returns the next completion.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Handles that the connection is unusable. Sends fail now; receives still get the data that has arrived, and
    /// fail after [`StreamEnd::handle_released`].
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

    /// Handles that no peer can write to this end's memory any more.
    pub fn handle_released(&mut self) {
        self.is_released = true;
        self.settle();
    }

    /// Completes the receives that cannot get any more data.
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
