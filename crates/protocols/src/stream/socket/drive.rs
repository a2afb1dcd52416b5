//! Driving a socket: handles the events of the fabric, makes posts and copies, and closes the connection (EXS §II.B).

use squall_fabric::{BreakReason, Core, Fabric, FabricEvent, Grant, Instant, PostError, Token};

use super::{SLOT_WORDS, SocketCore, State, bytes};
use crate::stream::copy::copy_bytes;
use crate::stream::hello::StreamHello;
use crate::stream::posting::Posting;
use crate::stream::{
    Completion, MESSAGE_BYTES_MAX, PeerParameters, SocketFailure, StreamMessage, StreamOutput,
    StreamTransfer, StreamViolation, TransferArrival, TransferRoute,
};

impl SocketCore {
    /// Handles an event as [`Core::handle_event`] does, if it is of a frequent kind that needs no fabric; otherwise
    /// returns false. It serves a driver that hands over events while the fabric yields them, because storing an
    /// event costs more than handling it.
    #[inline]
    pub fn absorb(&mut self, event: &FabricEvent) -> bool {
        match *event {
            FabricEvent::Arrived { conn, token, immediate } if conn == self.conn => {
                self.rests = false;
                if !self.is_over() && self.violation.is_none() {
                    let result = self.on_transfer(immediate);
                    self.on_used_up(token, result);
                }
                true
            }
            FabricEvent::Done { conn, token } if conn == self.conn && !self.out.awaits_probe() => {
                self.on_done(token);
                true
            }
            _ => false,
        }
    }

    /// Records that the arrival in the slot of `slot` was handled, or violated the protocol.
    fn on_used_up(&mut self, slot: Token, result: Result<(), StreamViolation>) {
        match result {
            Ok(()) => self.spent.push(slot_of(slot)),
            Err(violation) => self.violation = Some(violation),
        }
    }

    /// Disconnects a peer that violated the protocol.
    #[inline]
    fn judge<F: Fabric>(&mut self, fabric: &mut F) {
        if let Some(violation) = self.violation.take() {
            self.give_up(fabric, SocketFailure::Violation(violation));
        }
    }

    #[inline]
    fn on_transfer(&mut self, immediate: u32) -> Result<(), StreamViolation> {
        let arrival = TransferArrival::from_immediate(immediate);
        if let TransferArrival::Indirect { .. } = arrival {
            // Its bytes are still in the cache of the peer's processor, and will be copied soon.
            self.ring.prefetch(self.end.next_arrival());
        }
        self.end.handle_arrival(arrival)
    }

