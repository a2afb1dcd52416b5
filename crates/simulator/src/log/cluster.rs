//! A run: the folder is opened, written and recovered, life after life.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::rc::Rc;

use squall_fabric::Duration;
use squall_fabric::sim::{Happening, Prng, TraceRecord};
use squall_log::{
    AppendError, COPY_BYTES_MIN, CheckpointError, DiskFault, FrameWrite, LogAction, LogAnswer, LogCore,
    LogPosition, RECORD_HEADER_BYTES, Recycling, SimDisk, Storage, StorageError, StorageOwner, TailVerdict,
    opening_number,
};

use super::model::{AbandonedModel, LogModel, ModelRecord, state};
use super::notes::NotedLog;
use super::plan::{LifeFault, LogLife, LogPlan, RestFault};
use crate::run::{RunOutcome, Violation};

#[derive(Clone)]
pub(super) struct LogRun<'a> {
    pub(super) plan: &'a LogPlan,
    pub(super) disk: Rc<SimDisk>,
    pub(super) prng: Prng,
    pub(super) model: LogModel,
    /// What recoveries have cut.
    pub(super) abandoned: Vec<AbandonedModel>,
    /// Whether the last recovery has cut something.
    pub(super) has_cut: bool,
    /// The ids of logs that may have begun anew.
    pub(super) anew: BTreeSet<u64>,
    /// What the register was changed to, by changes that were completed and that were begun.
    pub(super) register: (u64, u64),
    /// Checkpoints that were reported as verified, are kept, and have not rotted.
    pub(super) checkpoints: BTreeMap<u32, BTreeSet<LogPosition>>,
    /// Of this life, for each value of the register: how many records were reported as persisted before it was written, and how many had
    /// been appended when it was.
    pub(super) changes: BTreeMap<u64, (usize, usize)>,
    /// Behind which positions versions are wanted.
    pub(super) wanted: BTreeMap<u32, LogPosition>,
    salt: u64,
    time: u64,
    persisted: u64,
    pub(super) violation: Option<Violation>,
    hash: u64,
    trace: Vec<TraceRecord>,
    trace_records_max: usize,
}

/// The folder, opened for writing.
pub(super) struct OpenLog {
    pub(super) storage: Storage<Rc<SimDisk>>,
    pub(super) core: LogCore,
    /// Writes under way.
    writes: Vec<(u64, FrameWrite)>,
    preparing: Option<(u32, Option<Recycling>)>,
    /// Records that are in no frame yet.
    waiting: VecDeque<ModelRecord>,
    /// Records in the log before this life.
    before: usize,
    /// Segments in which this life has frames.
    first_segment: u32,
    /// The frame that opens this life. Until it is written, the log is what it was before this life took less of it for the log.
    pub(super) opening: u64,
    pub(super) notes: NotedLog,
}

impl<'a> LogRun<'a> {
    pub(super) fn new(plan: &'a LogPlan, trace_records_max: usize) -> Self {
        Self {
            plan,
            disk: Rc::new(SimDisk::new(plan.seed, plan.settings.block)),
            prng: Prng::new(plan.seed ^ 0x10_6106),
            model: LogModel::default(),
            abandoned: Vec::new(),
            has_cut: false,
            anew: BTreeSet::new(),
            register: (0, 0),
            checkpoints: BTreeMap::new(),
            changes: BTreeMap::new(),
            wanted: BTreeMap::new(),
            salt: 0,
            time: 0,
            persisted: 0,
            violation: None,
            hash: 0,
            trace: Vec::new(),
            trace_records_max,
        }
    }

    pub(super) fn run(mut self) -> RunOutcome {
        for life in &self.plan.lives {
            let copy = (life.rest == Some(RestFault::OtherCopy)).then(|| self.other_copy(life));
            let first_segment = self.live(life);
            self.disk.crash();
            self.note("the machine stops");
            if self.violation.is_some() {
                break;
            }
            match (life.rest, copy) {
                (Some(RestFault::OtherCopy), Some(copy)) => self.take_other_copy(&copy, first_segment),
                (Some(rest), _) => self.rest(rest),
                _ => {}
            }
        }
        if self.violation.is_none() {
            self.open();
        }
        RunOutcome {
            violation: self.violation,
            elapsed: Duration::from_micros(self.time),
            delivered: self.persisted,
            trace_hash: self.hash,
            trace: self.trace,
        }
    }

    pub(super) fn note(&mut self, text: &str) {
        self.time += 1;
        self.hash = text.bytes().fold(self.hash, |hash, byte| {
            (hash.rotate_left(5) ^ u64::from(byte)).wrapping_mul(0x517c_c1b7_2722_0a95)
        });
        if self.trace_records_max > 0 {
            if self.trace.len() == self.trace_records_max {
                self.trace.remove(0);
            }
            let what = Happening::Note(text.into());
            self.trace.push(TraceRecord { at_ns: self.time * 1000, node: 0, what });
        }
    }

