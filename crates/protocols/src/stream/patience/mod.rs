//! Patience: whether the sender waits for an advert although the ring has space.
//!
//! `Deviation:` (EXS fig. 2) the paper's sender never waits: without an advert it goes through the ring at once, and a
//! sender that is faster than the peer's copies then never comes out of the ring again (EXS table III, equal numbers of
//! sends and receives). [`TransferPolicy::Reference`](super::TransferPolicy::Reference) does that. Here the sender measures
//! which of two routes carries more, and takes that one:
//!
//! - *Adverts.* Where a direct phase has no advert it waits for one. In an indirect phase it lets the ring drain, and asks
//!   the peer to advertise as soon as that is empty.
//! - *Ring.* It does as the paper's sender. Short sends go through the ring even if there is an advert (`Deviation:` EXS
//!   fig. 2, line 9): an advert can cost more than the copy of a few KiB, depending on the processors, the fabric and the
//!   number of outstanding operations.
//!
//! **Spans.** What a route carries is measured in spans of [`SPAN_BYTES`], or of the time that the ring takes for these.
//! Direct bytes count when they are sent, others when the peer reports that it has copied them. Time in which the user
//! sends nothing is left out; among short sends, for which the clock is too slow, a pause ends the span. The first span of
//! a route does not count: it meets cold memory, and what is outstanding begins in it.
//!
//! **Trials.** The ring is tried when it is thought to carry more than the adverts, and among short sends also
//! occasionally; the adverts are tried occasionally. A trial is [`TRIAL_SPANS`] spans, of which the median counts, since
//! either process may lose its processor. A wait that was in vain counts as a trial that has failed.
//!
//! **Bound.** After a trial, or a wait in vain, none follows for many times as long as what it lost, and for longer after
//! each that confirms the route, so all of them together cost a few percent at most, and less and less.
//!
//! Over long distances an advert takes longer than any copy: there the sender does as the paper's.

#[cfg(test)]
mod tests;

use squall_fabric::{Backoff, Duration, Instant};

/// What a sender does that has no advert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum SendRoute {
    /// It waits for one.
    Adverts,
    /// It goes through the ring.
    Ring,
}

/// What the sender knows of its two routes, and the wait that it is in.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Patience {
    /// What the ring carries until it is measured, in bytes per millisecond; 0 for a sender that does as the paper's.
    assumed: u64,
    route: SendRoute,
    /// Whether short sends go through the ring although there are adverts.
    leaves_adverts: bool,
    /// What each [`SendRoute`] carries, in bytes per millisecond; 0 until it is measured.
    rates: [u64; 2],
    /// The least round trip of a small post.
    round_trip: Duration,
    /// When the span began, and what has got through since.
    begin: Option<Instant>,
    bytes: u64,
    /// What has got through since the clock was read.
    unclocked: u64,
    /// Since when the user has sent nothing.
    idle_since: Option<Instant>,
    /// Spans since the route was taken.
    spans: u32,
    /// Whether the last whole span had short sends only, and whether the present one has had others.
    is_short: bool,
    has_long: bool,
    /// When the trial began, and what its spans carried.
    trial: Option<Instant>,
    samples: [u64; TRIAL_SPANS],
    /// When the next trial may begin, and what determines that after it.
    next_trial: Instant,
    spacing: Backoff<u32>,
    /// Pauses since the last whole span.
    pauses: u32,
    /// The wait for an advert: since when, and until when; from the poll [`POLLS_UNCLOCKED`] on by the clock.
    wait: Option<(Instant, Instant)>,
    polls: u32,
    /// Bytes that have gone directly since the last wait.
    since_wait: u64,
}

impl Patience {
    /// A sender whose peer copies about as much as stated; 0 for one that does as the paper's.
    pub(super) fn new(copy_bytes_per_us: u64) -> Self {
        Self {
            assumed: copy_bytes_per_us * 1000,
            route: if copy_bytes_per_us > 0 { SendRoute::Adverts } else { SendRoute::Ring },
            leaves_adverts: false,
            rates: [0; 2],
            round_trip: Duration::ZERO,
            begin: None,
            bytes: 0,
            unclocked: 0,
            idle_since: None,
            spans: 0,
            is_short: true,
            has_long: false,
            trial: None,
            samples: [0; TRIAL_SPANS],
            next_trial: Instant::from_nanos(0),
            spacing: Backoff::new(SPACING_MIN, SPACING_MAX),
            pauses: 0,
            wait: None,
            polls: 0,
            since_wait: 0,
        }
    }

