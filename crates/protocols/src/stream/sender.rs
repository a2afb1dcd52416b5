//! The sending half: matches sends to adverts, or sends through the ring (EXS fig. 2).
//!
//! `Deviation:` (EXS fig. 2) an advert is judged when it arrives, not when a send meets it. (§II.C) A message longer than the
//! advertised memory waits for the next receive, and is not cut.

use std::collections::VecDeque;

use squall_fabric::Instant;

use super::mutation;
use super::patience::Patience;
use super::ring::RingWriter;
use super::{
    Advert, PeerParameters, Phase, SendId, SocketKind, Statistics, StreamSettings, StreamTransfer,
    StreamViolation, TRANSFER_BYTES_MAX, TransferPolicy, TransferRoute,
};

/// The sender's state: table I, and the pending sends.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct StreamSender {
    kind: SocketKind,
    policy: TransferPolicy,
    /// `P_s`: direct if and only if the last transfer was direct, or there was none (lemma 3).
    phase: Phase,
    /// `S_s`: the bytes sent, or the receives used up if the socket sends packets. All adverts of `P_s` but the first
    /// have sequence numbers at or below it.
    sequence: u64,
    /// `q_A`: adverts that are not stale; while `P_s` is direct, all of phase `P_s` (lemma 4).
    adverts: VecDeque<Advert>,
    adverts_max: usize,
    /// The phase of the latest advert \[E4\].
    advertised: Phase,
    ring: RingWriter,
    patience: Patience,
    /// Whether this sender holds sends back until an advert comes and has not reported it to the peer yet.
    waits_silently: bool,
    /// The pending sends in order; only the first can be partly sent.
    sends: VecDeque<Waiting>,
}

/// A send that is not transferred completely.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
struct Waiting {
    id: SendId,
    length: u64,
    /// `0 <= sent < length`, or 0 for an empty packet.
    sent: u64,
}

/// What the sender does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendStep {
    Transfer(StreamTransfer),
    /// The head receive is too small for the packet, whose length this is. The advert is used up, and the packet
    /// waits \[E9\].
    TooLong(u64),
}

impl StreamSender {
    pub(super) fn new(settings: &StreamSettings) -> Self {
        Self {
            kind: settings.kind,
            policy: settings.policy,
            phase: Phase::FIRST,
            sequence: 0,
            adverts: VecDeque::new(),
            adverts_max: 0,
            advertised: Phase::FIRST,
            ring: RingWriter::default(),
            patience: Patience::new(settings.waits_by()),
            waits_silently: false,
            sends: VecDeque::new(),
        }
    }

    /// Handles the peer's introduction.
    pub(super) fn on_peer(&mut self, peer: &PeerParameters) {
        self.ring = RingWriter::new(peer.ring_words);
        self.adverts_max = peer.receives_max;
        if !peer.renews {
            // A sender that waits in an indirect phase would wait in vain.
            self.patience = Patience::new(0);
        }
    }

    pub(super) fn patience(&mut self) -> &mut Patience {
        &mut self.patience
    }

