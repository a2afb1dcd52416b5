//! Standard error: one thread writes its lines, so that no other thread waits without end when it is not read.

use std::io::Write as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use squall_fabric::mutex::{lock, unpoisoned};

use super::bars;

/// The lines that wait to be written.
struct ErrorLines {
    /// `None`: there is no thread, and each line is written at once.
    queue: Option<SyncSender<String>>,
    state: Mutex<LineState>,
    is_written: Condvar,
}

#[derive(Default)]
struct LineState {
    queued: u64,
    written: u64,
    dropped: u64,
    /// A wait was in vain, and nothing has been written since: the next ones would be, too.
    is_stuck: bool,
}

impl ErrorLines {
    fn start() -> Self {
        let (queue, lines) = sync_channel(LINES_MAX);
        let thread = thread::Builder::new().name("squall stderr".into()).spawn(move || write_all(&lines));
        let queue = thread.is_ok().then_some(queue);
        Self { queue, state: Mutex::default(), is_written: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, LineState> {
        lock(&self.state)
    }
}

/// Has `text` written with a line break behind it. If too many lines wait, it is dropped and counted.
pub(super) fn put(text: String) {
    let Some(queue) = &LINES.queue else { return write(&text) };
    let mut state = LINES.state();
    if queue.try_send(text).is_ok() { state.queued += 1 } else { state.dropped += 1 }
}

/// Waits until all that was put before is written, for at most `patience`.
pub(super) fn flush(patience: Duration) {
    let state = LINES.state();
    if LINES.queue.is_none() || state.is_stuck {
        return;
    }
    let until = state.queued;
    let waited = LINES.is_written.wait_timeout_while(state, patience, |state| state.written < until);
    let (mut state, timeout) = unpoisoned(waited);
    state.is_stuck |= timeout.timed_out();
}

fn write_all(lines: &Receiver<String>) {
    for text in lines {
        write(&text);
        let mut state = LINES.state();
        state.written += 1;
        state.is_stuck = false;
        let dropped = std::mem::take(&mut state.dropped);
        drop(state);
        LINES.is_written.notify_all();
        if dropped > 0 {
            tracing::warn!("{dropped} log lines were dropped, as the log was not read");
        }
    }
}

/// Writes a line, if standard error is still read.
fn write(text: &str) {
    let _ = bars::suspend(|| writeln!(std::io::stderr(), "{text}"));
}

static LINES: LazyLock<ErrorLines> = LazyLock::new(ErrorLines::start);
/// More than a command has to say at once.
const LINES_MAX: usize = 1024;