    /// The round trip of a small post has taken `span`.
    pub(super) fn on_round_trip(&mut self, span: Duration) {
        self.round_trip = if self.round_trip.is_zero() { span } else { self.round_trip.min(span) };
    }

    /// Returns whether a send of `bytes` goes through the ring though there is an advert for it.
    #[inline]
    pub(super) fn prefers_ring(&self, bytes: u64) -> bool {
        self.leaves_adverts && bytes <= SHORT_MAX
    }

    #[cfg(test)]
    pub(super) fn prefer_ring(&mut self, prefers: bool) {
        if self.assumed > 0 {
            self.leave_trial(if prefers { SendRoute::Ring } else { SendRoute::Adverts });
        }
    }

    /// Whether [`Patience::on_time`] needs the time. Reading the clock takes as long as sending some hundred bytes.
    #[inline]
    pub(super) fn needs_clock(&self) -> bool {
        self.unclocked >= self.unclocked_max() || self.idle_since.is_some()
    }

    /// How much is sent with one reading of the clock: less if a route was just taken that may be far too slow for short sends.
    #[inline]
    const fn unclocked_max(&self) -> u64 {
        if self.is_short && self.spans <= SPANS_MIN { UNCLOCKED_FIRST } else { UNCLOCKED_MAX }
    }

    /// Returns whether [`Patience::waits`] needs the time: mostly the advert comes within a few polls.
    #[inline]
    pub(super) fn needs_clock_to_wait(&self) -> bool {
        self.route == SendRoute::Adverts && self.polls >= POLLS_UNCLOCKED
    }

    /// Nothing waits to be sent, and nothing is under way; the user may not know that yet.
    pub(super) fn on_idle(&mut self, now: Instant) {
        if !self.knows_idle() {
            self.idle_since = Some(now);
        }
    }

    /// Returns whether it knows that nothing waits to be sent, or does not need to.
    #[inline]
    pub(super) fn knows_idle(&self) -> bool {
        self.is_short || self.begin.is_none() || self.idle_since.is_some()
    }

    /// The user knows that nothing is under way, and sends nothing: neither route is at its limit.
    pub(super) fn on_pause(&mut self) {
        if self.knows_pause() {
            return;
        }
        (self.begin, self.unclocked, self.pauses) = (None, 0, self.pauses + 1);
        if self.trial.is_some() {
            self.leave_trial(self.route.other());
        }
        if self.pauses == PAUSES_MAX {
            self.forget();
        }
    }

    /// Returns whether it knows that, or does not need to.
    #[inline]
    pub(super) fn knows_pause(&self) -> bool {
        !self.is_short || self.begin.is_none() && self.unclocked == 0
    }

    /// The user sends. `now` is the time if [`Patience::needs_clock`].
    #[inline]
    pub(super) fn on_time(&mut self, now: Instant) {
        if let Some(since) = self.idle_since.take() {
            self.begin = self.begin.map(|begin| begin + now.since(since));
        }
        if self.unclocked >= self.unclocked_max() {
            self.unclocked = 0;
            self.look(now);
        }
    }

    /// The peer has copied `bytes` more. While the ring drains for a trial of the adverts, that says nothing about these.
    pub(super) fn on_freed(&mut self, bytes: u64) {
        if self.route == SendRoute::Ring {
            self.count(bytes);
        }
    }

    /// Bytes go directly.
    #[inline]
    pub(super) fn on_direct(&mut self, bytes: u64) {
        self.note_length(bytes);
        if self.polls > 0 {
            self.end_wait();
        }
        self.since_wait += bytes;
        self.count(bytes);
    }

    /// Bytes go through the ring.
    #[inline]
    pub(super) fn on_indirect(&mut self, bytes: u64) {
        self.note_length(bytes);
    }

    /// A direct phase has ended. Only a trial of the adverts begins another one by waiting.
    pub(super) fn on_phase_end(&mut self) {
        if self.route == SendRoute::Adverts {
            self.leave_trial(SendRoute::Ring);
            self.leaves_adverts = false;
        }
    }