    /// Returns when the head send stops waiting for an advert.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.patience.next_deadline().filter(|_| !self.sends.is_empty())
    }

    /// Returns the number of sends that are not transferred completely.
    pub(super) fn waiting(&self) -> usize {
        self.sends.len()
    }

    #[inline]
    pub(super) fn post(&mut self, id: SendId, length: u64) {
        self.sends.push_back(Waiting { id, length, sent: 0 });
    }

    /// Cancels a send of which nothing has been sent.
    pub(super) fn cancel(&mut self, id: SendId) -> bool {
        let Some(at) = self.sends.iter().position(|send| send.id == id && send.sent == 0) else {
            return false;
        };
        self.sends.remove(at);
        true
    }

    /// Cancels all sends that are not transferred completely.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = SendId> {
        self.sends.drain(..).map(|send| send.id)
    }

    pub(super) fn on_freed(&mut self, words: u64) -> Result<(), StreamViolation> {
        self.ring.on_freed(words)?;
        self.patience.on_freed(8 * words);
        Ok(())
    }

    /// Handles an advert. It is judged at once: an advert that is stale now remains stale, because phases and
    /// sequence numbers only grow.
    pub(super) fn on_advert(
        &mut self,
        advert: Advert,
        statistics: &mut Statistics,
    ) -> Result<(), StreamViolation> {
        self.check(&advert)?;
        self.advertised = advert.phase;
        self.adverts.push_back(advert);
        self.drop_stale(statistics);
        if self.adverts.len() > self.adverts_max {
            return Err(StreamViolation::AdvertsTooMany);
        }
        let head = &self.adverts;
        match head.front() {
            Some(head) if self.phase.is_indirect() && head.sequence > self.sequence => {
                Err(StreamViolation::AdvertOrder)
            }
            _ => Ok(()),
        }
    }

    fn check(&self, advert: &Advert) -> Result<(), StreamViolation> {
        if self.policy == TransferPolicy::Indirect && self.kind == SocketKind::Stream {
            return Err(StreamViolation::Unasked);
        }
        if !advert.phase.is_direct() {
            return Err(StreamViolation::AdvertPhase);
        }
        if advert.phase < self.advertised || self.phase.is_direct() && advert.phase != self.phase {
            return Err(StreamViolation::AdvertOrder);
        }
        let end = advert.start.checked_add(advert.length).ok_or(StreamViolation::AdvertLength)?;
        if end.div_ceil(8) > advert.grant.words || advert.length == 0 && self.kind == SocketKind::Stream {
            return Err(StreamViolation::AdvertLength);
        }
        Ok(())
    }

    /// Drops stale adverts (fig. 2, lines 1–8). With an advert that is stale although its phase is new, its whole
    /// phase is dropped (fig. 8): the receiver begins another phase when it sees the data in flight.
    fn drop_stale(&mut self, statistics: &mut Statistics) {
        while let Some(head) = self.adverts.front() {
            let late = head.sequence < self.sequence && !mutant!(IgnoreSequence);
            let old = head.phase < self.phase && !mutant!(IgnorePhase);
            if self.phase.is_direct() || !(old || late) {
                return;
            }
            if self.phase < head.phase && !mutant!(KeepPhaseOfDropped) {
                self.phase = head.phase.next();
            }
            self.adverts.pop_front();
            statistics.adverts_dropped += 1;
        }
    }

    /// Handles the withdrawal of the receiver's adverts. The answer ends the phase, as an indirect transfer of no
    /// bytes would.
    pub(super) fn on_withdraw(&mut self, statistics: &mut Statistics) {
        statistics.adverts_dropped += self.adverts.len() as u64;
        self.adverts.clear();
        if self.phase.is_direct() {
            self.phase = self.phase.next();
            self.patience.on_phase_end();
        }
    }

    /// Returns whether [`StreamSender::next`] depends on the time, or would if it were called.
    #[inline]
    pub(super) fn needs_clock(&self) -> bool {
        match self.sends.is_empty() {
            true => !self.patience.knows_idle(),
            false => {
                let may_wait = self.adverts.is_empty() && self.patience.needs_clock_to_wait();
                may_wait || self.patience.needs_clock()
            }
        }
    }

    /// Matches the head send to an advert or to the ring (fig. 2); `None` if it must wait.
    // Without inlining, the result would pass through memory, which waits for the stores of the last post.
    #[inline(always)]
    pub(super) fn next(&mut self, now: Instant, statistics: &mut Statistics) -> Option<SendStep> {
        let send = self.sends.front()?;
        let left = send.length - send.sent;
        self.patience.on_time(now);
        let Some(advert) = self.adverts.front().filter(|_| !self.leaves_adverts(left)) else {
            if !self.has_ring() || self.ring.free_space() == 0 || self.holds_back(now, left) {
                return None;
            }
            return Some(SendStep::Transfer(self.send_indirect(statistics)));
        };
        if self.kind == SocketKind::Packets && advert.length < left && !mutant!(CutPacket) {
            self.adverts.pop_front();
            self.sequence += 1;
            return Some(SendStep::TooLong(left));
        }
        let transfer = self.send_direct(statistics);
        self.patience.on_direct(transfer.length);
        Some(SendStep::Transfer(transfer))
    }

    /// Returns whether the head send goes through the ring although there are adverts, which thereby become stale.
    #[inline]
    fn leaves_adverts(&self, left: u64) -> bool {
        self.patience.prefers_ring(left) && self.ring.free_space() > 0
    }

    /// Returns whether the head send waits for an advert although the ring has space. In an indirect phase the peer has to know.
    fn holds_back(&mut self, now: Instant, left: u64) -> bool {
        let (has_waited, is_direct) = (self.patience.is_waiting(), self.phase.is_direct());
        let in_use = if is_direct { 0 } else { 8 * self.ring.in_use() };
        let waits = self.patience.waits(now, left, is_direct, in_use);
        self.waits_silently = waits && !is_direct && (self.waits_silently || !has_waited);
        waits
    }

    /// Returns whether this sender must tell the peer that it waits.
    #[inline]
    pub(super) fn must_report_wait(&self) -> bool {
        self.waits_silently && !mutant!(WaitSilently)
    }

    /// Returns whether this sender must tell the peer that it waits, and records that it does so now.
    pub(super) fn report_wait(&mut self) -> bool {
        std::mem::take(&mut self.waits_silently)
    }

    fn has_ring(&self) -> bool {
        self.kind == SocketKind::Stream && self.policy != TransferPolicy::Direct
    }

    /// Fig. 2, lines 10–14.
    // As `next`.
    #[inline(always)]
    fn send_direct(&mut self, statistics: &mut Statistics) -> StreamTransfer {
        let advert = self.adverts.front_mut().expect("the caller saw it");
        if self.phase.is_indirect() {
            assert!(
                advert.sequence == self.sequence || mutant!(IgnoreSequence),
                "[E3] the first direct transfer at {} under an advert for {}",
                self.sequence,
                advert.sequence
            );
            self.phase = advert.phase;
            statistics.mode_switches += 1;
        }
        let send = self.sends.front().expect("the caller saw it");
        let length = (send.length - send.sent).min(advert.length).min(TRANSFER_BYTES_MAX);
        let route = TransferRoute::Direct { grant: advert.grant, start: advert.start };
        advert.start += length;
        advert.length -= length;
        if advert.length == 0 || !advert.wait_all || mutant!(WaitAllOnce) {
            self.adverts.pop_front();
        }
        statistics.direct += 1;
        statistics.direct_bytes += length;
        self.advance(length, route)
    }

    /// Fig. 2, lines 17–24.
    // As `next`.
    #[inline(always)]
    fn send_indirect(&mut self, statistics: &mut Statistics) -> StreamTransfer {
        if self.phase.is_direct() {
            self.phase = self.phase.next();
            self.patience.on_phase_end();
            statistics.mode_switches += 1;
        }
        let send = self.sends.front().expect("the caller saw it");
        // A send begins at a word, so the piece has the same alignment in the ring.
        let skip = send.sent % 8;
        let space = if mutant!(WriteAcrossEnd) { self.ring.free() } else { self.ring.free_space() };
        let length = (send.length - send.sent).min((space * 8).min(TRANSFER_BYTES_MAX) - skip);
        let word = self.ring.take((skip + length).div_ceil(8));
        self.patience.on_indirect(length);
        statistics.indirect += 1;
        statistics.indirect_bytes += length;
        let transfer = self.advance(length, TransferRoute::Indirect { word, skip });
        if !self.adverts.is_empty() {
            self.drop_stale(statistics);
        }
        transfer
    }

    /// Takes `length` bytes from the head send.
    // As `next`.
    #[inline(always)]
    fn advance(&mut self, length: u64, route: TransferRoute) -> StreamTransfer {
        self.sequence += if self.kind == SocketKind::Packets { 1 } else { length };
        let send = self.sends.front_mut().expect("the caller saw it");
        let (id, offset) = (send.id, send.sent);
        send.sent += length;
        let is_last = send.sent == send.length || self.kind == SocketKind::Packets;
        if is_last {
            self.sends.pop_front();
        }
        StreamTransfer { send: id, offset, length, is_last, route }
    }
}
