//! Threads that drive the core on a disk: writers, one that makes segments ready, and one that looks whether the folder is still there.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use squall_fabric::DurationHistogram;
use squall_fabric::mutex::{lock, unpoisoned};

use crate::checkpoint::{CheckpointError, StateWriting};
use crate::core::{AppendError, FrameWrite, LogAction, LogAnswer, LogCore};
use crate::disk::{Disk, DiskCause, DiskError};
use crate::note::FrameNote;
use crate::record::{LogPosition, LogRecord};
use crate::recovery::Recovered;
use crate::segment::Recycling;
use crate::storage::{Storage, StorageError, disk_error};

mod looking;

/// A log that is open for writing. Threads may share it by reference; it waits for what it has taken when it is dropped, unless it is
/// abandoned.
///
/// Each of the writers asks the core for a frame, writes it and reports it; the core decides how many of them have work. While
/// one writes a frame, the next one collects. The making of segments has a thread of its own, since it takes long. So has the look at the
/// folder, each half second, since on a disk that hangs it does not return.
#[derive(Debug)]
pub struct DurableLog<D> {
    shared: Arc<Shared<D>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<D> {
    storage: Storage<D>,
    /// Is called with the answers of the core, while the state is not locked.
    report: Box<dyn Fn(LogAnswer) + Send + Sync>,
    state: Mutex<State>,
    /// A writer may have work.
    work: Condvar,
    /// A segment is wanted.
    wanted: Condvar,
    /// More is persisted, or the disk has failed.
    news: Condvar,
    /// The log is being closed.
    closing: Condvar,
}

#[derive(Debug)]
struct State {
    core: LogCore,
    preparing: Option<(u32, Option<Recycling>)>,
    is_closing: bool,
    is_abandoned: bool,
    tally: WriteTally,
}

/// What the log has written since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteTally {
    /// The frames that are on the disk: one is one group commit.
    pub frames: u64,
    /// Their bytes: records, with the frames' headers, padded to whole blocks of the disk.
    pub bytes: u64,
    /// How long the writes of frames took, each until its bytes were on the disk, or the disk had refused them.
    pub times: DurationHistogram,
}

