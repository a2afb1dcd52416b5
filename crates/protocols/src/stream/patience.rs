//! Patience: when the sender waits for an advert although the ring has room.
//!
//! `Deviation:` (EXS fig. 2) the paper's sender never waits: without an advert it goes through the ring at once, and a
//! sender that is faster than the peer's copies then never comes out of the ring again (EXS table III, equal numbers
//! of sends and receives). Here three rules weigh what a wait costs against the copies that it saves:
//!
//! - *Stay.* In a direct phase the sender waits for an advert if direct transfer with such waits has been faster than
//!   the peer copies: from the end of one wait to the end of the next, less time than copying what was sent in it.
//! - *Turn.* In an indirect phase the sender stops and lets the ring drain, so that the peer advertises again, if
//!   draining takes several times as long as an advert: the peer copies meanwhile anyway. If what was gained by that
//!   does not outweigh it, the next turn must be worth twice as much.
//! - *Try.* A sender that is not ahead of the peer's copies never sees a full ring. So if what it sends is long beside an
//!   advert, it turns as well when so much has gone through the ring that letting it drain in vain costs little.
//!
//! Over long distances the wire is slower than copies and an advert takes longer than any of them: none applies.

use squall_fabric::{Duration, Instant};

/// What the sender knows of the time that adverts and copies take.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Patience {
    /// How fast the peer copies; 0 switches all rules off.
    copy_bytes_per_us: u64,
    /// There and back on the wire: no advert that is asked for now comes earlier.
    round_trip: Duration,
    /// The wait that goes on: since when, and until when it may.
    wait: Option<(Instant, Instant)>,
    /// The cycle that goes on, from the end of one wait to the end of the next: since when, less the time in which the
    /// user had nothing to send, and how many bytes have gone directly in it.
    cycle_begin: Option<Instant>,
    cycle_bytes: u64,
    idle_since: Option<Instant>,
    /// Averages of the cycles lately, and how many there are in them, up to [`CYCLES_MAX`].
    cycle: Duration,
    served: u64,
    waited: Duration,
    cycles: u32,
    /// What the peer had to copy at that time, if it copies whenever there is something.
    backlog: (u64, Instant),
    /// Bytes that have gone through the ring since the clock was looked at.
    unclocked: u64,
    /// Bytes that have gone through the ring since the last turn.
    ringed: u64,
    /// Until when the sender lets the ring drain.
    turn: Option<Instant>,
    /// How many times longer than an advert draining must take; `TURN_FACTOR_MIN..=TURN_FACTOR_MAX`.
    turn_factor: u32,
    /// Bytes that were in the ring at the last turn, and bytes that have gone directly since.
    drained: u64,
    gained: u64,
    /// What was drained last, when it is clear what came of it.
    drained_last: u64,
    /// Bytes that must go through the ring before a turn in vain is forgotten.
    to_forget: u64,
}

/// What a turn costs.
struct Worth {
    /// How long the ring drains.
    draining: Duration,
    /// What could be copied meanwhile: direct transfer must gain several times as much.
    drained: u64,
    /// A turn in vain is remembered for some times as many bytes.
    remembered: u64,
}

impl Patience {
    pub(super) fn new(copy_bytes_per_us: u64) -> Self {
        Self {
            copy_bytes_per_us,
            round_trip: Duration::ZERO,
            wait: None,
            cycle_begin: None,
            cycle_bytes: 0,
            idle_since: None,
            cycle: Duration::ZERO,
            served: 0,
            waited: Duration::ZERO,
            cycles: 0,
            backlog: (0, Instant::from_nanos(0)),
            unclocked: 0,
            ringed: 0,
            turn: None,
            turn_factor: TURN_FACTOR_MIN,
            drained: 0,
            gained: 0,
            drained_last: 0,
            to_forget: 0,
        }
    }

    /// A small post was done so long after it was made.
    pub(super) fn on_round_trip(&mut self, span: Duration) {
        self.round_trip = if self.round_trip.is_zero() { span } else { self.round_trip.min(span) };
    }

