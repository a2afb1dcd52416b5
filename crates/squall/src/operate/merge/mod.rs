//! Merging the logs of a durable group that are damaged at different places (Derecho §3.4, "Total failures").
//!
//! What is taken from where the core says ([`plan_merge`]). The log of the member that takes it continues behind all that is in its folder,
//! as if it had fetched it from others: nothing that is there is written over, but the register, which is kept in the folder `aside` as it
//! was. The other folders are only read. What a message is has to be the same in all folders that have it, or nothing is merged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use squall_fabric::NodeId;
use squall_log::{AppendError, Disk, FileDisk, StorageError};
use squall_protocols::group::SubgroupId;
use squall_protocols::restart::{
    LogPieces, LogStart, MergeConflict, MergePlan, MergeStep, MissingPart, plan_merge,
};

use self::reader::{MergeFolder, difference, shards};
use super::recovery::RecoveryError;
use crate::config::Config;
use crate::error::LogFolderError;

mod reader;
#[cfg(test)]
mod tests;
mod writer;

/// What the log of a member takes from the folders of others, and what stays missing.
///
/// ```
/// use std::path::PathBuf;
///
/// use squall::Config;
/// use squall::recovery::{MergeError, expected_merge, merge_logs};
///
/// /// Mends the log of this member if the folders of the others have all that it lacks.
/// fn mend(config: &Config, others: &[PathBuf]) -> Result<bool, MergeError> {
///     let is_whole = expected_merge(config, others)?.is_whole;
///     if is_whole {
///         merge_logs(config, others)?;
///     }
///     Ok(is_whole)
/// }
/// # assert!(mend(&Config::local("shop", 3), &[]).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogMerge {
    /// The folder of the log that takes what it lacks.
    pub folder: PathBuf,
    /// The last view of the group that this log knows.
    pub view: u64,
    /// The member whose log it is.
    pub node: NodeId,
    /// Whether it was damaged.
    pub was_damaged: bool,
    /// Whether it has everything then that it has ever acknowledged, and counts as undamaged: with it, and a majority of the members, the group
    /// restarts by itself, and nothing is lost.
    pub is_whole: bool,
    /// Whether it is known how far the log went, though not all that it had.
    pub is_end_known: bool,
    /// The folders of the others, in the order in which they were given.
    pub others: Vec<MergedFolder>,
    /// What becomes of each durable subgroup, by name; those that the member did not have are not there.
    pub subgroups: BTreeMap<String, SubgroupMerge>,
}

/// A folder from which a log is merged.
///
/// ```
/// use squall::recovery::MergedFolder;
///
/// fn line(folder: &MergedFolder) -> String {
///     format!("{}: {}, up to view {}", folder.folder.display(), folder.node, folder.view)
/// }
/// # let _ = line;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergedFolder {
    /// The folder.
    pub folder: PathBuf,
    /// The member whose log it is.
    pub node: NodeId,
    /// The last view that it knows.
    pub view: u64,
    /// Whether the log is damaged.
    pub is_damaged: bool,
    /// Whether its own end is known, so that this log could be whole, too, if it took what it lacks.
    pub is_end_known: bool,
}

/// What a merge does to a subgroup.
///
/// ```
/// use squall::recovery::SubgroupMerge;
///
/// fn messages(merge: &SubgroupMerge) -> u64 {
///     merge.taken.iter().map(|part| part.messages).sum()
/// }
/// # let _ = messages;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubgroupMerge {
    /// What the log takes.
    pub taken: Vec<TakenPart>,
    /// What no folder has.
    pub missing: Vec<MissingRange>,
}

/// What a log takes of a subgroup from a folder.
///
/// ```
/// use squall::recovery::TakenPart;
///
/// fn line(part: &TakenPart) -> String {
///     format!("{} messages of view {} from {}", part.messages, part.view, part.folder.display())
/// }
/// # let _ = line;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TakenPart {
    /// The folder; it may be the log's own, for what is behind damage there.
    pub folder: PathBuf,
    /// The view.
    pub view: u64,
    /// The first sequence.
    pub from: u64,
    /// One more than the last one.
    pub to: u64,
    /// How many of these are messages.
    pub messages: u64,
    /// Whether it is a checkpoint, which takes the place of everything before `to`.
    pub is_checkpoint: bool,
}

