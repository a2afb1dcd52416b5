//! Choice: whether short sends take the adverts that are there, or go through the ring all the same.
//!
//! `Deviation:` (EXS fig. 2, line 9) the paper's sender takes an advert whenever there is one. That saves a copy and costs
//! the advert, a message of the peer. For long sends the copy is dearer by far. For short ones it depends on the
//! processors, on the fabric and on how many operations are outstanding which is dearer, so it is measured.
//!
//! **State.** The *way* that is taken, and what has got through in a *span* of it: direct bytes when they are sent, others
//! when the peer says that it has copied them, so that it does not count how full the ring is. A span in which the sender
//! had nothing to send, or sent something long, tells nothing. The way that was faster is the *favourite*; the other is
//! tried for a few spans from time to time.
//!
//! **Bound.** After a trial no other follows for at least [`SPACING`] times as long as what it lost, so trials cost less than
//! one part in so many, and down to a quarter of that if they are always in vain. Where both ways are nearly alike
//! a trial costs little and is easily wrong (the first ones meet memory that was never touched): it is soon repeated.

use squall_fabric::{Duration, Instant};

/// Where short sends go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum SendRoute {
    /// Straight to their receives if these are advertised, as in the paper.
    Adverts,
    /// Through the ring in any case.
    Ring,
}

#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct SendPathChoice {
    route: SendRoute,
    favourite: SendRoute,
    /// How fast either way is, by [`SendRoute`].
    means: [Mean; 2],
    /// What the ring is taken for before it is measured, in bytes a microsecond.
    assumed: u64,
    /// When the span began, and what has got through since.
    begin: Option<Instant>,
    bytes: u64,
    /// What of that has got through since the clock was looked at, and whether the peer has told of copies.
    unclocked: u64,
    is_reported: bool,
    /// Spans of the way without a change.
    spans: u32,
    /// When the trial began, and its spans that did not count.
    trial: Option<Instant>,
    skipped: u32,
    /// When the last trial ended.
    last_trial: Option<Instant>,
    /// How long no trial comes after one.
    spacing: Duration,
    /// In how many trials in a row the favourite was the better one.
    confirmed: u32,
    /// Nothing is tried.
    is_far: bool,
    /// Sends that began after a pause, since something was measured.
    pauses: u32,
    /// The ring should drain, so that the peer advertises.
    wants_round: bool,
}

impl SendPathChoice {
    pub(super) fn new(assumed: u64) -> Self {
        Self {
            route: SendRoute::Adverts,
            favourite: SendRoute::Adverts,
            means: [Mean::default(); 2],
            assumed,
            begin: None,
            bytes: 0,
            unclocked: 0,
            is_reported: false,
            spans: 0,
            trial: None,
            skipped: 0,
            last_trial: None,
            spacing: Duration::ZERO,
            confirmed: 0,
            is_far: false,
            pauses: 0,
            wants_round: false,
        }
    }

    /// Whether the peer is so far away that it is not processors that limit what short sends reach.
    pub(super) fn set_far(&mut self, is_far: bool) {
        self.is_far = is_far;
    }

    /// Whether sends of `bytes` go through the ring though there are adverts.
    #[inline]
    pub(super) fn prefers_ring(&self, bytes: u64) -> bool {
        self.route == SendRoute::Ring && bytes <= SHORT_MAX
    }

    #[cfg(test)]
    pub(super) fn prefer_ring(&mut self, prefers: bool) {
        self.trial = None;
        self.favourite = if prefers { SendRoute::Ring } else { SendRoute::Adverts };
        if self.route != self.favourite {
            self.take(self.favourite);
        }
    }

    /// Whether [`SendPathChoice::on_time`] should be told the time.
    #[inline]
    pub(super) fn needs_clock(&self) -> bool {
        match self.route {
            SendRoute::Adverts => self.unclocked >= UNCLOCKED_MAX,
            SendRoute::Ring => self.is_reported && self.unclocked >= UNCLOCKED_MAX,
        }
    }

    /// So much has gone to the peer's receives directly.
    #[inline]
    pub(super) fn on_direct(&mut self, bytes: u64) {
        self.wants_round = false;
        if bytes > SHORT_MAX {
            return self.on_long();
        }
        (self.bytes, self.unclocked) = (self.bytes + bytes, self.unclocked + bytes);
    }

