//! What wakes a worker that waits for a member's answers or for jobs.

use std::sync::{Mutex, PoisonError};

use squall_fabric::atomics::{AtomicUsize, Ordering};
use squall_transports::Waker;

/// Wakes a worker.
#[derive(Default)]
pub(super) struct Bell {
    /// The number of jobs that it has not taken.
    pub(super) jobs: AtomicUsize,
    /// Ends the worker's wait for a member's answers, while it has a connection.
    waker: Mutex<Option<Waker>>,
}

impl Bell {
    /// Sets what ends the worker's wait for answers.
    pub(super) fn set_waker(&self, waker: Option<Waker>) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = waker;
    }

    /// Wakes the worker: there is a new job, or there will be no more.
    pub(super) fn ring(&self) {
        // SYNC: pairs with the load before the worker waits.
        self.jobs.fetch_add(1, Ordering::Release);
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
    }
}
