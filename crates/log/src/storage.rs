//! A folder: identity, register, segments and checkpoints of one process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use squall_fabric::mutex::lock;

use crate::backup;
use crate::copies::{COPY_VALUE_BYTES_MAX, CopyPair};
use crate::coverage::{LogPoint, reach};
use crate::disk::{Disk, DiskCause, DiskError};
use crate::identity::{IdentityError, LogIdentity, RegisterValue};
use crate::mutation;
use crate::names;
use crate::new_folder;
use crate::note::FrameNote;
use crate::record::{LogPosition, LogRecord};
use crate::recovery::{FramePlace, LogSurvey, Recovered, RecoveredPart, follow, read_frame, recover, survey};
use crate::segment::{LogBase, Recycling, raise};
use crate::settings::LogSettings;
use crate::subgroups::LogSubgroups;

mod checkpoints;

pub use checkpoints::LogBegin;

/// The folder of a process, on a disk.
///
/// **Law.** [`Self::open`]; [`Self::recover`] as often as wanted; if the log is to be written, [`Self::begin_life`] and then
/// [`LogCore`](crate::LogCore), whose actions [`Self::prepare`] and [`Disk::write`] carry out. The register can be written at any
/// time, by any thread.
#[derive(Debug)]
pub struct Storage<D> {
    disk: D,
    settings: LogSettings,
    identity: LogIdentity,
    register: Mutex<Option<Register>>,
    /// Verified checkpoints of each subgroup.
    checkpoints: Mutex<BTreeMap<u32, BTreeSet<LogPosition>>>,
    /// Up to which position records of each subgroup are not here any more, as the register says.
    recycled: Mutex<BTreeMap<u32, LogPosition>>,
    /// Segments below the log's base, whose files can be used again.
    spare: Mutex<Vec<u32>>,
}

#[derive(Debug)]
struct Register {
    pair: CopyPair,
    value: RegisterValue,
}

/// The process that opens a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageOwner {
    /// The name of the cluster.
    pub cluster: String,
    /// The name of the member.
    pub member: String,
}

/// Why a folder cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// The disk has failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The folder belongs to another process.
    #[error(
        "the folder belongs to the member {found_member} of the cluster {found_cluster}, and this process is the member {member} of \
         the cluster {cluster}: set another folder, or the names that it was made with"
    )]
    Foreign {
        /// The cluster whose folder it is.
        found_cluster: String,
        /// The member.
        found_member: String,
        /// The cluster of this process.
        cluster: String,
        /// Its member.
        member: String,
    },
    /// The identity cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// There is a log, and nothing says of what.
    #[error("the folder has a log and no identity: restore the file `identity`, or set an empty folder")]
    NoIdentity,
    /// Both copies of the register are bad.
    #[error(
        "both copies of the register are bad, so that this process does not know what it has promised: it has no vote; begin a \
         new log in the folder, and join as a new member"
    )]
    RegisterLost,
    /// The folder is a copy.
    #[error(
        "the folder is a copy that `squall log backup` has made, and not the member's own: the member would have forgotten what it has \
         promised since. `squall recover --accept-loss` makes it the log from which the group continues, if the others are lost"
    )]
    Backup,
    /// The copy is not finished.
    #[error("the folder is a copy that `squall log backup` has not finished: remove it, and use another one")]
    UnfinishedBackup,
    /// The register has grown too long.
    #[error(
        "the register has {length} bytes, and {COPY_VALUE_BYTES_MAX} is the most: too many views with messages have ended in this group; \
         start it anew from empty folders"
    )]
    RegisterLong {
        /// Its length.
        length: usize,
    },
}

impl<D: Disk> Storage<D> {
    /// Opens the folder of `owner`; makes it, with the log id `log` and the sizes of `settings`, if it is empty.
    ///
    /// # Errors
    /// If the disk fails, or the folder is not this process's.
    ///
    /// # Panics
    /// If the sizes do not go together.
    pub fn open(
        disk: D,
        owner: &StorageOwner,
        settings: LogSettings,
        log: u64,
    ) -> Result<Self, StorageError> {
        if backup::is_backup(&disk)? {
            return Err(StorageError::Backup);
        }
        Self::open_backup(disk, owner, settings, log)
    }