    /// So much goes through the ring.
    #[inline]
    pub(super) fn on_indirect(&mut self, bytes: u64) {
        if bytes > SHORT_MAX {
            self.on_long();
        }
    }

    /// The peer says that it has copied so much more.
    pub(super) fn on_freed(&mut self, bytes: u64) {
        (self.bytes, self.unclocked, self.is_reported) = (self.bytes + bytes, self.unclocked + bytes, true);
    }

    /// Whether nothing has got through since the last pause.
    #[inline]
    pub(super) fn is_interrupted(&self) -> bool {
        self.begin.is_none() && self.unclocked == 0
    }

    /// The user pauses: neither way is at its limit.
    pub(super) fn interrupt(&mut self) {
        if self.is_interrupted() {
            return;
        }
        (self.begin, self.unclocked, self.pauses) = (None, 0, self.pauses + 1);
        self.end_trial(self.favourite);
        if self.pauses == PAUSES_MAX {
            self.forget();
        }
    }

    /// What is long goes to its receives, and little depends on the rest.
    fn on_long(&mut self) {
        if !self.is_interrupted() || self.route == SendRoute::Ring {
            self.forget();
        }
    }

    fn forget(&mut self) {
        *self = Self { is_far: self.is_far, ..Self::new(self.assumed) };
    }

    /// Whether the sender should let the ring drain.
    pub(super) fn wants_round(&self) -> bool {
        self.wants_round
    }

    /// It did, and no advert came.
    pub(super) fn on_round_in_vain(&mut self) {
        if self.trial.is_some() {
            self.end_trial(self.favourite);
        }
    }

    /// Takes the time, if it is needed.
    #[inline]
    pub(super) fn on_time(&mut self, now: Instant) {
        if self.needs_clock() {
            (self.unclocked, self.is_reported) = (0, false);
            self.on_look(now);
        }
    }

    fn on_look(&mut self, now: Instant) {
        let Some(begin) = self.begin else {
            (self.begin, self.bytes) = (Some(now), 0);
            return;
        };
        let span = now.since(begin);
        if self.bytes < SPAN_BYTES_MIN || span < SPAN_MIN {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        (self.begin, self.pauses) = (Some(now), 0);
        if self.trial.is_some() && self.skipped < SKIPPED_MAX && self.is_outlier(bytes, span) {
            self.skipped += 1;
            return;
        }
        self.means[self.route as usize].add(bytes, span);
        self.spans += 1;
        match self.trial {
            None => self.consider_trial(now),
            Some(began) if self.spans == TRIAL_SPANS => self.judge(now, began),
            Some(_) => {}
        }
    }

    /// Whether a span of a trial took so long that most likely one of the processes had lost its processor.
    fn is_outlier(&self, bytes: u64, span: Duration) -> bool {
        span.as_nanos() as u64 > OUTLIER * self.means[self.favourite as usize].nanos_of(bytes)
    }

    /// Begins a trial of the other way, if it is time for it.
    fn consider_trial(&mut self, now: Instant) {
        let is_early = match self.last_trial {
            Some(last) => now.since(last) < self.spacing,
            // The ring is most likely slower.
            None => self.means[self.route as usize].per_us() > self.assumed && self.spans < LATE_SPANS,
        };
        if self.spans < SPANS_MIN || is_early || self.is_far {
            return;
        }
        let other = if self.route == SendRoute::Ring { SendRoute::Adverts } else { SendRoute::Ring };
        (self.trial, self.skipped) = (Some(now), 0);
        self.means[other as usize] = Mean::default();
        self.take(other);
    }

    /// A trial is over.
    fn judge(&mut self, now: Instant, began: Instant) {
        let [adverts, ring] = self.means.map(Mean::per_ms);
        // The ring keeps the peer's processor busy: it has to be worth it.
        let better = if ring > adverts + adverts / PREFERENCE { SendRoute::Ring } else { SendRoute::Adverts };
        self.confirmed = if better == self.favourite { (self.confirmed + 1).min(CONFIRMED_MAX) } else { 0 };
        let trial = now.since(began);
        let (least, most) = (adverts.min(ring), adverts.max(ring).max(1));
        let lost = Duration::from_nanos((trial.as_nanos() as u64).saturating_mul(most - least) / most);
        let doublings = self.confirmed.saturating_sub(CONFIRMED_MIN);
        self.spacing = 2_u32.pow(doublings) * (SPACING * lost).max(SPACING_MIN * trial);
        self.last_trial = Some(now);
        self.favourite = better;
        self.end_trial(better);
    }

    fn end_trial(&mut self, route: SendRoute) {
        self.trial = None;
        if self.route != route {
            self.take(route);
        }
    }

    fn take(&mut self, route: SendRoute) {
        self.route = route;
        (self.begin, self.unclocked, self.is_reported, self.spans) = (None, 0, false, 0);
        self.wants_round = route == SendRoute::Adverts;
    }
}

/// A mean over the last spans.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(test, derive(Hash))]
struct Mean {
    bytes: u64,
    nanos: u64,
}

impl Mean {
    fn add(&mut self, bytes: u64, span: Duration) {
        let mut nanos = span.as_nanos() as u64;
        if self.bytes > 0 {
            // Who lost the processor for a while is slow whatever the way.
            nanos = nanos.min(OUTLIER * self.nanos_of(bytes));
        }
        self.bytes = self.bytes - self.bytes / WEIGHT + bytes;
        self.nanos = self.nanos - self.nanos / WEIGHT + nanos;
    }

