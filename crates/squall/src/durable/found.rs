//! What a process finds in its log when it starts, and what it adds before its group runs (Derecho §3.4, "Total failures").

use std::io::Write;

use squall_fabric::atomics::Ordering;
use squall_fabric::mutex::lock;
use squall_log::{
    AppendError, CheckpointError, Disk, DiskError, FramePlace, LogBegin, LogPosition, LogRecord, RecordKind,
    Recovered, StateWriting, Storage,
};
use squall_protocols::group::SubgroupId;
use squall_protocols::restart::{LogStart, LogState, Register};

use super::index::{KeptRecords, LogIndex};
use super::process_log::ProcessLog;
use crate::config::Retention;
use crate::error::GroupError;
use crate::error::LogFolderError;

/// A look at a log, which can be continued.
#[derive(Debug)]
pub(super) struct LogWalk {
    /// Up to where it has been read.
    end: Recovered,
    index: LogIndex,
    /// Whether more may be on the disk than was noted.
    is_behind: bool,
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
        Self { end, index, is_behind: false }
    }
}

impl ProcessLog {
    /// Returns the register that was found, if the process has been in a view \[T9\].
    pub(crate) fn found_register(&self) -> Option<Register> {
        let found = self.found().clone();
        found.filter(|register| !register.view().members.is_empty())
    }

    /// Returns the shards that were added to the register in its present view, which begin when that ends \[T22\].
    pub(crate) fn added_shards(&self) -> Vec<usize> {
        self.file().added()
    }

    /// Has the group that is entered next continue this register, which is on the disk.
    pub(crate) fn set_register(&self, register: Register) {
        *self.found() = Some(register);
    }

    /// Returns what is in the log of these subgroups, as far as it was looked at.
    pub(crate) fn state(&self, shards: &[SubgroupId]) -> LogState {
        let mut state = self.walk().index.state(shards);
        shards.iter().enumerate().for_each(|(shard, subgroup)| state.cover(shard, self.begin_of(*subgroup)));
        state
    }

    /// Returns where the log of a subgroup begins: a checkpoint covers what is before.
    pub(crate) fn begin_of(&self, subgroup: SubgroupId) -> LogStart {
        // Lost ones are refused when the log is opened.
        begin_of(self.log().storage(), self.number(subgroup)).unwrap_or_default()
    }

    /// Returns the greatest time of the messages before a position, as far as they are in this log.
    pub(crate) fn time_before(&self, subgroup: SubgroupId, end: LogStart) -> u64 {
        self.look();
        let (mut time, partial) = self.walk().index.before(subgroup, end);
        let number = self.number(subgroup);
        if let Some(place) = partial {
            self.log().storage().read_frame(place, &mut |record| {
                if record.subgroup == number && behind(record.position) <= end {
                    time = time.max(record.time);
                }
            });
        }
        time
    }

    /// Returns the positions of the checkpoints of a subgroup, ascending: all before is in them.
    pub(crate) fn checkpoints(&self, subgroup: SubgroupId) -> Vec<LogStart> {
        let checkpoints =
            self.log().storage().checkpoints().remove(&self.number(subgroup)).unwrap_or_default();
        checkpoints.into_iter().map(behind).collect()
    }

    /// Returns whether a checkpoint that is there is a mark, which has no state.
    pub(crate) fn is_mark(&self, subgroup: SubgroupId, start: LogStart) -> bool {
        let position = last_before(start).unwrap_or_default();
        self.log().storage().is_mark(self.number(subgroup), position).unwrap_or(false)
    }

