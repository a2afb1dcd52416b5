//! The checkpoints of a folder: which are kept, and which records they make superfluous [W11] [W14].

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;
use squall_fabric::mutex::lock;

use super::{Storage, disk_error};
use crate::checkpoint::{self, CheckpointError, CheckpointKind, StateWriting};
use crate::disk::{Disk, DiskCause, DiskError};
use crate::identity::RegisterValue;
use crate::mutation;
use crate::names;
use crate::record::LogPosition;
use crate::segment::raise;

/// Where the log of a subgroup begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogBegin {
    /// With its first record: nothing was recycled.
    First,
    /// The oldest verified checkpoint covers the records up to this one.
    Behind(LogPosition),
    /// Records up to this one are not here any more, and no checkpoint that covers them can be read.
    Lost(LogPosition),
}

impl<D: Disk> Storage<D> {
    /// Writes a checkpoint of a subgroup, and returns when it is verified, and those that are not needed any more are removed: needed
    /// are the two newest ones, and the two around `wanted`, behind which all versions are to be available. Returns up to where the records
    /// of the subgroup are not needed any more, even if its newest checkpoint is lost [W11].
    ///
    /// # Errors
    /// If the disk fails, or has not written what it was given, or `write` fails; then the older checkpoints still count.
    pub fn write_checkpoint(
        &self,
        subgroup: u32,
        position: LogPosition,
        wanted: LogPosition,
        write: &mut StateWriting<'_>,
    ) -> Result<Option<LogPosition>, CheckpointError> {
        self.write_sure(CheckpointKind::State, subgroup, position, wanted, write)
    }

    /// Writes a checkpoint without a state, a *mark*, as [`Self::write_checkpoint`] does: the records of the subgroup up to `position` are
    /// not wanted any more, but for those behind `wanted`. One is enough: if it is lost it can be made again at the position up to
    /// which the register says that records were removed ([`LogBegin::Lost`], [`Self::replace_by_mark`]).
    ///
    /// # Errors
    /// If the disk fails, or has not written what it was given.
    pub fn write_mark(
        &self,
        subgroup: u32,
        position: LogPosition,
        wanted: LogPosition,
    ) -> Result<Option<LogPosition>, CheckpointError> {
        self.write_sure(CheckpointKind::Mark, subgroup, position, wanted, &mut |_| Ok(()))
    }

