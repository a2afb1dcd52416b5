//! The messages and transfers that an end sends and receives (EXS fig. 2–5).

use super::{OwnEnd, PeerEnd, PeerParameters, StreamEnd, StreamOutput};
use crate::stream::message::ADVERTS_PER_MESSAGE;
use crate::stream::mutation;
use crate::stream::sender::SendStep;
use crate::stream::{
    Completion, SendId, SendOutcome, SocketKind, StreamMessage, StreamViolation, TransferArrival,
};
use squall_fabric::{Duration, Instant};

impl StreamEnd {
    /// Handles the peer's introduction.
    ///
    /// # Errors
    /// If the introduction used more credits than this end has.
    pub fn handle_peer(&mut self, peer: &PeerParameters) -> Result<(), StreamViolation> {
        self.sender.on_peer(peer);
        self.credits.grant(peer.credits, peer.credits_used);
        self.completions.push_back(Completion::Connected);
        (0..peer.credits_used).try_for_each(|_| self.credits.on_arrival())
    }

    /// Handles the measured round trip of a small post.
    pub fn handle_round_trip(&mut self, span: Duration) {
        self.sender.patience().on_round_trip(span);
    }

    /// Handles the arrival of a write with immediate.
    ///
    /// # Errors
    /// If the peer violated the protocol.
    #[inline]
    pub fn handle_arrival(&mut self, arrival: TransferArrival) -> Result<(), StreamViolation> {
        self.credits.on_arrival()?;
        match arrival {
            TransferArrival::Direct { length } => {
                let completed = self.receiver.on_direct(length)?;
                completed.into_iter().for_each(|completed| self.complete(completed));
            }
            TransferArrival::Indirect { skip, length } => self.receiver.on_indirect(skip, length)?,
        }
        Ok(())
    }

    /// Handles the arrival of a message.
    ///
    /// # Errors
    /// If the peer violated the protocol.
    pub fn handle_message(&mut self, message: &StreamMessage) -> Result<(), StreamViolation> {
        self.credits.on_arrival()?;
        self.credits.on_returned(message.credits)?;
        self.sender.on_freed(message.freed)?;
        if message.withdraw {
            self.sender.on_withdraw(&mut self.statistics);
            self.owes_withdrawn = true;
        }
        for advert in &message.adverts {
            self.sender.on_advert(*advert, &mut self.statistics)?;
        }
        if let Some(length) = message.too_long {
            let completed = self.receiver.on_too_long(length)?;
            self.complete(completed);
        }
        if message.withdrawn {
            self.receiver.on_withdrawn()?;
        }
        if message.awaits_advert {
            self.receiver.on_awaited();
        }
        if message.end {
            self.receiver.on_end()?;
            self.peer_end = PeerEnd::Come;
        }
        if message.end_seen {
            self.on_end_seen()?;
        }
        self.settle();
        Ok(())
    }

    fn on_end_seen(&mut self) -> Result<(), StreamViolation> {
        if self.own_end != OwnEnd::Announced {
            return Err(StreamViolation::Unasked);
        }
        self.own_end = OwnEnd::Seen;
        if let Some(last) = self.under_way.back() {
            self.handle_placed(*last);
        }
        Ok(())
    }

    /// Handles that the last transfer of `send`, and all transfers before it, are in the peer's memory.
    pub fn handle_placed(&mut self, send: SendId) {
        while let Some(id) = self.under_way.pop_front_if(|id| *id <= send) {
            self.completions.push_back(Completion::Send { id, outcome: SendOutcome::Placed });
        }
    }

    /// Returns the next post, if there is one and credits allow it \[E6\]. A message is written to `message`.
    pub fn poll_output(&mut self, now: Instant, message: &mut StreamMessage) -> Option<StreamOutput> {
        if self.owes_message() { self.poll_message(message) } else { self.poll_transfer(now, message) }
    }

    /// Returns the next post if [`StreamEnd::owes_message`].
    pub(in crate::stream) fn poll_message(&mut self, message: &mut StreamMessage) -> Option<StreamOutput> {
        let is_allowed = self.failure.is_none() && self.credits.allow_message();
        is_allowed.then(|| self.fill(message))
    }

