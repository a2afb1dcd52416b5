//! A bell for threads that wait for changes. Threads that wait for the participant's poll its node meanwhile.

use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use squall::SharedPoller;
use squall_fabric::mutex::{lock, unpoisoned};

/// Counts changes. A thread that waits passes the count that it saw before it looked, so it misses none.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
    /// What those that wait do meanwhile.
    poller: Option<SharedPoller>,
}

#[derive(Debug, Default)]
struct SignalState {
    changes: u64,
    /// How many threads wait: without any, a change costs no system call.
    waiting: usize,
}

impl Signal {
    /// Returns a signal whose waiting threads poll the node.
    pub(crate) fn polling(poller: SharedPoller) -> Self {
        Self { poller: Some(poller), ..Self::default() }
    }

    pub(crate) fn ring(&self) {
        let mut state = lock(&self.state);
        state.changes += 1;
        let has_waiting = state.waiting > 0;
        drop(state);
        if has_waiting {
            self.changed.notify_all();
        }
        self.poller.iter().for_each(SharedPoller::notify);
    }

    /// Returns the count, to be passed to [`Signal::wait`] after looking.
    pub(crate) fn count(&self) -> u64 {
        lock(&self.state).changes
    }

    /// Waits until the count is not `seen`, or for `limit`.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) {
        if let Some(poller) = &self.poller {
            poller.wait_until_notified(limit, || (self.count() != seen).then_some(()));
            return;
        }
        let mut state = lock(&self.state);
        state.waiting += 1;
        let waited = self.changed.wait_timeout_while(state, limit, |state| state.changes == seen);
        unpoisoned(waited).0.waiting -= 1;
    }

    /// Waits until `look` returns something, or for `limit`.
    pub(crate) fn wait_for<R>(&self, limit: Duration, mut look: impl FnMut() -> Option<R>) -> Option<R> {
        if let Some(poller) = &self.poller {
            return poller.wait_until_notified(limit, look);
        }
        let deadline = Instant::now().checked_add(limit);
        for round in 0u32.. {
            let seen = self.count();
            if let Some(found) = look() {
                return Some(found);
            }
            // To sleep and to be woken costs more than some changes, and meanwhile more of them come.
            if round < YIELDS && !limit.is_zero() {
                thread::yield_now();
                continue;
            }
            let left = deadline.map_or(LONG, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            self.wait(seen, left.min(LONG));
        }
        None
    }
}

/// How often a thread lets others run before it sleeps.
const YIELDS: u32 = 32;

/// What a wait without end waits at a time.
const LONG: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    /// A thread that waits is woken, although a change that nothing waits for makes no system call.
    #[test]
    fn no_change_is_missed() {
        let (signal, rounds) = (Arc::new(Signal::default()), 2000);
        let ringing = Arc::clone(&signal);
        let begun = Instant::now();
        let ringer = thread::spawn(move || {
            for round in 0..rounds {
                ringing.ring();
                if round % 7 == 0 {
                    thread::yield_now();
                }
            }
        });
        let seen = signal.wait_for(Duration::from_secs(30), || (signal.count() == rounds).then_some(()));
        ringer.join().expect("it does not panic");
        assert!(seen.is_some() && begun.elapsed() < Duration::from_secs(20));
        let before = Instant::now();
        signal.wait(signal.count(), Duration::from_millis(20));
        assert!(before.elapsed() >= Duration::from_millis(20), "nothing has changed");
        assert_eq!(lock(&signal.state).waiting, 0);
    }
}
