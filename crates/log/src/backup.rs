//! A copy of a log that can be opened as the log itself, also while its member runs.
//!
//! # Order
//! 1. The register is read, then the checkpoints that are there are copied, then the segments from the log's base on, and then the
//!    register is read again. If the two readings differ, all of it is done again; segments that the log has left behind stay as they
//!    were copied.
//! 2. The copy is cut behind its last good frame, and the register of the first reading is written to it.
//! 3. The copy is read as a whole, from its disk: it is clean, and has the frames that were copied.
//!
//! # Invariants [W13]
//! - The copy is a prefix of the log that has everything that was persisted when the copying began. A frame that is missing at its end
//!   was being written when it was read, or is damaged: it is read again, and if it is still missing although a later one knows it to
//!   be durable, there is no copy.
//! - The register of the copy is not newer than its records, so that a member with this register had at least these; and it is not older,
//!   so that no record is of a view that the register does not know. Both follow from step 1: the process writes a register before it
//!   appends what depends on it, and what the register depends on is on the disk before it.
//! - A checkpoint of the copy is not newer than its records. One that is newer is a proof that records were persisted which are not there:
//!   the disk has lost the end of the log, and nothing in the log itself may say so. Then there is no copy.
//!
//! A copy is no member's folder: it has forgotten what its member has promised since. It has a file that says so ([`BACKUP_FILE`]), and
//! [`Storage::open`] refuses it until [`Storage::open_backup`] and [`Storage::release_backup`] have made it one.

use std::collections::BTreeSet;

use crate::buffer::AlignedBuffer;
use crate::checkpoint::CheckpointError;
use crate::copies::CopyPair;
use crate::coverage::{LogPoint, reach};
use crate::disk::{Disk, DiskError};
use crate::identity::RegisterValue;
use crate::mutation;
use crate::names;
use crate::record::LogPosition;
use crate::recovery::{Recovered, follow, recover};
use crate::settings::LogSettings;
use crate::storage::{Storage, StorageError};
use crate::verdict::TailVerdict;

/// The file that a copy has and a member's own folder has not.
pub const BACKUP_FILE: &str = names::BACKUP;

/// What a copy has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    /// The number of the last frame.
    pub last_frame: u64,
    /// Frames.
    pub frames: u64,
    /// Records.
    pub records: u64,
    /// Segments.
    pub segments: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Bytes of segments and checkpoints that were copied.
    pub bytes: u64,
}

/// Why there is no copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// The folder cannot be read, or the copy cannot be written.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The log is damaged.
    #[error(
        "the log is damaged behind frame {last:#x}, so that a copy would lack what may have been persisted: see `squall log repair`; \
         to keep the folder as it is, end the member and copy the files"
    )]
    Damaged {
        /// The last good frame.
        last: u64,
    },
    /// The log has changed faster than it could be copied.
    #[error(
        "views ended, segments were recycled or checkpoints replaced {0} times while the log was copied: try again, or end the member first"
    )]
    Busy(u32),
    /// The target has something.
    #[error(
        "the target is not empty, it has {0}: choose another folder, or remove what an unfinished copy has left there"
    )]
    NotEmpty(String),
    /// What was written is not what is read back.
    #[error(
        "the copy is not as it was written: it has {found} frames of {expected}, and is {verdict}; check the disk of the target, and copy \
         to another one"
    )]
    Unequal {
        /// Frames that were copied.
        expected: u64,
        /// Frames that are read back.
        found: u64,
        /// What the copy is found to be.
        verdict: TailVerdict,
    },
    /// A checkpoint cannot be copied.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl From<DiskError> for BackupError {
    fn from(error: DiskError) -> Self {
        StorageError::from(error).into()
    }
}