    /// Returns whether the files of a subgroup's checkpoints, good or bad, are as short as marks, and there is one.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn has_marks_only(&self, subgroup: u32) -> Result<bool, DiskError> {
        let lengths = self.checkpoint_lengths(subgroup)?;
        Ok(!lengths.is_empty() && lengths.iter().all(|length| *length <= self.settings.block as u64))
    }

    /// Returns whether a checkpoint is a mark.
    ///
    /// # Errors
    /// If its file is absent, or the disk fails.
    pub fn is_mark(&self, subgroup: u32, position: LogPosition) -> Result<bool, DiskError> {
        let length = self.disk.length(&names::checkpoint(subgroup, position))?;
        Ok(length <= self.settings.block as u64)
    }

    /// Returns whether some file of a subgroup's checkpoints, good or bad, is longer than a mark.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn has_states(&self, subgroup: u32) -> Result<bool, DiskError> {
        let lengths = self.checkpoint_lengths(subgroup)?;
        Ok(lengths.iter().any(|length| *length > self.settings.block as u64))
    }

    fn checkpoint_lengths(&self, subgroup: u32) -> Result<Vec<u64>, DiskError> {
        let names = self.disk.list(names::CHECKPOINTS)?;
        let all = names.iter().filter_map(|name| names::parse_checkpoint(name));
        let all = all.filter(|(of, _)| *of == subgroup);
        all.map(|(_, position)| self.disk.length(&names::checkpoint(subgroup, position))).collect()
    }

    /// Writes a checkpoint. Of states the newest two have to be behind what is not needed, of marks one.
    fn write_sure(
        &self,
        kind: CheckpointKind,
        subgroup: u32,
        position: LogPosition,
        wanted: LogPosition,
        write: &mut StateWriting<'_>,
    ) -> Result<Option<LogPosition>, CheckpointError> {
        let sure = if kind == CheckpointKind::Mark { 1 } else { NEWEST };
        if self.recycled(subgroup).is_some_and(|recycled| position < recycled) {
            // There is no log behind it.
            return Ok(None);
        }
        checkpoint::write(&self.disk, self.settings.block, kind, subgroup, position, write)?;
        let mut checkpoints = lock(&self.checkpoints);
        let verified = checkpoints.entry(subgroup).or_default();
        verified.insert(position);
        let kept = kept(verified, wanted);
        let covered = covered(&kept, wanted, sure);
        verified.retain(|position| kept.contains(position));
        drop(checkpoints);
        self.remove_checkpoints(subgroup, &mut |at| kept.contains(&at))?;
        Ok(covered)
    }

    /// Writes a checkpoint, of another process, that takes the place of all records before it: this log lacks some of them.
    ///
    /// # Errors
    /// If the disk fails, or has not written what it was given, or `write` fails; then the older checkpoints still count.
    pub fn replace_checkpoints(
        &self,
        subgroup: u32,
        position: LogPosition,
        write: &mut StateWriting<'_>,
    ) -> Result<(), CheckpointError> {
        self.replace(CheckpointKind::State, subgroup, position, write)
    }

    /// Writes a mark that takes the place of all records before it: that of another process, or one whose file is lost, at the position
    /// up to which the register says that records were removed ([`LogBegin::Lost`]).
    ///
    /// # Errors
    /// If the disk fails, or has not written what it was given.
    pub fn replace_by_mark(&self, subgroup: u32, position: LogPosition) -> Result<(), CheckpointError> {
        self.replace(CheckpointKind::Mark, subgroup, position, &mut |_| Ok(()))
    }

    fn replace(
        &self,
        kind: CheckpointKind,
        subgroup: u32,
        position: LogPosition,
        write: &mut StateWriting<'_>,
    ) -> Result<(), CheckpointError> {
        checkpoint::write(&self.disk, self.settings.block, kind, subgroup, position, write)?;
        lock(&self.checkpoints).entry(subgroup).or_default().insert(position);
        self.change_register(|register| raise(&mut register.recycled, subgroup, position))
            .map_err(disk_error)?;
        raise(&mut lock(&self.recycled), subgroup, position);
        lock(&self.checkpoints).entry(subgroup).or_default().retain(|at| *at >= position);
        Ok(self.remove_checkpoints(subgroup, &mut |at| at >= position)?)
    }

    /// Removes the checkpoints of a subgroup up to `position`, of which nothing counts any more: its log begins again behind that, with
    /// nothing. A crash in between is no harm if this is repeated.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn forget_checkpoints(&self, subgroup: u32, position: LogPosition) -> Result<(), CheckpointError> {
        lock(&self.checkpoints).entry(subgroup).or_default().retain(|at| *at > position);
        self.remove_checkpoints(subgroup, &mut |at| at > position)?;
        if self.recycled(subgroup).is_some_and(|recycled| recycled <= position) {
            let forget = |register: &mut RegisterValue| {
                register.recycled.remove(&subgroup);
            };
            self.change_register(forget).map_err(disk_error)?;
            lock(&self.recycled).remove(&subgroup);
        }
        Ok(())
    }

    /// Returns the numbers of the subgroups that the log has no more.
    pub fn retired(&self) -> BTreeSet<u32> {
        self.register().map(|register| register.subgroups.retired()).unwrap_or_default()
    }

    /// Removes the checkpoints of subgroups that the log has no more, and returns the numbers of all of these. A crash in between is no harm
    /// if this is repeated.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn drop_retired(&self) -> Result<BTreeSet<u32>, DiskError> {
        let retired = self.retired();
        lock(&self.checkpoints).retain(|subgroup, _| !retired.contains(subgroup));
        lock(&self.recycled).retain(|subgroup, _| !retired.contains(subgroup));
        let is_noted = |register: RegisterValue| register.recycled.keys().any(|it| retired.contains(it));
        if self.register().is_some_and(is_noted) {
            // A segment was recycled while they became so.
            self.change_register(|register| register.recycled.retain(|it, _| !retired.contains(it)))
                .map_err(disk_error)?;
        }
        for subgroup in &retired {
            self.remove_checkpoints(*subgroup, &mut |_| false)?;
        }
        Ok(retired)
    }

    /// Removes the checkpoints of a subgroup but for those that are kept, and returns when a crash cannot bring them back.
    pub(super) fn remove_checkpoints(
        &self,
        subgroup: u32,
        is_kept: &mut dyn FnMut(LogPosition) -> bool,
    ) -> Result<(), DiskError> {
        let names = self.disk.list(names::CHECKPOINTS)?;
        let all = names.iter().filter_map(|name| names::parse_checkpoint(name));
        let removed: Vec<_> = all.filter(|(of, at)| *of == subgroup && !is_kept(*at)).collect();
        if removed.is_empty() {
            return Ok(());
        }
        for (_, position) in removed {
            self.disk.remove(&names::checkpoint(subgroup, position))?;
        }
        self.disk.flush_folder(names::CHECKPOINTS)
    }

    /// Reads a checkpoint, and hands its bytes to `each`, part by part. What was handed over before an error is not to be used.
    ///
    /// Fuzzed as `checkpoint`.
    ///
    /// # Errors
    /// If it is bad, or the disk fails.
    pub fn read_checkpoint(
        &self,
        subgroup: u32,
        position: LogPosition,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<(), CheckpointError> {
        checkpoint::read(&self.disk, self.settings.block, subgroup, position, each)
    }

    /// Returns the verified checkpoints of each subgroup.
    pub fn checkpoints(&self) -> BTreeMap<u32, BTreeSet<LogPosition>> {
        lock(&self.checkpoints).clone()
    }

    /// Reads a block of a checkpoint, the `index`-th; returns its bytes, and whether it is the last one.
    ///
    /// # Errors
    /// If it is bad, or the disk fails.
    pub fn read_checkpoint_block(
        &self,
        subgroup: u32,
        position: LogPosition,
        index: u32,
    ) -> Result<(Vec<u8>, bool), CheckpointError> {
        checkpoint::read_block(&self.disk, self.settings.block, subgroup, position, index)
    }

    /// Returns what is known of where the log of a subgroup begins.
    pub fn begin_of(&self, subgroup: u32) -> LogBegin {
        let Some(recycled) = self.recycled(subgroup) else { return LogBegin::First };
        let checkpoints = lock(&self.checkpoints);
        let oldest = checkpoints.get(&subgroup).and_then(|all| all.range(recycled..).next());
        oldest.map_or(LogBegin::Lost(recycled), |position| LogBegin::Behind(*position))
    }

    /// Up to which position records of a subgroup are not here any more. It waits for no write of the register.
    fn recycled(&self, subgroup: u32) -> Option<LogPosition> {
        lock(&self.recycled).get(&subgroup).copied()
    }

    pub(super) fn verify_checkpoints(&self) -> Result<BTreeMap<u32, BTreeSet<LogPosition>>, DiskError> {
        let mut verified = BTreeMap::<u32, BTreeSet<LogPosition>>::new();
        let recycled = self.register().map(|register| register.recycled).unwrap_or_default();
        for name in self.disk.list(names::CHECKPOINTS)? {
            let Some((subgroup, position)) = names::parse_checkpoint(&name) else { continue };
            if recycled.get(&subgroup).is_some_and(|recycled| position < *recycled) {
                continue;
            }
            match self.read_checkpoint(subgroup, position, &mut |_| ()) {
                Ok(()) => drop(verified.entry(subgroup).or_default().insert(position)),
                Err(CheckpointError::Bad { .. } | CheckpointError::Abandoned { .. }) => {}
                // Its blocks may be good.
                Err(CheckpointError::Disk(error)) if is_transient(&error) => return Err(error),
                Err(CheckpointError::Disk(_)) => {}
            }
        }
        Ok(verified)
    }
}

