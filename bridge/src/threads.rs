//! Whether the threads of RustDDS are still there.
//!
//! RustDDS ends a thread when its wait for datagrams is interrupted, as Linux does to each process that is stopped and continued (signal(7)),
//! and reports it nowhere: its participant is deaf from then on. So the bridge looks for the threads itself, in `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The threads that RustDDS has begun for one bridge.
#[derive(Debug)]
pub(crate) struct RtpsThreads(BTreeSet<u64>);

impl RtpsThreads {
    /// Calls `begin`, which lets RustDDS begin `count` threads, and returns these, too: none where there is no `/proc`.
    pub(crate) fn of<T, E>(count: usize, begin: impl FnOnce() -> Result<T, E>) -> Result<(T, Self), E> {
        // The threads of another bridge are not those of this one.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let before = present();
        let (begun, value) = (Instant::now(), begin()?);
        loop {
            let threads: BTreeSet<_> = present().difference(&before).copied().collect();
            // A thread has its name soon after it has begun.
            if threads.len() >= count || begun.elapsed() >= NAME_PATIENCE {
                return Ok((value, Self(threads)));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns whether all of them are still there.
    pub(crate) fn are_alive(&self) -> bool {
        self.0.iter().all(|thread| is_of_rustdds(*thread))
    }
}

/// Returns the threads of this process that are of RustDDS.
fn present() -> BTreeSet<u64> {
    let entries = fs::read_dir(TASKS).into_iter().flatten().flatten();
    let threads = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    threads.filter(|thread| is_of_rustdds(*thread)).collect()
}

fn is_of_rustdds(thread: u64) -> bool {
    fs::read_to_string(format!("{TASKS}/{thread}/comm")).is_ok_and(|name| name.starts_with("RustDDS "))
}

const TASKS: &str = "/proc/self/task";
const NAME_PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_that_ends_is_missed() {
        let (stop, stopped) = mpsc::channel::<()>();
        let begin =
            || thread::Builder::new().name("RustDDS test".into()).spawn(move || stopped.recv().is_err());
        let (thread, threads) = RtpsThreads::of(1, begin).expect("a thread");
        assert!(threads.0.len() == 1 && threads.are_alive());
        drop(stop);
        assert!(thread.join().expect("it ends"));
        let begun = Instant::now();
        while threads.are_alive() {
            assert!(begun.elapsed() < Duration::from_secs(10), "it is still there");
        }
    }
}
