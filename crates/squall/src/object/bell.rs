//! What wakes a worker that waits for a member's answers or for jobs.

use std::sync::{Condvar, Mutex, MutexGuard};

use squall_fabric::atomics::{AtomicUsize, Ordering};
use squall_fabric::mutex::{lock, unpoisoned};
use squall_transports::Waker;

/// Wakes a worker.
#[derive(Default)]
pub(super) struct Bell {
    /// The number of jobs that it has not taken.
    pub(super) jobs: AtomicUsize,
    /// Ends the worker's wait for a member's answers, while it has a connection.
    waker: Mutex<Option<Waker>>,
    /// Ends its wait while it has none.
    rings: Condvar,
}

impl Bell {
    /// Sets what ends the worker's wait for answers.
    pub(super) fn set_waker(&self, waker: Option<Waker>) {
        *self.waker() = waker;
    }

    /// Waits until the count of jobs is not `seen`: for a worker that has no connection.
    pub(super) fn wait(&self, seen: usize) {
        // SYNC: pairs with `Bell::ring`, which takes the lock after it has counted: it is seen, or its ring is heard.
        let unchanged = |_: &mut Option<Waker>| self.jobs.load(Ordering::Acquire) == seen;
        drop(unpoisoned(self.rings.wait_while(self.waker(), unchanged)));
    }

    /// Wakes the worker: there is a new job, or there will be no more.
    pub(super) fn ring(&self) {
        self.count();
        self.wake();
        self.rings.notify_one();
    }

    /// Counts a job, before the worker is woken.
    pub(super) fn count(&self) {
        // SYNC: pairs with the load before the worker waits.
        self.jobs.fetch_add(1, Ordering::Release);
    }

    /// Ends the worker's wait for answers, if it has a connection.
    pub(super) fn wake(&self) {
        if let Some(waker) = &*self.waker() {
            waker.wake();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        lock(&self.waker)
    }
}
