//! What a command waits for.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::output;

/// A line on the terminal that appears when a wait has lasted for a second; without a terminal it is part of the log. Dropping
/// it ends the wait.
#[derive(Debug)]
pub struct PendingNote {
    _wait: Sender<()>,
}

impl PendingNote {
    /// Begins the wait that `text` names.
    #[must_use]
    pub fn new(text: String) -> Self {
        let (wait, is_over) = channel();
        std::thread::spawn(move || {
            if is_over.recv_timeout(AFTER) == Err(RecvTimeoutError::Timeout) {
                if console::user_attended_stderr() {
                    output::note(text);
                } else {
                    tracing::info!("{text}");
                }
            }
        });
        Self { _wait: wait }
    }
}

/// Below this no user wonders.
const AFTER: Duration = Duration::from_secs(1);
