//! Why the folder of a member's log cannot be used.

use std::path::PathBuf;

use squall_log::{FolderError, StorageError};
use squall_protocols::restart::RegisterError;

squall_fabric::debug_as_text!(LogFolderError);

/// Why the folder of a member's log cannot be used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LogFolderError {
    /// It cannot be made or locked.
    #[error("cannot keep a log: {0}")]
    Folder(FolderError),
    /// What is in it cannot be used.
    #[error("cannot keep a log in {}: {cause}", folder.display())]
    Storage {
        /// The folder.
        folder: PathBuf,
        /// Why.
        cause: Box<StorageError>,
    },
    /// The register cannot be read.
    #[error("cannot keep a log in {}: the register is unreadable: {cause}", folder.display())]
    Register {
        /// The folder.
        folder: PathBuf,
        /// Why.
        cause: RegisterError,
    },
    /// The end of the log is damaged, and its register does not say of which view.
    #[error(
        "the log in {} is damaged behind its record {records}, and its register knows no view in which other members could repair it: \
         see `squall log verify`; move the folder away to keep it, or remove it, and the member joins with an empty log",
        folder.display()
    )]
    Damaged {
        /// The folder.
        folder: PathBuf,
        /// How many records are good.
        records: u64,
    },
    /// It has records of an earlier run, and no register by which its group could restart.
    #[error(
        "{} has the log of an earlier run, with {records} records, and its register knows no view from which the group could restart: \
         move the folder away to keep them, or remove it; then start again",
        folder.display()
    )]
    EarlierRun {
        /// The folder.
        folder: PathBuf,
        /// How many records it has.
        records: u64,
    },
    /// What was removed from the log is in no checkpoint that can be read.
    #[error(
        "the log in {} lacks what its checkpoints of subgroup {subgroup} had, and none of them can be read{}: take one from the \
         folder of another member (`squall recover --from`); or move the folder away to keep the rest, and the member joins with an empty log",
        folder.display(),
        if *had_state { ". They had states, of an object, although `retain.automatic` is set for the subgroup" } else { "" }
    )]
    CheckpointsLost {
        /// The folder.
        folder: PathBuf,
        /// The subgroup.
        subgroup: String,
        /// Whether it is one whose messages are discarded by themselves
        /// ([`Retention::automatic`](crate::config::Retention::automatic)), and whose checkpoints have states nevertheless. A mark
        /// without a state would have been made again.
        had_state: bool,
    },
    /// A release that did not note the names of subgroups has written it, with other durable subgroups.
    #[error(
        "an earlier release has written the log in {}, with other durable subgroups than in the configuration: start the group once with the \
         same subgroups as before, and change them then",
        folder.display()
    )]
    OtherSubgroups {
        /// The folder.
        folder: PathBuf,
    },
    /// It has durable subgroups that the configuration does not have.
    #[error(
        "the log in {} has what was sent in the durable subgroups {}, and the configuration has no such ones: write them as before; or, to give \
         up all that is in them, write `removed = [{}]` in [storage] of all members",
        folder.display(),
        names.join(", "),
        names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
    )]
    RemovedSubgroups {
        /// The folder.
        folder: PathBuf,
        /// The names of the subgroups.
        names: Vec<String>,
    },
    /// Its member has taken part in a restart with other durable subgroups, and does not know how that has ended.
    #[error(
        "the member with the log in {} has voted in a restart of its group with other durable subgroups, and the group may have restarted with \
         these: start it with the durable subgroups {} and no others until the group runs, and change them then. If the group runs with others \
         already, move the folder away, and the member joins with an empty log",
        folder.display(),
        names.join(", ")
    )]
    ChangingSubgroups {
        /// The folder.
        folder: PathBuf,
        /// The names of the subgroups of that restart.
        names: Vec<String>,
    },
    /// Its group has continued from an older copy of a folder, this one or another.
    #[error(
        "the log in {} and that of the process at {other} have different histories of the group, up to view {view} here: one of the two folders, \
         or those from which its group has continued, were set back to an older copy. Keep both; `squall recover` says how far each goes. Move the \
         folder that is given up away, and start its member with an empty one",
        folder.display()
    )]
    OtherHistory {
        /// The folder.
        folder: PathBuf,
        /// The last view that its log knows.
        view: u64,
        /// Where the other process listens.
        other: String,
    },
    /// It has no log, and others beside it have logs of this cluster.
    #[error(
        "the folder {} has no log, so that this member would begin a new group, and beside it there are logs of this cluster that no running \
         process uses: {}. A folder is named by the member's rank, or by its address. If that has changed, write the name that the folder has as \
         `folder` in [storage]; to begin a new group nevertheless, write `begin = \"new\"` there, or move those folders away",
        folder.display(),
        others.iter().map(|other| other.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Beside {
        /// The member's own folder.
        folder: PathBuf,
        /// The others.
        others: Vec<PathBuf>,
    },
    /// It has no log, and the configuration says that it begins no group.
    #[error(
        "the folder {} has no log, and `begin = \"never\"` in [storage] says that this member begins no group: if the log should be there, see \
         whether its volume is mounted; else start the members that have their logs first, or write `begin = \"auto\"`",
        folder.display()
    )]
    Empty {
        /// The member's own folder.
        folder: PathBuf,
    },
    /// It has the log of another group of the same name, which has ended.
    #[error(
        "{} has the log of an earlier group of this cluster, with {records} records, and this group has begun after it: move the folder \
         away to keep them, or remove it; then start again",
        folder.display()
    )]
    OtherGroup {
        /// The folder.
        folder: PathBuf,
        /// How many records it has.
        records: u64,
    },
}

impl From<FolderError> for LogFolderError {
    fn from(cause: FolderError) -> Self {
        Self::Folder(cause)
    }
}
