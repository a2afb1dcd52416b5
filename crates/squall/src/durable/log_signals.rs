//! What the threads of a log report to the polling thread (Derecho §3.4, persistent mode).

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};
use squall_fabric::mutex::lock;
use squall_log::{AppendError, DiskError, LogAnswer};
use squall_transports::{Waker, log};

/// What the log's threads report.
#[derive(Default)]
pub(super) struct LogSignals {
    /// The number of records of this run that are on the disk; it only grows.
    pub(super) persisted: AtomicU64,
    pub(super) has_failed: AtomicBool,
    pub(super) hangs: AtomicBool,
    /// The disk is nearly full: only what is under way is still taken.
    pub(super) is_short: Arc<AtomicBool>,
    pub(super) failure: Mutex<Option<AppendError>>,
    /// How many registers are on the disk.
    pub(super) registers: AtomicU64,
    /// Wakes the polling thread; none before the member has a transport. Reports are stored under its lock.
    pub(super) waker: Mutex<Option<Waker>>,
    /// Learns when the log begins to fill another segment.
    pub(super) segments: Mutex<Option<SyncSender<()>>>,
}

impl LogSignals {
    /// Takes an answer of the log's threads, of which several may report at the same time.
    pub(super) fn note(&self, answer: LogAnswer) {
        let waker = lock(&self.waker);
        match answer {
            LogAnswer::Persisted(records) if records > self.persisted.load(Ordering::Relaxed) => {
                self.persisted.store(records, Ordering::Relaxed);
            }
            // Another thread has reported more meanwhile.
            LogAnswer::Persisted(_) => {}
            LogAnswer::NoSpace(error) => {
                log::warn!(%error, "the disk of the log is nearly full: this member takes no new messages");
                self.is_short.store(true, Ordering::Relaxed);
                return;
            }
            LogAnswer::Prepared(_) => {
                self.is_short.store(false, Ordering::Relaxed);
                // A notification that was not taken yet stands for this segment, too.
                if let Some(turned) = &*lock(&self.segments) {
                    let _ = turned.try_send(());
                }
                return;
            }
            LogAnswer::Failed(error) => self.fail(error.into()),
        }
        waker.iter().for_each(Waker::wake);
    }

    /// Notes that the register is on the disk, or why not.
    pub(super) fn note_register(&self, written: Result<(), DiskError>) {
        let waker = lock(&self.waker);
        match written {
            Ok(()) => self.registers.store(self.registers.load(Ordering::Relaxed) + 1, Ordering::Relaxed),
            Err(error) => self.fail(error.into()),
        }
        waker.iter().for_each(Waker::wake);
    }

    /// Notes why the log has failed; the first reason is kept.
    pub(super) fn fail(&self, failure: AppendError) {
        lock(&self.failure).get_or_insert(failure);
        self.has_failed.store(true, Ordering::Relaxed);
    }
}