/// A part of a subgroup that no folder has: from one position up to the one before another, each a view and a sequence.
///
/// ```
/// use squall::recovery::MissingRange;
///
/// fn line(range: &MissingRange) -> String {
///     format!("from {:?} up to {:?}", range.from, range.to)
/// }
/// # let _ = line;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingRange {
    /// The view and the sequence where it begins.
    pub from: (u64, u64),
    /// The view and the sequence behind it.
    pub to: (u64, u64),
}

squall_fabric::debug_as_text!(MergeError);

/// Why logs are not merged.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// There is no log that could take anything, or it cannot be used.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// A folder cannot be read or written.
    #[error(transparent)]
    Folder(#[from] LogFolderError),
    /// A folder that was given has no log.
    #[error("{} has no log of a member: give the folder of another member, or a copy of it", folder.display())]
    NoSource {
        /// The folder.
        folder: PathBuf,
    },
    /// The own folder was given, too.
    #[error(
        "{} is the folder of the member whose log is mended, and is read in any case: give the folders of others, or copies of them",
        folder.display()
    )]
    OwnFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The register cannot be read.
    #[error(
        "the log in {} has no register that can be read, so that nothing shows of which group its records are: merge the others without it, \
         and let its member join with an empty folder",
        folder.display()
    )]
    NoRegister {
        /// The folder.
        folder: PathBuf,
    },
    /// It is of another group.
    #[error(
        "the log in {} is of another group, and logs of two groups are never merged: leave it out",
        folder.display()
    )]
    OtherGroup {
        /// The folder.
        folder: PathBuf,
    },
    /// Its group has other durable subgroups than the configuration.
    #[error(
        "the log in {} is of a group with other durable subgroups than in the configuration: write those that it has, and change them when \
         the group runs again",
        folder.display()
    )]
    OtherSubgroups {
        /// The folder.
        folder: PathBuf,
    },
    /// It knows a later view.
    #[error(
        "the log in {} knows view {view}, and that in {} only view {own_view}: mend the one with the later view, and give the other one \
         with --from",
        folder.display(),
        own.display()
    )]
    LaterView {
        /// The folder.
        folder: PathBuf,
        /// Its view.
        view: u64,
        /// The folder that was to take what it lacks.
        own: PathBuf,
        /// Its view.
        own_view: u64,
    },
    /// They have different histories.
    #[error(
        "the logs in {} and {} have different histories of the group{}: one of them was set back to an older copy, or continued from one. They \
         are never merged: keep both, and leave one of them out; `squall recover` says how far each goes",
        folder.display(),
        other.display(),
        at.as_ref().map(|(subgroup, view, sequence)| {
            format!(", which part at {view}/{sequence} of {subgroup} at the latest")
        }).unwrap_or_default()
    )]
    OtherHistory {
        /// One folder.
        folder: PathBuf,
        /// The other.
        other: PathBuf,
        /// The subgroup, the view and the sequence at which they have different messages; none if their views tell them apart.
        at: Option<(String, u64, u64)>,
    },
    /// It cannot be written.
    #[error(
        "failed to append to the log in {}: {cause}. All that was there is there still: mend the cause, and repeat this",
        folder.display()
    )]
    Write {
        /// The folder.
        folder: PathBuf,
        /// Why.
        cause: AppendError,
    },
    /// What was written is not what is read back.
    #[error(
        "the log in {} is not as it was written: check its disk; all that was there is there still, so copy the folder to another disk, and \
         repeat this",
        folder.display()
    )]
    Unequal {
        /// The folder.
        folder: PathBuf,
    },
    /// A disk reads something once, and not again.
    #[error(
        "a part of the log in {} could be read, and then not again: its disk fails; copy the folder to another disk, and use the copy",
        folder.display()
    )]
    Unreadable {
        /// The folder.
        folder: PathBuf,
    },
}