    /// How long so many bytes take.
    fn nanos_of(self, bytes: u64) -> u64 {
        self.nanos / SCALE * bytes / (self.bytes / SCALE).max(1)
    }

    /// Bytes in a millisecond.
    fn per_ms(self) -> u64 {
        (self.bytes * 1000).checked_div(self.nanos / 1000).unwrap_or(0)
    }

    /// Bytes in a microsecond.
    fn per_us(self) -> u64 {
        self.per_ms() / 1000
    }
}

/// What is longer goes directly if it can: the copy costs more than an advert everywhere.
pub(in crate::stream) const SHORT_MAX: u64 = 4 << 10;
/// So much goes directly with one look at the clock.
const UNCLOCKED_MAX: u64 = 64 << 10;
/// A span is long beside what is under way at once, and beside a look at the clock.
const SPAN_BYTES_MIN: u64 = 1 << 20;
const SPAN_MIN: Duration = Duration::from_micros(50);
/// Spans of a trial, and spans before one: the first meet cold memory.
const TRIAL_SPANS: u32 = 3;
const SPANS_MIN: u32 = 8;
/// Spans before the first trial of a ring that is thought to be slower.
const LATE_SPANS: u32 = 64;
/// Spans of a trial that may be left out since they took too long.
const SKIPPED_MAX: u32 = 2;
/// No trial for so many times as long as the last one lost, or took. More than [`CONFIRMED_MIN`] in a row in vain double that,
/// up to [`CONFIRMED_MAX`].
const SPACING: u32 = 64;
const SPACING_MIN: u32 = 8;
const CONFIRMED_MIN: u32 = 4;
const CONFIRMED_MAX: u32 = 6;
/// The ring must be faster by one part in so many.
const PREFERENCE: u64 = 32;
/// A mean is over about so many spans.
const WEIGHT: u64 = 16;
/// A span that took so many times as long as the mean counts as that.
const OUTLIER: u64 = 2;
/// So that products fit into a word: spans take some hundred microseconds, and some seconds at most.
const SCALE: u64 = 64;
/// After so many pauses without anything measured the sender is not at any limit: it takes adverts.
const PAUSES_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender of messages of 1 KiB with a clock of its own; what is in the ring is told every 32 KiB.
    struct Run {
        choice: SendPathChoice,
        nanos: u64,
        unreported: u64,
        direct: u64,
        ring: u64,
    }

    const MESSAGE: u64 = 1024;

    impl Run {
        fn new() -> Self {
            Self { choice: SendPathChoice::new(4_000), nanos: 0, unreported: 0, direct: 0, ring: 0 }
        }

