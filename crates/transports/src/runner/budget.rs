//! How long a polling thread spins and yields before it sleeps, decided by what happens (Spindle §2.4 polls on; it has the cores for itself).
//!
//! # State and rules
//! The budget for spinning is a time, `0 <= spin <= SPIN_MAX`, and the one for yielding another, which is [`YIELDS`] or nothing.
//! - While it spins, the thread yields every [`YIELD_EVERY`]. If another one has then run for [`GAVE_WAY`] or more, it sleeps at once: others
//!   have work for this processor.
//! - A sleep that ends within [`SPIN_MAX`] says that spinning would have met the work: `spin` doubles. A longer one says that it would have
//!   been in vain: `spin` halves. So a thread spins where messages follow each other closely, and a quiet one sleeps at once.
//! - A yield that lasts for [`OTHERS_RAN`] or more has given the processor to a program that computes: members of a group give it back
//!   sooner. The next sleeps come without spinning or yielding before, [`SLEEPS_MIN`] of them, and twice as many each time that this happens
//!   again.
//! - A thread that has waited for a processor for more than a tenth of the time does not spin for [`PAUSE_MIN`]: others need the
//!   processors, perhaps those that it waits for. The pause begins again while it still waits that much, and is twice as long each time
//!   that spinning has led to that again, up to [`PAUSE_MAX`]; after [`CALM`] of spinning without, it is short again.
//!
//! A thread sleeps only after [`SETTLED`] polls in a row without work, whatever else it decides by.
//!
//! With fixed limits (`IdleLimits::adapts` is false) polls are counted instead; of the rules only that of yields holds, for a thread that
//! sleeps at all.

use std::time::Duration;

use super::IdleLimits;

/// What to do after a poll that found no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleStep {
    /// Poll again.
    Spin,
    /// Let other threads run, then poll again.
    Yield,
    /// Sleep until something comes.
    Sleep,
}

/// The budget of one polling thread. After each poll without work, [`IdleBudget::next`] says what to do; `note_…` take what then happened.
#[derive(Clone, Copy, Debug)]
pub struct IdleBudget {
    limits: IdleLimits,
    /// Consecutive polls without work, since the last sleep.
    fruitless: u32,
    spin: Duration,
    /// For how long it has been idle when it yields next while it spins.
    yield_next: Duration,
    /// Others have had work for this processor since the last sleep.
    gave_way: bool,
    /// Sleeps before which it neither spins nor yields.
    without_yield: u32,
    /// How many there will be when a yield takes long again.
    without_yield_next: u32,
    /// Yields since the last one that took long.
    short_yields: u32,
    /// The time until `spin` may grow again.
    pause: Duration,
    /// How long it will be when spinning leads to waiting again.
    pause_next: Duration,
    /// For how long spinning has not led to waiting.
    calm: Duration,
}

impl IdleBudget {
    /// A budget within these limits.
    #[must_use]
    pub const fn new(limits: IdleLimits) -> Self {
        Self {
            limits,
            fruitless: 0,
            spin: if limits.spins > 0 { SPIN_MAX } else { Duration::ZERO },
            yield_next: YIELD_EVERY,
            gave_way: false,
            without_yield: 0,
            without_yield_next: SLEEPS_MIN,
            short_yields: 0,
            pause: Duration::ZERO,
            pause_next: PAUSE_MIN,
            calm: Duration::ZERO,
        }
    }

    /// Returns whether it follows what happens, so that it wants to know for how long the thread waits ([`IdleBudget::note_waiting`]).
    pub(super) const fn adapts(&self) -> bool {
        self.limits.adapts
    }

    /// Keeps to these limits from now on.
    pub fn set_limits(&mut self, limits: IdleLimits) {
        if limits != self.limits {
            *self = Self::new(limits);
        }
    }

    /// Notes that a poll found work.
    #[inline]
    pub const fn note_work(&mut self) {
        self.fruitless = 0;
    }

    /// The polls without work since the last one with work, or the last sleep.
    #[must_use]
    pub const fn fruitless(&self) -> u32 {
        self.fruitless
    }

    /// Returns what to do after a poll that found no work, `idle` after the first such poll in a row.
    pub fn next(&mut self, idle: impl FnOnce() -> Duration) -> IdleStep {
        self.fruitless = self.fruitless.saturating_add(1);
        match self.choose(idle) {
            IdleStep::Sleep if self.fruitless < SETTLED => IdleStep::Spin,
            step => step,
        }
    }

