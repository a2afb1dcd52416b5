//! For how long this thread has waited for a processor, as Linux counts it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::thread::ThreadId;
use std::time::Duration;

use squall_fabric::Instant;

/// Reads the time at most every [`PERIOD`], since it costs a system call.
#[derive(Debug, Default)]
pub(super) struct ProcessorWaits {
    /// The file of the thread that has opened it; `None`: not opened yet, or the system has none.
    file: Option<(ThreadId, File)>,
    latest: Option<(Instant, Duration)>,
}

impl ProcessorWaits {
    /// Returns for how long this thread has waited since the last time, and how long ago that was.
    pub(super) fn since_last(&mut self, now: Instant) -> Option<(Duration, Duration)> {
        if self.latest.is_some_and(|(at, _)| now.since(at) < PERIOD) {
            return None;
        }
        let total = self.total().unwrap_or_default();
        let (at, before) = self.latest.replace((now, total))?;
        Some((total.saturating_sub(before), now.since(at)))
    }

    fn total(&mut self) -> Option<Duration> {
        let thread = std::thread::current().id();
        if self.file.as_ref().is_none_or(|(of, _)| *of != thread) {
            self.latest = None;
            // A kernel without these figures: the thread never learns that it waits.
            self.file = Some((thread, File::open("/proc/thread-self/schedstat").ok()?));
        }
        let mut text = [0; 64];
        let length = self.file.as_ref()?.1.read_at(&mut text, 0).ok()?;
        // The time on a processor, the time in which it waited for one, and how often it ran; nanoseconds.
        let waited = std::str::from_utf8(&text[..length]).ok()?.split_whitespace().nth(1)?;
        waited.parse().ok().map(Duration::from_nanos)
    }
}

/// The time between two readings.
const PERIOD: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::from_nanos(0) + Duration::from_millis(milliseconds)
    }

    /// Threads that share a processor wait for it.
    #[test]
    fn waiting_is_seen() {
        let waited = std::thread::spawn(|| {
            crate::runner::pin(0);
            let end = std::time::Instant::now() + Duration::from_millis(200);
            let busy = move || while std::time::Instant::now() < end {};
            let others: Vec<_> = (0..3).map(|_| std::thread::spawn(busy)).collect();
            let mut waits = ProcessorWaits::default();
            assert_eq!(waits.since_last(at(0)), None);
            assert_eq!(waits.since_last(at(1)), None, "too soon");
            busy();
            others.into_iter().for_each(|other| other.join().unwrap());
            waits.since_last(at(200))
        });
        let (waited, of) = waited.join().unwrap().expect("it is time");
        assert_eq!(of, Duration::from_millis(200));
        assert!(waited > Duration::from_millis(40), "{waited:?}");
    }
}
