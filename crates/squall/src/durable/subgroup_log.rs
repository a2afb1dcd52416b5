//! The log of a subgroup in a view, as the multicast core uses it (Derecho §3.4, "durable" mode).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use squall_fabric::atomics::{Ordering, fence};
use squall_log::{LogPosition, LogRecord, RecordKind};
use squall_protocols::multicast::{Message, MessageLog};

use super::process_log::{LogProgress, ProcessLog};

/// The log of a subgroup in a view. The polling thread uses it.
///
/// **Law.** The core appends messages in the order of their sequences, then ends the batch, and asks in each evaluation how much is on the
/// disk. Nulls have no records: each message has one, and nothing else has.
#[derive(Debug)]
pub(crate) struct SubgroupLog {
    process: Arc<ProcessLog>,
    /// Its number in the log.
    subgroup: u32,
    view: u64,
    walk: RefCell<AppendedWalk>,
    progress: Arc<LogProgress>,
}

/// How far the log is, in sequences: `persisted <= appended`, and both are behind a message.
#[derive(Debug, Default)]
struct AppendedWalk {
    /// Everything below was appended.
    appended: u64,
    /// Everything below is shown by records on the disk.
    persisted: u64,
    /// The records that are not on the disk, oldest first: how many records are when it is, and what it shows then. At most as
    /// many as the windows hold messages.
    under_way: VecDeque<(u64, u64)>,
    /// The number of records on the disk when this was last looked at.
    records: u64,
    /// The time of the last record, in nanoseconds since 1970.
    time: u64,
    /// The time at which the present batch of records began, once it was asked for.
    now: Option<u64>,
}

impl SubgroupLog {
    pub(super) fn new(process: Arc<ProcessLog>, number: u32, view: u64, progress: Arc<LogProgress>) -> Self {
        Self { process, subgroup: number, view, walk: RefCell::default(), progress }
    }

    /// Takes note of what has come to the disk.
    #[cold]
    fn note_persisted(&self, walk: &mut AppendedWalk, records: u64) {
        walk.records = records;
        while let Some((_, sequences)) = walk.under_way.pop_front_if(|(needed, _)| *needed <= records) {
            walk.persisted = sequences;
        }
        self.progress.persisted.store(walk.persisted, Ordering::Relaxed);
    }
}

impl MessageLog for SubgroupLog {
    fn append(&mut self, message: Message<'_>) {
        let Message { view, sender, sequence, bytes, .. } = message;
        let walk = self.walk.get_mut();
        let is_next = view == self.view && sequence >= walk.appended;
        assert!(is_next, "[T1] message {sequence} of view {view} after {} of {}", walk.appended, self.view);
        walk.appended = sequence + 1;
        // SYNC: pairs with `ProcessLog::pass`: this store, then the fence, then the look at the time that was passed.
        self.progress.messages.store(sequence + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let now = *walk.now.get_or_insert_with(|| self.process.now());
        walk.time = now.max(walk.time + 1).max(self.process.passed() + 1);
        let position = LogPosition { view, sequence };
        let (kind, sender) =
            (RecordKind::Message, u32::try_from(sender).expect("a subgroup has few members"));
        let record = LogRecord { subgroup: self.subgroup, kind, position, sender, time: walk.time, bytes };
        // If the log has failed, nothing more comes to the disk, and the member is about to leave.
        if let Some(records) = self.process.append(&record) {
            walk.under_way.push_back((records, sequence + 1));
        }
    }

    fn end_batch(&mut self) {
        self.walk.get_mut().now = None;
    }

    #[inline]
    fn persisted(&self) -> u64 {
        let mut walk = self.walk.borrow_mut();
        let records = self.process.persisted();
        if records != walk.records {
            self.note_persisted(&mut walk, records);
        }
        walk.persisted
    }

    fn note_stable(&mut self, sequences: u64) {
        // SYNC: pairs with `ProcessLog::stable`, whose caller reads the log, which has a lock of its own.
        self.progress.stable.store(sequences, Ordering::Release);
    }

    fn note_delivered(&mut self, sequences: u64) {
        self.progress.delivered.store(sequences, Ordering::Relaxed);
    }
}

/// A time in nanoseconds since 1970, as records have it.
pub(crate) fn time_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
