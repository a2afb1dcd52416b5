//! A backup of the log while it is written: between any two reads of the copying, the log lives on.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use squall_log::{
    AlignedBuffer, BackupError, Disk, DiskError, LogPosition, SimDisk, Storage, TailVerdict, back_up,
};

use super::cluster::{LogRun, OpenLog};
use super::model::{ModelFrame, state};
use super::plan::LogLife;

/// A disk on which something happens before each read.
struct BusyDisk<'a> {
    disk: Rc<SimDisk>,
    between: RefCell<&'a mut dyn FnMut()>,
}

impl Disk for BusyDisk<'_> {
    fn list(&self, folder: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(folder)
    }

    fn length(&self, path: &str) -> Result<u64, DiskError> {
        self.disk.length(path)
    }

    fn read(&self, path: &str, offset: u64, buffer: &mut AlignedBuffer) -> Result<usize, DiskError> {
        (self.between.borrow_mut())();
        self.disk.read(path, offset, buffer)
    }

    fn create_in_steps(&self, path: &str, _: u64, _: &mut dyn FnMut(u64)) -> Result<(), DiskError> {
        unreachable!("a backup creates {path}")
    }

    fn write(&self, path: &str, _: u64, _: &AlignedBuffer) -> Result<(), DiskError> {
        unreachable!("a backup writes {path}")
    }

    fn rename(&self, from: &str, _: &str) -> Result<(), DiskError> {
        unreachable!("a backup renames {from}")
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        unreachable!("a backup removes {path}")
    }

    fn flush_folder(&self, folder: &str) -> Result<(), DiskError> {
        unreachable!("a backup flushes {folder}")
    }
}

/// What there was when a backup began.
struct BackupBegin {
    persisted: usize,
    written: Vec<ModelFrame>,
    /// Whether a recovery before has cut records that a checkpoint has, and that have not been persisted again.
    is_behind: bool,
}

