//! Which lines of a log are written about something that lasts: one at once, and then few.

use std::collections::BTreeMap;

use crate::{Backoff, Duration};

/// Decides when to report something that is noticed again and again: at once, and then after pauses that double.
///
/// Its clock is the caller's: the time since any origin. Something that has not been noticed for the longest pause is news again.
/// Bounded: at most [`REMINDERS_MAX`] things are known, since their texts may be others'.
///
/// ```
/// use squall_fabric::{Duration, Reminders};
///
/// let mut reminders = Reminders::new(Duration::from_secs(4), Duration::from_secs(60));
/// let at = Duration::from_secs;
/// assert_eq!(reminders.note("no process listens there", at(0)), Some(0));
/// assert_eq!(reminders.note("no process listens there", at(1)), None);
/// assert_eq!(reminders.note("no process listens there", at(4)), Some(1)); // one was not reported
/// assert_eq!(reminders.note("no process listens there", at(8)), None);
/// ```
#[derive(Clone, Debug)]
pub struct Reminders<K> {
    least: Duration,
    most: Duration,
    known: BTreeMap<K, Reminder>,
}

#[derive(Clone, Copy, Debug)]
struct Reminder {
    /// When it is reported again.
    again: Duration,
    /// When it was noticed last.
    noticed: Duration,
    pause: Backoff<Duration>,
    /// How often it was noticed since the last report.
    silent: u64,
}

impl<K: Ord> Reminders<K> {
    /// Creates reminders with the shortest and the longest pause between reports.
    #[must_use]
    pub const fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, known: BTreeMap::new() }
    }

    /// Takes note of something; returns how often it was noticed without a report, if this time it is to be reported.
    pub fn note(&mut self, what: K, now: Duration) -> Option<u64> {
        if let Some(reminder) = self.known.get_mut(&what)
            && now.saturating_sub(reminder.noticed) < self.most
        {
            reminder.noticed = now;
            if now < reminder.again {
                reminder.silent += 1;
                return None;
            }
            reminder.again = now + reminder.pause.grow();
            return Some(std::mem::take(&mut reminder.silent));
        }
        if self.known.len() >= REMINDERS_MAX {
            self.known.clear();
        }
        let mut pause = Backoff::new(self.least, self.most);
        let reminder = Reminder { again: now + pause.grow(), noticed: now, pause, silent: 0 };
        self.known.insert(what, reminder);
        Some(0)
    }
}

impl<K: Ord> Default for Reminders<K> {
    /// Creates reminders with pauses of 4 seconds to 2 minutes, for people who read a log.
    fn default() -> Self {
        Self::new(Duration::from_secs(4), Duration::from_secs(120))
    }
}

/// The largest number of things that are known at a time; then all are forgotten.
pub const REMINDERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// What is noticed four times a second for ten minutes is reported ten times, and counted.
    #[test]
    fn what_lasts_is_reported_at_once_and_then_seldom() {
        let mut reminders = Reminders::default();
        let at = |step: u64| Duration::from_millis(250 * step);
        let reports: Vec<(u64, u64)> = (0..2400)
            .filter_map(|step| Some((at(step).as_secs(), reminders.note("another secret", at(step))?)))
            .collect();
        let seconds: Vec<u64> = reports.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [0, 4, 12, 28, 60, 124, 244, 364, 484]);
        assert_eq!(reports[1..3], [(4, 15), (12, 31)]);
    }

    #[test]
    fn each_thing_has_its_own_pauses_and_is_news_again_after_a_while() {
        let mut reminders = Reminders::default();
        let at = Duration::from_secs;
        assert_eq!(reminders.note("a", at(0)), Some(0));
        assert_eq!(reminders.note("b", at(1)), Some(0));
        assert_eq!(reminders.note("a", at(2)), None);
        assert_eq!(reminders.note("a", at(122)), Some(0));
        assert_eq!(reminders.note("a", at(123)), None, "its pauses begin again");
    }

    /// Texts of others do not fill the memory.
    #[test]
    fn few_things_are_known() {
        let mut reminders = Reminders::default();
        assert!((0..1000).all(|number| reminders.note(number, Duration::ZERO) == Some(0)));
        assert!(reminders.known.len() <= REMINDERS_MAX);
    }
}