    /// Whether the head send, of which `left` bytes are left and which has no advert, waits for one. In an indirect phase
    /// `in_use` bytes of the ring are in use, else none.
    pub(super) fn waits(&mut self, now: Instant, left: u64, is_direct: bool, in_use: u64) -> bool {
        if self.route == SendRoute::Ring || self.round_trip > NEAR {
            return false;
        }
        if let Some((since, until)) = self.wait {
            if now < until && self.polls != POLLS_UNCLOCKED {
                self.polls += u32::from(self.polls < POLLS_UNCLOCKED);
                return true;
            }
            if self.polls > POLLS_UNCLOCKED {
                // No longer than it was meant to: the send may have been taken back meanwhile.
                self.fail(now, until.since(since));
                return false;
            }
        }
        let copying = WAIT_FACTOR * self.copying(left.max(self.since_wait).max(in_use));
        let has_begun = self.wait.is_some() || self.trial.is_some() || self.rate(SendRoute::Adverts) > 0;
        if is_direct && !has_begun && copying <= self.round_trip {
            // The first sends may be answers that no receive has been posted for.
            return false;
        }
        let longest = copying.max(WAIT_FACTOR * self.round_trip.max(ADVERT_MIN));
        self.polls = if self.wait.is_none() { 1 } else { POLLS_UNCLOCKED + 1 };
        self.wait = Some((now, now + longest));
        true
    }

    /// Returns whether the sender waits for an advert, as far as is known.
    pub(super) fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// When the wait ends.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.wait.map(|(_, until)| until)
    }

    #[inline]
    fn count(&mut self, bytes: u64) {
        if self.assumed > 0 {
            (self.bytes, self.unclocked) = (self.bytes + bytes, self.unclocked + bytes);
        }
    }

    /// What was learned from short sends says nothing about long ones.
    #[inline]
    fn note_length(&mut self, bytes: u64) {
        if bytes > SHORT_MAX {
            self.has_long = true;
            if self.is_short {
                self.is_short = false;
                self.forget();
            }
        }
    }

    fn look(&mut self, now: Instant) {
        let Some(begin) = self.begin else {
            (self.begin, self.bytes) = (Some(now), 0);
            return;
        };
        let span = now.since(begin);
        // A route that is much slower has shown it when the other would have carried as much.
        let best = self.rates[0].max(self.rates[1]).max(self.assumed);
        let is_whole = self.bytes >= SPAN_BYTES || span >= time(SPAN_BYTES, best);
        if is_whole && span >= SPAN_MIN {
            let rate = self.bytes.saturating_mul(1_000_000) / span.as_nanos() as u64;
            (self.begin, self.bytes) = (Some(now), 0);
            self.end_span(now, rate.max(1));
        }
    }

    fn end_span(&mut self, now: Instant, rate: u64) {
        (self.spans, self.pauses) = (self.spans + 1, 0);
        if !std::mem::take(&mut self.has_long) && !self.is_short {
            self.is_short = true;
            return self.forget();
        }
        match (self.spans, self.trial) {
            (1, _) => {}
            (_, None) => {
                self.learn(rate);
                self.consider_trial(now);
            }
            (span, Some(began)) => {
                let at = span as usize - 2;
                self.samples[at] = rate;
                if at + 1 == TRIAL_SPANS {
                    self.judge(now, now.since(began));
                }
            }
        }
    }

    fn learn(&mut self, rate: u64) {
        let mean = &mut self.rates[self.route as usize];
        // A process that lost its processor says nothing about the route.
        *mean = if *mean == 0 {
            rate
        } else {
            *mean - *mean / WEIGHT + rate.clamp(*mean / 2, 2 * *mean) / WEIGHT
        };
    }

    /// Begins a trial of the other route, if that is due.
    fn consider_trial(&mut self, now: Instant) {
        let is_promising = match self.route {
            SendRoute::Adverts if self.ring_rate() > self.rate(SendRoute::Adverts) => true,
            SendRoute::Adverts => self.is_short && self.spans > SPANS_LATE,
            SendRoute::Ring => true,
        };
        if is_promising && self.spans > SPANS_MIN && now >= self.next_trial && self.round_trip <= NEAR {
            self.take(self.route.other());
            self.trial = Some(now);
        }
    }

    /// Ends the trial, which took `span`.
    fn judge(&mut self, now: Instant, span: Duration) {
        self.samples.sort_unstable();
        self.rates[self.route as usize] = self.samples[TRIAL_SPANS / 2];
        let [adverts, ring] = self.rates;
        // The ring keeps the peer's processor busy: it has to be worth that.
        let is_ring_better = ring > adverts + adverts / PREFERENCE;
        let better = if is_ring_better { SendRoute::Ring } else { SendRoute::Adverts };
        if better == self.route {
            self.spacing.reset();
        }
        let lost = time(span.as_nanos() as u64 * adverts.abs_diff(ring) / 1_000_000, adverts.max(ring));
        self.next_trial = now + self.spacing.grow() * (TRIAL_SPACING * lost + span);
        self.leave_trial(better);
    }

    /// A wait was in vain.
    fn fail(&mut self, now: Instant, lost: Duration) {
        self.next_trial = now + self.spacing.grow() * lost;
        self.leave_trial(SendRoute::Ring);
        self.leaves_adverts &= self.rate(SendRoute::Ring) > self.rate(SendRoute::Adverts);
    }

    fn leave_trial(&mut self, route: SendRoute) {
        self.trial = None;
        if self.route != route {
            self.take(route);
        }
    }

    fn take(&mut self, route: SendRoute) {
        self.route = route;
        self.leaves_adverts = route == SendRoute::Ring && self.is_short;
        (self.begin, self.unclocked, self.spans) = (None, 0, 0);
        self.end_wait();
    }

    fn end_wait(&mut self) {
        (self.wait, self.polls, self.since_wait) = (None, 0, 0);
    }

    fn forget(&mut self) {
        (self.rates, self.trial, self.next_trial) = ([0; 2], None, Instant::from_nanos(0));
        (self.begin, self.unclocked, self.spans, self.leaves_adverts) = (None, 0, 0, false);
        self.spacing.reset();
    }

    fn rate(&self, route: SendRoute) -> u64 {
        self.rates[route as usize]
    }

    /// What the ring carries, as far as is known.
    fn ring_rate(&self) -> u64 {
        let measured = self.rate(SendRoute::Ring);
        if measured > 0 { measured } else { self.assumed }
    }

    /// How long `bytes` take through the ring.
    fn copying(&self, bytes: u64) -> Duration {
        time(bytes, self.ring_rate())
    }
}