    /// Opens as [`Self::open`] does, also a copy that [`back_up`](crate::back_up) has made. It remains one until
    /// [`Self::release_backup`].
    ///
    /// # Errors
    /// If the disk fails, the folder is not this process's, or the copy is not finished.
    ///
    /// # Panics
    /// If the sizes do not go together.
    pub fn open_backup(
        disk: D,
        owner: &StorageOwner,
        settings: LogSettings,
        log: u64,
    ) -> Result<Self, StorageError> {
        assert!(settings.are_valid(), "sizes that go together");
        backup::is_backup(&disk)?;
        let settings = LogSettings { block: settings.block, ..settings };
        if !disk.list("")?.iter().any(|name| name == names::IDENTITY) {
            new_folder::create(&disk, owner, &settings, log)?;
        }
        let (mut pair, bytes) =
            CopyPair::open(&disk, names::IDENTITY, settings.block)?.ok_or(IdentityError::Unreadable)?;
        let identity = LogIdentity::from_bytes(&bytes)?;
        if (&identity.cluster, &identity.member) != (&owner.cluster, &owner.member) {
            let StorageOwner { cluster, member } = owner.clone();
            let (found_cluster, found_member) = (identity.cluster, identity.member);
            return Err(StorageError::Foreign { found_cluster, found_member, cluster, member });
        }
        pair.write(&disk, &identity.to_bytes())?;
        let storage = Self::with_identity(disk, settings, identity)?;
        if storage.register().is_some() {
            // A change that a crash has interrupted may be in one of the copies only, or in a file whose name is not on the disk, and
            // this process acts upon it from now on [W9].
            storage.change_register(|_| ())?;
            storage.disk.flush_folder("")?;
        }
        Ok(storage)
    }

    /// Returns what the folder on a disk belongs to, and its register; reads nothing else.
    ///
    /// # Errors
    /// If the disk fails, or the folder has no readable identity.
    pub fn peek(disk: D) -> Result<(LogIdentity, Option<RegisterValue>), StorageError> {
        let (_, bytes) = CopyPair::open(&disk, names::IDENTITY, LogSettings::DEFAULT.block)?
            .ok_or(IdentityError::Unreadable)?;
        let identity = LogIdentity::from_bytes(&bytes)?;
        let register = match CopyPair::open(&disk, names::REGISTER, identity.block as usize) {
            Err(error) if error.is_absent() => None,
            opened => opened?.and_then(|(_, bytes)| RegisterValue::from_bytes(&bytes)),
        };
        let register = register.filter(|register| register.log == identity.log);
        Ok((identity, register))
    }

    /// Opens what is there for reading, whosever it is.
    ///
    /// # Errors
    /// If the disk fails, or the folder has no readable identity.
    pub fn inspect(disk: D, settings: LogSettings) -> Result<Self, StorageError> {
        let (_, bytes) =
            CopyPair::open(&disk, names::IDENTITY, settings.block)?.ok_or(IdentityError::Unreadable)?;
        let identity = LogIdentity::from_bytes(&bytes)?;
        Self::with_identity(disk, settings, identity)
    }

    fn with_identity(disk: D, settings: LogSettings, identity: LogIdentity) -> Result<Self, StorageError> {
        let settings = LogSettings {
            block: identity.block as usize,
            segment_bytes: identity.segment_bytes,
            in_flight_max: identity.in_flight_max as usize,
            ..settings
        };
        if !settings.are_valid() {
            return Err(IdentityError::Unreadable.into());
        }
        let storage = Self {
            disk,
            settings,
            identity,
            register: Mutex::new(None),
            checkpoints: Mutex::new(BTreeMap::new()),
            recycled: Mutex::new(BTreeMap::new()),
            spare: Mutex::new(Vec::new()),
        };
        let register = storage.read_register()?;
        if let Some(register) = &register {
            lock(&storage.recycled).clone_from(&register.value.recycled);
            let base = register.value.base.segment;
            *lock(&storage.spare) = storage.segments()?.into_iter().filter(|n| *n < base).collect();
        }
        *lock(&storage.register) = register;
        *lock(&storage.checkpoints) = storage.verify_checkpoints()?;
        Ok(storage)
    }

    /// Reads the register again, which its process may write meanwhile; `None` if no copy of it is good.
    pub(crate) fn read_register_again(&self) -> Result<Option<RegisterValue>, StorageError> {
        Ok(self.read_register()?.map(|register| register.value))
    }

    fn segments(&self) -> Result<BTreeSet<u32>, DiskError> {
        Ok(self.disk.list(names::LOG)?.iter().filter_map(|name| names::parse_segment(name)).collect())
    }

