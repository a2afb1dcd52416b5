//! What processes that restart send each other, as questions of [`crate::operate::inquiry`] and their answers (Derecho §3.4, "Total failures").

use serde::{Deserialize, Serialize};
use squall_transports::bootstrap::BootstrapError;

use crate::durable::StoredRecord;

/// Whether a process has answered a call that has failed: it may be a member that this process does not understand.
pub(crate) const fn is_heard(error: &BootstrapError) -> bool {
    matches!(
        error,
        BootstrapError::SecretRefused { .. }
            | BootstrapError::OtherVersion { .. }
            | BootstrapError::OtherUser { .. }
            | BootstrapError::Refused { .. }
            | BootstrapError::Denied { .. }
            | BootstrapError::Protocol { .. }
    )
}

/// A process of a group that is down, or a member of one that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RestartProcess {
    /// Its number as a node.
    pub(crate) node: u32,
    /// How often it has started: what is known of a later start counts.
    pub(crate) starts: u64,
    /// Its rank in the configuration.
    pub(crate) rank: u64,
    /// The address at which it listens.
    pub(crate) address: String,
}

/// What a process has for another one, which answers in kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RestartCall {
    /// The number of its group.
    pub(crate) group: u64,
    /// A digest of its durable subgroups.
    pub(crate) layout: u64,
    /// The process.
    pub(crate) sender: RestartProcess,
    /// Others of which it knows.
    pub(crate) others: Vec<RestartProcess>,
    /// Messages of the core ([`squall_protocols::restart::RestartMessage::encode`]).
    pub(crate) messages: Vec<Vec<u8>>,
}

/// The answer to a [`RestartCall`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RestartAnswer {
    /// The other side's own.
    Heard(Box<RestartCall>),
    /// The process is of another group of this cluster, which runs (`true`) or is down.
    OtherGroup(bool),
    /// The process has other durable subgroups.
    OtherSubgroups,
}

/// A request for records of a view that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FetchCall {
    /// The number of the group.
    pub(crate) group: u64,
    /// The place of the subgroup among the durable ones.
    pub(crate) shard: u32,
    /// The view.
    pub(crate) view: u64,
    /// The first sequence.
    pub(crate) from: u64,
    /// One more than the last.
    pub(crate) to: u64,
    /// How many bytes of the first record are here already.
    pub(crate) skip: u64,
    /// Else a part of a checkpoint.
    pub(crate) checkpoint: Option<CheckpointPart>,
}

/// A part of a checkpoint of a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointPart {
    /// The view of its position.
    pub(crate) view: u64,
    /// The sequence.
    pub(crate) sequence: u64,
    /// The first block.
    pub(crate) block: u32,
}

/// The answer to a [`FetchCall`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FetchReply {
    /// The process has none of it.
    Nothing,
    /// How the views before have ended, which the asker has to know first: a message of the core.
    Views(Vec<u8>),
    /// Records: with them the asker has everything below `count`.
    Records {
        /// Everything below is known.
        count: u64,
        /// In the order of their sequences.
        records: Vec<StoredRecord>,
        /// How many bytes of the last record follow, which is not counted then.
        rest: u64,
    },
    /// A part of a checkpoint, which takes the place of what was asked for.
    Checkpoint {
        /// Which part.
        part: CheckpointPart,
        /// What is in the blocks. None if it is a mark, which has no state.
        blocks: Vec<Vec<u8>>,
        /// Whether the last one is the last of the checkpoint.
        is_last: bool,
    },
}

/// How many bytes of records go into one answer.
pub(crate) const FETCH_BYTES_MAX: usize = 256 << 10;
/// A record's part of an answer without its bytes, at most.
pub(crate) const RECORD_OVERHEAD: usize = 40;
/// The longest block of a checkpoint.
pub(crate) const CHECKPOINT_BLOCK_MAX: usize = 64 << 10;
