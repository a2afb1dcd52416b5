//! How a subgroup fails at one member (Derecho §3.4).

use std::fmt;

use squall_fabric::window::CorruptRecord;

/// Why a subgroup has stopped. Nothing wrong was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubgroupFailure {
    /// Memory violates the protocol [O6].
    Corrupt(CorruptMemory),
    /// The indexes of this view are used up, or a member claims that they are.
    Exhausted,
}

impl fmt::Display for SubgroupFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(corrupt) => write!(f, "{corrupt}; delivery has stopped before it: join again"),
            Self::Exhausted => f.write_str("the message numbers of this view are used up: start a new view"),
        }
    }
}

impl std::error::Error for SubgroupFailure {}

/// Memory that violates the protocol: the transport, the memory or a member is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorruptMemory {
    /// A record is not the one that was announced.
    Record {
        /// The sender's rank among the members.
        member: usize,
        /// What was found.
        record: CorruptRecord,
    },
    /// An announcement decreased [S1].
    Announcement {
        /// The sender's rank among the members.
        member: usize,
        /// The index that had been announced before.
        index: u64,
    },
}

impl fmt::Display for CorruptMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record { member, record } => write!(f, "messages of member {member}: {record}"),
            Self::Announcement { member, index } => {
                write!(f, "member {member} took back its announcement of index {index}")
            }
        }
    }
}

impl std::error::Error for CorruptMemory {}
