//! The receiving half: advertises memory, places arrivals, and copies from the ring (EXS fig. 3–5).

use std::collections::VecDeque;

use super::mutation;
use super::renewal::Renewal;
use super::ring::RingReader;
use super::{
    Advert, Phase, ReceiveId, ReceiveOutcome, SocketKind, Statistics, StreamSettings, StreamViolation,
};
use squall_fabric::Grant;

/// The receiver's state: table I, and the pending receives.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct StreamReceiver {
    kind: SocketKind,
    advertises: bool,
    /// Receives with less space are not advertised, but filled from the ring.
    advert_bytes_min: u64,
    has_ring: bool,
    renewal: Option<Renewal>,
    /// `P_r`: indirect if and only if the latest arrival from the sender is not a direct transfer of this phase.
    phase: Phase,
    /// `S_r`: the bytes that receives have got, or the receives used up if the socket carries packets.
    sequence: u64,
    /// `S'_r`: the sequence number of the next advert; `S_r <= S'_r` while `P_r` is direct and receives are
    /// advertised.
    estimate: u64,
    ring: RingReader,
    /// The pending receives in order; only the first can be partly filled.
    receives: VecDeque<Wanting>,
    /// The number of receives, from the first, that are advertised in `P_r`; 0 while `P_r` is indirect.
    advertised: usize,
    /// The number of receives, from the first, that lost their adverts or never had one (`k_a + k_b`).
    voided: usize,
    /// The number of cancelled receives that the peer may still write.
    cancelled: usize,
    withdrawal: Withdrawal,
    /// Whether the peer has ended its stream.
    ended: bool,
}

/// A pending receive.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
struct Wanting {
    id: ReceiveId,
    grant: Grant,
    /// The first byte, within the grant.
    start: u64,
    length: u64,
    /// `0 <= filled < length`, or 0 for an empty receive.
    filled: u64,
    wait_all: bool,
    was_advertised: bool,
    is_cancelled: bool,
}

impl Wanting {
    /// Returns the number of bytes that are not filled yet.
    fn free_space(&self) -> u64 {
        self.length - self.filled
    }
}

/// The state of a withdrawal of adverts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum Withdrawal {
    None,
    /// The sender has to be asked to forget all adverts.
    Due,
    /// The sender has been asked; there are no adverts until it answers.
    Asked,
}

/// Memory for bytes of the stream or for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct ReceiveMemory {
    /// The sender's right to write the memory.
    pub grant: Grant,
    /// The first byte, counted from the beginning of the granted range.
    pub start: u64,
    /// The length in bytes.
    pub length: u64,
}

/// A copy of bytes out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingCopy {
    /// The first byte within the ring.
    pub from: u64,
    /// The receive that gets them.
    pub receive: ReceiveId,
    /// The first byte within the receive.
    pub offset: u64,
    /// The number of bytes; at least 1.
    pub length: u64,
}

/// A completed receive: its id, its number of bytes, and its outcome.
pub(super) type CompletedReceive = (ReceiveId, u64, ReceiveOutcome);