    /// Reads a block of a checkpoint; returns its bytes, and whether it is the last one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn read_checkpoint(
        &self,
        subgroup: SubgroupId,
        start: LogStart,
        block: u32,
    ) -> Result<(Vec<u8>, bool), CheckpointError> {
        let position = last_before(start).unwrap_or_default();
        self.log().storage().read_checkpoint_block(self.number(subgroup), position, block)
    }

    /// Writes a checkpoint of what is before `start`, which was delivered, and keeps the records that `retention` wants. Returns
    /// when it is on the disk.
    ///
    /// # Errors
    /// If the disk has failed, or `write`.
    pub(crate) fn write_checkpoint(
        &self,
        subgroup: SubgroupId,
        start: LogStart,
        retention: &Retention,
        write: &mut StateWriting<'_>,
    ) -> Result<(), CheckpointError> {
        let Some(position) = last_before(start) else { return Ok(()) };
        let wanted = self.wanted(subgroup, start, retention);
        self.log().checkpoint(self.number(subgroup), position, wanted, write)?;
        self.drop_recycled();
        Ok(())
    }

    /// Notes that what is before `start` need not be kept but for what `retention` wants. Returns when that is on the disk.
    ///
    /// # Errors
    /// If the disk has failed.
    pub(super) fn write_mark(
        &self,
        subgroup: SubgroupId,
        start: LogStart,
        retention: &Retention,
    ) -> Result<(), CheckpointError> {
        let Some(position) = last_before(start) else { return Ok(()) };
        let wanted = self.wanted(subgroup, start, retention);
        self.log().mark(self.number(subgroup), position, wanted)?;
        self.drop_recycled();
        Ok(())
    }

    /// Forgets where records were that are not there any more.
    fn drop_recycled(&self) {
        if let Some(register) = self.log().storage().register() {
            let mut walk = self.walk();
            walk.index.drop_before(register.base.segment);
            walk.end.segments = walk.end.segments.split_off(&register.base.segment);
        }
        self.note_base();
    }

    /// Notes that the log has all of earlier views that it is to have.
    pub(crate) fn note_whole(&self) {
        self.lacking.store(WHOLE, Ordering::Relaxed);
    }

    /// Notes how many messages of earlier views it lacks, as far as is known.
    pub(crate) fn note_missing(&self, count: u64) {
        self.lacking.store(count, Ordering::Relaxed);
    }

    /// Returns how many messages of earlier views it lacks, as far as is known; `None` if it lacks none.
    pub(crate) fn missing(&self) -> Option<u64> {
        Some(self.lacking.load(Ordering::Relaxed)).filter(|count| *count != WHOLE)
    }

    /// Returns whether [`ProcessLog::note_whole`] was called: before, records of earlier views may still come from other members.
    pub(crate) fn is_whole(&self) -> bool {
        self.lacking.load(Ordering::Relaxed) == WHOLE
    }

    /// Returns the view before which the log needs nothing, as far as it was looked at: checkpoints on the disk cover everything that it
    /// has of earlier ones \[T19\].
    pub(crate) fn base_view(&self) -> u64 {
        Some(self.base.load(Ordering::Relaxed)).filter(|base| *base != NO_BASE).unwrap_or(0)
    }

    /// Looks where the log begins, of all subgroups in which this member is or has been.
    pub(super) fn note_base(&self) {
        let mut subgroups = self.walk().index.subgroups();
        // One that is entered meanwhile comes after this.
        let progress = lock(&self.progress);
        subgroups.extend(progress.keys());
        let base = subgroups.into_iter().map(|subgroup| self.begin_of(subgroup).view).min();
        self.base.store(base.unwrap_or(NO_BASE), Ordering::Relaxed);
    }

    /// Takes a checkpoint of another member, which takes the place of the records before `start`, and waits until it is on the disk. One
    /// without blocks is a mark, of which one is enough [W11].
    ///
    /// # Errors
    /// [`GroupError::Log`] if the disk has failed.
    pub(crate) fn take_checkpoint(
        &self,
        subgroup: SubgroupId,
        start: LogStart,
        blocks: &[Vec<u8>],
    ) -> Result<(), GroupError> {
        // No checkpoint is before the first record.
        let position = last_before(start).unwrap_or_default();
        let mut write = |sink: &mut dyn Write| blocks.iter().try_for_each(|block| sink.write_all(block));
        let (storage, number) = (self.log().storage(), self.number(subgroup));
        let written = match blocks {
            [] => storage.replace_by_mark(number, position),
            _ => storage.replace_checkpoints(number, position, &mut write),
        };
        written.map_err(|error| self.failed(DiskError::from(error).into()))
    }

    /// The last position that need not be kept. What is behind the end of this look is not recycled, so that the next one can begin
    /// there.
    pub(super) fn wanted(
        &self,
        subgroup: SubgroupId,
        newest: LogStart,
        retention: &Retention,
    ) -> LogPosition {
        self.look();
        let Retention { time, bytes, versions, .. } = *retention;
        let walk = self.walk();
        let segment_bytes = u64::from(self.log().storage().settings().segment_bytes);
        let end = u64::from(walk.end.segment) * segment_bytes + walk.end.offset;
        let first = end.saturating_sub(bytes);
        let first_segment = u32::try_from(first / segment_bytes).unwrap_or(u32::MAX);
        let now = self.now();
        let kept = KeptRecords {
            sequences: versions,
            since: (!time.is_zero())
                .then(|| now.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))),
            place: if bytes == 0 { (u32::MAX, 0) } else { (first_segment, first % segment_bytes) },
        };
        let wanted = walk.index.wanted(subgroup, &kept).map_or(newest, |wanted| wanted.min(newest));
        last_before(wanted).unwrap_or_default()
    }

    /// Looks at what was written since the last time, on the disk only if it was much.
    pub(crate) fn look(&self) {
        let mut walk = self.walk();
        let LogWalk { end, index, is_behind } = &mut *walk;
        let is_noted = self.log().take_notes().is_some_and(|notes| {
            notes.iter().all(|note| {
                let is_news = note.place.number > end.last;
                let is_next = end.note(note);
                if is_next && is_news {
                    index.note(note);
                }
                is_next
            })
        });
        if is_noted && !*is_behind {
            return;
        }
        let followed = self.log().storage().follow(end, &mut |note| index.note(note));
        // If the folder cannot be listed, what is known stays, and the next look tries again.
        *is_behind = followed.is_err();
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
        self.file().write(register).map_err(|error| self.failed(error.into()))
    }

    /// Returns whether records of a range are not kept any more, or a checkpoint has taken their place.
    pub(crate) fn is_compacted(&self, range: LogRange) -> bool {
        LogStart { view: range.view, sequence: range.from } < self.begin_of(range.subgroup)
    }

    /// Makes a copy that `squall log backup` has made the member's own folder.
    ///
    /// # Errors
    /// [`LogFolderError::Storage`] if the disk fails.
    pub(crate) fn release_backup(&self) -> Result<(), LogFolderError> {
        let failed = |cause| LogFolderError::Storage { folder: self.folder().into(), cause: Box::new(cause) };
        self.log().storage().release_backup().map_err(failed)
    }

    /// Hands the records of a range to `each`, in order, as long as it returns true, of [`FRAMES_MAX`] frames at most, so that it does
    /// not take long; returns the sequence before which this was all. What is before it without a record is a null. `None` if the log does
    /// not have the first of them, any more or yet.
    pub(crate) fn read(&self, range: LogRange, each: &mut dyn FnMut(&LogRecord<'_>) -> bool) -> Option<u64> {
        let LogRange { subgroup, view, from, to } = range;
        let (storage, number) = (self.log().storage(), self.number(subgroup));
        let (mut next, mut goes_on) = (from, true);
        let (frames, rest) = self.frames(range)?;
        // What was removed before would look like nulls: the beginning has moved before the index has forgotten it.
        if self.is_compacted(range) {
            return None;
        }
        for place in frames {
            if next >= to {
                break;
            }
            let is_read = storage.read_frame(place, &mut |record| {
                let LogPosition { view: of, sequence } = record.position;
                let is_in = record.subgroup == number && of == view && (next..to).contains(&sequence);
                if goes_on && is_in && record.kind.is_content() {
                    next = sequence + 1;
                    goes_on = each(&record);
                }
            });
            // A hole would look like nulls.
            if !goes_on || !is_read {
                return (next > from).then_some(next);
            }
        }
        Some(rest.map_or(to, |rest| rest.clamp(next, to)))
    }

    /// The first frames that have the records of a range, and the first sequence in those that are left; none if the log does not have
    /// all of the range. What was written since the log was read last is looked up if it is wanted.
    fn frames(
        &self,
        LogRange { subgroup, view, from, to }: LogRange,
    ) -> Option<(Vec<FramePlace>, Option<u64>)> {
        self.look_for(subgroup, view, to);
        let LogWalk { index, .. } = &*self.walk();
        (index.count(subgroup, view) >= to).then(|| index.frames(subgroup, view, from, FRAMES_MAX))
    }

    /// Appends records that were fetched, of a view that has ended for this process, and waits until they are on the disk. They show
    /// everything below `to`.
    ///
    /// # Errors
    /// [`GroupError::Log`] if the disk has failed.
    pub(crate) fn append_fetched(&self, range: LogRange, records: &[StoredRecord]) -> Result<(), GroupError> {
        let LogRange { subgroup, view, to, .. } = range;
        let (number, mut appended) = (self.number(subgroup), 0);
        for StoredRecord { sequence, sender, time, is_message, bytes } in records {
            let kind = if *is_message { RecordKind::Message } else { RecordKind::Frontier };
            let position = LogPosition { view, sequence: *sequence };
            let (sender, time) = (*sender, *time);
            let record = LogRecord { subgroup: number, kind, position, sender, time, bytes };
            appended = self.append_patiently(&record, appended)?;
        }
        let last = records.last();
        if last.is_none_or(|record| record.sequence + 1 < to) {
            let (kind, position) = (RecordKind::Frontier, LogPosition { view, sequence: to - 1 });
            let time = last.map_or(0, |record| record.time);
            let record = LogRecord { subgroup: number, kind, position, sender: 0, time, bytes: &[] };
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

/// No base is known: there is no log of a subgroup.
pub(super) const NO_BASE: u64 = u64::MAX;
/// The log has all of earlier views.
pub(super) const WHOLE: u64 = u64::MAX;

/// How many frames are read at a time: most are short, and all have 1 GiB at most, which takes some seconds.
const FRAMES_MAX: usize = 1024;

/// Where the log of the subgroup with this number begins in a folder; none if what was removed is in no checkpoint that can be read.
pub(crate) fn begin_of<D: Disk>(storage: &Storage<D>, number: u32) -> Option<LogStart> {
    match storage.begin_of(number) {
        LogBegin::First => Some(LogStart::default()),
        LogBegin::Behind(position) => Some(behind(position)),
        LogBegin::Lost(_) => None,
    }
}

/// The position behind a record.
pub(crate) const fn behind(position: LogPosition) -> LogStart {
    match position.sequence.checked_add(1) {
        Some(sequence) => LogStart { view: position.view, sequence },
        None => LogStart::of_view(position.view + 1),
    }
}

/// The last record before a position; none before the first.
pub(crate) const fn last_before(start: LogStart) -> Option<LogPosition> {
    let LogStart { view, sequence } = start;
    match (view, sequence) {
        (0, 0) => None,
        (_, 0) => Some(LogPosition { view: view - 1, sequence: u64::MAX }),
        _ => Some(LogPosition { view, sequence: sequence - 1 }),
    }
}
