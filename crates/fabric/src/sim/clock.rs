//! Node clocks: each begins at its own time and runs at its own rate.

use super::Prng;
use crate::Instant;

/// A clock, as a function of the world's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct DriftingClock {
    /// The time that it shows at the beginning of the world.
    offset: u64,
    /// While the world's time advances by `world`, the clock advances by `own`.
    own: u64,
    world: u64,
}

impl DriftingClock {
    /// Draws a clock that is faster or slower than the world by up to `drift_max` millionths.
    pub(super) fn drawn(offset: u64, drift_max: u32, prng: &mut Prng) -> Self {
        let drift = prng.below(u64::from(drift_max) + 1);
        let (own, world) =
            if prng.chance(500) { (MILLION + drift, MILLION) } else { (MILLION, MILLION + drift) };
        Self { offset, own, world }
    }

    /// Returns what the clock shows at world time `at`.
    pub(super) fn show(self, at: u64) -> Instant {
        Instant::from_nanos(self.offset + scale(at, self.own, self.world))
    }

    /// Returns the first world time at which the clock shows `instant`, or 0.
    pub(super) fn time_of(self, instant: Instant) -> u64 {
        let own = instant.as_nanos().saturating_sub(self.offset);
        let at = scale(own, self.world, self.own);
        if scale(at, self.own, self.world) < own { at + 1 } else { at }
    }
}

impl Default for DriftingClock {
    fn default() -> Self {
        Self { offset: 0, own: MILLION, world: MILLION }
    }
}

const MILLION: u64 = 1_000_000;

/// Returns `value` times `by` over `over`, rounded down.
fn scale(value: u64, by: u64, over: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(by) / u128::from(over)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that sleeps until its clock shows a time wakes exactly then, and no earlier.
    #[test]
    fn a_clock_shows_what_was_waited_for() {
        let mut prng = Prng::new(3);
        for drift_max in [0, 1_000, 500_000] {
            for _ in 0..1_000 {
                let dial = DriftingClock::drawn(prng.below(1 << 40), drift_max, &mut prng);
                let instant = Instant::from_nanos(dial.offset + prng.below(1 << 40));
                let at = dial.time_of(instant);
                assert!(dial.show(at) >= instant && (at == 0 || dial.show(at - 1) < instant), "{dial:?}");
            }
        }
    }

    #[test]
    fn clocks_keep_their_own_time() {
        let mut prng = Prng::new(4);
        let second = |dial: DriftingClock| dial.show(1_000_000_000).as_nanos() - dial.offset;
        let seconds: Vec<u64> =
            (0..100).map(|_| second(DriftingClock::drawn(7, 500_000, &mut prng))).collect();
        assert!(seconds.iter().any(|own| *own > 1_400_000_000), "none is fast: {seconds:?}");
        assert!(seconds.iter().any(|own| *own < 720_000_000), "none is slow: {seconds:?}");
        assert!(seconds.iter().all(|own| (666_666_666..=1_500_000_000).contains(own)), "{seconds:?}");
        assert_eq!(second(DriftingClock::drawn(7, 0, &mut prng)), 1_000_000_000);
    }
}