    /// Whether it is to be told the time when `bytes` go through the ring. Looking at the clock takes as long as to send a
    /// few of them, so for some kilobytes an older time will do: they weigh nothing.
    pub(super) fn needs_clock(&self, bytes: u64) -> bool {
        let is_light = self.turn.is_none() && self.wait.is_none() && self.unclocked + bytes <= UNCLOCKED_MAX;
        self.copy_bytes_per_us > 0 && !is_light
    }

    /// Whether it is to be told the time of the next direct transfer: else that is one of many in its cycle.
    pub(super) fn begins_or_ends_something(&self) -> bool {
        self.wait.is_some() || self.cycle_begin.is_none() || self.idle_since.is_some()
    }

    /// Nothing waits to be sent, and nothing is under way.
    pub(super) fn on_idle(&mut self, now: Instant) {
        if self.cycle_begin.is_some() {
            self.idle_since.get_or_insert(now);
        }
    }

    /// Whether it knows that nothing waits to be sent, or does not care.
    pub(super) fn is_idle(&self) -> bool {
        self.idle_since.is_some() || self.cycle_begin.is_none()
    }

    /// The user has something to send again.
    pub(super) fn on_busy(&mut self, now: Instant) {
        if let Some(since) = self.idle_since.take() {
            self.cycle_begin = self.cycle_begin.map(|begin| begin + now.since(since));
        }
    }

    /// Whether the head send, of which `bytes` are left and which has no advert, waits for one in a direct phase.
    pub(super) fn stays(&mut self, now: Instant, bytes: u64) -> bool {
        if let Some((_, until)) = self.wait {
            if now >= until {
                self.end_wait(now);
            }
            return now < until;
        }
        let longest = WAIT_FACTOR * self.copying(self.served.max(self.cycle_bytes).max(bytes));
        if !self.is_direct_faster() || longest <= self.round_trip || longest.is_zero() {
            return false;
        }
        self.wait = Some((now, now + longest));
        true
    }

    /// Whether cycles take less time than the copies that they save. The first few are judged less severely: sends
    /// differ in length.
    fn is_direct_faster(&self) -> bool {
        let severity = if self.cycles < CYCLES_MIN { WAIT_FACTOR } else { 1 };
        self.cycle <= severity * self.copying(self.served)
    }

    /// A wait is over, in vain or not, and with it a cycle.
    fn end_wait(&mut self, now: Instant) {
        let Some((since, _)) = self.wait.take() else { return };
        let (cycle, waited) = (now.since(self.cycle_begin.unwrap_or(since)), now.since(since));
        self.cycles = (self.cycles + 1).min(CYCLES_MAX);
        let n = self.cycles;
        let mean = |mean: Duration, new: Duration| {
            // A process that lost its processor meanwhile says nothing about adverts.
            let new = if n > CYCLES_MIN { new.min(OUTLIER * mean) } else { new };
            ((n - 1) * mean + new) / n
        };
        self.cycle = mean(self.cycle, cycle);
        self.waited = mean(self.waited, waited);
        self.served = (u64::from(n - 1) * self.served + self.cycle_bytes).div_ceil(u64::from(n)).max(1);
        (self.cycle_begin, self.cycle_bytes) = (Some(now), 0);
    }

    /// Bytes go directly.
    pub(super) fn on_direct(&mut self, now: Instant, bytes: u64) {
        self.end_wait(now);
        self.cycle_begin.get_or_insert(now);
        self.cycle_bytes += bytes;
        self.gained += bytes;
        self.turn = None;
    }

    /// A direct phase has ended.
    pub(super) fn on_phase_end(&mut self) {
        (self.wait, self.cycle_begin, self.cycle_bytes) = (None, None, 0);
        if self.drained == 0 {
            return;
        }
        if self.gained >= 4 * self.drained {
            self.turn_factor = TURN_FACTOR_MIN;
        } else {
            self.on_turn_in_vain();
        }
        self.drained = 0;
    }

