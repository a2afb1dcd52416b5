//! What can go wrong for an external client; each message says what to do next.

use std::time::Duration;

/// Why an external client cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalError {
    /// The configuration has no such subgroup.
    #[error("the configuration has no subgroup `{subgroup}`: it has {known}")]
    UnknownSubgroup {
        /// The name that was asked for.
        subgroup: String,
        /// The names that there are, for people.
        known: String,
    },
    /// No member serves this client.
    #[error(
        "no member serves clients of `{subgroup}` (tried for {:.1} s): {cause}; look whether the group runs \
         (squall status), and at `contacts`",
        .tried_for.as_secs_f64()
    )]
    Unserved {
        /// The subgroup.
        subgroup: String,
        /// For how long members were tried.
        tried_for: Duration,
        /// What the last one answered.
        cause: String,
    },
    /// The member cannot say what has become of messages.
    #[error("the member that took them is gone, or has ended: {cause}")]
    MemberLost {
        /// What has happened to the connection.
        cause: String,
    },
    /// The message is longer than the subgroup allows.
    #[error(
        "a message of {length} bytes is above the longest ({message_max}): raise message_max or large_max in the configuration"
    )]
    TooLong {
        /// The message's bytes.
        length: usize,
        /// The longest message in bytes.
        message_max: usize,
    },
}

/// Why not all messages were published, and what has become of them: of those that were given, the first `delivered` are
/// delivered by all members, the next `unknown` may be, and the rest is not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{delivered} messages are delivered, of {unknown} more it is unknown: {cause}")]
#[non_exhaustive]
pub struct PublishError {
    /// Messages that all members have delivered.
    pub delivered: usize,
    /// Messages behind these that may be delivered or not.
    pub unknown: usize,
    /// What happened.
    pub cause: ExternalError,
}
