//! Patience: when the sender waits for an advert although the ring has space.
//!
//! `Deviation:` (EXS fig. 2) the paper's sender never waits: without an advert it goes through the ring at once, and a
//! sender that is faster than the peer's copies then never comes out of the ring again (EXS table III, equal numbers
//! of sends and receives). Here three rules weigh what a wait costs against the copies that it saves:
//!
//! - *Stay.* In a direct phase the sender waits for an advert if direct transfer with such waits has been faster than
//!   the peer copies: from the end of one wait to the end of the next, less time than copying what was sent in it. What was
//!   learned is forgotten, ever more slowly while the tries that follow bring little.
//! - *Turn.* In an indirect phase the sender stops and lets the ring drain, so that the peer advertises again, if
//!   draining takes several times as long as an advert: the peer copies meanwhile anyway. The peer is told, and so
//!   advertises as soon as its ring is empty. If what was gained does not outweigh the turn, the next must be worth twice
//!   as much.
//! - *Try.* A sender that is not ahead of the peer's copies never sees a full ring. So if what it sends is long beside an
//!   advert, it turns as well when so much has gone through the ring that letting it drain in vain costs little.
//!
//! Short sends in addition choose between adverts and the ring by what either has brought (module `choice`). For them a
//! look at the clock takes a good part of the time, so in a direct phase that is clearly faster [`UNMEASURED`] cycles
//! follow each that is measured, and their waits begin with some polls without it.
//!
//! How fast the peer copies is measured (module `pace`), since that differs by a factor of three from machine to machine.
//!
//! Over long distances the wire is slower than copies and an advert takes longer than any of them: none applies.

mod choice;
mod pace;
#[cfg(test)]
mod tests;

use squall_fabric::{Duration, Instant};

pub(super) use choice::SHORT_MAX;
use choice::SendPathChoice;
use pace::TransferPace;