/// Says what the log of the member that `config` describes would take from the folders of other members, or copies of these, and what would
/// stay missing. Nothing is changed. All logs are read.
///
/// # Errors
/// [`MergeError`], with what to do instead.
pub fn expected_merge(config: &Config, others: &[PathBuf]) -> Result<LogMerge, MergeError> {
    let folder = own_folder(config)?;
    let folders = read_all(&folder, others, config)?;
    Ok(prepare(config, &folders)?.merge)
}

/// Has the log of the member that `config` describes take what it lacks from the folders of other members, or copies of these, and returns
/// what it has taken. The other folders are only read. In the own one nothing is written over but the register, which is kept in `aside` as it
/// was; if this is interrupted it can be done again. The member must not run.
///
/// # Errors
/// [`MergeError`], with what to do instead.
pub fn merge_logs(config: &Config, others: &[PathBuf]) -> Result<LogMerge, MergeError> {
    let folder = own_folder(config)?;
    let direct = config.storage.as_ref().is_none_or(|storage| storage.direct);
    let open = if direct { FileDisk::open } else { FileDisk::open_buffered };
    // From here on no other process changes it.
    let disk = open(&folder).map_err(LogFolderError::from)?;
    let mut folders = read_all(&folder, others, config)?;
    let prepared = prepare(config, &folders)?;
    disk.make_folder("aside").map_err(|error| failed(&folder, error))?;
    writer::carry_out(disk, config, &folders, &prepared.plan)?;
    folders[0] = MergeFolder::read(FileDisk::inspect(&folder), &folder, config)?;
    check_written(config, &folders, &prepared.plan)?;
    Ok(prepared.merge)
}

/// Reads back what a merge has written: nothing more is to be taken.
fn check_written<D: Disk>(
    config: &Config,
    folders: &[MergeFolder<D>],
    plan: &MergePlan,
) -> Result<(), MergeError> {
    let again = prepare(config, folders)?.plan;
    let is_equal = again.steps.is_empty()
        && (&again.register, &again.missing) == (&plan.register, &plan.missing)
        && folders[0].survey.recovered.is_usable();
    if is_equal { Ok(()) } else { Err(MergeError::Unequal { folder: folders[0].folder.clone() }) }
}

/// A merge that has not begun.
struct PreparedMerge {
    plan: MergePlan,
    merge: LogMerge,
}

fn own_folder(config: &Config) -> Result<PathBuf, MergeError> {
    let folder = config.log_folder().filter(|_| !shards(config).is_empty());
    let folder = folder.ok_or(RecoveryError::NotDurable)?;
    if !folder.join("identity").is_file() {
        return Err(RecoveryError::NoLog { folder }.into());
    }
    Ok(folder)
}

/// Reads the own folder and the others, in this order.
fn read_all(
    own: &Path,
    others: &[PathBuf],
    config: &Config,
) -> Result<Vec<MergeFolder<FileDisk>>, MergeError> {
    let same =
        |one: &Path| one.canonicalize().ok().filter(|one| own.canonicalize().ok().as_ref() == Some(one));
    for folder in others {
        if same(folder).is_some() {
            return Err(MergeError::OwnFolder { folder: folder.clone() });
        }
        if !folder.join("identity").is_file() {
            return Err(MergeError::NoSource { folder: folder.clone() });
        }
    }
    let all = [own].into_iter().chain(others.iter().map(PathBuf::as_path));
    all.map(|folder| MergeFolder::read(FileDisk::inspect(folder), folder, config)).collect()
}

