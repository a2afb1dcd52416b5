//! What a process finds in its log when it starts, and what it adds before its group runs (Derecho §3.4, "Total failures").

use squall_log::{AppendError, FramePlace, LogPosition, LogRecord, RecordKind, Recovered};
use squall_protocols::group::SubgroupId;
use squall_protocols::restart::{LogState, Register};

use super::LogFolderError;
use super::index::LogIndex;
use super::process_log::ProcessLog;
use crate::error::GroupError;

/// A look at a log, which can be continued.
#[derive(Debug)]
pub(super) struct LogWalk {
    /// Up to where it has been read.
    end: Recovered,
    index: LogIndex,
}

/// A record of a log, as another process gets it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct StoredRecord {
    /// Its sequence in its view.
    pub(crate) sequence: u64,
    /// The rank of the sender in the subgroup.
    pub(crate) sender: u32,
    /// When it was received.
    pub(crate) time: u64,
    /// Whether it is a message; else it says that all before it are nulls.
    pub(crate) is_message: bool,
    /// The message.
    pub(crate) bytes: Vec<u8>,
}

/// Part of the log of a subgroup and a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogRange {
    /// The subgroup.
    pub(crate) subgroup: SubgroupId,
    /// The view.
    pub(crate) view: u64,
    /// The first sequence.
    pub(crate) from: u64,
    /// One more than the last.
    pub(crate) to: u64,
}

impl LogWalk {
    pub(super) const fn new(end: Recovered, index: LogIndex) -> Self {
        Self { end, index }
    }
}

impl ProcessLog {
    /// Returns the register that was found, if the process has been in a view \[T9\].
    pub(crate) fn found_register(&self) -> Option<Register> {
        let found = self.found().clone();
        found.filter(|register| !register.view().members.is_empty())
    }

    /// Has the group that is entered next continue this register, which is on the disk.
    pub(crate) fn set_register(&self, register: Register) {
        *self.found() = Some(register);
    }

    /// Returns what is in the log of these subgroups, as far as it was looked at.
    pub(crate) fn state(&self, shards: &[SubgroupId]) -> LogState {
        self.walk().index.state(shards)
    }

    /// Looks at what was written since the last time.
    pub(crate) fn look(&self) {
        let mut walk = self.walk();
        let LogWalk { end, index } = &mut *walk;
        // If the folder cannot be listed, what is known stays.
        let _ = self.log().storage().follow(end, &mut |place, record| index.note(place, &record));
    }

    /// Looks at what was written since the last time, if less than `count` sequences of a view were there.
    pub(crate) fn look_for(&self, subgroup: SubgroupId, view: u64, count: u64) {
        if self.walk().index.count(subgroup, view) < count {
            self.look();
        }
    }

    /// Writes the register, and returns when it is on the disk.
    ///
    /// # Errors
    /// [`GroupError::Log`] if the disk has failed.
    pub(crate) fn store_register(&self, register: &Register) -> Result<(), GroupError> {
        self.log().write_register(register.encode()).map_err(|error| self.failed(error.into()))
    }

    /// Makes a copy that `squall log backup` has made the member's own folder.
    ///
    /// # Errors
    /// [`LogFolderError::Storage`] if the disk fails.
    pub(crate) fn release_backup(&self) -> Result<(), LogFolderError> {
        let failed = |cause| LogFolderError::Storage { folder: self.folder().into(), cause: Box::new(cause) };
        self.log().storage().release_backup().map_err(failed)
    }

    /// Hands the records of a range to `each`, in order, as long as it returns true; returns whether this was all of the range. What is
    /// in the range without a record is a null then.
    pub(crate) fn read(&self, range: LogRange, each: &mut dyn FnMut(&LogRecord<'_>) -> bool) -> bool {
        let LogRange { subgroup, view, from, to } = range;
        let (storage, mut next, mut goes_on) = (self.log().storage(), from, true);
        let Some(frames) = self.frames(range) else { return false };
        for place in frames {
            if !goes_on || next >= to {
                break;
            }
            let is_read = storage.read_frame(place, &mut |record| {
                let LogPosition { view: of, sequence } = record.position;
                let is_in = record.subgroup == subgroup.0 && of == view && (next..to).contains(&sequence);
                if goes_on && is_in && matches!(record.kind, RecordKind::Message | RecordKind::Frontier) {
                    next = sequence + 1;
                    goes_on = each(&record);
                }
            });
            // A hole would look like nulls.
            goes_on &= is_read;
        }
        goes_on
    }

    /// The frames that have the records of a range; none if the log does not have all of it. What was written since the log was read
    /// last is looked up if it is wanted.
    fn frames(&self, LogRange { subgroup, view, from, to }: LogRange) -> Option<Vec<FramePlace>> {
        self.look_for(subgroup, view, to);
        let LogWalk { index, .. } = &*self.walk();
        (index.count(subgroup, view) >= to).then(|| index.frames(subgroup, view, from))
    }

    /// Appends records that were fetched, of a view that has ended for this process, and waits until they are on the disk. They show
    /// everything below `to`.
    ///
    /// # Errors
    /// [`GroupError::Log`] if the disk has failed.
    pub(crate) fn append_fetched(&self, range: LogRange, records: &[StoredRecord]) -> Result<(), GroupError> {
        let LogRange { subgroup, view, to, .. } = range;
        let mut appended = 0;
        for StoredRecord { sequence, sender, time, is_message, bytes } in records {
            let kind = if *is_message { RecordKind::Message } else { RecordKind::Frontier };
            let position = LogPosition { view, sequence: *sequence };
            let (sender, time) = (*sender, *time);
            let record = LogRecord { subgroup: subgroup.0, kind, position, sender, time, bytes };
            appended = self.append_patiently(&record, appended)?;
        }
        let last = records.last();
        if last.is_none_or(|record| record.sequence + 1 < to) {
            let (kind, position) = (RecordKind::Frontier, LogPosition { view, sequence: to - 1 });
            let time = last.map_or(0, |record| record.time);
            let record = LogRecord { subgroup: subgroup.0, kind, position, sender: 0, time, bytes: &[] };
            appended = self.append_patiently(&record, appended)?;
        }
        self.log().wait(appended).map_err(|error| self.failed(error.into()))
    }

    /// Appends a record, if need be when the `appended` before it are on the disk; returns how many are then.
    fn append_patiently(&self, record: &LogRecord<'_>, appended: u64) -> Result<u64, GroupError> {
        match self.log().append(record) {
            Err(AppendError::Full) => {
                self.log().wait(appended).map_err(|error| self.failed(error.into()))?;
                self.log().append(record)
            }
            outcome => outcome,
        }
        .map_err(|error| self.failed(error))
    }

    fn failed(&self, cause: AppendError) -> GroupError {
        GroupError::Log { folder: self.folder().into(), cause: cause.into() }
    }
}