impl<D: Disk + Send + Sync + 'static> DurableLog<D> {
    /// Begins a life of the log that was recovered from `storage`.
    ///
    /// # Errors
    /// If the register is lost, the disk fails, or no thread can be started.
    ///
    /// # Panics
    /// If the log is damaged and not repaired.
    pub fn start(storage: Storage<D>, recovered: Recovered) -> Result<Self, StorageError> {
        Self::start_reporting(storage, recovered, |_| ())
    }

    /// Begins a life of the log as [`Self::start`] does. The log's threads call `report` after each group commit, and when the disk
    /// has failed. It should be brief. Several threads may call it at the same time, so that a smaller count may come after a greater
    /// one: the greatest counts.
    ///
    /// # Errors
    /// If the register is lost, the disk fails, or no thread can be started.
    ///
    /// # Panics
    /// If the log is damaged and not repaired.
    pub fn start_reporting(
        storage: Storage<D>,
        recovered: Recovered,
        report: impl Fn(LogAnswer) + Send + Sync + 'static,
    ) -> Result<Self, StorageError> {
        let life = storage.begin_life()?;
        let (settings, log) = (*storage.settings(), storage.identity().log);
        let mut core = LogCore::new(settings, log, life, recovered);
        storage.retired().into_iter().for_each(|subgroup| core.handle_retired(subgroup));
        let state = Mutex::new(State {
            core,
            preparing: None,
            is_closing: false,
            is_abandoned: false,
            tally: WriteTally::default(),
        });
        let [work, wanted, news, closing] = [(); 4].map(|()| Condvar::new());
        let report = Box::new(report);
        let shared = Arc::new(Shared { storage, report, state, work, wanted, news, closing });
        // If one of the threads cannot be started, dropping this ends the others.
        let mut log = Self { shared, threads: Vec::new() };
        for writer in 0..settings.in_flight_max {
            let shared = Arc::clone(&log.shared);
            log.threads.push(thread(format!("squall log {writer}"), move || shared.write())?);
        }
        let preparer = Arc::clone(&log.shared);
        log.threads.push(thread("squall segments".into(), move || preparer.prepare())?);
        let looker = Arc::clone(&log.shared);
        log.threads.push(thread("squall folder".into(), move || looker.look())?);
        Ok(log)
    }

    /// Returns the folder.
    #[must_use]
    pub fn storage(&self) -> &Storage<D> {
        &self.shared.storage
    }

    /// Replaces what the protocol keeps in the register ([`RegisterValue::set_protocol`](crate::RegisterValue::set_protocol)), and returns
    /// when it is on the disk.
    ///
    /// # Errors
    /// If it is too long, or the disk fails: then either value may be found later.
    pub fn write_register(&self, protocol: Vec<u8>) -> Result<(), DiskError> {
        let written = self.storage().change_register(|register| register.set_protocol(protocol));
        written.map(drop).map_err(disk_error)
    }

    /// Replaces what the protocol keeps in the register, and has a changed set of subgroups count from now on
    /// ([`RegisterValue::settle`](crate::RegisterValue::settle)). When this returns it is on the disk, and subgroups that are not in the set
    /// have no checkpoints and hold no segments any more.
    ///
    /// # Errors
    /// If it is too long, or the disk fails: then either value may be found later.
    pub fn settle_register(&self, protocol: Vec<u8>) -> Result<(), DiskError> {
        let written = self.storage().change_register(|register| register.settle(protocol));
        written.map_err(disk_error)?;
        let retired = self.storage().drop_retired()?;
        let mut state = self.shared.state();
        retired.into_iter().for_each(|subgroup| state.core.handle_retired(subgroup));
        Ok(())
    }

    /// Takes a record, and returns how many records of this life are persisted when it is.
    ///
    /// # Errors
    /// If the disk is behind or has failed, or the record is too long.
    pub fn append(&self, record: &LogRecord<'_>) -> Result<u64, AppendError> {
        let mut state = self.shared.state();
        let (was_idle, full) = (state.core.is_settled(), state.core.full_frames());
        let number = state.core.append(record)?;
        // To wake a writer is a system call: not for each record.
        if was_idle || state.core.full_frames() > full {
            self.shared.work.notify_one();
        }
        Ok(number + 1)
    }

    /// Waits until `records` of this life are persisted.
    ///
    /// # Errors
    /// If the disk fails before.
    pub fn wait(&self, records: u64) -> Result<(), DiskError> {
        let mut state = self.shared.state();
        while state.core.persisted() < records {
            if let Some(failure) = state.core.failure() {
                return Err(failure.clone());
            }
            state = unpoisoned(self.shared.news.wait(state));
        }
        Ok(())
    }

    /// Returns how many records of this life are persisted.
    #[must_use]
    pub fn persisted(&self) -> u64 {
        self.shared.state().core.persisted()
    }

    /// Returns whether everything that it has taken is on the disk, or it has failed.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let state = self.shared.state();
        state.core.is_settled() || state.core.failure().is_some()
    }

    /// Returns the greatest position of a subgroup that is persisted.
    #[must_use]
    pub fn frontier(&self, subgroup: u32) -> Option<LogPosition> {
        self.shared.state().core.frontier(subgroup)
    }

    /// Returns what was written since the start.
    #[must_use]
    pub fn tally(&self) -> WriteTally {
        self.shared.state().tally
    }

    /// Takes what was noted since the last time of frames that are on the disk ([`LogCore::take_notes`]).
    #[must_use]
    pub fn take_notes(&self) -> Option<VecDeque<FrameNote>> {
        self.shared.state().core.take_notes()
    }

    /// Returns how many bytes of the segments that are ready are not used, while the disk has no space for another one.
    #[must_use]
    pub fn space_left(&self) -> Option<u64> {
        self.shared.state().core.space_left()
    }

    /// Returns why the log has failed, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<DiskError> {
        self.shared.state().core.failure().cloned()
    }

    /// Has the drop not wait, since the disk hangs: the threads end when it answers.
    pub fn abandon(&self) {
        self.shared.state().is_abandoned = true;
    }

    /// Writes a checkpoint of a subgroup, and returns when it is verified; segments that are not needed any more are recycled when the
    /// log needs a new one. Records behind `wanted` are kept in any case.
    ///
    /// # Errors
    /// If the disk fails, or has not written what it was given, or `write` fails.
    pub fn checkpoint(
        &self,
        subgroup: u32,
        position: LogPosition,
        wanted: LogPosition,
        write: &mut StateWriting<'_>,
    ) -> Result<(), CheckpointError> {
        if let Some(covered) = self.shared.storage.write_checkpoint(subgroup, position, wanted, write)? {
            self.shared.state().core.handle_checkpoint(subgroup, covered);
        }
        Ok(())
    }

    /// Notes that the records of a subgroup up to `position` are not wanted any more, but for those behind `wanted`
    /// ([`Storage::write_mark`]); returns when that is on the disk.
    ///
    /// # Errors
    /// If the disk fails, or has not written what it was given.
    pub fn mark(
        &self,
        subgroup: u32,
        position: LogPosition,
        wanted: LogPosition,
    ) -> Result<(), CheckpointError> {
        if let Some(covered) = self.shared.storage.write_mark(subgroup, position, wanted)? {
            self.shared.state().core.handle_checkpoint(subgroup, covered);
        }
        Ok(())
    }
}