/// Decides what the first of these folders takes from the others.
fn prepare<D: Disk>(config: &Config, folders: &[MergeFolder<D>]) -> Result<PreparedMerge, MergeError> {
    let shards = shards(config);
    let ids: Vec<SubgroupId> = shards.values().copied().collect();
    let own = &folders[0];
    if own.is_copy {
        return Err(failed(&own.folder, StorageError::Backup));
    }
    let target = own.target(config, &ids)?;
    let others: Vec<LogPieces> = folders[1..].iter().map(|folder| folder.pieces(&ids)).collect();
    let plan = plan_merge(&target, &others).map_err(|conflict| refused(conflict, folders))?;
    check_contents(&shards, folders, &plan)?;
    let mut subgroups = BTreeMap::new();
    for (shard, (name, id)) in shards.iter().enumerate() {
        let view = own.register.view();
        if !view.has_shard(own.register.node, shard) {
            continue;
        }
        let mut merge = SubgroupMerge::default();
        for step in &plan.steps {
            merge.taken.extend(taken(folders, shard, *id, step)?);
        }
        let missing = plan.missing.iter().filter(|part| part.shard == shard);
        let position = |at: LogStart| (at.view, at.sequence);
        let range = |part: &MissingPart| MissingRange { from: position(part.from), to: position(part.to) };
        merge.missing.extend(missing.map(range));
        subgroups.insert(name.clone(), merge);
    }
    let others = folders[1..].iter().map(|folder| MergedFolder {
        folder: folder.folder.clone(),
        node: folder.register.node,
        view: folder.register.view().number,
        is_damaged: folder.is_damaged(),
        is_end_known: folder.survey.is_end_known && !folder.is_copy,
    });
    let merge = LogMerge {
        folder: own.folder.clone(),
        view: own.register.view().number,
        node: own.register.node,
        was_damaged: own.is_damaged(),
        is_whole: plan.is_whole,
        is_end_known: target.is_end_known,
        others: others.collect(),
        subgroups,
    };
    Ok(PreparedMerge { plan, merge })
}

/// What a step takes of a shard.
fn taken<D: Disk>(
    folders: &[MergeFolder<D>],
    of_shard: usize,
    id: SubgroupId,
    step: &MergeStep,
) -> Result<Option<TakenPart>, MergeError> {
    Ok(match *step {
        MergeStep::Checkpoint { source, shard, start } if shard == of_shard => Some(TakenPart {
            folder: folders[source].folder.clone(),
            view: start.view,
            from: 0,
            to: start.sequence,
            messages: 0,
            is_checkpoint: true,
        }),
        MergeStep::Records { source, shard, view, from, to } if shard == of_shard => {
            let (folder, mut messages) = (&folders[source], 0);
            folder.messages(id, view, from..to, &mut |_| messages += 1)?;
            Some(TakenPart { folder: folder.folder.clone(), view, from, to, messages, is_checkpoint: false })
        }
        _ => None,
    })
}

/// Compares what counts of all views that the list of ended views has, and of the present one.
fn check_contents<D: Disk>(
    shards: &BTreeMap<String, SubgroupId>,
    folders: &[MergeFolder<D>],
    plan: &MergePlan,
) -> Result<(), MergeError> {
    let record = &plan.register.record;
    for (shard, (name, id)) in shards.iter().enumerate() {
        let ended = record.chain.of_shard(shard);
        for (view, limit) in ended.chain([(record.view.number, u64::MAX)]) {
            let end = folders.iter().map(|folder| folder.end(*id, view)).max().unwrap_or(0).min(limit);
            if let Some(different) = difference(folders, *id, view, end)? {
                let [folder, other] = different.sources.map(|source| folders[source].folder.clone());
                let at = Some((name.clone(), different.at.view, different.at.sequence));
                return Err(MergeError::OtherHistory { folder, other, at });
            }
        }
    }
    Ok(())
}

fn refused<D: Disk>(conflict: MergeConflict, folders: &[MergeFolder<D>]) -> MergeError {
    let folder = |source: usize| folders[source].folder.clone();
    let own_view = folders[0].register.view().number;
    match conflict {
        MergeConflict::NoMember => RecoveryError::Removed { folder: folder(0), view: own_view }.into(),
        MergeConflict::OtherGroup { source } => MergeError::OtherGroup { folder: folder(source) },
        MergeConflict::OtherShards { source } => MergeError::OtherSubgroups { folder: folder(source) },
        MergeConflict::LaterView { source, view } => {
            MergeError::LaterView { folder: folder(source), view, own: folder(0), own_view }
        }
        MergeConflict::OtherHistory { source, other } => {
            MergeError::OtherHistory { folder: folder(other), other: folder(source), at: None }
        }
    }
}

fn failed(folder: &Path, cause: impl Into<StorageError>) -> MergeError {
    LogFolderError::Storage { folder: folder.into(), cause: Box::new(cause.into()) }.into()
}
