//! The work of members that join and leave, and the objects that they have.

use serde::{Deserialize, Serialize};

/// Every member sends without end, while others die, stop and join; each keeps account of what it delivers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChurnJob {
    /// The number of the member's process among all of the run, from 1 on: two on different hosts may have the same process number there.
    pub(crate) process: u32,
    /// Bytes of a message, at least [`ChurnJob::SIZE_MIN`].
    pub(crate) size: usize,
    /// Messages per second of each member; without a limit if none.
    pub(crate) pace: Option<u32>,
    /// Silence after which a member is suspected.
    pub(crate) suspicion_ms: u64,
    /// Whether a majority is needed to continue.
    pub(crate) majority: bool,
    /// The file for the account.
    pub(crate) account: Option<std::path::PathBuf>,
    /// The folder, of the member's own, for the log of the messages, which are durable then.
    #[serde(default)]
    pub(crate) storage: Option<std::path::PathBuf>,
    /// The process whose log it continues, if that is there; itself, if it begins one.
    #[serde(default)]
    pub(crate) log_of: u32,
    /// A replicated object besides; then the group has a polling thread of its own.
    #[serde(default)]
    pub(crate) store: Option<StoreJob>,
}

/// A process that is no member uses the members' object, and reports what it asks and is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClientJob {
    /// The number of the process among all of the run, those of members included.
    pub(crate) process: u32,
    /// The object.
    pub(crate) store: StoreJob,
}

/// A replicated object of the members, which others update.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoreJob {
    /// At how many members each of its shards is; 0: at all.
    pub(crate) replicas: usize,
    /// How long the state of a shard takes to travel.
    pub(crate) transfer_ms: u64,
    /// Members use it, too, and report what they ask and are answered.
    #[serde(default)]
    pub(crate) has_clients: bool,
    /// Beside it there is an object in shards of which each member has one, and members carry out transactions on that.
    #[serde(default)]
    pub(crate) has_transactions: bool,
}

impl ChurnJob {
    /// The sender's number and the message's.
    pub(crate) const SIZE_MIN: usize = 16;
}
