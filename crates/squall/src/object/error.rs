//! Errors of replicated objects; each message says what to do next.

use squall_fabric::NodeId;

use crate::error::GroupError;

squall_fabric::debug_as_text!(ObjectError);

/// Why an update or a query has no reply.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::object::{Replicated, Snapshot, restored};
/// # use squall::{Config, Group};
/// use squall::object::ObjectError;
/// # #[derive(Default)]
/// # struct Count(u64);
/// # impl Replicated for Count {
/// #     type Update = u64;
/// #     type Query = ();
/// #     type Reply = u64;
/// #     fn apply(&mut self, more: u64) -> u64 { self.0 += more; self.0 }
/// #     fn query(&self, (): ()) -> u64 { self.0 }
/// #     fn snapshot(&self) -> Snapshot { Snapshot::of(self.0) }
/// #     fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> { restored(source).map(Self) }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-object-error-{}", std::process::id()), 1).subgroup("count", SubgroupConfig::default());
/// # let mut group = Group::join(config.clone())?;
/// let count = group.object("count", Count::default)?;
/// match count.update(b"key", &1)?.wait() {
///     Ok(reply) => println!("{reply}"),
///     Err(ObjectError::NotDelivered) => println!("it was not applied: make it again"),
///     Err(ObjectError::Unknown) => println!("it may have been applied: query first"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The update is in no state and never will be.
    #[error("the update was not delivered, because this member has left the shard: send it again")]
    NotDelivered,
    /// It is not known here whether the update was applied.
    #[error("it is not known whether the update was applied: query its effect before sending it again")]
    Unknown,
    /// All members that held the state of the shard are gone.
    #[error(
        "the state of shard {shard} is lost: all members that held it have died or were cut off ({}); raise `replicas`, \
        or name more members for a shard of [genuine], and let members leave in order",
        listed(.holders)
    )]
    StateLost {
        /// The shard's number.
        shard: usize,
        /// The members that held it last, as far as the reporting member knows.
        holders: Vec<NodeId>,
    },
    /// No member that takes it was found in time.
    #[error("no member answers for shard {shard}: {cause}; check that its members run, or wait longer")]
    Unreachable {
        /// The shard's number.
        shard: usize,
        /// The last member's answer or error.
        cause: String,
    },
    /// The update is longer than a message may be.
    #[error(
        "an update of {bytes} bytes is longer than message_max allows ({bytes_max}): raise it in the configuration"
    )]
    TooLong {
        /// The update's bytes.
        bytes: usize,
        /// The length of the longest update in bytes.
        bytes_max: usize,
    },
    /// The update was applied, but its reply is longer than members keep for callers that are not in the shard:
    /// clients, and members outside the shard.
    #[error(
        "the update was applied, but its reply of {bytes} bytes is longer than members keep for a client ({bytes_max}): \
        make the reply shorter, and get the rest by a query"
    )]
    ReplyTooLong {
        /// The reply's bytes.
        bytes: u64,
        /// The length of the longest reply in bytes.
        bytes_max: u64,
    },
    /// No reply of this object says that an update is on disks.
    #[error(
        "the object keeps no log, so a reply does not mean that the update is on disks: write mode = \"durable\" in its \
        subgroup, at all members"
    )]
    NotDurable,
    /// An update, query or reply cannot be written or read.
    #[error("an update, a query or a reply cannot be read: use the same types at all members ({0})")]
    Form(String),
    /// The thread that applies updates has ended, because the object's own code panicked.
    #[error("the object has stopped at this member, because its code panicked: see the log")]
    Stopped,
    /// The group has ended here.
    #[error(transparent)]
    Group(#[from] GroupError),
}

fn listed(nodes: &[NodeId]) -> String {
    match nodes {
        [] => "before this member joined".into(),
        nodes => nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl From<postcard::Error> for ObjectError {
    fn from(error: postcard::Error) -> Self {
        Self::Form(error.to_string())
    }
}