    pub(super) fn fail(&mut self, checker: &'static str, text: String) {
        self.violation.get_or_insert(Violation { checker, text });
    }

    /// A copy of the folder, in which the same happens with other records.
    fn other_copy(&self, life: &LogLife) -> Rc<SimDisk> {
        let mut copy = self.clone();
        copy.disk = Rc::new((*self.disk).clone());
        copy.salt = 1;
        copy.live(life);
        copy.disk.crash();
        copy.disk
    }

    /// Opens the folder, and checks what it holds.
    fn open(&mut self) -> Option<(Storage<Rc<SimDisk>>, squall_log::Recovered)> {
        let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
        let id = self.prng.draw();
        let storage = match Storage::open(Rc::clone(&self.disk), &owner, self.plan.settings, id) {
            Ok(storage) => storage,
            Err(_) if self.disk.is_stopped() => return None,
            Err(error) => {
                self.fail("open", error.to_string());
                return None;
            }
        };
        let log = storage.identity().log;
        if log != self.model.log {
            if !self.anew.contains(&log) && !self.model.numbers.is_empty() {
                self.fail("open", format!("the log {log:#x} came from nowhere"));
                return None;
            }
            self.model.begin_anew(log);
            self.abandoned.clear();
            self.register = (0, 0);
        }
        self.anew.clear();
        let mut found = Vec::new();
        let each = &mut |place: squall_log::FramePlace, record: squall_log::LogRecord<'_>| {
            found.push((
                place.number,
                record.kind,
                record.subgroup,
                record.position,
                record.sender,
                record.time,
                record.bytes.to_vec(),
            ));
        };
        let recovered = match storage.recover(each) {
            Ok(recovered) => recovered,
            Err(error) => {
                if !self.disk.is_stopped() {
                    self.fail("open", error.to_string());
                }
                return None;
            }
        };
        self.take_struck();
        self.note(&format!("recovered: {} frames, {}", recovered.frames, recovered.verdict));
        self.check_recovery(&storage, &recovered, &found);
        self.violation.is_none().then_some((storage, recovered))
    }

    /// A life, up to the crash; returns the segment in which it began to write records.
    fn live(&mut self, life: &LogLife) -> u32 {
        if let Some(operations) = life.stop_after {
            self.disk.stop_after(operations);
        }
        let Some((storage, mut recovered)) = self.open() else { return u32::MAX };
        let Ok(number) = storage.begin_life() else {
            if !self.disk.is_stopped() {
                self.fail("register", "[W9] the register is lost".into());
            }
            return u32::MAX;
        };
        if recovered.verdict == TailVerdict::Damaged {
            recovered = recovered.into_repaired(storage.settings());
        }
        match life.fault {
            Some(LifeFault::Frame(fault, after)) => self.disk.arm(fault, "log/", after),
            Some(LifeFault::Checkpoints) => self.disk.arm_often(DiskFault::LostWrite, "checkpoints/"),
            Some(LifeFault::Full(bytes)) => self.disk.limit(self.disk.total() + bytes),
            None => {}
        }
        let notes = NotedLog::new(&recovered, life.fault.is_none());
        let core = LogCore::new(*storage.settings(), storage.identity().log, number, recovered);
        let before = self.model.records.len();
        let (writes, preparing, waiting, first_segment) = (Vec::new(), None, VecDeque::new(), u32::MAX);
        let opening = opening_number(number);
        let mut open =
            OpenLog { storage, core, writes, preparing, waiting, before, first_segment, opening, notes };
        self.changes.clear();
        self.pump(&mut open);
        for step in 0..life.steps {
            if life.backup_at == Some(step) {
                self.back_up(&mut open, life);
            }
            self.step(&mut open, life);
            if step % NOTED_EVERY == 0 {
                self.check_notes(&mut open);
            }
            if self.violation.is_some() || self.disk.is_stopped() || open.core.failure().is_some() {
                break;
            }
        }
        if life.settles {
            self.settle(&mut open);
        }
        if open.core.failure().is_some() && life.fault.is_none() && !self.disk.is_stopped() {
            self.fail(
                "progress",
                format!("[W12] the log has failed on a disk that works: {:?}", open.core.failure()),
            );
        }
        open.first_segment
    }

    pub(super) fn step(&mut self, open: &mut OpenLog, life: &LogLife) {
        let chance = u32::try_from(self.prng.below(1000)).expect("few");
        if chance < life.checkpoints_per_mille {
            if self.prng.chance(500) { self.checkpoint(open) } else { self.change_register(open) }
        } else if chance < life.checkpoints_per_mille + life.appends_per_mille && self.append(open, life) {
        } else {
            self.end_write(open);
        }
        self.pump(open);
    }

    /// Appends a record; false if the log takes none.
    fn append(&mut self, open: &mut OpenLog, life: &LogLife) -> bool {
        let most = self.plan.settings.record_bytes_max() - RECORD_HEADER_BYTES;
        let length = self.prng.below(life.record_bytes_max + 1).min(most as u64 / 8 * 8);
        let subgroup = u32::try_from(self.prng.below(self.plan.subgroups.into())).expect("few");
        let record = self.model.next(subgroup, usize::try_from(length).expect("short"), self.salt);
        let bytes = record.bytes();
        match open.core.append(&record.record(&bytes)) {
            Ok(_) => {
                open.waiting.push_back(record);
                true
            }
            Err(AppendError::Full) => {
                self.model.missing.push_front(record);
                false
            }
            Err(error) => {
                if open.core.failure().is_none() {
                    self.fail("progress", format!("[W12] {error}"));
                }
                true
            }
        }
    }

    /// Ends something that is under way.
    fn end_write(&mut self, open: &mut OpenLog) {
        if open.writes.is_empty() || (open.preparing.is_some() && self.prng.chance(300)) {
            let Some((segment, recycle)) = open.preparing.take() else { return };
            if recycle.is_some() {
                // A reader begins where it ended; here, before that is taken away.
                self.check_notes(open);
            }
            self.note(&format!("prepares segment {segment}, recycles {recycle:?}"));
            match open.storage.prepare(segment, recycle) {
                Ok(()) => open.core.handle_prepared(segment),
                Err(StorageError::Disk(error)) => open.core.handle_failed(None, error),
                Err(error) => self.fail("progress", error.to_string()),
            }
            return;
        }
        let (ticket, write) = open.writes.swap_remove(self.prng.index(open.writes.len()));
        let outcome = self.disk.complete(ticket);
        self.note(&format!("frame {:#x} at {}+{}: {outcome:?}", write.number, write.segment, write.offset));
        match outcome {
            Ok(()) => {
                self.model.handle_written(write.number);
                open.core.handle_written(write);
            }
            Err(error) => open.core.handle_failed(Some(write), error),
        }
        self.take_struck();
    }

    /// Carries out what the core wants, and takes its answers.
    fn pump(&mut self, open: &mut OpenLog) {
        while let Some(action) = open.core.poll_action() {
            match action {
                LogAction::Prepare { segment, recycle } => open.preparing = Some((segment, recycle)),
                LogAction::Write(write) => {
                    if let Some(fault) = self.model.issue(&write, &mut open.waiting) {
                        return self.fail("numbers", fault);
                    }
                    if write.records > 0 {
                        open.first_segment = open.first_segment.min(write.segment);
                    }
                    match self.disk.submit(&write.path(), write.offset, &write.bytes) {
                        Ok(ticket) => open.writes.push((ticket, write)),
                        Err(error) => return self.fail("progress", format!("[W8] {error}")),
                    }
                }
            }
        }
        while let Some(answer) = open.core.poll_answer() {
            self.note(&format!("{answer:?}"));
            if let LogAnswer::Persisted(records) = answer {
                let acknowledged = open.before + usize::try_from(records).expect("in memory");
                self.persisted += acknowledged.saturating_sub(self.model.acknowledged) as u64;
                self.model.acknowledged = acknowledged;
                if acknowledged > self.model.records.len() {
                    self.fail(
                        "durable",
                        format!("[W5] {acknowledged} records are persisted, and fewer are written"),
                    );
                }
            }
        }
    }

    /// \[W12\] On a disk that works all is persisted.
    fn settle(&mut self, open: &mut OpenLog) {
        for _ in 0..SETTLING {
            if open.core.is_settled() || open.core.failure().is_some() || self.disk.is_stopped() {
                return;
            }
            self.end_write(open);
            self.pump(open);
            if self.violation.is_some() {
                return;
            }
        }
        self.fail("progress", "[W12] records wait, and nothing is written".into());
    }

    fn checkpoint(&mut self, open: &mut OpenLog) {
        let subgroup = u32::try_from(self.prng.below(self.plan.subgroups.into())).expect("few");
        let Some(position) = open.core.frontier(subgroup) else { return };
        let wanted = self.want(subgroup, position);
        let bytes = state(subgroup, position);
        let mut write = |out: &mut dyn io::Write| bytes.chunks(100).try_for_each(|part| out.write_all(part));
        let outcome = open.storage.write_checkpoint(subgroup, position, wanted, &mut write);
        self.note(&format!("checkpoint {subgroup} {position:?}, wanted {wanted:?}: {outcome:?}"));
        match outcome {
            Ok(covered) => {
                self.check_kept(&open.storage, subgroup, position);
                covered.iter().for_each(|at| open.core.handle_checkpoint(subgroup, *at));
            }
            Err(CheckpointError::Disk(error)) => open.core.handle_failed(None, error),
            Err(CheckpointError::Bad { .. }) => {}
            Err(error @ CheckpointError::Abandoned { .. }) => self.fail("checkpoint", error.to_string()),
        }
        if self.disk.take_struck().is_empty() && self.is_bad(&open.storage, subgroup, position) {
            self.fail("checkpoint", format!("{subgroup} {position:?} is bad on a disk that works"));
        }
    }

    /// The position behind which all versions of a subgroup are wanted: it only grows, and often it is the latest one.
    fn want(&mut self, subgroup: u32, latest: LogPosition) -> LogPosition {
        let moves = self.plan.keeps_versions && self.prng.chance(700);
        let wanted = self.wanted.entry(subgroup).or_default();
        if !self.plan.keeps_versions {
            *wanted = LogPosition::MAX;
        } else if moves {
            let sequence = latest.sequence.saturating_sub(self.prng.below(40));
            *wanted = (*wanted).max(LogPosition { sequence, ..latest });
        }
        *wanted
    }

    /// \[W14\] The newest checkpoint that is not behind what is wanted is kept.
    fn check_kept(&mut self, storage: &Storage<Rc<SimDisk>>, subgroup: u32, position: LogPosition) {
        let wanted = self.wanted[&subgroup];
        let kept = storage.checkpoints().remove(&subgroup).unwrap_or_default();
        let mut all = self.checkpoints.remove(&subgroup).unwrap_or_default();
        all.insert(position);
        let unwanted = |all: &BTreeSet<LogPosition>| all.range(..=wanted).next_back().copied();
        let (expected, found) = (unwanted(&all), unwanted(&kept));
        if found < expected {
            let text = format!("[W14] {subgroup} keeps {kept:?} of {all:?}, and {wanted:?} is wanted");
            self.fail("versions", text);
        }
        self.checkpoints.insert(subgroup, kept);
    }

    /// Whether a checkpoint that should be there is not.
    fn is_bad(&self, storage: &Storage<Rc<SimDisk>>, subgroup: u32, position: LogPosition) -> bool {
        let is_verified =
            storage.checkpoints().get(&subgroup).is_some_and(|verified| verified.contains(&position));
        is_verified
            && !self.disk.is_stopped()
            && storage.read_checkpoint(subgroup, position, &mut |_| ()).is_err()
    }

    fn change_register(&mut self, open: &mut OpenLog) {
        self.register.1 += 1;
        let value = self.register.1;
        let before = self.model.acknowledged;
        // With some values the file has to grow, if it has not grown before.
        let is_long = self.prng.chance(20);
        let words = if is_long { 1 + self.prng.below(3 * COPY_BYTES_MIN as u64 / 8) } else { 1 };
        let protocol = (0..words).flat_map(|_| value.to_le_bytes()).collect();
        match open.storage.change_register(|register| register.protocol = protocol) {
            Ok(_) => {
                self.register.0 = value;
                self.changes.insert(value, (before, self.model.records.len() + open.waiting.len()));
            }
            Err(StorageError::Disk(error)) => open.core.handle_failed(None, error),
            Err(error) => self.fail("register", error.to_string()),
        }
    }

    /// Takes note of what the disk has done to frames.
    pub(super) fn take_struck(&mut self) {
        for struck in self.disk.take_struck() {
            self.note(&format!("{struck:?}"));
            let name = struck.path.strip_prefix("log/").and_then(|name| name.strip_suffix(".segment"));
            let Some(segment) = name.and_then(|digits| digits.parse().ok()) else { continue };
            let harms = !matches!(struck.fault, DiskFault::WriteError | DiskFault::ShortWrite);
            let is_doubtful = matches!(struck.fault, DiskFault::MisdirectedWrite | DiskFault::ReadError);
            if harms {
                self.harm(segment, struck.offset, struck.length, is_doubtful);
            }
        }
    }

    /// Takes note that the disk has harmed a range of a segment, also for what a recovery has cut.
    pub(super) fn harm(&mut self, segment: u32, offset: u64, length: u64, is_doubtful: bool) {
        let abandoned = self.abandoned.iter_mut().map(|abandoned| &mut *abandoned.model);
        for model in std::iter::once(&mut self.model).chain(abandoned) {
            model.harm(segment, offset, length);
            model.is_doubtful |= is_doubtful;
        }
    }
}

/// Events within which all that was appended is persisted.
const SETTLING: u32 = 20_000;
/// Every how many steps the notes of a log are compared with its disk.
const NOTED_EVERY: u32 = 16;
