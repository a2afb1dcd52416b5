//! Continuing a durable group from the log of one member, when the others' logs are lost (Derecho §3.4, "Total failures", asks for
//! them).
//!
//! A group restarts by itself when a majority of its last view is back. If that can never be, since too many disks are lost, a person
//! chooses the member whose log goes furthest ([`expected_loss`] says how far each one does, and changes nothing), and continues from
//! it ([`accept_loss`]). What other logs alone had is lost then. `squall recover` does the same. While another process of the group answers at
//! a contact, nothing is accepted: there would be two groups.
//!
//! If logs are damaged at different places, one takes from the others' folders what it lacks before anything is given up ([`merge_logs`]).
//!
//! # Example
//! ```
//! use squall::config::{StorageConfig, SubgroupConfig};
//! use squall::recovery::{RecoveryError, expected_loss};
//! use squall::{Config, DeliveryMode};
//!
//! let mut config = Config::local("shop", 3).for_rank(0);
//! config.storage = Some(StorageConfig::new("/nonexistent/squall"));
//! let durable = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
//! config.subgroups.insert("orders".into(), durable);
//! let error = expected_loss(&config).unwrap_err();
//! assert!(matches!(error, RecoveryError::NoLog { .. }), "{error}");
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use squall_fabric::NodeId;
use squall_log::{FileDisk, LogIdentity, LogSettings, RecordKind, Storage, StorageError};
use squall_protocols::group::SubgroupId;
use squall_protocols::restart::{LogState, Register, Salvage, SalvageError, SalvagedShard};
use squall_transports::bootstrap::BootstrapError;

use crate::config::{Address, Config};
use crate::durable::discarder::begin_when_opened;
use crate::durable::{self, FolderPlan, LogIndex};
use crate::error::{GroupError, LogFolderError};
use crate::operate::calls::{RestartAnswer, RestartCall, RestartProcess, is_heard};
use crate::operate::inquiry::{self, MemberStatus, StatusQuestion};

pub use super::merge::{
    LogMerge, MergeError, MergedFolder, MissingRange, SubgroupMerge, TakenPart, expected_merge, merge_logs,
};

/// What is kept and what is lost if a group continues from the log of one member.
///
/// ```
/// use squall::Config;
/// use squall::recovery::{ExpectedLoss, RecoveryError, accept_loss, expected_loss};
///
/// /// Continues from the log of this member if a person agrees to what is lost.
/// fn recover(config: &Config, agrees: impl FnOnce(&ExpectedLoss) -> bool) -> Result<bool, RecoveryError> {
///     let is_agreed = agrees(&expected_loss(config)?);
///     if is_agreed {
///         accept_loss(config)?;
///     }
///     Ok(is_agreed)
/// }
/// # assert!(recover(&Config::local("shop", 3), |_| true).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpectedLoss {
    /// The folder of the log.
    pub folder: PathBuf,
    /// The last view of the group that this log knows.
    pub view: u64,
    /// The members of that view, by rank in the view.
    pub members: Vec<NodeId>,
    /// Which of them has this log.
    pub node: NodeId,
    /// Whether the end of the log is damaged: it may have had more.
    pub is_damaged: bool,
    /// Whether the folder is a copy that `squall log backup` has made: what was delivered later is lost.
    pub is_copy: bool,
    /// What becomes of each durable subgroup, by name.
    pub subgroups: BTreeMap<String, SubgroupLoss>,
}

/// What becomes of a durable subgroup.
///
/// ```
/// use squall::recovery::SubgroupLoss;
///
/// fn words(loss: SubgroupLoss) -> String {
///     match loss {
///         SubgroupLoss::Tail { messages, missing, .. } => format!("{messages} messages stay, at least {missing} are lost"),
///         _ => "all of it is lost".into(),
///     }
/// }
/// assert_eq!(words(SubgroupLoss::All), "all of it is lost");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubgroupLoss {
    /// Everything from its beginning up to the end of this log stays.
    Tail {
        /// How many messages stay.
        messages: u64,
        /// Up to which sequence of the last view.
        sequences: u64,
        /// How many more sequences of that view are known to have been in other logs. There may have been others.
        missing: u64,
    },
    /// The member did not have it: all of it is lost.
    All,
}

squall_fabric::debug_as_text!(RecoveryError);

