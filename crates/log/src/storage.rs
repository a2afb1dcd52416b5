//! A folder: identity, register, segments and checkpoints of one process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use crate::backup;
use crate::checkpoint::{self, CheckpointError};
use crate::copies::{COPY_VALUE_BYTES_MAX, CopyPair};
use crate::core::{LogBase, Recycling};
use crate::coverage::{LogPoint, reach};
use crate::disk::{Disk, DiskError};
use crate::identity::{IdentityError, LogIdentity, RegisterValue};
use crate::mutation;
use crate::names;
use crate::new_folder;
use crate::record::{LogPosition, LogRecord};
use crate::recovery::{FramePlace, Recovered, follow, read_frame, recover};
use crate::settings::LogSettings;

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
        pair.write(&disk, &bytes)?;
        let storage = Self::with_identity(disk, settings, identity)?;
        if storage.register().is_some() {
            // A change that a crash has interrupted may be in one of the copies only, or in a file whose name is not on the disk, and
            // this process acts upon it from now on [W9].
            storage.change_register(|_| ())?;
            storage.disk.flush_folder("")?;
        }
        Ok(storage)
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
            spare: Mutex::new(Vec::new()),
        };
        let register = storage.read_register()?;
        if let Some(register) = &register {
            let base = register.value.base.segment;
            *locked(&storage.spare) = storage.segments()?.into_iter().filter(|n| *n < base).collect();
        }
        *locked(&storage.register) = register;
        *locked(&storage.checkpoints) = storage.verify_checkpoints()?;
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
        locked(&self.register).as_ref().map(|register| register.value.clone())
    }

    /// Changes the register, and returns when both copies are on the disk.
    ///
    /// # Errors
    /// If it is lost or too long, or the disk fails: then either value may be found later.
    pub fn change_register(
        &self,
        change: impl FnOnce(&mut RegisterValue),
    ) -> Result<RegisterValue, StorageError> {
        let mut register = locked(&self.register);
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
        let first = self.segments()?.first().copied().unwrap_or(1);
        let base = self.register().map_or(LogBase::new(first), |register| register.base);
        Ok(recover(&self.disk, &self.settings, self.identity.log, base, each)?)
    }

    /// Hands each record to `each` that has been written behind `found`, the end of an earlier look at the log, which moves on. The log
    /// may be written meanwhile.
    ///
    /// # Errors
    /// If the folder cannot be listed. What cannot be read is the end.
    pub fn follow(
        &self,
        found: &mut Recovered,
        each: &mut dyn FnMut(FramePlace, LogRecord<'_>),
    ) -> Result<(), StorageError> {
        Ok(follow(&self.disk, &self.settings, self.identity.log, found, each)?)
    }

    /// Hands each record of a frame to `each`; returns false if the frame cannot be read.
    pub fn read_frame(&self, place: FramePlace, each: &mut dyn FnMut(LogRecord<'_>)) -> bool {
        read_frame(&self.disk, &self.settings, self.identity.log, place, each)
    }

    /// Begins a life of the log, and returns its number [W4]. Removes files that an earlier life has not finished, and checkpoints
    /// whose removal a crash has undone.
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
        for (subgroup, verified) in locked(&self.checkpoints).iter_mut() {
            if let Some(oldest) = verified.iter().nth_back(KEPT - 1).copied() {
                self.remove_older(*subgroup, oldest, verified)?;
            }
        }
        Ok(self.change_register(|register| register.life += 1)?.life)
    }

    /// Makes a segment ready for use: its file has all its blocks, and its name is on the disk [W8].
    ///
    /// # Errors
    /// If the disk fails, or is full.
    pub fn prepare(&self, segment: u32, recycle: Option<Recycling>) -> Result<(), StorageError> {
        let path = names::segment(segment);
        if let Some(Recycling { segment: old, base }) = recycle {
            self.change_register(|register| register.base = base)?;
            locked(&self.spare).push(old);
        }
        let is_there = match self.disk.length(&path) {
            Ok(length) => length == u64::from(self.settings.segment_bytes),
            Err(error) if error.is_absent() => false,
            Err(error) => return Err(error.into()),
        };
        if !is_there {
            let spare = locked(&self.spare).pop();
            let source = match spare {
                Some(spare) => names::segment(spare),
                None => {
                    let new = names::new_segment(segment);
                    self.disk.create(&new, u64::from(self.settings.segment_bytes))?;
                    new
                }
            };
            self.disk.rename(&source, &path)?;
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
        let identity = LogIdentity { log, ..self.identity };
        let (mut pair, _) = CopyPair::open(&self.disk, names::IDENTITY, self.settings.block)?
            .ok_or(IdentityError::Unreadable)?;
        pair.write(&self.disk, &identity.to_bytes())?;
        let first = self.disk.list(names::LOG)?.iter().filter_map(|name| names::parse_segment(name)).min();
        let value = RegisterValue::new(log, first.unwrap_or(1));
        CopyPair::create(&self.disk, names::REGISTER, self.settings.block, &value.to_bytes())?;
        Self::with_identity(self.disk, self.settings, identity)
    }

    /// Writes a checkpoint of a subgroup, and returns when it is verified, and all but the two newest verified ones are removed.
    ///
    /// # Errors
    /// If the disk fails, or has not written what it was given; then the older checkpoints still count.
    pub fn write_checkpoint(
        &self,
        subgroup: u32,
        position: LogPosition,
        state: &mut dyn Iterator<Item = Vec<u8>>,
    ) -> Result<(), CheckpointError> {
        checkpoint::write(&self.disk, self.settings.block, subgroup, position, state)?;
        let mut checkpoints = locked(&self.checkpoints);
        let verified = checkpoints.entry(subgroup).or_default();
        let all: BTreeSet<LogPosition> = verified.iter().copied().chain([position]).collect();
        let oldest = all.iter().nth_back(KEPT - 1).copied();
        if let Some(oldest) = oldest {
            self.remove_older(subgroup, oldest, verified)?;
        }
        // It is older than both that are kept if the log has lost its end since they were taken.
        if oldest.is_none_or(|oldest| position >= oldest) {
            verified.insert(position);
        }
        Ok(())
    }

    /// Removes the checkpoints of a subgroup that are older than `oldest`, and returns when a crash cannot bring them back: one that
    /// came back would count as one of the two that are kept, although the log may begin behind it by then [W11].
    fn remove_older(
        &self,
        subgroup: u32,
        oldest: LogPosition,
        verified: &mut BTreeSet<LogPosition>,
    ) -> Result<(), DiskError> {
        let names = self.disk.list(names::CHECKPOINTS)?;
        let older = names.iter().filter_map(|name| names::parse_checkpoint(name));
        let older: Vec<_> = older.filter(|(of, at)| *of == subgroup && *at < oldest).collect();
        if older.is_empty() {
            return Ok(());
        }
        for (_, position) in older {
            verified.remove(&position);
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
        locked(&self.checkpoints).clone()
    }

    /// Returns up to where each subgroup's records are not needed any more, even if its newest checkpoint is lost: the position of the
    /// older one of two [W11].
    pub fn covered(&self) -> BTreeMap<u32, LogPosition> {
        let older = if mutant!(RecycleEarly) { 0 } else { KEPT - 1 };
        let checkpoints = locked(&self.checkpoints);
        let covered =
            checkpoints.iter().map(|(subgroup, verified)| (*subgroup, verified.iter().nth_back(older)));
        covered.filter_map(|(subgroup, position)| Some((subgroup, *position?))).collect()
    }

    fn verify_checkpoints(&self) -> Result<BTreeMap<u32, BTreeSet<LogPosition>>, DiskError> {
        let mut verified = BTreeMap::<u32, BTreeSet<LogPosition>>::new();
        for name in self.disk.list(names::CHECKPOINTS)? {
            if let Some((subgroup, position)) = names::parse_checkpoint(&name)
                && self.read_checkpoint(subgroup, position, &mut |_| ()).is_ok()
            {
                verified.entry(subgroup).or_default().insert(position);
            }
        }
        Ok(verified)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Checkpoints of a subgroup that are kept: one of them may rot.
const KEPT: usize = 2;
