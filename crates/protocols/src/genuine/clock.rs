//! The clock of a shard, which its leader alone has (RamCast §3.4) \[G3\].
//!
//! `Deviation:` (§3.4) beside the paper's counter there is a hybrid of counter and time; order rests on the counter alone.

use super::ClockKind;
use super::mutation;

/// Gives each message of a shard a greater timestamp than the one before, and than all that the leader has acknowledged.
#[derive(Clone, Debug)]
pub(super) struct ShardClock {
    kind: ClockKind,
    /// The last timestamp, or what it was raised to; grows only.
    clock: u64,
}

impl ShardClock {
    pub(super) const fn new(kind: ClockKind) -> Self {
        Self { kind, clock: 0 }
    }

    /// The next timestamp, where it is `now` by the leader's own time in nanoseconds, which may be any.
    pub(super) fn next(&mut self, now: u64) -> u64 {
        let step = u64::from(!mutant!(RepeatTimestamp) || self.clock == 0);
        let counter = self.clock + step;
        self.clock = match self.kind {
            ClockKind::Logical => counter,
            ClockKind::Hybrid => counter.max(now),
        };
        self.clock
    }

    /// No timestamp up to `clock` is given any more \[G5\].
    pub(super) fn raise(&mut self, clock: u64) {
        let trusts = self.kind == ClockKind::Hybrid && mutant!(TrustTime);
        if !trusts && !mutant!(KeepClock) {
            self.clock = self.clock.max(clock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_grow_whatever_the_time() {
        let mut logical = ShardClock::new(ClockKind::Logical);
        assert_eq!([logical.next(100), logical.next(100)], [1, 2]);
        logical.raise(9);
        logical.raise(4);
        assert_eq!(logical.next(0), 10);
        let mut hybrid = ShardClock::new(ClockKind::Hybrid);
        assert_eq!(
            [hybrid.next(100), hybrid.next(100), hybrid.next(50), hybrid.next(200)],
            [100, 101, 102, 200]
        );
    }
}