impl<D> Drop for DurableLog<D> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_closing = true;
        let is_abandoned = state.is_abandoned;
        drop(state);
        self.shared.work.notify_all();
        self.shared.wanted.notify_all();
        self.shared.closing.notify_all();
        for thread in self.threads.drain(..).filter(|_| !is_abandoned) {
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}

impl<D> Shared<D> {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Reports the core's answers; the state is not locked meanwhile.
    fn report_answers<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some(answer) = state.core.poll_answer() {
            drop(state);
            (self.report)(answer);
            state = self.state();
        }
        state
    }
}

impl<D: fmt::Debug> fmt::Debug for Shared<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { storage, state, .. } = self;
        f.debug_struct("Shared").field("storage", storage).field("state", state).finish_non_exhaustive()
    }
}

impl<D: Disk> Shared<D> {
    /// A writer, until the log is closed and all is written, or it has failed.
    fn write(&self) {
        let _report = PanicReport(self);
        let mut state = self.state();
        loop {
            if let Some(write) = self.next_write(&mut state) {
                drop(state);
                let began = Instant::now();
                let outcome = self.storage.disk().write(&write.path(), write.offset, &write.bytes);
                let took = began.elapsed();
                state = self.state();
                state.tally.times.note(took);
                match outcome {
                    Ok(()) => {
                        state.tally.frames += 1;
                        state.tally.bytes += write.bytes.len() as u64;
                        state.core.handle_written(write);
                    }
                    Err(error) => {
                        drop(state);
                        let error = self.with_folder(error);
                        state = self.state();
                        state.core.handle_failed(Some(write), error);
                    }
                }
                state = self.report_answers(state);
                self.news.notify_all();
                if state.core.full_frames() > 0 || state.is_closing {
                    self.work.notify_all();
                }
                continue;
            }
            // A log fails here, too: when the last segment is full.
            let has_failed = state.core.failure().is_some();
            if has_failed || (state.is_closing && state.core.is_settled()) {
                drop(self.report_answers(state));
                [&self.work, &self.wanted, &self.news].into_iter().for_each(Condvar::notify_all);
                return;
            }
            state = unpoisoned(self.work.wait(state));
        }
    }

    /// The next frame, while segments that are wanted go to their thread.
    fn next_write(&self, state: &mut State) -> Option<FrameWrite> {
        loop {
            match state.core.poll_action()? {
                LogAction::Write(write) => return Some(write),
                LogAction::Prepare { segment, recycle } => {
                    state.preparing = Some((segment, recycle));
                    self.wanted.notify_one();
                }
            }
        }
    }

    /// The thread that makes segments ready.
    fn prepare(&self) {
        let _report = PanicReport(self);
        let mut state = self.state();
        loop {
            if let Some((segment, recycle)) = state.preparing.take() {
                drop(state);
                let outcome = self.storage.prepare(segment, recycle);
                let outcome = outcome.map_err(|error| self.with_folder(disk_error(error)));
                state = self.state();
                match outcome {
                    Ok(()) => state.core.handle_prepared(segment),
                    Err(error) if is_no_space(&error, segment) => state.core.handle_no_space(error),
                    Err(error) => state.core.handle_failed(None, error),
                }
                state = self.report_answers(state);
                self.work.notify_all();
                self.news.notify_all();
                continue;
            }
            let is_over = state.core.failure().is_some() || (state.is_closing && state.core.is_settled());
            if is_over {
                return;
            }
            state = match state.core.space_left() {
                None => unpoisoned(self.wanted.wait(state)),
                Some(_) => {
                    // There may be space later, and what a checkpoint covers can be used again.
                    let mut state = unpoisoned(self.wanted.wait_timeout(state, AGAIN)).0;
                    state.core.try_again();
                    self.work.notify_one();
                    state
                }
            };
        }
    }
}

