//! For how long this thread has waited for a processor, as Linux counts it.

use std::fs::File;
use std::io::Read as _;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Reads the time at most every [`PERIOD`], since it costs system calls. The file is opened each time: any thread of an application may be
/// the one that polls, and a descriptor for each would be many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessorWaits {
    latest: Option<Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    thread: ThreadId,
    at: Instant,
    waited: Duration,
}

impl ProcessorWaits {
    /// Returns for how long this thread has waited since the last time, and how long ago that was.
    pub(super) fn since_last(&mut self) -> Option<(Duration, Duration)> {
        let at = Instant::now();
        if self.latest.is_some_and(|latest| at.duration_since(latest.at) < PERIOD) {
            return None;
        }
        // A kernel without these figures: the thread never learns that it waits.
        let waited = waited().unwrap_or_default();
        let thread = thread::current().id();
        let before = self.latest.replace(Reading { thread, at, waited })?;
        let is_same = before.thread == thread;
        is_same.then(|| (waited.saturating_sub(before.waited), at.duration_since(before.at)))
    }
}

/// Returns for how long this thread has waited since it began.
fn waited() -> Option<Duration> {
    let mut figures = [0; 64];
    let length = File::open("/proc/thread-self/schedstat").ok()?.read(&mut figures).ok()?;
    // The time on a processor, the time in which it waited for one, and how often it ran; nanoseconds.
    let waited = std::str::from_utf8(&figures[..length]).ok()?.split_whitespace().nth(1)?;
    waited.parse().ok().map(Duration::from_nanos)
}

/// The time between two readings.
const PERIOD: Duration = Duration::from_millis(4);

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that share a processor wait for it.
    #[test]
    fn waiting_is_seen() {
        let waited = thread::spawn(|| {
            crate::runner::pin(0);
            let end = Instant::now() + Duration::from_millis(200);
            let busy = move || while Instant::now() < end {};
            let others: Vec<_> = (0..3).map(|_| thread::spawn(busy)).collect();
            let mut waits = ProcessorWaits::default();
            assert_eq!(waits.since_last(), None, "there is no earlier reading");
            busy();
            others.into_iter().for_each(|other| other.join().unwrap());
            let of_this_thread = waits.since_last();
            thread::sleep(PERIOD);
            let of_another = thread::spawn(move || waits.since_last()).join().unwrap();
            assert_eq!(of_another, None, "there is no earlier reading of another thread");
            of_this_thread
        });
        let (waited, of) = waited.join().unwrap().expect("it is time");
        assert!(of >= Duration::from_millis(150), "{of:?}");
        assert!(waited > Duration::from_millis(40), "{waited:?}");
    }
}