/// How long `bytes` take at `rate` bytes per millisecond.
fn time(bytes: u64, rate: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(1_000_000) / rate.max(1))
}

impl SendRoute {
    const fn other(self) -> Self {
        match self {
            Self::Adverts => Self::Ring,
            Self::Ring => Self::Adverts,
        }
    }
}

/// What is longer goes directly if it can: the copy costs more than an advert everywhere.
pub(super) const SHORT_MAX: u64 = 4 << 10;
/// Where a round trip takes longer, it is not the processors that limit what is sent.
const NEAR: Duration = Duration::from_micros(100);
/// A wait may take this many times the copies that it saves, or round trips: what counts is what the route carries.
const WAIT_FACTOR: u32 = 4;
/// What an advert takes at least, even if the wire takes no time.
const ADVERT_MIN: Duration = Duration::from_nanos(500);
/// A wait begins with this many polls without the clock, which take about a microsecond together.
const POLLS_UNCLOCKED: u32 = 16;
/// This much is sent with one reading of the clock, and at first.
const UNCLOCKED_MAX: u64 = 64 << 10;
const UNCLOCKED_FIRST: u64 = 4 << 10;
/// A span is long beside the peer's reports, and beside a reading of the clock.
const SPAN_BYTES: u64 = 512 << 10;
const SPAN_MIN: Duration = Duration::from_micros(50);
/// A mean is over about this many spans.
const WEIGHT: u64 = 16;
/// Spans of a route before the other is tried, and before a ring is tried that is thought to be slower.
const SPANS_MIN: u32 = 3;
const SPANS_LATE: u32 = 64;
/// Spans of a trial.
const TRIAL_SPANS: usize = 3;
/// The ring must carry more by one part in this many.
const PREFERENCE: u64 = 32;
/// No trial begins for 4 to 64 times as long as a wait in vain took, or as a trial took and 8 times what it lost.
const SPACING_MIN: u32 = 4;
const SPACING_MAX: u32 = 64;
const TRIAL_SPACING: u32 = 8;
/// After this many pauses without a whole span the sender is not at any limit: it does as the paper's.
const PAUSES_MAX: u32 = 64;