/// Whether a read may succeed when it is repeated: the process has too many files, or too little memory.
fn is_transient(error: &DiskError) -> bool {
    let few = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    few.iter().any(|errno| error.cause == DiskCause::System(errno.raw_os_error()))
}

/// The checkpoints that are needed: the newest ones, since one of them may rot; the one from which the versions behind `wanted` are
/// made; and the next one, which takes its place later.
fn kept(all: &BTreeSet<LogPosition>, wanted: LogPosition) -> BTreeSet<LogPosition> {
    let newest = all.iter().rev().take(NEWEST);
    mutant!(KeepNewestOnly => return newest.copied().collect());
    let around =
        all.range(..=wanted).next_back().into_iter().chain(all.range(wanted..).find(|at| **at > wanted));
    newest.chain(around).copied().collect()
}

/// Up to where records are not needed: the newest `sure` checkpoints have all before, and no version behind `wanted` needs it.
fn covered(kept: &BTreeSet<LogPosition>, wanted: LogPosition, sure: usize) -> Option<LogPosition> {
    let safe = if mutant!(RecycleEarly) { kept.last() } else { kept.iter().nth_back(sure - 1) };
    mutant!(RecycleWanted => return safe.copied());
    let unwanted = kept.range(..=wanted).next_back();
    Some(*safe?.min(unwanted?))
}

/// The newest checkpoints of a subgroup that are kept: one of them may rot.
const NEWEST: usize = 2;
