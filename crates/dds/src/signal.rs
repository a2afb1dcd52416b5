//! A bell for threads that wait for changes.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counts changes. A thread that waits passes the count that it saw before it looked, so it misses none.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    changes: Mutex<u64>,
    changed: Condvar,
}

impl Signal {
    pub(crate) fn ring(&self) {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// Returns the count, to be passed to [`Signal::wait`] after looking.
    pub(crate) fn count(&self) -> u64 {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the count is not `seen`, or for `limit`.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(changes, limit, |changes| *changes == seen);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until `look` returns something, or for `limit`.
    pub(crate) fn wait_for<R>(&self, limit: Duration, mut look: impl FnMut() -> Option<R>) -> Option<R> {
        let deadline = Instant::now().checked_add(limit);
        loop {
            let seen = self.count();
            if let Some(found) = look() {
                return Some(found);
            }
            let left = deadline.map_or(LONG, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            self.wait(seen, left.min(LONG));
        }
    }
}

/// What a wait without end waits at a time.
const LONG: Duration = Duration::from_secs(60);
