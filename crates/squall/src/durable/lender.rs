//! The log as threads beside the polling thread use it: for as long as the member lives (Derecho §3.4, persistent mode).
//!
//! The folder of a log is locked while anything uses it. A member that ends waits until each of its threads has given the log back,
//! so that the next member of this process finds the folder free. If the disk hangs it does not wait: the threads end when the disk
//! answers, and until then the folder stays locked.

use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use squall_fabric::mutex::{lock, unpoisoned};

use super::ProcessLog;

/// Lends the log to threads of the member. Dropping it takes the log back: it waits until no thread uses it, unless the
/// disk hangs.
#[derive(Debug)]
pub(crate) struct LogLender(Arc<Lending>);

/// A thread's side of a [`LogLender`].
#[derive(Clone, Debug)]
pub(crate) struct LogBorrower(Arc<Lending>);

/// A log that a thread uses now. It must not be kept while the thread waits for others.
pub(crate) struct BorrowedLog {
    /// Some until it is dropped.
    log: Option<Arc<ProcessLog>>,
    lending: Arc<Lending>,
}

#[derive(Debug)]
struct Lending {
    state: Mutex<LendingState>,
    returned: Condvar,
}

#[derive(Debug)]
struct LendingState {
    /// None when the member has ended.
    log: Option<Arc<ProcessLog>>,
    loans: usize,
}

impl LogLender {
    pub(crate) fn new(log: Arc<ProcessLog>) -> Self {
        let state = Mutex::new(LendingState { log: Some(log), loans: 0 });
        Self(Arc::new(Lending { state, returned: Condvar::new() }))
    }

    pub(crate) fn borrower(&self) -> LogBorrower {
        LogBorrower(Arc::clone(&self.0))
    }

    /// Returns how many threads use the log now.
    pub(crate) fn loans(&self) -> usize {
        self.0.state().loans
    }
}

impl Drop for LogLender {
    fn drop(&mut self) {
        let mut state = self.0.state();
        let log = state.log.take();
        while state.loans > 0 && !log.as_ref().is_some_and(|log| log.hangs()) {
            let (again, _) = unpoisoned(self.0.returned.wait_timeout(state, PAUSE));
            state = again;
            // The polling thread, which does this otherwise, has ended.
            log.iter().for_each(|log| log.check_disk());
        }
        drop(state);
        drop(log);
    }
}

/// Between looks whether the disk hangs.
const PAUSE: Duration = Duration::from_millis(20);

impl LogBorrower {
    /// Returns the log, or `None` if the member has ended.
    pub(crate) fn borrow(&self) -> Option<BorrowedLog> {
        let mut state = self.0.state();
        let log = state.log.clone()?;
        state.loans += 1;
        Some(BorrowedLog { log: Some(log), lending: Arc::clone(&self.0) })
    }
}

impl BorrowedLog {
    /// Returns the log for what needs to share it. It must be dropped before this.
    pub(crate) fn share(&self) -> Arc<ProcessLog> {
        Arc::clone(self.log.as_ref().expect("it is there until the drop"))
    }
}

impl Deref for BorrowedLog {
    type Target = ProcessLog;

    fn deref(&self) -> &ProcessLog {
        self.log.as_ref().expect("it is there until the drop")
    }
}

impl Drop for BorrowedLog {
    fn drop(&mut self) {
        // The lender's is the last one.
        self.log = None;
        self.lending.state().loans -= 1;
        self.lending.returned.notify_all();
    }
}

impl Lending {
    fn state(&self) -> MutexGuard<'_, LendingState> {
        lock(&self.state)
    }
}