    /// Returns the next post unless [`StreamEnd::owes_message`].
    // Without inlining, the result would pass through memory, which waits for the stores of the last post.
    #[inline(always)]
    pub(in crate::stream) fn poll_transfer(
        &mut self,
        now: Instant,
        message: &mut StreamMessage,
    ) -> Option<StreamOutput> {
        if self.failure.is_some() || !self.credits.allow_transfer() {
            return None;
        }
        match self.sender.waiting() {
            0 if self.under_way.is_empty() => {
                self.sender.patience().on_idle(now);
                if self.completions.is_empty() {
                    self.sender.patience().on_pause();
                }
            }
            _ => {}
        }
        match self.sender.next(now, &mut self.statistics)? {
            SendStep::Transfer(transfer) => {
                self.credits.spend();
                if transfer.is_last {
                    self.under_way.push_back(transfer.send);
                }
                Some(StreamOutput::Transfer(transfer))
            }
            SendStep::TooLong(length) => {
                self.owes_too_long = Some(length);
                Some(self.fill(message))
            }
        }
    }

    /// Returns whether [`StreamEnd::poll_output`] depends on the time; otherwise any earlier time will do.
    pub(in crate::stream) fn needs_clock(&self) -> bool {
        self.sender.needs_clock()
    }

    /// Returns whether [`StreamEnd::poll_output`] has nothing to do until the next event.
    #[inline]
    pub(in crate::stream) fn is_quiet(&mut self) -> bool {
        let is_busy = !self.under_way.is_empty();
        let patience = self.sender.patience();
        let knows = patience.knows_idle() && (patience.knows_pause() || !self.completions.is_empty());
        self.sender.waiting() == 0 && (is_busy || knows) && !self.owes_message()
    }

    /// Returns whether there is also nothing to do once the user has taken all completions.
    #[inline]
    pub(in crate::stream) fn may_rest(&mut self) -> bool {
        !self.under_way.is_empty() || self.sender.patience().knows_pause()
    }

    /// Returns whether a message may replace a transfer: the message that a packet is too long.
    #[inline]
    pub(in crate::stream) fn has_packets(&self) -> bool {
        self.settings.kind == SocketKind::Packets
    }

    /// Returns whether a message is due now. Anything that can wait travels with it.
    #[inline]
    pub(in crate::stream) fn owes_message(&mut self) -> bool {
        self.credits.is_due()
            || self.receiver.ring().unreturned() >= self.settings.ring_words.div_ceil(ACKNOWLEDGED_PART)
            || self.receiver.wants_to_advertise()
            || self.receiver.wants_to_withdraw()
            || self.owes_withdrawn
            || self.sender.must_report_wait()
            || self.must_announce_end()
            || self.peer_end == PeerEnd::Come
    }

    fn must_announce_end(&self) -> bool {
        let is_sent = self.sender.waiting() == 0 || mutant!(EndBeforeData);
        self.own_end == OwnEnd::Wanted && is_sent
    }

    /// Writes everything that is due to `message`.
    fn fill(&mut self, message: &mut StreamMessage) -> StreamOutput {
        message.clear();
        message.withdraw = self.receiver.take_withdraw();
        while message.adverts.len() < ADVERTS_PER_MESSAGE {
            let Some(advert) = self.receiver.next_advert(&mut self.statistics) else { break };
            message.adverts.push(advert);
        }
        message.freed = self.receiver.ring().give_back();
        message.credits = self.credits.give_back();
        message.too_long = self.owes_too_long.take();
        message.withdrawn = std::mem::take(&mut self.owes_withdrawn);
        message.awaits_advert = self.sender.report_wait();
        if self.must_announce_end() {
            message.end = true;
            self.own_end = OwnEnd::Announced;
        }
        if self.peer_end == PeerEnd::Come {
            message.end_seen = true;
            self.peer_end = PeerEnd::Answered;
        }
        self.credits.spend();
        self.statistics.messages += 1;
        StreamOutput::Message
    }
}

/// Freed words are reported when they amount to this fraction of the ring, or with any other message.
const ACKNOWLEDGED_PART: u64 = 8;