    /// Bytes go through the ring. Times may change: after some more of these direct transfer is tried again.
    pub(super) fn on_indirect(&mut self, now: Instant, bytes: u64) {
        if self.copy_bytes_per_us > 0 {
            let is_new = now > self.backlog.1;
            self.unclocked = if is_new { bytes } else { self.unclocked + bytes };
            self.backlog = (self.backlog(now) + bytes, now);
            self.ringed += bytes;
            if !self.cycle.is_zero() {
                self.cycle -= self.cycle / FORGETTING;
            }
            self.to_forget = self.to_forget.saturating_sub(bytes);
            if self.to_forget == 0 && self.turn_factor > TURN_FACTOR_MIN {
                self.turn_factor /= 2;
                self.to_forget = TURN_SPACING * self.drained_last;
            }
        }
    }

    fn backlog(&self, now: Instant) -> u64 {
        let (bytes, at) = self.backlog;
        if now == at {
            return bytes;
        }
        let nanos = now.as_nanos().saturating_sub(at.as_nanos());
        bytes.saturating_sub(nanos.saturating_mul(self.copy_bytes_per_us) / 1000)
    }

    /// Whether the sender, which has `bytes` to send, sends nothing through the ring, of which `in_use` bytes are in use,
    /// so that an indirect phase ends.
    pub(super) fn turns(&mut self, now: Instant, bytes: u64, in_use: u64) -> bool {
        if let Some(until) = self.turn {
            if now < until {
                return true;
            }
            self.turn = None;
            self.on_turn_in_vain();
            return false;
        }
        let advert = self.waited.max(self.round_trip).max(ADVERT_MIN);
        let drain = self.drain(now, advert, in_use).filter(|_| self.is_direct_faster());
        let Some(worth) = drain.or_else(|| self.trial(advert, bytes, in_use)) else { return false };
        let Worth { draining, drained, remembered } = worth;
        self.turn = Some(now + 2 * draining + 2 * advert);
        (self.drained, self.drained_last, self.gained, self.ringed) = (drained, remembered, 0, 0);
        true
    }

    /// A turn because the ring is full, if draining it is worth several adverts.
    fn drain(&self, now: Instant, advert: Duration, in_use: u64) -> Option<Worth> {
        // Mostly so little is in use that it is not worth the shortest advert.
        if in_use.min(self.backlog.0) < self.copy_bytes_per_us * TURN_MIN_US {
            return None;
        }
        // What is in use may have been copied, because the peer tells it late or because it travels.
        let draining = self.copying(in_use.min(self.backlog(now))).saturating_sub(self.round_trip);
        let worth = Worth { draining, drained: in_use, remembered: in_use };
        (draining >= self.turn_factor * advert).then_some(worth)
    }

    /// A turn to try whether an advert comes, if it is time for that.
    fn trial(&mut self, advert: Duration, bytes: u64, in_use: u64) -> Option<Worth> {
        let draining = self.copying(in_use);
        if self.ringed < TRIAL_MIN || self.copying(bytes) < TRIAL_FACTOR * advert {
            return None;
        }
        let cost = in_use + advert.as_nanos() as u64 * self.copy_bytes_per_us / 1000;
        // The first trials come soon, further ones in vain less and less often.
        let spacing = 2 * u64::from(self.turn_factor).pow(2);
        if self.ringed < spacing * cost {
            return None;
        }
        if self.cycles < CYCLES_MIN {
            // The first ones meet cold memory and processes that are still waking: no reason to give up for ever.
            (self.cycle, self.served, self.cycles) = (Duration::ZERO, 0, 0);
        }
        self.is_direct_faster().then_some(Worth { draining, drained: cost, remembered: self.ringed })
    }

    fn on_turn_in_vain(&mut self) {
        self.turn_factor = (2 * self.turn_factor).min(TURN_FACTOR_MAX);
        self.to_forget = TURN_SPACING * self.drained_last;
    }

    /// When a wait ends.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.turn.or(self.wait.map(|(_, until)| until))
    }

    /// How long the peer copies `bytes`; zero if patience is off.
    fn copying(&self, bytes: u64) -> Duration {
        Duration::from_nanos((bytes * 1000).checked_div(self.copy_bytes_per_us).unwrap_or(0))
    }
}

