//! Exponential backoff: how long to wait before a failed call, query or trial is repeated.

use std::ops::Add;

/// A spacing that doubles each time from a least to a greatest value, until it is reset.
///
/// Its unit is the caller's: time, bytes or blocks.
///
/// ```
/// use squall_fabric::{Backoff, Duration};
///
/// let mut pause = Backoff::new(Duration::from_millis(20), Duration::from_millis(50));
/// let pauses: Vec<u128> = (0..4).map(|_| pause.grow().as_millis()).collect();
/// assert_eq!(pauses, [20, 40, 50, 50]);
/// pause.reset();
/// assert_eq!(pause.spacing(), Duration::from_millis(20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backoff<T> {
    least: T,
    most: T,
    /// `least <= next`; values above `most` count as `most`.
    next: T,
}

impl<T: Copy + Ord + Add<Output = T>> Backoff<T> {
    /// Creates a spacing of `least` that grows to `most`, which may be at most half of the type's maximum. If
    /// `most` is below `least`, the spacing is always `most`.
    #[must_use]
    pub const fn new(least: T, most: T) -> Self {
        Self { least, most, next: least }
    }

    /// Returns the current spacing.
    #[must_use]
    pub fn spacing(&self) -> T {
        self.next.min(self.most)
    }

    /// Returns the current spacing and doubles it for the next time.
    pub fn grow(&mut self) -> T {
        let spacing = self.spacing();
        self.next = (spacing + spacing).max(self.least);
        spacing
    }

    /// Resets the spacing to its initial value.
    pub fn reset(&mut self) {
        self.next = self.least;
    }
}

/// Decides when to try an alternative: immediately at first, and after each failed trial once twice as much
/// work has been done without it as before.
///
/// ```
/// use squall_fabric::Trial;
///
/// let mut trial = Trial::new(100, 1000);
/// assert!(trial.is_due());
/// trial.fail();
/// trial.advance(99);
/// assert!(!trial.is_due());
/// trial.advance(1);
/// assert!(trial.is_due());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Trial {
    backoff: Backoff<u64>,
    /// The amount of work until the next trial is due.
    left: u64,
}

impl Trial {
    /// Creates a trial that is due immediately. After a failure the next one is due when `least` work has
    /// been done, a distance that grows up to `most`.
    #[must_use]
    pub const fn new(least: u64, most: u64) -> Self {
        Self { backoff: Backoff::new(least, most), left: 0 }
    }

    /// Returns whether a trial is due.
    #[inline]
    #[must_use]
    pub const fn is_due(&self) -> bool {
        self.left == 0
    }

    /// Records that `done` more work has been done without the alternative.
    #[inline]
    pub const fn advance(&mut self, done: u64) {
        self.left = self.left.saturating_sub(done);
    }

    /// Records that the trial failed.
    pub fn fail(&mut self) {
        self.left = self.backoff.grow();
    }

    /// Makes the next trial due now, whatever the outcomes of the earlier ones.
    pub const fn hasten(&mut self) {
        self.left = 0;
    }

    /// Forgets all failed trials; a trial is due now.
    pub fn reset(&mut self) {
        *self = Self::new(self.backoff.least, self.backoff.most);
    }

    /// Sets the most work between two failed trials, from the next failure on.
    pub const fn set_most(&mut self, most: u64) {
        self.backoff.most = most;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Prng;

    /// Whatever the sequence of calls, the spacing stays within its bounds, doubles, and returns to its
    /// start.
    #[test]
    fn a_spacing_doubles_within_its_bounds() {
        for seed in 0..1000 {
            let mut prng = Prng::new(seed);
            let (least, most) = (1 + prng.below(100), 1 + prng.below(10_000));
            let mut backoff = Backoff::new(least, most);
            for _ in 0..50 {
                let before = backoff.spacing();
                assert!((least.min(most)..=most).contains(&before), "{backoff:?}");
                if prng.chance(900) {
                    assert_eq!(backoff.grow(), before);
                    assert_eq!(backoff.spacing(), (2 * before).max(least).min(most));
                } else {
                    backoff.reset();
                    assert_eq!(backoff.spacing(), least.min(most));
                }
            }
        }
    }

    /// However the work is divided into parts, failed trials become rare, but never rarer than the limit.
    #[test]
    fn failed_trials_become_rare_and_never_stop() {
        for seed in 0..1000 {
            let mut prng = Prng::new(seed);
            let (least, most) = (1 + prng.below(50), 50 + prng.below(5000));
            let mut trial = Trial::new(least, most);
            let mut spacing = least;
            for _ in 0..20 {
                trial.fail();
                let mut done = 0;
                while !trial.is_due() {
                    assert!(done < spacing, "{trial:?} after {done} of {spacing}");
                    let part = 1 + prng.below(40).min(spacing - done - 1);
                    trial.advance(part);
                    done += part;
                }
                assert_eq!(done, spacing, "{trial:?}");
                spacing = (2 * spacing).min(most);
            }
            trial.reset();
            assert!(trial.is_due());
            trial.fail();
            trial.advance(least);
            assert!(trial.is_due(), "the earlier failures are forgotten");
        }
    }

    #[test]
    fn a_trial_that_is_hastened_has_still_failed() {
        let mut trial = Trial::new(10, 1000);
        trial.fail();
        trial.hasten();
        assert!(trial.is_due());
        trial.fail();
        trial.advance(19);
        assert!(!trial.is_due());
    }

    /// A new limit applies from the next trial on, as if it had been set from the beginning.
    #[test]
    fn a_limit_may_change() {
        let mut trial = Trial::new(10, 25);
        let mut spacing = |most| {
            trial.set_most(most);
            trial.fail();
            (0..)
                .find(|_| {
                    trial.is_due() || {
                        trial.advance(1);
                        false
                    }
                })
                .expect("a number")
        };
        assert_eq!([25, 25, 25, 25].map(&mut spacing), [10, 20, 25, 25]);
        assert_eq!([100, 100, 100].map(&mut spacing), [50, 100, 100]);
        assert_eq!(spacing(5), 5);
    }
}