impl LogRun<'_> {
    /// \[W13\] Copies the folder while the life goes through its events.
    pub(super) fn back_up(&mut self, open: &mut OpenLog, life: &LogLife) {
        let (settings, disk) = (self.plan.settings, Rc::clone(&self.disk));
        let target = SimDisk::new(self.plan.seed ^ 0xbac, settings.block);
        let persisted = self.model.acknowledged;
        let before = BackupBegin {
            persisted,
            written: self.model.frames.clone(),
            is_behind: self.is_behind(&open.storage.checkpoints(), persisted),
        };
        let opening = open.opening;
        let pace = [50, 300, 1000][self.prng.index(3)];
        let mut between = || {
            let is_over = self.violation.is_some() || self.disk.is_stopped() || open.core.failure().is_some();
            if !is_over && self.prng.chance(pace) {
                self.step(open, life);
            }
        };
        let source = BusyDisk { disk, between: RefCell::new(&mut between) };
        let has_opened = before.written.iter().any(|frame| frame.is_written && frame.number == opening);
        let outcome = back_up(&source, &target, settings, &mut |_, _| ());
        self.take_struck();
        self.note(&format!("backup: {outcome:?}"));
        let frames = &self.model.frames;
        let is_harmed = self.model.is_doubtful || frames.iter().any(|frame| frame.is_damaged);
        if self.model.is_doubtful || self.has_cut && !has_opened {
            return;
        }
        match outcome {
            Ok(_) => self.check_backup(target, &before, is_harmed),
            Err(_) if self.disk.is_stopped() || self.violation.is_some() => {}
            Err(BackupError::Busy(_)) => {}
            Err(BackupError::Damaged { .. }) if is_harmed || before.is_behind => {}
            Err(error) => self.fail("backup", format!("[W13] {error}")),
        }
    }

    fn check_backup(&mut self, target: SimDisk, before: &BackupBegin, is_harmed: bool) {
        if let Some(text) = self.wrong_with_backup(target, before, is_harmed) {
            self.fail("backup", format!("[W13] {text}"));
        }
    }

    fn wrong_with_backup(&self, target: SimDisk, before: &BackupBegin, is_harmed: bool) -> Option<String> {
        let BackupBegin { persisted, written, .. } = before;
        let copy = match Storage::inspect(target, self.plan.settings) {
            Ok(copy) => copy,
            Err(error) => return Some(error.to_string()),
        };
        let Some(register) = copy.register() else { return Some("the register is bad".into()) };
        let mut found = Vec::new();
        let recovered = copy
            .recover(&mut |_, record| found.push((record.subgroup, record.position, record.bytes.to_vec())))
            .expect("the copy's disk works");
        if recovered.verdict != TailVerdict::Clean {
            return Some(format!("the copy is {}", recovered.verdict));
        }
        let (frames, records) = (&self.model.frames, &self.model.records);
        let first =
            frames.iter().position(|frame| frame.number > register.base.before).unwrap_or(frames.len());
        let end = first + frames[first..].iter().take_while(|frame| frame.number <= recovered.last).count();
        let begin = frames.get(first).map_or(records.len(), |frame| frame.begin);
        let held = frames[..end].last().map_or(0, |frame| frame.end);
        let expected = records[begin.min(held)..held].iter();
        if !expected.map(|record| (record.subgroup, record.position, record.bytes())).eq(found) {
            return Some(format!("the copy is no part of the log, up to {:#x}", recovered.last));
        }
        if held < *persisted && !is_harmed {
            return Some(format!(
                "the copy has {held} records, and {persisted} were persisted when it began"
            ));
        }
        let missing = written.get(end).filter(|missing| missing.is_damaged);
        let proves = |frame: &&ModelFrame, missing: &ModelFrame| {
            frame.is_written && !frame.is_damaged && frame.known_durable >= missing.number
        };
        if let Some(missing) = missing
            && written[end + 1..].iter().any(|frame| proves(&frame, missing))
        {
            return Some(format!("the copy of a damaged log lacks frame {:#x}", missing.number));
        }
        let mut words = register.protocol.chunks(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        let value = words.next().unwrap_or(0);
        if let Some((before, _)) = self.changes.get(&value).filter(|(before, _)| held < *before && !is_harmed)
        {
            return Some(format!(
                "the register was written behind {before} records, and the copy has {held}"
            ));
        }
        if let Some((_, after)) = self.changes.get(&(value + 1)).filter(|(_, after)| held > *after) {
            return Some(format!(
                "the copy has {held} records, and behind {after} the register was another one"
            ));
        }
        self.wrong_with_checkpoints(&copy, begin, held)
    }

    /// The greatest position of a subgroup among the first records of the log.
    fn greatest(&self, subgroup: u32, end: usize) -> Option<LogPosition> {
        let records = self.model.records[..end].iter();
        records.filter(|record| record.subgroup == subgroup).map(|record| record.position).max()
    }

    /// Whether a checkpoint is newer than the first `held` records of the log.
    fn is_behind(&self, checkpoints: &BTreeMap<u32, BTreeSet<LogPosition>>, held: usize) -> bool {
        let is_newer = |(group, all): (&u32, &BTreeSet<_>)| all.last() > self.greatest(*group, held).as_ref();
        checkpoints.iter().any(is_newer)
    }

    fn wrong_with_checkpoints(&self, copy: &Storage<SimDisk>, begin: usize, held: usize) -> Option<String> {
        let verified = copy.checkpoints();
        for (subgroup, position) in
            verified.iter().flat_map(|(group, all)| all.iter().map(|at| (*group, *at)))
        {
            let mut bytes = Vec::new();
            let outcome = copy.read_checkpoint(subgroup, position, &mut |part| bytes.extend_from_slice(part));
            if outcome.is_err() || bytes != state(subgroup, position) {
                return Some(format!("checkpoint {subgroup} {position:?}: {outcome:?}"));
            }
        }
        if self.is_behind(&verified, held) {
            return Some(format!("of the checkpoints {verified:?} one is newer than the records"));
        }
        (0..self.plan.subgroups).find_map(|subgroup| {
            let recycled = self.greatest(subgroup, begin.min(held));
            let newest = verified.get(&subgroup).and_then(|all| all.last()).copied();
            (recycled.is_some() && newest < recycled)
                .then(|| format!("{subgroup} is recycled up to {recycled:?}, and the copy has {newest:?}"))
        })
    }
}