/// What the sender knows of the time that adverts and copies take.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Patience {
    /// How fast the peer copies; `None` switches all rules off.
    pace: Option<TransferPace>,
    /// Whether short sends take adverts; `None` if they do in any case.
    choice: Option<SendPathChoice>,
    /// There and back on the wire: no advert that is asked for now comes earlier.
    round_trip: Duration,
    /// The wait that goes on: since when, and until when it may.
    wait: Option<(Instant, Instant)>,
    /// The cycle that goes on, from the end of one wait to the end of the next: since when, less the time in which the
    /// user had nothing to send, and how many bytes have gone directly in it.
    cycle_begin: Option<Instant>,
    cycle_bytes: u64,
    idle_since: Option<Instant>,
    /// Cycles of short sends that are not measured before the next one is; polls of the wait that goes on in one of them,
    /// without a look at the clock.
    unmeasured: u32,
    glances: u32,
    /// Whether the last direct transfer was short.
    is_short: bool,
    /// Averages of the cycles lately, and how many there are in them, up to [`CYCLES_MAX`].
    cycle: Duration,
    served: u64,
    waited: Duration,
    cycles: u32,
    /// Bytes of the present direct phase, and those of the indirect one before it.
    in_phase: u64,
    since_phase: u64,
    /// Indirect transfers ever.
    transfers: u32,
    /// In how many direct phases in a row little went: so much slower is forgotten what was learned.
    doubt: u32,
    /// What the peer had to copy at that time, if it copies whenever there is something.
    backlog: (u64, Instant),
    /// Bytes that have gone through the ring since the clock was looked at.
    unclocked: u64,
    /// What of these does not count yet: few bytes are counted together.
    uncounted: u64,
    /// Bytes that have gone through the ring since the last turn.
    ringed: u64,
    /// Until when the sender lets the ring drain.
    round: Option<Instant>,
    /// How many times longer than an advert draining must take; `ROUND_FACTOR_MIN..=ROUND_FACTOR_MAX`.
    round_factor: u32,
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
            pace: (copy_bytes_per_us > 0).then(|| TransferPace::new(copy_bytes_per_us)),
            choice: (copy_bytes_per_us > 0).then(|| SendPathChoice::new(copy_bytes_per_us)),
            round_trip: Duration::ZERO,
            wait: None,
            cycle_begin: None,
            cycle_bytes: 0,
            idle_since: None,
            unmeasured: 0,
            glances: 0,
            is_short: false,
            cycle: Duration::ZERO,
            served: 0,
            waited: Duration::ZERO,
            cycles: 0,
            in_phase: 0,
            since_phase: 0,
            transfers: 0,
            doubt: 0,
            backlog: (0, Instant::from_nanos(0)),
            unclocked: 0,
            uncounted: 0,
            ringed: 0,
            round: None,
            round_factor: ROUND_FACTOR_MIN,
            drained: 0,
            gained: 0,
            drained_last: 0,
            to_forget: 0,
        }
    }

    /// A small post was done so long after it was made.
    pub(super) fn on_round_trip(&mut self, span: Duration) {
        self.round_trip = if self.round_trip.is_zero() { span } else { self.round_trip.min(span) };
        let is_far = self.round_trip > NEAR;
        self.choice.iter_mut().for_each(|choice| choice.set_far(is_far));
    }

    /// The peer does not renew adverts: who leaves them never gets others.
    pub(super) fn keep_to_adverts(&mut self) {
        self.choice = None;
    }

    /// Whether a send of `bytes` goes through the ring though there is an advert for it.
    #[inline]
    pub(super) fn prefers_ring(&self, bytes: u64) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.prefers_ring(bytes))
    }

    #[cfg(test)]
    pub(super) fn prefer_ring(&mut self, prefers: bool) {
        self.choice.iter_mut().for_each(|choice| choice.prefer_ring(prefers));
    }

    fn choice_needs_clock(&self) -> bool {
        self.choice.as_ref().is_some_and(SendPathChoice::needs_clock)
    }

    /// Whether it is to be told the time when `bytes` go through the ring. Looking at the clock takes as long as to send a
    /// few of them, so for some kilobytes an older time will do: they weigh nothing.
    pub(super) fn needs_clock(&self, bytes: u64) -> bool {
        let is_light = self.round.is_none() && self.wait.is_none() && self.may_go_unclocked(bytes);
        self.pace.as_ref().is_some_and(|pace| !is_light || pace.needs_clock()) || self.choice_needs_clock()
    }

    fn may_go_unclocked(&self, bytes: u64) -> bool {
        self.unclocked + bytes <= UNCLOCKED_MAX || self.prefers_ring(bytes)
    }

    /// Whether [`Patience::stays`] has to know the time.
    pub(super) fn needs_clock_to_stay(&self, bytes: u64) -> bool {
        self.pace.is_some() && !self.may_glance(bytes)
    }

    /// Whether it is to be told the time of the next direct transfer: else that is one of many in its cycle.
    pub(super) fn begins_or_ends_something(&self) -> bool {
        self.wait.is_some()
            || self.cycle_begin.is_none() && self.unmeasured == 0
            || self.glances > 0 && self.unmeasured == 1
            || self.idle_since.is_some()
            || self.choice_needs_clock()
    }

    /// The peer has copied so many bytes more.
    pub(super) fn on_freed(&mut self, bytes: u64) {
        self.pace.iter_mut().for_each(|pace| pace.on_freed(bytes));
        self.choice.iter_mut().for_each(|choice| choice.on_freed(bytes));
    }

    /// Nothing waits to be sent, and nothing is under way; the user may not know that yet.
    pub(super) fn on_idle(&mut self, now: Instant) {
        self.pace.iter_mut().for_each(TransferPace::interrupt);
        if self.cycle_begin.is_some() {
            self.idle_since.get_or_insert(now);
        }
    }

    /// Whether it knows that nothing waits to be sent, or does not care.
    pub(super) fn knows_idle(&self) -> bool {
        self.idle_since.is_some() || self.cycle_begin.is_none()
    }

    /// The user knows that nothing is under way, and sends nothing.
    pub(super) fn on_pause(&mut self) {
        self.choice.iter_mut().for_each(SendPathChoice::interrupt);
    }

    /// Whether it knows that, or does not care.
    #[inline]
    pub(super) fn knows_pause(&self) -> bool {
        self.choice.as_ref().is_none_or(SendPathChoice::is_interrupted)
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
        if self.may_glance(bytes) {
            self.glances += 1;
        } else {
            self.wait = Some((now, now + longest));
        }
        true
    }

    /// Whether a wait in a cycle that is not measured goes on for a few polls without a look at the clock: mostly the
    /// advert is there by then.
    fn may_glance(&self, bytes: u64) -> bool {
        self.unmeasured > 0 && self.wait.is_none() && self.glances < GLANCES_MAX && bytes <= SHORT_MAX
    }

    /// Whether cycles take less time than the copies that they save. The first few are judged less severely: sends
    /// differ in length.
    fn is_direct_faster(&self) -> bool {
        let severity = if self.cycles < CYCLES_MIN { WAIT_FACTOR } else { 1 };
        self.cycle - self.cycle / PREFERENCE <= severity * self.copying(self.served)
    }

    /// A wait is over, in vain or not, and with it a cycle.
    fn end_wait(&mut self, now: Instant) {
        let has_glanced = std::mem::take(&mut self.glances) > 0;
        let wait = self.wait.take();
        let is_over = has_glanced || wait.is_some();
        if self.unmeasured > 0 && is_over && wait.is_none_or(|(_, until)| now < until) {
            self.unmeasured -= 1;
            if self.unmeasured == 0 {
                (self.cycle_begin, self.cycle_bytes) = (Some(now), 0);
            }
            return;
        }
        let Some((since, _)) = wait else { return };
        let (cycle, waited) = (now.since(self.cycle_begin.unwrap_or(since)), now.since(since));
        self.cycles = (self.cycles + 1).min(CYCLES_MAX);
        let n = self.cycles;
        // To divide by a constant takes nothing, and soon it is always the same one.
        let part = |sum: Duration| if n == CYCLES_MAX { sum / CYCLES_MAX } else { sum / n };
        let mean = |mean: Duration, new: Duration| {
            // A process that lost its processor meanwhile says nothing about adverts.
            let new = if n > CYCLES_MIN { new.min(OUTLIER * mean) } else { new };
            part((n - 1) * mean + new)
        };
        self.cycle = mean(self.cycle, cycle);
        self.waited = mean(self.waited, waited);
        let sum = u64::from(n - 1) * self.served + self.cycle_bytes;
        let is_full = n == CYCLES_MAX;
        self.served =
            if is_full { sum.div_ceil(u64::from(CYCLES_MAX)) } else { sum.div_ceil(u64::from(n)) }.max(1);
        let is_clear = |cycle, bytes| cycle < self.copying(bytes) / 4 * 3;
        let is_clear = is_clear(cycle, self.cycle_bytes) && is_clear(self.cycle, self.served);
        (self.cycle_begin, self.cycle_bytes) = (Some(now), 0);
        self.unmeasured = 0;
        if self.is_short && is_clear && self.cycles >= CYCLES_MIN {
            // Looks at the clock take as long as to send some hundred bytes.
            (self.cycle_begin, self.unmeasured) = (None, UNMEASURED);
        }
    }

    /// Bytes go directly.
    pub(super) fn on_direct(&mut self, now: Instant, bytes: u64) {
        if let Some(choice) = &mut self.choice {
            choice.on_time(now);
            choice.on_direct(bytes);
        }
        let is_measured = self.unmeasured == 0;
        self.in_phase += bytes;
        self.is_short = bytes <= SHORT_MAX;
        if !self.is_short {
            self.unmeasured = 0;
        }
        self.end_wait(now);
        if self.unmeasured == 0 && (is_measured || self.cycle_begin.is_some()) {
            self.cycle_begin.get_or_insert(now);
            self.cycle_bytes += bytes;
        }
        self.gained += bytes;
        self.round = None;
    }

    /// A direct phase has ended.
    pub(super) fn on_phase_end(&mut self) {
        (self.wait, self.glances, self.cycle_begin, self.cycle_bytes) = (None, 0, None, 0);
        self.unmeasured = 0;
        self.pace.iter_mut().for_each(TransferPace::interrupt);
        let is_in_vain = self.in_phase < self.since_phase / DOUBT_SHARE;
        self.doubt = if is_in_vain { (self.doubt + 1).min(DOUBT_MAX) } else { 0 };
        (self.in_phase, self.since_phase) = (0, 0);
        if self.drained == 0 {
            return;
        }
        if self.gained >= 4 * self.drained {
            self.round_factor = ROUND_FACTOR_MIN;
        } else {
            self.on_round_in_vain();
        }
        self.drained = 0;
    }

    /// Bytes go through the ring. Times may change: after some more of these direct transfer is tried again.
    pub(super) fn on_indirect(&mut self, now: Instant, bytes: u64) {
        if self.pace.is_none() {
            return;
        }
        if let Some(choice) = &mut self.choice {
            choice.on_time(now);
            choice.on_indirect(bytes);
        }
        self.since_phase += bytes;
        self.transfers = self.transfers.wrapping_add(1);
        if self.transfers.is_multiple_of(1 << self.doubt) {
            self.cycle -= self.cycle / FORGETTING;
        }
        let is_new = now > self.backlog.1;
        self.unclocked = if is_new { bytes } else { self.unclocked + bytes };
        self.uncounted += bytes;
        if !is_new && bytes <= SHORT_MAX && self.may_go_unclocked(0) {
            return;
        }
        self.pace.iter_mut().for_each(|pace| pace.on_time(now));
        self.backlog = (self.backlog(now), now);
        let bytes = std::mem::take(&mut self.uncounted);
        self.ringed += bytes;
        self.to_forget = self.to_forget.saturating_sub(bytes);
        if self.to_forget == 0 && self.round_factor > ROUND_FACTOR_MIN {
            self.round_factor /= 2;
            self.to_forget = ROUND_SPACING * self.drained_last;
        }
    }

    fn backlog(&self, now: Instant) -> u64 {
        let (bytes, at) = self.backlog;
        if now == at {
            return bytes + self.uncounted;
        }
        let nanos = now.as_nanos().saturating_sub(at.as_nanos());
        bytes.saturating_sub(nanos.saturating_mul(self.bytes_per_us()) / 1000) + self.uncounted
    }

    /// Whether the sender, which has `bytes` to send, sends nothing through the ring, of which `in_use` bytes are in use,
    /// so that an indirect phase ends.
    pub(super) fn has_begun_round(&mut self, now: Instant, bytes: u64, in_use: u64) -> bool {
        if let Some(until) = self.round {
            if now < until {
                return true;
            }
            self.round = None;
            self.on_round_in_vain();
            self.choice.iter_mut().for_each(SendPathChoice::on_round_in_vain);
            return false;
        }
        if !self.needs_clock(bytes) || self.prefers_ring(bytes) {
            return false;
        }
        let advert = self.waited.max(self.round_trip).max(ADVERT_MIN);
        if self.choice.as_ref().is_some_and(SendPathChoice::wants_round) {
            self.round = Some(now + 2 * self.copying(in_use) + 4 * advert);
            self.pace.iter_mut().for_each(TransferPace::interrupt);
            return true;
        }
        let drain = self.drain(now, advert, in_use).filter(|_| self.is_direct_faster());
        let Some(worth) = drain.or_else(|| self.trial(advert, bytes, in_use)) else { return false };
        let Worth { draining, drained, remembered } = worth;
        self.round = Some(now + 2 * draining + 2 * advert);
        self.pace.iter_mut().for_each(TransferPace::interrupt);
        (self.drained, self.drained_last, self.gained, self.ringed) = (drained, remembered, 0, 0);
        true
    }

    /// A turn because the ring is full, if draining it is worth several adverts.
    fn drain(&self, now: Instant, advert: Duration, in_use: u64) -> Option<Worth> {
        // Mostly so little is in use that it is not worth the shortest advert.
        if in_use.min(self.backlog.0 + self.uncounted) < self.bytes_per_us() * ROUND_MIN_US {
            return None;
        }
        // What is in use may have been copied, because the peer tells it late or because it travels.
        let draining = self.copying(in_use.min(self.backlog(now))).saturating_sub(self.round_trip);
        let worth = Worth { draining, drained: in_use, remembered: in_use };
        (draining >= self.round_factor * advert).then_some(worth)
    }

    /// A turn to try whether an advert comes, if it is time for that.
    fn trial(&mut self, advert: Duration, bytes: u64, in_use: u64) -> Option<Worth> {
        let draining = self.copying(in_use);
        if self.ringed < TRIAL_MIN || self.copying(bytes) < TRIAL_FACTOR * advert {
            return None;
        }
        let cost = in_use + advert.as_nanos() as u64 * self.bytes_per_us() / 1000;
        // The first trials come soon, further ones in vain less and less often.
        let spacing = 2 * u64::from(self.round_factor).pow(2);
        if self.ringed < spacing * cost {
            return None;
        }
        if self.cycles < CYCLES_MIN {
            // The first ones meet cold memory and processes that are still waking: no reason to give up for ever.
            (self.cycle, self.served, self.cycles) = (Duration::ZERO, 0, 0);
        }
        self.is_direct_faster().then_some(Worth { draining, drained: cost, remembered: self.ringed })
    }

    /// Whether the sender lets the ring drain, as far as is known.
    pub(super) fn is_in_round(&self) -> bool {
        self.round.is_some()
    }

    fn on_round_in_vain(&mut self) {
        self.round_factor = (2 * self.round_factor).min(ROUND_FACTOR_MAX);
        self.to_forget = ROUND_SPACING * self.drained_last;
    }

    /// When a wait ends.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let at_once = (self.glances > 0).then(|| Instant::from_nanos(0));
        self.round.or(self.wait.map(|(_, until)| until)).or(at_once)
    }

    fn bytes_per_us(&self) -> u64 {
        self.pace.as_ref().map_or(0, TransferPace::bytes_per_us)
    }

    /// How long the peer copies `bytes`; zero if patience is off.
    fn copying(&self, bytes: u64) -> Duration {
        self.pace.as_ref().map_or(Duration::ZERO, |pace| pace.copying(bytes))
    }
}