/// A single wait may take so many times the copies that it saves: what counts is the average.
const WAIT_FACTOR: u32 = 4;
/// Averages are over about so many cycles, and mean little before there are so many.
const CYCLES_MAX: u32 = 32;
const CYCLES_MIN: u32 = 8;
/// A turn must be worth at least so many adverts…
const TURN_FACTOR_MIN: u32 = 2;
/// …and after many in vain at most so many, which bounds what further ones cost to a few percent.
const TURN_FACTOR_MAX: u32 = 64;
/// So many bytes are sent with one look at the clock; to copy them takes less than a turn could bring.
const UNCLOCKED_MAX: u64 = 4096;
/// What an advert takes at least, even if the wire takes no time.
const ADVERT_MIN: Duration = Duration::from_nanos(500);
/// So draining takes at least so many microseconds.
const TURN_MIN_US: u64 = (TURN_FACTOR_MIN as u64 * ADVERT_MIN.as_nanos() as u64) / 1000;
/// A turn in vain is forgotten, in part, when so many times as much as was drained has gone through the ring: times change,
/// and with so few tries more they cost little.
const TURN_SPACING: u64 = 32;
/// To copy a send that is worth a trial takes at least so many adverts.
const TRIAL_FACTOR: u32 = 4;
/// No trial costs less than what goes through the ring meanwhile.
const TRIAL_MIN: u64 = 1 << 16;
/// A time so many times as long as the average counts as that.
const OUTLIER: u32 = 4;
/// One part in so many of the average cycle is forgotten with each indirect transfer.
const FORGETTING: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    /// A MiB is copied in about 350 µs.
    fn patience(round_trip_us: u64) -> Patience {
        let mut patience = Patience::new(3000);
        patience.on_round_trip(Duration::from_micros(round_trip_us));
        patience
    }

    /// Cycles of `adverts` direct transfers of `bytes`, each with an advert `wait_us` too late and `cycle_us` in all.
    fn cycles(patience: &mut Patience, adverts: u64, bytes: u64, wait_us: u64, cycle_us: u64) -> bool {
        let mut stays = true;
        for i in 0..20 {
            (0..adverts).for_each(|_| patience.on_direct(at(cycle_us * i), bytes));
            stays = patience.stays(at(cycle_us * (i + 1) - wait_us), bytes);
        }
        stays
    }

    #[test]
    fn a_wait_has_an_end() {
        let mut patience = patience(4);
        assert!(patience.stays(at(0), MIB) && patience.stays(at(1397), MIB));
        assert!(patience.next_deadline().is_some_and(|until| until > at(1397) && until < at(1399)));
        assert!(!patience.stays(at(1399), MIB), "it took too long");
        assert!(!patience.stays(at(1400), MIB), "the next one is not waited for");
        assert!(!Patience::new(0).stays(at(0), MIB), "switched off");
    }

    /// What counts is the time of a cycle, not of a wait: one advert at a time for few bytes is not worth it, many at
    /// a time or long ones are.
    #[test]
    fn direct_transfer_is_worth_waits_if_it_is_faster_than_copies() {
        assert!(cycles(&mut patience(4), 1, MIB, 60, 240));
        assert!(!cycles(&mut patience(4), 1, 8 * KIB, 2, 8), "8 KiB are copied in 3 µs");
        assert!(cycles(&mut patience(4), 32, 8 * KIB, 20, 60));
        assert!(!cycles(&mut patience(48_000), 32, MIB, 40, 48_000), "as far away as another continent");
    }

    /// The user's own pauses do not count.
    #[test]
    fn pauses_are_not_counted() {
        let mut patience = patience(4);
        for i in 0..20 {
            patience.on_direct(at(10_000 * i), MIB);
            patience.on_idle(at(10_000 * i + 200));
            patience.on_busy(at(10_000 * i + 9_960));
            assert!(patience.stays(at(10_000 * i + 9_960), MIB));
        }
        assert!(patience.cycle.abs_diff(Duration::from_micros(240)) < Duration::from_micros(1));
    }

    #[test]
    fn what_was_learned_is_forgotten() {
        let mut patience = patience(4);
        assert!(!cycles(&mut patience, 1, 8 * KIB, 2, 8));
        patience.on_phase_end();
        let mut tries = 0;
        while !patience.stays(at(1000), 8 * KIB) {
            patience.on_indirect(at(1000), 8 * KIB);
            tries += 1;
        }
        assert!((100..1000).contains(&tries), "tried again after {tries}");
    }

    #[test]
    fn a_sender_far_ahead_lets_the_ring_drain() {
        let mut near = patience(40);
        near.on_indirect(at(0), MIB);
        assert!(!near.turns(at(0), 0, 64 * KIB), "not far ahead");
        assert!(near.turns(at(0), 0, MIB) && near.turns(at(500), 0, MIB / 2));
        near.on_direct(at(600), MIB);
        assert!(!near.turns(at(601), 0, 64 * KIB));
        let mut far = patience(48_000);
        far.on_indirect(at(0), 64 * MIB);
        assert!(!far.turns(at(0), 0, 64 * MIB), "too far away");
        assert!(!Patience::new(0).turns(at(0), 0, 64 * MIB), "switched off");
    }

    /// One send after the other, each copied before the next: the ring is never full, but after some are tried another way.
    #[test]
    fn a_sender_that_is_not_ahead_tries_direct_transfer() {
        let (mut patience, mut turns) = (patience(4), Vec::new());
        for i in 0..10_000 {
            let now = at(1_000 * i);
            if patience.turns(now, MIB, 0) {
                turns.push(i);
                assert!(!patience.turns(at(1_000 * i + 100), MIB, 0), "no advert comes");
            }
            patience.on_indirect(now, MIB);
        }
        assert!(turns.first().is_some_and(|first| *first < 10), "{turns:?}");
        assert!(turns.len() < 10_000 / 20, "{} turns in vain", turns.len());
        for i in 0..10_000 {
            patience.on_indirect(at(10_000_000 + i), 512);
            assert!(
                !patience.turns(at(10_000_000 + i), 512, 0),
                "512 bytes are copied sooner than an advert comes"
            );
        }
    }

    /// What was sent long ago is copied, although the peer has not said so.
    #[test]
    fn a_sender_that_is_not_ahead_does_not_stop() {
        let mut patience = patience(4);
        for i in 0..1000 {
            patience.on_indirect(at(i), 64);
            assert!(!patience.turns(at(i), 0, 64 * i), "{i} messages of 64 bytes, one in a microsecond");
        }
    }

    /// Whoever was put to sleep by the system once or twice is not judged by that.
    #[test]
    fn outliers_count_little() {
        let mut patience = patience(4);
        for i in 0..40 {
            patience.on_direct(at(250 * i), MIB);
            let slept_us = if i > 20 && i % 7 == 0 { 8_000 } else { 60 };
            patience.stays(at(250 * i + 180), MIB);
            patience.on_direct(at(250 * i + 180 + slept_us), 1);
        }
        assert!(patience.is_direct_faster());
    }

    #[test]
    fn turns_in_vain_are_forgotten() {
        let mut patience = patience(40);
        patience.on_indirect(at(0), MIB);
        while patience.turn_factor < TURN_FACTOR_MAX {
            patience.on_indirect(at(0), MIB);
            patience.turns(at(0), 0, 64 * MIB);
            patience.turns(at(1_000_000), 0, 64 * MIB);
        }
        let tries = (0..100_000).take_while(|i| {
            patience.on_indirect(at(1_000_000 + 350 * i), MIB);
            patience.turn_factor > TURN_FACTOR_MIN
        });
        assert!((1_000..100_000).contains(&tries.count()));
    }

    #[test]
    fn turns_in_vain_become_rare() {
        let mut patience = patience(40);
        patience.on_indirect(at(0), 64 * MIB);
        assert!(patience.turns(at(0), 0, MIB));
        for i in 1..4 {
            patience.on_direct(at(i), MIB / 2);
            patience.on_phase_end();
            patience.turns(at(i), 0, MIB);
        }
        assert!(!patience.turns(at(10), 0, MIB), "draining is not worth 16 adverts");
        assert!(patience.turns(at(10), 0, 8 * MIB));
    }
}