    /// The register; one of an earlier log counts as new.
    fn read_register(&self) -> Result<Option<Register>, StorageError> {
        let block = self.settings.block;
        let opened = match CopyPair::open(&self.disk, names::REGISTER, block) {
            Err(error) if error.is_absent() => None,
            opened => opened?,
        };
        let register = opened
            .and_then(|(pair, bytes)| Some(Register { pair, value: RegisterValue::from_bytes(&bytes)? }));
        let Some(mut register) = register else { return Ok(None) };
        if register.value.log != self.identity.log {
            reach(LogPoint::BegunAnew);
            let first = self.segments()?.first().copied().unwrap_or(1);
            register.value = RegisterValue::new(self.identity.log, first);
        }
        Ok(Some(register))
    }

    /// Returns the disk.
    pub const fn disk(&self) -> &D {
        &self.disk
    }

    /// Returns the sizes that the folder has.
    pub const fn settings(&self) -> &LogSettings {
        &self.settings
    }

    /// Returns what the folder belongs to.
    pub const fn identity(&self) -> &LogIdentity {
        &self.identity
    }

    /// Returns the register; `None` if it is lost.
    pub fn register(&self) -> Option<RegisterValue> {
        lock(&self.register).as_ref().map(|register| register.value.clone())
    }

    /// Changes the register, and returns when both copies are on the disk.
    ///
    /// # Errors
    /// If it is lost or too long, or the disk fails: then either value may be found later.
    pub fn change_register(
        &self,
        change: impl FnOnce(&mut RegisterValue),
    ) -> Result<RegisterValue, StorageError> {
        let mut register = lock(&self.register);
        let register = register.as_mut().ok_or(StorageError::RegisterLost)?;
        let mut value = register.value.clone();
        change(&mut value);
        let bytes = value.to_bytes();
        if bytes.len() > COPY_VALUE_BYTES_MAX {
            return Err(StorageError::RegisterLong { length: bytes.len() });
        }
        register.pair.write(&self.disk, &bytes)?;
        register.value = value.clone();
        Ok(value)
    }

    /// Recovers the log, and hands each record to `each`, with the place of its frame. Without a register it begins at the oldest
    /// segment.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    pub fn recover(
        &self,
        each: &mut dyn FnMut(FramePlace, LogRecord<'_>),
    ) -> Result<Recovered, StorageError> {
        self.recover_parts(&mut |part| {
            if let RecoveredPart::Record(place, record) = part {
                each(place, record);
            }
        })
    }