    fn on_message(&mut self, slot: usize, length: usize) -> Result<(), StreamViolation> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let bytes = bytes.get_mut(..length).ok_or(StreamViolation::Garbled)?;
        self.slots.copy_bytes_out(slot * SLOT_WORDS, bytes);
        if self.peer_ring.is_none() {
            return self.on_hello(&StreamHello::decode(bytes)?);
        }
        let mut message = std::mem::take(&mut self.out.message);
        let result = message.decode(bytes).and_then(|()| self.check_grants(&message));
        let result = result.and_then(|()| self.end.handle_message(&message));
        self.out.message = message;
        result
    }

    fn on_hello(&mut self, hello: &StreamHello) -> Result<(), StreamViolation> {
        hello.check(self.end.settings())?;
        self.check_grant(&hello.ring)?;
        (self.peer_ring, self.connect_by) = (Some(hello.ring), None);
        self.end.handle_peer(&PeerParameters {
            ring_words: hello.ring.words,
            receives_max: hello.receives_max as usize,
            credits: hello.credits,
            credits_used: 1,
            renews: hello.renewal,
        })
    }

    fn check_grants(&self, message: &StreamMessage) -> Result<(), StreamViolation> {
        message.adverts.iter().try_for_each(|advert| self.check_grant(&advert.grant))
    }

    /// Checks that a grant is the peer's own, and for this node: a write under any other grant would be this node's
    /// fault.
    fn check_grant(&self, grant: &Grant) -> Result<(), StreamViolation> {
        let own = self.grants[0];
        let is_ours = grant.owner == self.peer && grant.peer == own.owner;
        if is_ours { Ok(()) } else { Err(StreamViolation::AdvertLength) }
    }

    #[inline]
    fn on_done(&mut self, token: Token) {
        self.rests = false;
        if let Some(send) = self.out.on_done(token) {
            self.end.handle_placed(send);
        }
    }

    /// Sends this end's introduction.
    fn introduce(&mut self) {
        let hello = StreamHello::new(self.end.settings(), self.grants[0]);
        self.out.put_hello(&hello.encode());
        self.state = State::Open;
    }

    /// Copies from the ring to receives for one evaluation, and returns the number of copies.
    #[inline]
    fn copy(&mut self) -> usize {
        let (mut left, mut copies) = (COPY_BYTES_MAX, 0);
        while left > 0 {
            let Some(copy) = self.end.poll_copy(left) else { break };
            let [from, offset, length] = [copy.from, copy.offset, copy.length].map(bytes);
            let (region, first_byte) = self.receives.find(copy.receive);
            copy_bytes(region, first_byte + offset, &self.ring, from, length);
            self.end.on_copied(copy);
            left -= copy.length;
            copies += 1;
        }
        copies
    }

    /// Posts everything that may be posted, and returns the number of posts. A full queue counts as one, because no
    /// event reports when there is space again.
    fn post<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        if self.out.is_empty() && self.end.is_quiet() {
            return 0;
        }
        let (mut is_timed, mut posts) = (false, 0);
        loop {
            match self.out.flush(fabric, self.conn) {
                Ok(true) => {}
                Ok(false) | Err(PostError::NotConnected) => return posts,
                Err(PostError::Full) => return posts + 1,
            }
            let owes_message = self.end.owes_message();
            if owes_message || self.end.has_packets() {
                // The receives that a message returns as credits must be posted before it.
                self.post_spent(fabric);
            }
            let output = if owes_message {
                self.end.poll_message(&mut self.out.message)
            } else {
                // Reading the clock takes as long as the rest of a small post.
                if !is_timed && self.end.needs_clock() {
                    (self.now, is_timed) = (fabric.now(), true);
                }
                self.end.poll_transfer(self.now, &mut self.out.message)
            };
            match output {
                // The sender may have begun to wait, which the peer must learn.
                None if owes_message || !self.end.owes_message() => return posts,
                None => continue,
                Some(StreamOutput::Message) => self.out.put_message(),
                Some(StreamOutput::Transfer(transfer)) => self.put_transfer(fabric, &transfer),
            }
            posts += 1;
        }
    }

    /// Posts the used slots again.
    fn post_spent<F: Fabric>(&mut self, fabric: &mut F) {
        while let Some(slot) = self.spent.pop() {
            self.post_slot(fabric, slot);
        }
    }

    #[inline]
    fn put_transfer<F: Fabric>(&mut self, fabric: &mut F, transfer: &StreamTransfer) {
        let (source, first_byte) = self.sends.find(transfer.send);
        let from_byte = first_byte + bytes(transfer.offset);
        let length = bytes(transfer.length);
        let history = self.out.history;
        let (grant, to_byte, before) = match transfer.route {
            TransferRoute::Direct { grant, start } => (grant, bytes(start), history.last(bytes(start % 8))),
            TransferRoute::Indirect { word, skip } => {
                (self.peer_ring.expect("the peer is there"), bytes(8 * word + skip), 0)
            }
        };
        self.end.count_shifted(from_byte % 8 != to_byte % 8 && length > 0);
        let immediate = transfer.arrival().to_immediate();
        let ends = transfer.is_last.then_some(transfer.send);
        let posted = 0;
        let posting = Posting { source, from_byte, grant, to_byte, length, before, immediate, ends, posted };
        self.out.put_transfer(fabric, self.conn, posting);
        self.out.history.add(source, from_byte, length);
    }

    /// Gives up the connection because of a failure.
    pub(super) fn give_up<F: Fabric>(&mut self, fabric: &mut F, failure: SocketFailure) {
        if !self.is_over() {
            self.end.fail(failure);
            self.close(fabric);
        }
    }

    /// Handles a broken connection. If both streams had ended, the peer was merely the first to close.
    fn on_broken<F: Fabric>(&mut self, fabric: &mut F, reason: BreakReason) {
        if self.end.has_all() {
            self.close(fabric);
        } else {
            self.give_up(fabric, SocketFailure::Broken(reason));
        }
    }

    /// Closes the connection and revokes the peer's rights.
    fn close<F: Fabric>(&mut self, fabric: &mut F) {
        if self.is_over() {
            return;
        }
        self.state = State::Closing(self.grants.len());
        self.connect_by = None;
        fabric.close(self.conn);
        self.grants.iter().for_each(|grant| fabric.revoke(grant));
    }

    fn on_revoked(&mut self, grant: &Grant) {
        let State::Closing(left) = self.state else { return };
        if !self.grants.contains(grant) {
            return;
        }
        self.state = State::Closing(left - 1);
        if left == 1 {
            self.state = State::Closed;
            self.end.handle_released();
            self.closed = Some(Completion::Closed { failure: self.end.failure() });
        }
    }

    /// Performs one evaluation, in the step order of the module.
    fn evaluate<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        self.judge(fabric);
        let mut work = if self.end.has_stored() { self.copy() } else { 0 };
        if self.connect_by.is_some_and(|by| fabric.now() >= by) {
            self.give_up(fabric, SocketFailure::Unanswered);
        }
        if self.state == State::Open {
            work += self.post(fabric);
            if self.end.is_finished() && self.out.has_answered_end {
                self.close(fabric);
                work += 1;
            }
            // A completion that the user waits for takes precedence.
            if !self.spent.is_empty() && !self.end.has_completion() {
                self.post_spent(fabric);
            }
        }
        self.rests = work == 0 && self.is_quiet();
        work
    }

    /// Returns whether an evaluation has nothing to do until the next event.
    fn is_quiet(&mut self) -> bool {
        self.state == State::Open
            && self.connect_by.is_none()
            && self.spent.is_empty()
            && self.out.is_empty()
            && self.end.is_quiet()
            && self.end.may_rest()
    }
}