/// Why a group cannot continue from this log.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// The configuration has no durable subgroup.
    #[error(
        "the configuration has no durable subgroup, so there is no log: give the configuration with which the group has run"
    )]
    NotDurable,
    /// There is no log of a group.
    #[error(
        "{} has no log of a member that has been in a group: `[storage] path`, and `rank` or `listen`, say which folder is meant",
        folder.display()
    )]
    NoLog {
        /// The folder that was looked for.
        folder: PathBuf,
    },
    /// It cannot be read or written.
    #[error(transparent)]
    Folder(#[from] LogFolderError),
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] GroupError),
    /// The member was removed earlier.
    #[error(
        "the log in {} is of a member that its group had removed before view {view}, and others have newer ones: choose one of them",
        folder.display()
    )]
    Removed {
        /// The folder.
        folder: PathBuf,
        /// The last view that the log knows.
        view: u64,
    },
    /// The log is no beginning of what was delivered.
    #[error(
        "the log in {} lacks an earlier part of {subgroup}, which the member had not got from the others yet, so nothing can continue from it: \
         take it from the folders of others (`squall recover --from`), or choose another member; `squall log dump` prints what it has",
        folder.display()
    )]
    Hole {
        /// The folder.
        folder: PathBuf,
        /// The subgroup.
        subgroup: String,
    },
    /// A member answers.
    #[error(
        "the member at {address} runs, in view {view} with {members} members: a group that continued from another log would be a second one. \
         Start this member, and it joins; if that member is to go, end it first"
    )]
    Runs {
        /// Where it listens.
        address: Address,
        /// Its view.
        view: u64,
        /// How many members that has.
        members: usize,
    },
    /// A process that waits for the group to restart from its logs answers.
    #[error(
        "the process at {address} has a log of this group, too, and waits for others: start this member, and see whether the group restarts; if \
         it does not, end that process, and move its folder away if its log goes less far"
    )]
    Waits {
        /// Where it listens.
        address: Address,
    },
    /// A process answers that this one does not understand.
    #[error(
        "there may be a member at {address}, and this process does not understand it: {cause}. Mend that first, or end it"
    )]
    Unclear {
        /// Where it listens.
        address: Address,
        /// Why.
        cause: Box<BootstrapError>,
    },
    /// The member starts without that.
    #[error(
        "the member with the log in {} is the only one of its group's last view, so that it starts without the others, and loses nothing: \
         start it",
        folder.display()
    )]
    NotNeeded {
        /// The folder.
        folder: PathBuf,
    },
}

/// Says what would be kept and lost if the group continued from the log of the member that `config` describes. Nothing is changed.
/// The whole log is read.
///
/// # Errors
/// [`RecoveryError`], with what to do instead.
pub fn expected_loss(config: &Config) -> Result<ExpectedLoss, RecoveryError> {
    let shards = shards(config)?;
    let folder = config.log_folder().ok_or(RecoveryError::NotDurable)?;
    let no_log = || RecoveryError::NoLog { folder: folder.clone() };
    if !folder.join("identity").is_file() {
        return Err(no_log());
    }
    let failed = |cause| LogFolderError::Storage { folder: folder.clone(), cause: Box::new(cause) };
    let storage = Storage::inspect(FileDisk::inspect(&folder), LogSettings::DEFAULT).map_err(failed)?;
    let value = storage.register().ok_or_else(|| failed(StorageError::RegisterLost))?;
    let FolderPlan { register, numbers, pending, .. } = FolderPlan::new(config, &folder, value)?;
    let register = register.filter(|register| !register.view().members.is_empty());
    let mut register = register.ok_or_else(no_log)?;
    let mut index = LogIndex::new(numbers.clone());
    let recovered = storage.recover_notes(&mut |note| index.note(note)).map_err(failed)?;
    if !recovered.is_usable() {
        register.damaged_in = Some(register.view().number);
    }
    let ids: Vec<SubgroupId> = shards.values().copied().collect();
    let is_copy = storage.is_backup().map_err(failed)?;
    let mut state = index.state(&ids);
    for (shard, (subgroup, id)) in shards.iter().enumerate() {
        let place = (*id, numbers.of(*id));
        let begin = begin_when_opened(&storage, config, place).map_err(|error| failed(error.into()))?;
        let begin =
            begin.ok_or_else(|| LogFolderError::checkpoints_lost(&storage, config, subgroup, place))?;
        state.cover(shard, begin);
    }
    let salvage = salvage(config, &register, &state, is_copy)?;
    let mut messages = vec![0; ids.len()];
    let chain = &salvage.register.record.chain;
    let count = |record: squall_log::LogRecord<'_>| {
        let shard = numbers.all().position(|number| number == record.subgroup);
        let Some(shard) = shard.filter(|_| record.kind == RecordKind::Message) else { return };
        let counts =
            chain.trim_of(record.position.view, shard).is_none_or(|trim| record.position.sequence < trim);
        messages[shard] += u64::from(counts);
    };
    let mut count = count;
    storage.recover(&mut |_, record| count(record)).map_err(failed)?;
    let added = pending.map(|pending| pending.added).unwrap_or_default();
    let loss = |(shard, (is, messages)): (usize, (&SalvagedShard, u64))| match *is {
        SalvagedShard::Kept { sequences, missing } => SubgroupLoss::Tail { messages, sequences, missing },
        // There was nothing to lose.
        SalvagedShard::Lost if added.contains(&shard) => {
            SubgroupLoss::Tail { messages: 0, sequences: 0, missing: 0 }
        }
        SalvagedShard::Lost => SubgroupLoss::All,
    };
    let losses = salvage.shards.iter().zip(messages).enumerate().map(loss);
    Ok(ExpectedLoss {
        folder,
        view: register.view().number,
        members: register.view().members.clone(),
        node: register.node,
        is_damaged: salvage.is_damaged,
        is_copy,
        subgroups: shards.into_keys().zip(losses).collect(),
    })
}

