//! The clock of a shard, which its leader alone has (RamCast §3.4) \[G3\].
//!
//! It is hybrid: the greater of a counter and the leader's own time in nanoseconds. If the clocks of leaders are close to each other, a
//! message seldom waits for one that got its timestamp later. Order rests on the counter alone, so the time may be wrong.
//!
//! `Deviation:` (RamCast §3.4) a leader's clock is a counter.

use super::mutation;

/// Gives each message of a shard a greater timestamp than the one before, and than all that the leader has acknowledged.
/// The last timestamp, or the value it was raised to; it grows only.
#[derive(Clone, Debug, Default)]
pub(super) struct ShardClock(u64);

impl ShardClock {
    /// The next timestamp, where it is `now` by the leader's own time in nanoseconds, which may be any.
    pub(super) fn next(&mut self, now: u64) -> u64 {
        let step = u64::from(!mutant!(RepeatTimestamp) || self.0 == 0);
        self.0 = (self.0 + step).max(now);
        self.0
    }

    /// No timestamp up to `clock` is given any more \[G5\].
    pub(super) fn raise(&mut self, clock: u64) {
        if !mutant!(KeepClock) {
            self.0 = self.0.max(clock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_grow_whatever_the_time() {
        let mut clock = ShardClock::default();
        assert_eq!([100, 100, 50, 200].map(|now| clock.next(now)), [100, 101, 102, 200]);
        clock.raise(309);
        clock.raise(304);
        assert_eq!(clock.next(0), 310);
    }
}