    fn choose(&mut self, idle: impl FnOnce() -> Duration) -> IdleStep {
        if !self.limits.adapts {
            return match self.fruitless {
                polls if polls <= self.limits.spins => IdleStep::Spin,
                _ if self.limits.yields == u32::MAX => IdleStep::Yield,
                polls if polls - self.limits.spins <= self.limits.yields && self.without_yield == 0 => {
                    IdleStep::Yield
                }
                _ => IdleStep::Sleep,
            };
        }
        let idle = idle();
        if self.fruitless == 1 {
            (self.yield_next, self.gave_way) = (YIELD_EVERY, false);
        }
        if self.gave_way || self.without_yield > 0 {
            IdleStep::Sleep
        } else if idle < self.spin {
            if idle < self.yield_next {
                return IdleStep::Spin;
            }
            self.yield_next = idle + YIELD_EVERY;
            IdleStep::Yield
        } else if idle < self.spin + YIELDS {
            IdleStep::Yield
        } else {
            IdleStep::Sleep
        }
    }

    /// Takes how long a yield has lasted.
    pub fn note_yield(&mut self, lasted: Duration) {
        self.gave_way = lasted >= GAVE_WAY;
        if lasted < OTHERS_RAN {
            self.short_yields = self.short_yields.saturating_add(1);
            if self.short_yields >= SHORT_YIELDS {
                self.without_yield_next = SLEEPS_MIN;
            }
            return;
        }
        self.short_yields = 0;
        self.without_yield = self.without_yield_next;
        self.without_yield_next = (2 * self.without_yield_next).min(SLEEPS_MAX);
    }

    /// Takes how long a sleep has lasted.
    pub fn note_sleep(&mut self, lasted: Duration) {
        self.fruitless = 0;
        self.without_yield = self.without_yield.saturating_sub(1);
        if !self.pause.is_zero() {
            return;
        }
        self.spin = match lasted < SPIN_MAX {
            true => (2 * self.spin).clamp(SPIN_MIN, SPIN_MAX),
            false if self.spin <= SPIN_MIN => Duration::ZERO,
            false => self.spin / 2,
        };
    }

    /// Takes for how much of the time since the last call the thread could have run, but had no processor.
    pub fn note_waiting(&mut self, waited: Duration, of: Duration) {
        let is_trial = self.pause.is_zero();
        if waited <= of / 10 {
            self.pause = self.pause.saturating_sub(of);
            self.calm = if is_trial { self.calm.saturating_add(of) } else { Duration::ZERO };
            if self.calm >= CALM {
                self.pause_next = PAUSE_MIN;
            }
            return;
        }
        (self.spin, self.calm) = (Duration::ZERO, Duration::ZERO);
        self.pause = self.pause_next;
        if is_trial {
            self.pause_next = (2 * self.pause_next).min(PAUSE_MAX);
        }
    }
}