/// Whether a segment could not be made since the disk is full, before anything else was changed.
fn is_no_space(error: &DiskError, segment: u32) -> bool {
    error.is_full() && error.path.ends_with(&crate::names::new_segment(segment))
}

/// Between two attempts to make a segment on a full disk.
const AGAIN: Duration = Duration::from_secs(1);

/// Ends the log with an error if its thread panics, so that no caller waits for what it does not write any more.
struct PanicReport<'a, D>(&'a Shared<D>);

impl<D> Drop for PanicReport<'_, D> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let Self(shared) = self;
        let error =
            DiskError { operation: "write", path: crate::names::LOG.into(), cause: DiskCause::Panicked };
        let mut state = shared.state();
        state.core.handle_failed(None, error);
        drop(shared.report_answers(state));
        [&shared.work, &shared.wanted, &shared.news].into_iter().for_each(Condvar::notify_all);
    }
}

fn thread(name: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, DiskError> {
    let spawned = std::thread::Builder::new().name(name).spawn(run);
    spawned.map_err(|error| {
        let (operation, path) = ("start a thread for", crate::names::LOG.into());
        let cause = DiskCause::System(error.raw_os_error().unwrap_or(Errno::AGAIN.raw_os_error()));
        DiskError { operation, path, cause }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskFault, LogSettings, RecordKind, SimDisk, StorageOwner};

    /// Each error of the register came out as an input/output error once.
    #[test]
    fn errors_of_the_register_are_told_as_they_are() {
        let long = disk_error(StorageError::RegisterLong { length: 70_000 });
        assert_eq!(long.cause, DiskCause::RegisterLong { length: 70_000 });
        let text = long.to_string();
        assert!(
            text.contains("change register: it has 70000 bytes") && text.contains("start it anew"),
            "{text}"
        );
        assert_eq!(disk_error(StorageError::RegisterLost).cause, DiskCause::RegisterLost);
        let full = DiskError { operation: "create", path: "log/1".into(), cause: DiskCause::System(28) };
        assert_eq!(disk_error(full.clone().into()), full);
    }

    /// A caller that does not wait learns of each group commit, and of a failure.
    #[test]
    fn commits_and_failures_are_reported() {
        let (sender, answers) = std::sync::mpsc::channel();
        let disk = Arc::new(Mutex::new(SimDisk::new(1, 4096)));
        let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
        let settings = LogSettings { segment_bytes: 64 << 10, ..LogSettings::DEFAULT };
        let storage = Storage::open(Arc::clone(&disk), &owner, settings, 1).expect("it is empty");
        let recovered = storage.recover(&mut |_, _| ()).expect("it can be read");
        let sender = Mutex::new(sender);
        let report = move |answer| {
            // When the next segment is ready is up to its thread.
            if !matches!(answer, LogAnswer::Prepared(_)) {
                sender.lock().expect("no panic").send(answer).expect("the test waits");
            }
        };
        let log = DurableLog::start_reporting(storage, recovered, report).expect("the disk works");
        let append = |sequence| {
            let (kind, position) = (RecordKind::Message, LogPosition { view: 1, sequence });
            log.append(&LogRecord { subgroup: 0, kind, position, sender: 0, time: 0, bytes: b"a" })
        };
        let records = append(0).expect("there is space");
        assert_eq!(answers.recv(), Ok(LogAnswer::Persisted(records)));
        let before = log.tally();
        let is_whole = before.bytes > 0 && before.bytes.is_multiple_of(4096);
        assert!(before.frames >= 1 && before.frames == before.times.count() && is_whole, "{before:?}");
        disk.lock().expect("no panic").arm(DiskFault::WriteError, "log/", 0);
        append(1).expect("there is space");
        let answer = answers.recv().expect("it is reported");
        assert!(matches!(answer, LogAnswer::Failed(_)), "{answer:?}");
        let after = log.tally();
        assert_eq!((after.frames, after.bytes), (before.frames, before.bytes), "what has failed is no frame");
        assert_eq!(after.times.count(), before.times.count() + 1);
    }
}