/// A single wait may take so many times the copies that it saves: what counts is the average.
const WAIT_FACTOR: u32 = 4;
/// Averages are over about so many cycles, and mean little before there are so many.
const CYCLES_MAX: u32 = 32;
const CYCLES_MIN: u32 = 8;
/// A turn must be worth at least so many adverts…
const ROUND_FACTOR_MIN: u32 = 2;
/// …and after many in vain at most so many, which bounds what further ones cost to a few percent.
const ROUND_FACTOR_MAX: u32 = 64;
/// Of the cycles of short sends one is measured, and then so many are not.
const UNMEASURED: u32 = 15;
/// In these a wait is looked at so many times before the clock is, which takes about a microsecond in all.
const GLANCES_MAX: u32 = 16;
/// Where a round trip takes longer, it is not the processors that limit what short sends reach.
const NEAR: Duration = Duration::from_micros(100);
/// So many bytes are sent with one look at the clock: to copy them takes a few microseconds.
const UNCLOCKED_MAX: u64 = 16 << 10;
/// What an advert takes at least, even if the wire takes no time.
const ADVERT_MIN: Duration = Duration::from_nanos(500);
/// So draining takes at least so many microseconds.
const ROUND_MIN_US: u64 = (ROUND_FACTOR_MIN as u64 * ADVERT_MIN.as_nanos() as u64) / 1000;
/// A turn in vain is forgotten, in part, when so many times as much as was drained has gone through the ring: times change,
/// and with so few tries more they cost little.
const ROUND_SPACING: u64 = 32;
/// To copy a send that is worth a trial takes at least so many adverts.
const TRIAL_FACTOR: u32 = 4;
/// Direct transfer may take longer by one part in so many: it leaves the peer's processor alone.
const PREFERENCE: u32 = 32;
/// No trial costs less than what goes through the ring meanwhile.
const TRIAL_MIN: u64 = 1 << 16;
/// A time so many times as long as the average counts as that.
const OUTLIER: u32 = 4;
/// One part in so many of the average cycle is forgotten with each indirect transfer, and half of it after each direct phase
/// in which went less than one part in [`DOUBT_SHARE`] of what had gone through the ring before.
const FORGETTING: u32 = 256;
const DOUBT_SHARE: u64 = 4;
const DOUBT_MAX: u32 = 5;
