//! Why a member's part in genuine multicast ends (RamCast §3.4).

use std::fmt;

use squall_fabric::NodeId;
use squall_fabric::window::CorruptRecord;

use super::log::CorruptTimestamp;

/// Why a member cannot continue: the memory or the transport is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenuineFailure {
    /// A record is not what its place requires.
    Record(CorruptRecord),
    /// An entry of a log is not what its place requires.
    Timestamp(CorruptTimestamp),
    /// What a member sent of the shard's log, which this one lacked, is none.
    Relay {
        /// The member.
        provider: NodeId,
    },
    /// What the trims hold is not all here, though this member has acknowledged it.
    Incomplete {
        /// The sender.
        sender: NodeId,
        /// The number of the message.
        number: u64,
    },
}

impl fmt::Display for GenuineFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(corrupt) => corrupt.fmt(f),
            Self::Timestamp(CorruptTimestamp { shard, entry }) => {
                write!(
                    f,
                    "entry {entry} of the leader of shard {shard} has no later timestamp than the one before"
                )
            }
            Self::Relay { provider } => {
                write!(f, "the part of the log that {provider} has sent cannot be read")
            }
            Self::Incomplete { sender, number } => {
                write!(f, "message {number} of {sender} is within the trim and not all here")
            }
        }
    }
}

impl std::error::Error for GenuineFailure {}
