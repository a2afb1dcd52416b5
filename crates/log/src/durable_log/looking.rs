//! Whether the folder is still where it was opened.

use std::sync::Condvar;
use std::time::Duration;

use squall_fabric::mutex::unpoisoned;

use super::{PanicReport, Shared};
use crate::disk::{Disk, DiskError};

impl<D: Disk> Shared<D> {
    /// A file that is not found is no news if the whole folder has vanished.
    pub(super) fn with_folder(&self, error: DiskError) -> DiskError {
        let checked = if error.is_absent() { self.storage.disk().check_folder() } else { Ok(()) };
        checked.err().unwrap_or(error)
    }

    /// The thread that looks whether the folder is still there: what is written to a file that no process finds any more is not on the disk.
    pub(super) fn look(&self) {
        let _report = PanicReport(self);
        let mut state = self.state();
        while state.core.failure().is_none() && !state.is_closing {
            state = unpoisoned(self.closing.wait_timeout(state, LOOK_EVERY)).0;
            if state.is_closing {
                return;
            }
            drop(state);
            let looked = self.storage.disk().check_folder();
            state = self.state();
            if let Err(error) = looked {
                state.core.handle_failed(None, error);
                state = self.report_answers(state);
                [&self.work, &self.wanted, &self.news].into_iter().for_each(Condvar::notify_all);
            }
        }
    }
}

/// Between two looks at the folder.
const LOOK_EVERY: Duration = Duration::from_millis(500);
