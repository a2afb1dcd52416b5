//! What one end says to the other and hears from it: messages and transfers in both directions (EXS fig. 2–5).

use super::{OwnEnd, PeerEnd, PeerParameters, StreamEnd, StreamOutput};
use crate::stream::message::ADVERTS_PER_MESSAGE;
use crate::stream::mutation;
use crate::stream::sender::SendStep;
use crate::stream::{
    Completion, SendId, SendOutcome, SocketKind, StreamMessage, StreamViolation, TransferArrival,
};
use squall_fabric::{Duration, Instant};

impl StreamEnd {
    /// The peer has introduced itself.
    ///
    /// # Errors
    /// If it has used more credits for that than this end has.
    pub fn handle_peer(&mut self, peer: &PeerParameters) -> Result<(), StreamViolation> {
        self.sender.on_peer(peer);
        self.credits.grant(peer.credits, peer.credits_used);
        self.completions.push_back(Completion::Connected);
        (0..peer.credits_used).try_for_each(|_| self.credits.on_arrival())
    }

    /// A small post was done so long after it was made.
    pub fn handle_round_trip(&mut self, span: Duration) {
        self.sender.patience().on_round_trip(span);
    }

    /// A write with immediate has arrived.
    ///
    /// # Errors
    /// If the peer broke the protocol.
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

    /// A message has arrived.
    ///
    /// # Errors
    /// If the peer broke the protocol.
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

    /// The last transfer of `send`, and all before it, are in the peer's memory.
    pub fn handle_placed(&mut self, send: SendId) {
        while let Some(id) = self.under_way.pop_front_if(|id| *id <= send) {
            self.completions.push_back(Completion::Send { id, outcome: SendOutcome::Placed });
        }
    }

    /// The next post, if there is one and credits allow it \[E6\]. A message is written into `message`.
    pub fn poll_output(&mut self, now: Instant, message: &mut StreamMessage) -> Option<StreamOutput> {
        if self.owes_message() { self.poll_message(message) } else { self.poll_transfer(now, message) }
    }

    /// The next post if [`StreamEnd::owes_message`].
    pub(in crate::stream) fn poll_message(&mut self, message: &mut StreamMessage) -> Option<StreamOutput> {
        let is_allowed = self.failure.is_none() && self.credits.allow_message();
        is_allowed.then(|| self.fill(message))
    }

    /// The next post if it is not that [`StreamEnd::owes_message`].
    // What it returns would go through memory, which waits for the words of the last post.
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

    /// Whether [`StreamEnd::poll_output`] has to know the time; else any earlier time will do.
    pub(in crate::stream) fn needs_clock(&self) -> bool {
        self.sender.needs_clock()
    }

    /// Whether [`StreamEnd::poll_output`] has nothing to do until something happens.
    #[inline]
    pub(in crate::stream) fn is_quiet(&mut self) -> bool {
        let is_busy = !self.under_way.is_empty();
        let patience = self.sender.patience();
        let knows = patience.knows_idle() && (patience.knows_pause() || !self.completions.is_empty());
        self.sender.waiting() == 0 && (is_busy || knows) && !self.owes_message()
    }

    /// Whether it is also no use to ask again when the user has taken all completions.
    #[inline]
    pub(in crate::stream) fn may_rest(&mut self) -> bool {
        !self.under_way.is_empty() || self.sender.patience().knows_pause()
    }

    /// Whether a message may take the place of a transfer: that the packet is too long.
    #[inline]
    pub(in crate::stream) fn has_packets(&self) -> bool {
        self.settings.kind == SocketKind::Packets
    }

    /// Whether something has to be said now; what can wait travels with it.
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

    /// Writes all that is due into `message`.
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

/// Freed words are told when they are this part of the ring, or with any other message.
const ACKNOWLEDGED_PART: u64 = 8;
