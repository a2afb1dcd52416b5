//! The last step of an evaluation: space is freed, and how long the application has waited for some (Spindle §2.3).

use squall_fabric::{Duration, Instant};

use super::{Deliver, DeliveryMode, Subgroup, indexes_below};
use crate::coverage::{Point, reach};
use crate::mutation;

impl<D: Deliver> Subgroup<D> {
    /// Returns the words of messages that all members have delivered to the writer [O5]. It reads the other members'
    /// counts only when the window fills, or when there is nothing else to do: they are in cache lines that change
    /// often.
    pub(super) fn free(&mut self, idle: bool) -> usize {
        let Some((publisher, sender)) = &mut self.publisher else { return 0 };
        if publisher.outstanding() == 0 || !(idle || publisher.wants_space()) {
            return 0;
        }
        let lane = if self.settings.mode.is_ordered() { 0 } else { *sender };
        let column = self.row.delivered.column(lane);
        let mut least = self.table.rows().iter().map(|row| column.load(row)).min().unwrap_or(0);
        mutant!(ReuseAfterOwnDelivery => least = column.load(self.table.own()));
        self.counters.words_polled += self.table.members().len() as u64 - 1;
        if least <= self.freed {
            return 0;
        }
        let mut sender = *sender;
        mutant!(RoundsOfFirst => sender = 0);
        let indexes = match self.settings.mode {
            DeliveryMode::Atomic | DeliveryMode::Durable => {
                indexes_below(least, sender, self.settings.senders.len())
            }
            DeliveryMode::Unordered | DeliveryMode::Raw => least,
        };
        reach(Point::WordsFreed);
        let unreleased = publisher.unreleased();
        if indexes <= unreleased {
            self.freed = least;
        }
        usize::from(publisher.free(indexes.min(unreleased)) > 0)
    }

    /// Looks whether the application waits for space. Call it periodically, [`SAMPLE_PERIOD`](crate::group::SAMPLE_PERIOD) apart
    /// while messages flow.
    pub fn sample_fullness(&mut self, now: Instant) {
        let Some((publisher, _)) = &mut self.publisher else { return };
        if self.table.is_ready() && !self.wedged {
            let (was_full, is_full) = (publisher.sample_starved(), publisher.is_starved());
            self.fullness.note(now, was_full, is_full);
        }
    }
}

/// For how long a window was full, that is, its writer found no space. It is estimated: each look counts for the time since the one
/// before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WindowFullness {
    pub(super) total: Duration,
    /// When it was looked at last, and whether it was full then.
    seen: Option<(Instant, bool)>,
}

impl WindowFullness {
    /// Notes a look: `was_full` since the last one, at some moment, and `is_full` now.
    fn note(&mut self, now: Instant, was_full: bool, is_full: bool) {
        if let Some((then, was_full_then)) = self.seen.filter(|_| was_full) {
            // A thread that rests does not look: a window that became full after a rest was not full for all of it.
            let longest = if was_full_then { Duration::MAX } else { LOOK_MAX };
            self.total += now.since(then).min(longest);
        }
        self.seen = Some((now, is_full));
    }
}

/// The most time that a look counts for at whose predecessor the window had space.
const LOOK_MAX: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at these milliseconds; the last number is the total of the milliseconds so far.
    fn check(looks: &[(u64, bool, bool, u64)]) {
        let mut fullness = WindowFullness::default();
        for (millis, was_full, is_full, total) in looks {
            fullness.note(Instant::from_nanos(millis * 1_000_000), *was_full, *is_full);
            assert_eq!(fullness.total, Duration::from_millis(*total), "at {millis}");
        }
    }

    /// At full load something is freed in each evaluation, so that the window has space again at each look.
    #[test]
    fn a_window_that_is_full_again_and_again_is_full_all_the_time() {
        check(&[(0, true, false, 0), (10, true, false, 10), (20, true, false, 20), (30, false, false, 20)]);
    }

    /// A thread that waits for others looks rarely, and a window that is full at its look stays so until something is freed.
    #[test]
    fn a_window_that_stays_full_counts_until_it_is_freed() {
        check(&[
            (0, false, false, 0),
            (10, true, true, 10),
            (5000, true, true, 5000),
            (5100, true, false, 5100),
        ]);
    }

    /// A thread that has rested for a minute finds the window full soon after.
    #[test]
    fn a_rest_before_a_burst_does_not_count() {
        check(&[(0, false, false, 0), (60_000, true, true, 20), (60_010, true, false, 30)]);
    }
}