/// Copies the log in the folder `source`, which its process may write meanwhile, to the empty folder `target`. `progress` is called with
/// the bytes that were copied and those that there are, as far as known.
///
/// # Errors
/// [`BackupError`], with what to do instead. The target may have a part of a copy then, which nothing takes for one.
pub fn back_up(
    source: &dyn Disk,
    target: &dyn Disk,
    settings: LogSettings,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackupSummary, BackupError> {
    for folder in ["", names::LOG, names::CHECKPOINTS] {
        let other = target.list(folder)?.into_iter().find(|name| !OWN_NAMES.contains(&name.as_str()));
        if let Some(name) = other {
            return Err(BackupError::NotEmpty(name));
        }
    }
    let storage = Storage::inspect(source, settings)?;
    let block = storage.settings().block;
    target.create(names::UNFINISHED_BACKUP, block as u64)?;
    target.flush_folder("")?;
    let (copied, unread) = (BTreeSet::new(), BTreeSet::new());
    let mut copying = Copying { target, storage, end: None, copied, unread, bytes: 0, progress };
    let (register, found, checkpoints) = copying.copy()?;
    let checkpoints = checkpoints.len() as u64;
    copying.cut(&found)?;
    CopyPair::create(target, names::REGISTER, block, &register.to_bytes())?;
    CopyPair::create(target, names::IDENTITY, block, &copying.storage.identity().to_bytes())?;
    target.flush_folder(names::LOG)?;
    let bytes = copying.bytes;
    let segments = copying.copied.len() as u64;
    verify(target, settings, &register, &found, checkpoints)?;
    target.rename(names::UNFINISHED_BACKUP, names::BACKUP)?;
    target.flush_folder("")?;
    let Recovered { last: last_frame, frames, records, .. } = found;
    Ok(BackupSummary { last_frame, frames, records, segments, checkpoints, bytes })
}

impl<D: Disk> Storage<D> {
    /// Returns whether the folder is a copy that [`back_up`](crate::back_up) has made.
    ///
    /// # Errors
    /// If the disk fails, or the copy is not finished.
    pub fn is_backup(&self) -> Result<bool, StorageError> {
        is_backup(self.disk())
    }

    /// Makes a copy the folder of its process, and returns when that is on the disk. What the process has promised since the copy was made is
    /// forgotten: its register has to be that of another group before.
    ///
    /// # Errors
    /// If the disk fails: then it may be a copy still.
    pub fn release_backup(&self) -> Result<(), StorageError> {
        if self.is_backup()? {
            self.disk().remove(names::BACKUP)?;
            self.disk().flush_folder("")?;
        }
        Ok(())
    }
}

pub(crate) fn is_backup(disk: &dyn Disk) -> Result<bool, StorageError> {
    let names = disk.list("")?;
    if names.iter().any(|name| name == names::UNFINISHED_BACKUP) {
        return Err(StorageError::UnfinishedBackup);
    }
    Ok(names.iter().any(|name| name == names::BACKUP))
}

/// The subgroup and the position of a checkpoint.
type CheckpointName = (u32, LogPosition);

/// A log that is being copied.
struct Copying<'a> {
    target: &'a dyn Disk,
    storage: Storage<&'a dyn Disk>,
    /// The segment in which the copy ended when it was looked at last: those before are complete.
    end: Option<u32>,
    /// The segments that are in the target.
    copied: BTreeSet<u32>,
    /// Where blocks of the log could not be read.
    unread: BTreeSet<(u32, u64)>,
    bytes: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Copying<'_> {
    /// Copies until the register is the same before and after; returns it, what the copy has, and its checkpoints.
    fn copy(&mut self) -> Result<(RegisterValue, Recovered, BTreeSet<CheckpointName>), BackupError> {
        let mut was_behind = false;
        for _ in 0..ATTEMPTS_MAX {
            let before = self.register()?;
            let Some(checkpoints) = self.copy_checkpoints(&before)? else { continue };
            let Some(found) = self.copy_segments(&before)? else { continue };
            if is_behind(&found, &before, &checkpoints) && !mutant!(BackUpNewerCheckpoint) {
                if was_behind {
                    reach(LogPoint::BackupBehind);
                    return Err(BackupError::Damaged { last: found.last });
                }
                // A checkpoint of another process is there before the register says so.
                was_behind = true;
                continue;
            }
            let after = self.register()?;
            if mutant!(BackUpLaterRegister) {
                return Ok((after, found, checkpoints));
            }
            if before.is_of_same_log(&after) || mutant!(BackUpEarlierRegister) {
                return Ok((before, found, checkpoints));
            }
            reach(LogPoint::BackupRepeated);
        }
        Err(BackupError::Busy(ATTEMPTS_MAX))
    }

    /// The register as it is now. One that is being written may look bad twice in a row.
    fn register(&self) -> Result<RegisterValue, BackupError> {
        for _ in 0..REGISTER_READS_MAX {
            if let Some(register) = self.storage.read_register_again()? {
                return Ok(register);
            }
        }
        Err(StorageError::RegisterLost.into())
    }

    /// Copies the checkpoints that have a log behind them, and returns which; `None` if one was removed meanwhile.
    fn copy_checkpoints(
        &mut self,
        register: &RegisterValue,
    ) -> Result<Option<BTreeSet<CheckpointName>>, BackupError> {
        let counts = |(subgroup, at): &CheckpointName| {
            register.recycled.get(subgroup).is_none_or(|recycled| at >= recycled)
        };
        let names = |disk: &dyn Disk| -> Result<BTreeSet<_>, DiskError> {
            let names = disk.list(names::CHECKPOINTS)?;
            Ok(names.iter().filter_map(|name| names::parse_checkpoint(name)).filter(counts).collect())
        };
        let wanted = names(*self.storage.disk())?;
        for (subgroup, position) in names(self.target)?.difference(&wanted) {
            self.target.remove(&names::checkpoint(*subgroup, *position))?;
        }
        let mut copied = BTreeSet::new();
        for (subgroup, position) in &wanted {
            let read = self.storage.read_checkpoint(*subgroup, *position, &mut |_| ());
            let path = names::checkpoint(*subgroup, *position);
            match read {
                Ok(()) => {}
                Err(CheckpointError::Disk(error)) if error.is_absent() => return Ok(None),
                // It counts neither here nor there.
                Err(CheckpointError::Bad { .. }) => continue,
                Err(error) => return Err(error.into()),
            }
            match copy_file(*self.storage.disk(), &path, self.target, &path, self.storage.settings().block) {
                Ok(bytes) => self.bytes += bytes,
                Err(error) if error.is_absent() => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            copied.insert((*subgroup, *position));
        }
        Ok(Some(copied))
    }

    /// Copies the segments from the base on that may have changed, and returns what the copy has then; `None` if the log has left one of
    /// them behind meanwhile.
    fn copy_segments(&mut self, register: &RegisterValue) -> Result<Option<Recovered>, BackupError> {
        let base = register.base.segment;
        let source = *self.storage.disk();
        let names = source.list(names::LOG)?;
        let there: BTreeSet<u32> = names
            .iter()
            .filter_map(|name| names::parse_segment(name))
            .filter(|number| *number >= base)
            .collect();
        for segment in self.copied.clone().into_iter().filter(|segment| *segment < base) {
            self.target.remove(&names::segment(segment))?;
            self.copied.remove(&segment);
        }
        let again = self.end.unwrap_or(0);
        let wanted: Vec<u32> =
            there.into_iter().filter(|number| *number >= again || !self.copied.contains(number)).collect();
        let size = u64::from(self.storage.settings().segment_bytes);
        let total = self.bytes + wanted.len() as u64 * size;
        for segment in wanted {
            if !self.copy_segment(segment, total)? {
                return Ok(None);
            }
        }
        let (settings, log) = (*self.storage.settings(), self.storage.identity().log);
        let found = recover(self.target, &settings, log, register.base, &mut |_| ())?;
        self.end = Some(found.segment);
        match self.check_end(&found)? {
            true => Ok(Some(found)),
            // What follows has been recycled meanwhile.
            false if self.register()?.base != register.base => Ok(None),
            false => Err(BackupError::Damaged { last: found.last }),
        }
    }

    /// Copies a segment; false if it is not there any more.
    fn copy_segment(&mut self, segment: u32, total: u64) -> Result<bool, BackupError> {
        let path = names::segment(segment);
        let (source, settings) = (*self.storage.disk(), *self.storage.settings());
        let size = settings.segment_bytes as usize;
        self.target.create(&path, size as u64)?;
        self.unread.retain(|(of, _)| *of != segment);
        let mut at = 0;
        while at < size {
            let length = PIECE.next_multiple_of(settings.block).min(size - at);
            let mut piece = AlignedBuffer::zeroed(length);
            match source.read(&path, at as u64, &mut piece) {
                Ok(read) if read == length => {}
                Err(error) if error.is_absent() => {
                    self.target.remove(&path)?;
                    self.copied.remove(&segment);
                    return Ok(false);
                }
                _ => self.read_blocks(segment, at as u64, &mut piece),
            }
            // The rest of a segment is zeros, as in the target.
            if piece.bytes().iter().any(|byte| *byte != 0) {
                self.target.write(&path, at as u64, &piece)?;
            }
            at += length;
            self.bytes += length as u64;
            (self.progress)(self.bytes, total.max(self.bytes));
        }
        self.copied.insert(segment);
        Ok(true)
    }

    /// Reads what can be read, block by block, and notes what cannot.
    fn read_blocks(&mut self, segment: u32, offset: u64, piece: &mut AlignedBuffer) {
        let (size, path) = (self.storage.settings().block, names::segment(segment));
        let mut block = AlignedBuffer::zeroed(size);
        for at in (0..piece.len()).step_by(size) {
            let place = offset + at as u64;
            let is_read = self.storage.disk().read(&path, place, &mut block).is_ok_and(|read| read == size);
            if is_read {
                piece.bytes_mut()[at..at + size].copy_from_slice(block.bytes());
            } else {
                self.unread.insert((segment, place));
            }
        }
    }

    /// Returns whether what is behind the end of the copy was being written when it was read; else it is damage.
    fn check_end(&self, found: &Recovered) -> Result<bool, BackupError> {
        if mutant!(BackUpDamaged) {
            return Ok(true);
        }
        if self.unread.range((found.segment, found.offset)..).next().is_some() {
            return Ok(false);
        }
        if found.verdict != TailVerdict::Damaged {
            return Ok(true);
        }
        let mut end = found.clone();
        let (settings, log) = (self.storage.settings(), self.storage.identity().log);
        follow(*self.storage.disk(), settings, log, &mut end, &mut |_| ())?;
        let was_written = end.last != found.last;
        if was_written {
            reach(LogPoint::BackupCut);
        }
        Ok(was_written)
    }

    /// Takes away what is behind the last good frame of the copy.
    fn cut(&mut self, found: &Recovered) -> Result<(), BackupError> {
        let settings = *self.storage.settings();
        for segment in self.copied.clone().into_iter().filter(|segment| *segment > found.segment) {
            self.target.remove(&names::segment(segment))?;
            self.copied.remove(&segment);
        }
        if mutant!(BackUpUncut) {
            return Ok(());
        }
        let path = names::segment(found.segment);
        if !self.copied.contains(&found.segment) {
            self.target.create(&path, settings.segment_bytes.into())?;
            self.copied.insert(found.segment);
        }
        let mut at = found.offset;
        while at < u64::from(settings.segment_bytes) {
            let rest = usize::try_from(u64::from(settings.segment_bytes) - at).expect("in memory");
            let length = PIECE.next_multiple_of(settings.block).min(rest);
            let mut piece = AlignedBuffer::zeroed(length);
            self.target.read(&path, at, &mut piece)?;
            if piece.bytes().iter().any(|byte| *byte != 0) {
                self.target.write(&path, at, &AlignedBuffer::zeroed(length))?;
            }
            at += length as u64;
        }
        Ok(())
    }
}

/// Returns whether one of these checkpoints is newer than the records of its subgroup that were found, and than those that a checkpoint has
/// replaced before.
fn is_behind(found: &Recovered, register: &RegisterValue, checkpoints: &BTreeSet<CheckpointName>) -> bool {
    checkpoints.iter().any(|(subgroup, at)| {
        let here = found.frontiers.get(subgroup).max(register.recycled.get(subgroup));
        // The end of a view, which need not have records, says nothing.
        at.sequence < u64::MAX && here < Some(at)
    })
}

/// Copies a file, whose length is a multiple of the block, and returns how many bytes it has.
pub(crate) fn copy_file(
    source: &dyn Disk,
    path: &str,
    target: &dyn Disk,
    copy: &str,
    block: usize,
) -> Result<u64, DiskError> {
    let length = source.length(path)?;
    target.create(copy, length)?;
    let mut at = 0;
    while at < length {
        let rest = usize::try_from(length - at).unwrap_or(PIECE).next_multiple_of(block);
        let mut piece = AlignedBuffer::zeroed(PIECE.next_multiple_of(block).min(rest));
        source.read(path, at, &mut piece)?;
        target.write(copy, at, &piece)?;
        at += piece.len() as u64;
    }
    Ok(length)
}

/// Reads the copy from its disk.
fn verify(
    target: &dyn Disk,
    settings: LogSettings,
    register: &RegisterValue,
    expected: &Recovered,
    checkpoints: u64,
) -> Result<(), BackupError> {
    let copy = Storage::inspect(target, settings)?;
    if copy.register().as_ref() != Some(register) {
        return Err(StorageError::RegisterLost.into());
    }
    let found = copy.recover(&mut |_, _| ())?;
    let verified: u64 = copy.checkpoints().values().map(|all| all.len() as u64).sum();
    let is_equal = (found.last, found.chain, found.frames, found.records)
        == (expected.last, expected.chain, expected.frames, expected.records);
    if found.verdict != TailVerdict::Clean || !is_equal || verified != checkpoints {
        let (expected, verdict) = (expected.frames, found.verdict);
        return Err(BackupError::Unequal { expected, found: found.frames, verdict });
    }
    Ok(())
}

/// What an empty target has.
const OWN_NAMES: [&str; 3] = [names::LOCK, names::LOG, names::CHECKPOINTS];
/// How often all is begun again because the register has changed: views end rarely.
const ATTEMPTS_MAX: u32 = 10;
/// How often the register is read: its two copies are written one after the other, so that one is whole at any time.
const REGISTER_READS_MAX: u32 = 5;
/// How much of a segment is copied at a time.
const PIECE: usize = 1 << 20;