/// The longest time that a thread spins: a few times what a sleep and a wake-up cost, and longer than a round trip between hosts takes
/// if both sides spin.
pub const SPIN_MAX: Duration = Duration::from_micros(100);
/// After this number of polls in a row without work, everything that had arrived has been processed: what one poll finds may be noted for
/// the next one to act on. So no thread sleeps before. In explored schedules one poll sees everything, and more would only hide the moments
/// before a sleep.
pub const SETTLED: u32 = if cfg!(shuttle) { 1 } else { 16 };
/// Between two yields while it spins: many times what a yield costs if no other thread has work.
const YIELD_EVERY: Duration = Duration::from_micros(4);
/// A yield of this length has given the processor to a thread with work, not to one that polls in vain and yields as well.
const GAVE_WAY: Duration = Duration::from_micros(20);
/// The shortest, but for none.
const SPIN_MIN: Duration = Duration::from_micros(4);
/// How long a thread yields before it sleeps.
const YIELDS: Duration = Duration::from_micros(50);
/// A yield of this length has given the processor to a program that computes, which keeps it for the scheduler's slice, some
/// milliseconds.
const OTHERS_RAN: Duration = Duration::from_millis(1);
/// Sleeps without what has proved to be in vain, before it is tried again.
const SLEEPS_MIN: u32 = 100;
/// The same after many vain trials.
const SLEEPS_MAX: u32 = 6400;
/// The time without spinning after the thread has waited for a processor.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The same after many vain trials.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The time of spinning without waiting after which others do not need the processors any more.
const CALM: Duration = Duration::from_secs(1);
/// After this number of short yields in a row, no other program computes any more.
const SHORT_YIELDS: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    const MICROS: fn(u64) -> Duration = Duration::from_micros;

    fn budget() -> IdleBudget {
        IdleBudget::new(IdleLimits::auto(1))
    }

    /// For how long it spins, and then only yields, when no work comes.
    fn patience(budget: &mut IdleBudget) -> (usize, usize) {
        let steps: Vec<IdleStep> = (0..1000).map(|idle| budget.next(|| MICROS(idle))).collect();
        budget.fruitless = 0;
        let spins = steps.iter().rposition(|step| *step == IdleStep::Spin).map_or(0, |last| last + 1);
        (spins, steps[spins..].iter().filter(|step| **step == IdleStep::Yield).count())
    }

    /// A thread that has work for the processor gets it soon, and keeps it.
    #[test]
    fn a_thread_that_spins_gives_way() {
        let mut budget = budget();
        let steps: Vec<IdleStep> = (0..100).map(|idle| budget.next(|| MICROS(idle))).collect();
        let yields: Vec<usize> = (0..100).filter(|at| steps[*at] == IdleStep::Yield).collect();
        assert_eq!(yields, (4..100).step_by(4).collect::<Vec<_>>());
        budget.note_yield(MICROS(5));
        assert_eq!(budget.next(|| MICROS(50)), IdleStep::Spin, "another member polled");
        budget.note_yield(MICROS(40));
        assert_eq!(budget.next(|| MICROS(91)), IdleStep::Sleep);
        budget.note_sleep(MICROS(50));
        assert_eq!(patience(&mut budget), (100, 50));
    }

    #[test]
    fn a_quiet_thread_stops_spinning_and_a_busy_one_begins_again() {
        let mut budget = budget();
        assert_eq!(patience(&mut budget), (100, 50));
        (0..10).for_each(|_| budget.note_sleep(Duration::from_secs(1)));
        assert_eq!(patience(&mut budget), (0, 50));
        (0..10).for_each(|_| budget.note_sleep(MICROS(60)));
        assert_eq!(patience(&mut budget), (100, 50));
    }

    #[test]
    fn a_thread_that_waits_for_a_processor_does_not_spin() {
        let mut budget = budget();
        budget.note_waiting(MICROS(100), MICROS(2000));
        assert_eq!(patience(&mut budget).0, 100, "a twentieth is usual");
        // Without spinning it still waits, for a while.
        (0..100).for_each(|_| budget.note_waiting(MICROS(300), MICROS(2000)));
        let short_sleeps = |budget: &mut IdleBudget| {
            (0..10).for_each(|_| budget.note_sleep(MICROS(10)));
            patience(budget).0
        };
        assert_eq!(short_sleeps(&mut budget), 0, "short sleeps do not count meanwhile");
        let mut pause = |waits_again: bool| {
            let mut passed = 0;
            while short_sleeps(&mut budget) == 0 {
                budget.note_waiting(Duration::ZERO, MICROS(2000));
                passed += 2;
            }
            if waits_again {
                budget.note_waiting(MICROS(300), MICROS(2000));
            }
            passed
        };
        let pauses = [(); 9].map(|()| pause(true));
        assert_eq!(pauses, [40, 40, 80, 160, 320, 640, 1280, 2000, 2000], "milliseconds");
        pause(false);
        budget.note_waiting(Duration::ZERO, CALM);
        budget.note_waiting(MICROS(300), MICROS(2000));
        assert_eq!(budget.pause, PAUSE_MIN, "the others have ended");
    }

    #[test]
    fn a_thread_that_yields_in_vain_sleeps_ever_longer() {
        let mut budget = budget();
        budget.note_yield(MICROS(20));
        assert_eq!(patience(&mut budget).1, 50, "the other members ran");
        let mut sleeps_before_yield = || {
            budget.note_yield(Duration::from_millis(3));
            let mut sleeps = 0;
            while patience(&mut budget).1 == 0 {
                budget.note_sleep(Duration::from_millis(1));
                sleeps += 1;
            }
            sleeps
        };
        assert_eq!([(); 8].map(|()| sleeps_before_yield()), [100, 200, 400, 800, 1600, 3200, 6400, 6400]);
        (0..SHORT_YIELDS).for_each(|_| budget.note_yield(MICROS(20)));
        budget.note_yield(Duration::from_millis(3));
        assert_eq!(budget.without_yield, SLEEPS_MIN, "the other program has ended");
    }

    #[test]
    fn fixed_limits_count_polls() {
        for (limits, expected) in [
            (IdleLimits::SPIN, (1000, 0)),
            (IdleLimits::YIELD, (0, 1000)),
            (IdleLimits::PARK, (0, 50)),
            (IdleLimits { spins: 10, yields: 20, adapts: false }, (10, 20)),
        ] {
            let mut budget = IdleBudget::new(limits);
            budget.note_waiting(MICROS(9), MICROS(10));
            assert_eq!(patience(&mut budget), expected);
            budget.note_yield(Duration::from_millis(3));
            let sleeps = limits.yields < u32::MAX;
            let settled = (SETTLED as usize - 1).max(expected.0);
            assert_eq!(patience(&mut budget), if sleeps { (settled, 0) } else { expected });
        }
    }

    /// Whatever happens, one idle period costs a bounded time.
    #[test]
    fn an_idle_period_is_short() {
        let mut budget = budget();
        for round in 0..10_000_u64 {
            let (spin, yields) = patience(&mut budget);
            // Long enough for what one poll notes for the next ones, too.
            assert!((SETTLED as usize - 1..=150).contains(&(spin + yields)), "{spin}, {yields}");
            budget.note_sleep(MICROS(round.wrapping_mul(2_654_435_761) % 300));
            budget.note_yield(MICROS(round.wrapping_mul(40_503) % 1100));
        }
    }
}