/// Makes the log of the member that `config` describes the only one from which its group continues, and returns what is lost. The
/// member starts alone then, and others join it with empty folders; those that have a log of the group of before are refused, even
/// if their log goes further, so that nothing of it is overwritten: move their folders away.
///
/// Do this at one member only, and when the logs of the others cannot be brought back. The contacts are asked first: while one of them
/// answers that has a log of the group, nothing is accepted.
///
/// # Errors
/// [`RecoveryError`], with what to do instead; if the member runs, it has the folder locked. If the disk fails, either nothing is
/// changed or everything: ask again.
pub fn accept_loss(config: &Config) -> Result<ExpectedLoss, RecoveryError> {
    check_contacts(config)?;
    let loss = expected_loss(config)?;
    let ids: Vec<SubgroupId> = shards(config)?.into_values().collect();
    let log = durable::open_backup(config)?.ok_or(RecoveryError::NotDurable)?;
    let register =
        log.found_register().ok_or_else(|| RecoveryError::NoLog { folder: loss.folder.clone() })?;
    let salvage = salvage(config, &register, &log.state(&ids), loss.is_copy)?;
    log.store_register(&salvage.register)?;
    // From here on it is of a group in which it has promised nothing yet.
    log.release_backup()?;
    Ok(loss)
}

/// Asks all contacts at the same time whether they are of the group.
fn check_contacts(config: &Config) -> Result<(), RecoveryError> {
    std::thread::scope(|scope| {
        let ask = |address| scope.spawn(move || check_contact(config, address));
        let others = config.contacts.iter().filter(|address| **address != config.listen);
        let asked: Vec<_> = others.map(ask).collect();
        asked.into_iter().try_for_each(|asked| asked.join().expect("it does not panic"))
    })
}

/// Returns an error if a process at a contact is of the group, or may be. One without a log only waits for a group to join.
fn check_contact(config: &Config, address: &Address) -> Result<(), RecoveryError> {
    let address = address.clone();
    match inquiry::ask_status(config, &address) {
        Ok(MemberStatus { view, members, .. }) => {
            Err(RecoveryError::Runs { address, view, members: members.len() })
        }
        Err(cause) if is_heard(&cause) => Err(RecoveryError::Unclear { address, cause: Box::new(cause) }),
        Err(_) => {
            // A process that restarts answers this question alone; it takes nothing of the call but that there was one.
            let sender = RestartProcess { node: u32::MAX, starts: 0, rank: 0, address: String::new() };
            let call = RestartCall { group: 0, layout: 0, sender, others: Vec::new(), messages: Vec::new() };
            let question = StatusQuestion::Restart(Box::new(call));
            match inquiry::ask::<RestartAnswer>(&config.plan(), &address, &question) {
                Ok(_) => Err(RecoveryError::Waits { address }),
                Err(_) => Ok(()),
            }
        }
    }
}

/// The durable subgroups, in the order of the shards.
fn shards(config: &Config) -> Result<BTreeMap<String, SubgroupId>, RecoveryError> {
    let shards: BTreeMap<_, _> =
        durable::shards(config).into_iter().map(|(name, (id, _))| (name, id)).collect();
    if shards.is_empty() { Err(RecoveryError::NotDurable) } else { Ok(shards) }
}

/// What the core says.
fn salvage(
    config: &Config,
    register: &Register,
    log: &LogState,
    is_copy: bool,
) -> Result<Salvage, RecoveryError> {
    let folder = config.log_folder().ok_or(RecoveryError::NotDurable)?;
    let group = LogIdentity::random_log()
        .map_err(|error| LogFolderError::Storage { folder: folder.clone(), cause: Box::new(error.into()) })?;
    register.salvage(log, group, is_copy).map_err(|error| match error {
        SalvageError::NoMember => RecoveryError::Removed { folder, view: register.view().number },
        SalvageError::IsQuorum => RecoveryError::NotNeeded { folder },
        SalvageError::Hole { shard } => {
            let subgroup = durable::shards(config).into_keys().nth(shard).unwrap_or_default();
            RecoveryError::Hole { folder, subgroup }
        }
    })
}
