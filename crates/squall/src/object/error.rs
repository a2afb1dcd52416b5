//! What can go wrong with a replicated object, and what to do next.

use squall_fabric::NodeId;

use crate::error::GroupError;

/// Why an update or a query has no reply.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The update is in no state and never will be.
    #[error("the update was not delivered, because this member has left the shard: send it again")]
    NotDelivered,
    /// Nobody knows here whether the update is applied.
    #[error("it is not known whether the update was applied: ask for its effect before sending it again")]
    Unknown,
    /// All members that held the state of the shard are gone.
    #[error(
        "the state of shard {shard} is lost: all members that held it have died or were cut off ({}); raise `replicas`, \
        and let members leave in order",
        listed(.holders)
    )]
    StateLost {
        /// Which shard.
        shard: usize,
        /// The members that held it last, as far as the member knows that says so.
        holders: Vec<NodeId>,
    },
    /// No member was found in time that takes it.
    #[error("no member answers for shard {shard}: {cause}; look whether its members run, or wait longer")]
    Unreachable {
        /// Which shard.
        shard: usize,
        /// What the last one said.
        cause: String,
    },
    /// The update is longer than a message may be.
    #[error(
        "an update of {bytes} bytes is above what message_max allows ({bytes_max}): raise it in the configuration"
    )]
    TooLong {
        /// The update's bytes.
        bytes: usize,
        /// The longest update in bytes.
        bytes_max: usize,
    },
    /// The update was applied, but its reply is longer than members keep for those who are not in the shard: clients, and
    /// members that are elsewhere.
    #[error(
        "the update is applied, but its reply of {bytes} bytes is above what members keep for a client ({bytes_max}): \
        reply with less, and ask for the rest by a query"
    )]
    ReplyTooLong {
        /// The reply's bytes.
        bytes: u64,
        /// The longest reply in bytes.
        bytes_max: u64,
    },
    /// An update, query or reply cannot be written or read.
    #[error("an update, a query or a reply cannot be read: use the same types at all members ({0})")]
    Form(String),
    /// The thread that applies updates has ended, as the object's own code has panicked.
    #[error("the object has stopped here, because its code has panicked: look at the log")]
    Stopped,
    /// The group has ended here.
    #[error(transparent)]
    Group(#[from] GroupError),
}

fn listed(nodes: &[NodeId]) -> String {
    match nodes {
        [] => "before this member came".into(),
        nodes => nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl From<postcard::Error> for ObjectError {
    fn from(error: postcard::Error) -> Self {
        Self::Form(error.to_string())
    }
}