impl StreamReceiver {
    pub(super) fn new(settings: &StreamSettings) -> Self {
        Self {
            kind: settings.kind,
            advertises: settings.advertises(),
            advert_bytes_min: settings.advertises_from(),
            has_ring: settings.has_ring(),
            renewal: settings.renews().then(|| Renewal::new(settings.renewal_gap_bytes)),
            phase: Phase::FIRST,
            sequence: 0,
            estimate: 0,
            ring: RingReader::new(settings.ring_words),
            receives: VecDeque::new(),
            advertised: 0,
            voided: 0,
            cancelled: 0,
            withdrawal: Withdrawal::None,
            ended: false,
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.receives.len()
    }

    pub(super) fn ring(&mut self) -> &mut RingReader {
        &mut self.ring
    }

    pub(super) fn next_arrival(&self) -> usize {
        self.ring.next_arrival()
    }

    pub(super) fn has_stored(&self) -> bool {
        self.ring.stored() > 0
    }

    /// Returns whether the peer has ended its stream and all of it is delivered.
    #[inline]
    pub(super) fn is_at_end(&self) -> bool {
        self.ended && self.ring.stored() == 0
    }

    pub(super) fn post(&mut self, id: ReceiveId, memory: ReceiveMemory, wait_all: bool) {
        let ReceiveMemory { grant, start, length } = memory;
        let (filled, was_advertised, is_cancelled) = (0, false, false);
        let wait_all = wait_all && self.kind == SocketKind::Stream;
        let waits = self.ring.stored() > 0 || self.voided > 0 && !mutant!(AdvertiseBehindVoided);
        self.voided += usize::from(self.phase.is_indirect() && waits);
        let receive = Wanting { id, grant, start, length, filled, wait_all, was_advertised, is_cancelled };
        self.receives.push_back(receive);
    }

    /// Returns whether a receive may be advertised now (fig. 3, line 1, and renewal).
    ///
    /// `Deviation:` (fig. 3) a receive with little space is not advertised, and neither are those after it until it
    /// is filled.
    #[inline]
    pub(super) fn wants_to_advertise(&self) -> bool {
        // In most cases there is no such receive.
        if self.receives.get(self.advertised).is_none_or(|next| next.free_space() < self.advert_bytes_min) {
            return false;
        }
        let emptied = self.ring.stored() == 0 || mutant!(AdvertiseOverStored);
        let is_behind = mutant!(AdvertiseBehindVoided) && self.voided < self.receives.len();
        let may_begin = self.renewal.as_ref().map_or(self.voided == 0, Renewal::is_due) || is_behind;
        self.advertises
            && emptied
            && !self.ended
            && self.withdrawal == Withdrawal::None
            && (self.phase.is_direct() || may_begin)
    }

    /// Advertises the next receive (fig. 3).
    pub(super) fn next_advert(&mut self, statistics: &mut Statistics) -> Option<Advert> {
        if !self.wants_to_advertise() {
            return None;
        }
        if self.phase.is_indirect() {
            self.phase = self.phase.next();
            self.begin_phase();
        }
        let receive = &mut self.receives[self.advertised];
        self.advertised += 1;
        receive.was_advertised = true;
        let length = receive.free_space();
        let sequence = self.estimate;
        self.estimate += if receive.wait_all { length } else { 1 };
        statistics.adverts += 1;
        let (grant, start, wait_all) = (receive.grant, receive.start + receive.filled, receive.wait_all);
        Some(Advert { grant, start, length, wait_all, phase: self.phase, sequence })
    }

    /// Begins a phase. The ring is empty, so the first advert of the phase is for exactly the next byte \[E2\],
    /// \[E3\].
    ///
    /// `Deviation:` (fig. 5) as printed, the estimate is not reset when receives without an advert were filled.
    fn begin_phase(&mut self) {
        if mutant!(AdvertiseBehindVoided) && self.voided < self.receives.len() {
            self.advertised = self.voided;
            return;
        }
        self.voided = 0;
        mutant!(NoResync => return);
        self.estimate = self.sequence;
    }

    /// Handles that the sender waits for adverts.
    pub(super) fn on_awaited(&mut self) {
        self.renewal.iter_mut().for_each(Renewal::on_awaited);
    }

    /// Handles a direct transfer, which has arrived in the head receive \[E1\] (fig. 4, lines 1–6).
    pub(super) fn on_direct(&mut self, length: u64) -> Result<Option<CompletedReceive>, StreamViolation> {
        let is_packet = self.kind == SocketKind::Packets;
        let head = self
            .receives
            .front_mut()
            .filter(|_| self.advertised > 0)
            .ok_or(StreamViolation::DirectUnexpected)?;
        if self.ended {
            return Err(StreamViolation::AfterEnd);
        }
        if length > head.free_space() {
            return Err(StreamViolation::DirectUnexpected);
        }
        if length == 0 && !is_packet {
            return Err(StreamViolation::EmptyTransfer);
        }
        self.sequence += if is_packet { 1 } else { length };
        if !head.wait_all && !is_packet {
            self.estimate += length - 1;
        }
        head.filled += length;
        let is_done = !head.wait_all || head.filled == head.length;
        self.renewal.iter_mut().for_each(Renewal::on_direct);
        Ok(is_done.then(|| self.complete_head(ReceiveOutcome::Filled)))
    }

    /// Handles an indirect transfer (fig. 4, lines 7–12), which voids the outstanding adverts.
    #[inline]
    pub(super) fn on_indirect(&mut self, skip: u64, length: u64) -> Result<(), StreamViolation> {
        if !self.has_ring {
            return Err(StreamViolation::RingOverrun);
        }
        if self.ended {
            return Err(StreamViolation::AfterEnd);
        }
        self.ring.store(skip, length)?;
        if self.phase.is_direct() {
            let space = self.receives.front().map_or(0, Wanting::free_space);
            self.renewal.iter_mut().for_each(|renewal| renewal.on_voided(space));
        }
        self.void_adverts();
        Ok(())
    }

    #[inline]
    fn void_adverts(&mut self) {
        if self.phase.is_direct() {
            self.phase = self.phase.next();
        }
        self.advertised = 0;
        self.voided = self.receives.len();
    }

    /// Handles that the head packet is too long for the head receive; the packet waits for the next one \[E9\].
    pub(super) fn on_too_long(&mut self, length: u64) -> Result<CompletedReceive, StreamViolation> {
        let head = self.receives.front().filter(|_| self.advertised > 0).ok_or(StreamViolation::Unasked)?;
        if self.kind != SocketKind::Packets || length <= head.length {
            return Err(StreamViolation::Unasked);
        }
        self.sequence += 1;
        Ok(self.complete_head(ReceiveOutcome::TooLong { length }))
    }

    /// Returns the next bytes to copy from the ring to the head receive (fig. 5), at most `length_max`.
    #[inline]
    pub(super) fn next_copy(&self, length_max: u64) -> Option<RingCopy> {
        let (from, stored) = self.ring.next()?;
        let head = self.receives.front()?;
        let length = stored.min(head.free_space()).min(length_max);
        Some(RingCopy { from, receive: head.id, offset: head.filled, length })
    }

    /// Handles that these bytes have been copied.
    #[inline]
    pub(super) fn on_copied(&mut self, length: u64) -> Option<CompletedReceive> {
        self.ring.consume(length);
        self.sequence += length;
        self.renewal.iter_mut().for_each(|renewal| renewal.on_copied(length));
        let head = self.receives.front_mut().expect("bytes were copied to it");
        head.filled += length;
        let is_full = head.filled == head.length;
        while let Some((_, rest)) = self.ring.next().filter(|_| is_full && mutant!(DropRest)) {
            self.ring.consume(rest);
        }
        let is_done = is_full || !head.wait_all && self.ring.stored() == 0;
        mutant!(NoResync if is_done && head.was_advertised && !head.wait_all => {
            self.estimate = (self.estimate + head.filled).saturating_sub(1);
        });
        is_done.then(|| self.complete_head(ReceiveOutcome::Filled))
    }

    #[inline]
    fn complete_head(&mut self, outcome: ReceiveOutcome) -> CompletedReceive {
        let head = self.receives.front().expect("the caller saw it");
        let completed = (head.id, head.filled, outcome);
        self.cancelled -= usize::from(head.is_cancelled);
        self.receives.pop_front();
        self.advertised = self.advertised.saturating_sub(1);
        self.voided = self.voided.saturating_sub(1);
        completed
    }

    /// Handles the end of the peer's stream.
    pub(super) fn on_end(&mut self) -> Result<(), StreamViolation> {
        if std::mem::replace(&mut self.ended, true) {
            return Err(StreamViolation::AfterEnd);
        }
        Ok(())
    }

    /// Completes the next receive that cannot get any more data.
    #[inline]
    pub(super) fn next_starved(&mut self, outcome: ReceiveOutcome) -> Option<CompletedReceive> {
        let is_starved = self.ring.stored() == 0 && !self.receives.is_empty();
        is_starved.then(|| self.complete_head(outcome))
    }

    /// Cancels a receive: at once if the peer cannot write to it, otherwise after the peer has confirmed \[E7\].
    /// Returns false if there is no such receive.
    pub(super) fn cancel(&mut self, id: ReceiveId) -> (bool, Option<CompletedReceive>) {
        let Some(at) = self.receives.iter().position(|receive| receive.id == id) else {
            return (false, None);
        };
        if at < self.advertised && !mutant!(CancelAtOnce) {
            self.cancelled += usize::from(!std::mem::replace(&mut self.receives[at].is_cancelled, true));
            if self.withdrawal == Withdrawal::None {
                self.withdrawal = Withdrawal::Due;
            }
            return (true, None);
        }
        (true, Some(self.remove(at)))
    }

    fn remove(&mut self, at: usize) -> CompletedReceive {
        let receive = self.receives.remove(at).expect("the caller saw it");
        self.voided -= usize::from(at < self.voided);
        self.cancelled -= usize::from(receive.is_cancelled);
        (receive.id, receive.filled, ReceiveOutcome::Cancelled)
    }

    /// Returns whether the sender must be asked to forget all adverts, and records that it is asked now.
    pub(super) fn take_withdraw(&mut self) -> bool {
        let is_due = self.withdrawal == Withdrawal::Due;
        if is_due {
            self.withdrawal = Withdrawal::Asked;
        }
        is_due
    }

    pub(super) fn wants_to_withdraw(&self) -> bool {
        self.withdrawal == Withdrawal::Due
    }

    /// Handles that the sender has forgotten all adverts; everything that it wrote before has arrived.
    pub(super) fn on_withdrawn(&mut self) -> Result<(), StreamViolation> {
        if self.withdrawal != Withdrawal::Asked {
            return Err(StreamViolation::Unasked);
        }
        self.withdrawal = Withdrawal::None;
        self.void_adverts();
        if self.ring.stored() == 0 {
            self.voided = 0;
        }
        Ok(())
    }

    /// Completes the next cancelled receive that the peer can no longer write.
    #[inline]
    pub(super) fn next_cancelled(&mut self) -> Option<CompletedReceive> {
        if self.cancelled == 0 || self.withdrawal != Withdrawal::None {
            return None;
        }
        let at = self.receives.iter().position(|receive| receive.is_cancelled)?;
        Some(self.remove(at))
    }
}