    /// Recovers the log as [`Self::recover`] does, and hands only what its frames cover to `each`.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    pub fn recover_notes(&self, each: &mut dyn FnMut(&FrameNote)) -> Result<Recovered, StorageError> {
        self.recover_parts(&mut |part| {
            if let RecoveredPart::Frame(note) = part {
                each(note);
            }
        })
    }

    fn recover_parts(&self, each: &mut dyn FnMut(RecoveredPart<'_>)) -> Result<Recovered, StorageError> {
        Ok(recover(&self.disk, &self.settings, self.identity.log, self.base()?, each)?)
    }

    fn base(&self) -> Result<LogBase, DiskError> {
        let first = self.segments()?.first().copied().unwrap_or(1);
        Ok(self.register().map_or(LogBase::new(first), |register| register.base))
    }

    /// Hands what each frame covers to `each` that can be read, also behind damage: first those of the log, in order, and then the others, by
    /// their numbers; and whether it is directly behind the one before, or, the first one of the log, behind where that begins.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    pub fn survey(&self, each: &mut dyn FnMut(&FrameNote, bool)) -> Result<LogSurvey, StorageError> {
        Ok(survey(&self.disk, &self.settings, self.identity.log, self.base()?, each)?)
    }

    /// Hands what each frame covers to `each` that has been written behind `found`, the end of an earlier look at the log, which moves
    /// on. The log may be written meanwhile.
    ///
    /// # Errors
    /// If the folder cannot be listed. What cannot be read is the end.
    pub fn follow(
        &self,
        found: &mut Recovered,
        each: &mut dyn FnMut(&FrameNote),
    ) -> Result<(), StorageError> {
        Ok(follow(&self.disk, &self.settings, self.identity.log, found, each)?)
    }

    /// Hands each record of a frame to `each`; returns false if the frame cannot be read.
    pub fn read_frame(&self, place: FramePlace, each: &mut dyn FnMut(LogRecord<'_>)) -> bool {
        read_frame(&self.disk, &self.settings, self.identity.log, place, each)
    }

    /// Begins a life of the log, and returns its number [W4]. Removes files that an earlier life has not finished, and checkpoints
    /// that have no log behind them, since a crash has undone their removal.
    ///
    /// # Errors
    /// If the register is lost, or the disk fails.
    pub fn begin_life(&self) -> Result<u64, StorageError> {
        for folder in [names::LOG, names::CHECKPOINTS] {
            for name in self.disk.list(folder)? {
                if name.ends_with(names::UNFINISHED) {
                    self.disk.remove(&format!("{folder}/{name}"))?;
                }
            }
        }
        let recycled = self.register().map(|register| register.recycled).unwrap_or_default();
        for (subgroup, position) in recycled {
            self.remove_checkpoints(subgroup, &mut |at| at >= position)?;
        }
        Ok(self.change_register(|register| register.life += 1)?.life)
    }

    /// Makes a segment ready for use: its file has all its blocks, and its name is on the disk [W8].
    ///
    /// # Errors
    /// If the disk fails, or is full.
    pub fn prepare(&self, segment: u32, recycle: Option<Recycling>) -> Result<(), StorageError> {
        let path = names::segment(segment);
        if let Some(Recycling { segments, base, mut positions }) = recycle {
            let retired = self.retired();
            positions.retain(|subgroup, _| !retired.contains(subgroup));
            // Before the register shows the new base, by which others forget where the records were: a reader finds that they are
            // gone, and not that there are none.
            let mut recycled = lock(&self.recycled);
            positions.iter().for_each(|(subgroup, at)| raise(&mut recycled, *subgroup, *at));
            drop(recycled);
            self.change_register(|register| {
                register.base = base;
                positions.iter().for_each(|(subgroup, at)| raise(&mut register.recycled, *subgroup, *at));
            })?;
            lock(&self.spare).extend(segments);
        }
        let is_there = match self.disk.length(&path) {
            Ok(length) => length == u64::from(self.settings.segment_bytes),
            Err(error) if error.is_absent() => false,
            Err(error) => return Err(error.into()),
        };
        if !is_there {
            let spare = lock(&self.spare).pop();
            let source = match spare {
                Some(spare) => names::segment(spare),
                None => {
                    let new = names::new_segment(segment);
                    if let Err(error) = self.disk.create(&new, u64::from(self.settings.segment_bytes)) {
                        // What there is of it would take the space of others.
                        let _ = self.disk.remove(&new);
                        return Err(error.into());
                    }
                    new
                }
            };
            self.disk.rename(&source, &path)?;
        }
        // The next segment will need one, and the disk the rest.
        let unneeded = {
            let mut spare = lock(&self.spare);
            let kept = spare.len().min(1);
            spare.split_off(kept)
        };
        for segment in unneeded {
            self.disk.remove(&names::segment(segment))?;
        }
        if !mutant!(SkipFolderFlush) {
            self.disk.flush_folder(names::LOG)?;
        }
        Ok(())
    }

    /// Begins a new log in the folder, with the id `log`: what the old one holds does not count any more. For a process that joins as
    /// a new member. Checkpoints stay, since they are states of the group.
    ///
    /// # Errors
    /// If the disk fails: then either log may be found later.
    pub fn begin_anew(self, log: u64) -> Result<Self, StorageError> {
        // Checkpoints keep their numbers.
        let subgroups = self.register().map(|register| register.subgroups).unwrap_or_default();
        let identity = LogIdentity { log, ..self.identity };
        let (mut pair, _) = CopyPair::open(&self.disk, names::IDENTITY, self.settings.block)?
            .ok_or(IdentityError::Unreadable)?;
        pair.write(&self.disk, &identity.to_bytes())?;
        let first = self.disk.list(names::LOG)?.iter().filter_map(|name| names::parse_segment(name)).min();
        let mut value = RegisterValue::new(log, first.unwrap_or(1));
        value.subgroups = LogSubgroups { change: None, ..subgroups };
        CopyPair::create(&self.disk, names::REGISTER, self.settings.block, &value.to_bytes())?;
        Self::with_identity(self.disk, self.settings, identity)
    }
}

/// What a log fails with when its register cannot be changed, or a segment cannot be made ready.
pub(crate) fn disk_error(error: StorageError) -> DiskError {
    let cause = match error {
        StorageError::Disk(error) => return error,
        StorageError::RegisterLost => DiskCause::RegisterLost,
        StorageError::RegisterLong { length } => DiskCause::RegisterLong { length },
        StorageError::Foreign { .. }
        | StorageError::Identity(_)
        | StorageError::NoIdentity
        | StorageError::Backup
        | StorageError::UnfinishedBackup => {
            unreachable!("such a folder is not opened")
        }
    };
    DiskError { operation: "change", path: names::REGISTER.into(), cause }
}