        /// So many MiB, of which a message takes so many nanoseconds either way.
        fn send(&mut self, mib: u64, adverts: u64, ring: u64) {
            for _ in 0..mib << 10 {
                self.choice.on_time(Instant::from_nanos(self.nanos));
                if self.choice.prefers_ring(MESSAGE) {
                    self.nanos += ring;
                    (self.ring, self.unreported) = (self.ring + MESSAGE, self.unreported + MESSAGE);
                    self.choice.on_indirect(MESSAGE);
                    if self.unreported == 32 * MESSAGE {
                        self.choice.on_freed(std::mem::take(&mut self.unreported));
                    }
                } else {
                    self.nanos += adverts;
                    self.direct += MESSAGE;
                    self.choice.on_direct(MESSAGE);
                }
            }
        }

        /// The share of what went directly lately, in percent.
        fn direct_share(&mut self) -> u64 {
            let (direct, ring) = (std::mem::take(&mut self.direct), std::mem::take(&mut self.ring));
            100 * direct / (direct + ring)
        }
    }

    #[test]
    fn the_faster_route_is_taken() {
        let mut run = Run::new();
        run.send(1000, 500, 400);
        assert!(run.direct_share() <= 3, "the ring is faster by a fourth");
        assert!(run.nanos < 1000 * 1024 * 400 / 100 * 102, "trials cost {} ns", run.nanos);
        run.send(3000, 300, 400);
        run.direct_share();
        run.send(1000, 300, 400);
        assert!(run.direct_share() >= 97, "times have changed");
    }

    #[test]
    fn alike_is_direct() {
        let mut run = Run::new();
        run.send(1000, 405, 400);
        assert!(run.direct_share() >= 95, "the peer's processor has less to do");
    }

    /// A ring that is believed to be slower is tried, but not at once.
    #[test]
    fn what_is_most_likely_in_vain_is_tried_late() {
        let mut run = Run::new();
        run.send(64, 100, 400);
        assert_eq!(run.direct_share(), 100);
        run.send(2000, 100, 50);
        assert!(run.direct_share() <= 10, "the belief was wrong");
    }

    /// A ring that was never touched is slow at first: the trial that met that is soon repeated.
    #[test]
    fn a_wrong_trial_does_not_last() {
        let mut run = Run::new();
        for _ in 0..100 {
            let ring = if run.ring < 8 << 20 { 520 } else { 400 };
            run.send(1, 450, ring);
        }
        run.direct_share();
        run.send(300, 450, 400);
        let share = run.direct_share();
        assert!(share <= 15, "{share} %");
    }

    /// One process or the other loses the processor now and then, for some milliseconds.
    #[test]
    fn outliers_do_not_decide() {
        let mut run = Run::new();
        for _ in 0..200 {
            run.send(10, 500, 400);
            run.nanos += 4_000_000;
        }
        let share = run.direct_share();
        assert!(share <= 10, "{share} %");
    }

    #[test]
    fn who_pauses_takes_adverts() {
        let mut run = Run::new();
        run.send(200, 500, 400);
        assert!(run.choice.prefers_ring(MESSAGE));
        assert!(!run.choice.prefers_ring(SHORT_MAX + 1), "long ones take adverts in any case");
        for _ in 0..PAUSES_MAX {
            (0..8).for_each(|_| run.choice.on_freed(MESSAGE));
            run.choice.interrupt();
        }
        assert!(!run.choice.prefers_ring(MESSAGE));
        run.send(200, 500, 400);
        assert!(run.choice.prefers_ring(MESSAGE), "it is at a limit again");
        run.choice.on_direct(SHORT_MAX + 1);
        assert!(!run.choice.prefers_ring(MESSAGE), "and now among long ones");
    }

    /// A trial of adverts asks for them, and ends if none come.
    #[test]
    fn a_trial_without_adverts_ends() {
        let mut run = Run::new();
        run.send(100, 500, 400);
        assert!(run.choice.prefers_ring(MESSAGE));
        let tried = (0..100_000).find(|_| {
            run.send(1, 500, 400);
            run.choice.wants_round() || !run.choice.prefers_ring(MESSAGE)
        });
        assert!(tried.is_some());
        run.choice.wants_round = true;
        run.choice.on_round_in_vain();
        assert!(run.choice.prefers_ring(MESSAGE));
    }
}