impl<F: Fabric> Core<F> for SocketCore {
    fn handle_event(&mut self, fabric: &mut F, event: &FabricEvent) {
        self.rests = false;
        self.judge(fabric);
        if self.absorb(event) {
            return;
        }
        match *event {
            FabricEvent::Connected { conn, .. } if conn == self.conn && self.state == State::Opening => {
                self.introduce();
            }
            FabricEvent::Received { conn, token, length } if conn == self.conn && !self.is_over() => {
                let result = self.on_message(slot_of(token), length);
                self.on_used_up(token, result);
            }
            FabricEvent::Done { conn, token } if conn == self.conn => {
                if let Some(span) = self.out.round_trip(fabric, token) {
                    self.end.handle_round_trip(span);
                }
                self.on_done(token);
            }
            FabricEvent::Broken { conn, reason } if conn == self.conn => self.on_broken(fabric, reason),
            FabricEvent::Refused { conn } if conn == self.conn => {
                self.on_broken(fabric, BreakReason::Refused)
            }
            FabricEvent::PeerLost { peer, reason } if peer == self.peer => self.on_broken(fabric, reason),
            FabricEvent::Revoked { ref grant } => {
                for (_, memory) in self.releasing.extract_if(.., |(of, _)| of == grant) {
                    fabric.release(&memory);
                }
                self.on_revoked(grant);
            }
            _ => {}
        }
    }

    #[inline]
    fn poll(&mut self, fabric: &mut F) -> usize {
        if self.rests {
            // Prefetches the first cache lines of the next arrival, so that they are present when it is seen.
            let next = self.end.next_arrival();
            self.ring.prefetch(next);
            self.ring.prefetch(next + 7);
            return 0;
        }
        self.evaluate(fabric)
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.state == State::Open && self.connect_by.is_none() {
            return self.end.next_deadline();
        }
        self.connect_by
    }
}

/// Returns the slot with which a receive was posted.
fn slot_of(token: Token) -> usize {
    usize::try_from(token.0).expect("one of our slots")
}

/// The maximum number of bytes that one evaluation copies, so that other sockets and acknowledgements get their turn.
const COPY_BYTES_MAX: u64 = 1 << 18;
