//! Errors of groups, in terms of their users; each message says what to do next.

use std::path::Path;
use std::time::Duration;

use squall_fabric::Shortage;
use squall_log::AppendError;
use squall_protocols::genuine::GenuineFailure;
use squall_protocols::membership::StopReason;
use squall_protocols::multicast::{SubgroupFailure, SubgroupSettingsError};
use squall_transports::bootstrap::{Address, BootstrapError};
use squall_transports::composite::CompositeError;
use squall_transports::shm::ShmUnavailable;
use squall_transports::verbs::VerbsError;

use crate::config::ConfigError;

mod history;
mod log_folder;
mod replay;

pub use history::HistoryError;
pub use log_folder::LogFolderError;
pub use replay::ReplayError;

squall_fabric::debug_as_text!(GroupError, JoinError, HandleError, SendError, ReceiveError, ValueError);

/// Why a group cannot be joined or has ended.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// use squall::GroupError;
///
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-group-error-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let mut deliveries = group.subgroup("log")?.deliveries()?;
/// assert!(group.failure().is_none()); // it runs
/// group.leave(std::time::Duration::from_secs(10));
/// let squall::ReceiveError::Group(error) = deliveries.next().unwrap_err() else { unreachable!() };
/// assert!(matches!(error, GroupError::Left));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// This member cannot continue. All members that continue deliver everything that it has delivered; messages that
    /// it had in flight may be lost.
    #[error(transparent)]
    Stopped(StopReason),
    /// A subgroup has stopped.
    #[error("subgroup `{subgroup}`: {failure}")]
    Subgroup {
        /// The subgroup's name.
        subgroup: String,
        /// Why.
        failure: SubgroupFailure,
    },
    /// The others have continued without this member, because it took no messages and so held them up.
    #[error(
        "excluded: this member's consumer of subgroup `{subgroup}` took no message for {:.1} s and held up the others \
         (slow_after_ms = {}): take messages faster, raise slow_after_ms, or write slow_consumer = \"wait\"; then \
         join again",
        .stood_still.as_secs_f64(), .slow_after.as_millis()
    )]
    Slow {
        /// The subgroup's name.
        subgroup: String,
        /// For how long it has taken nothing, although there were messages.
        stood_still: Duration,
        /// The time that the configuration allows.
        slow_after: Duration,
    },
    /// The shards of genuine multicast have stopped: the memory or the transport is at fault.
    #[error(
        "this member has left the group, since its part in messages to shards cannot continue: {0}; check this host and the transport, then \
         join again"
    )]
    Genuine(GenuineFailure),
    /// The object in the shards cannot continue at this member, which has left the group; the others continue without it.
    #[error(
        "this member has left the group, since the object in its shards cannot continue: {cause}; mend that, then join again"
    )]
    Object {
        /// Why.
        cause: String,
    },
    /// This handle has left the group.
    #[error("this member has left the group")]
    Left,
    /// The system has no memory or descriptors for a view: this member has left the group, and the others continue.
    #[error("this member has left the group, because it cannot continue: {0}")]
    Shortage(Shortage),
    /// The disk of this member is full or has failed, so that it cannot keep its log: it has left the group, and the others
    /// continue. What it had in flight may be lost; what was delivered is on the disks of the others.
    #[error(
        "this member has left the group, because its log in {} has ended: {cause}. The others continue without it",
        folder.display()
    )]
    Log {
        /// The folder of its log.
        folder: Box<Path>,
        /// Which operation on which file has failed, and why.
        cause: Box<AppendError>,
    },
}

/// Why [`crate::Group::join`] failed.
///
/// ```
/// use squall::{Config, Group, JoinError};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::local(&format!("doc-join-error-{}", std::process::id()), 1); // no subgroups
/// match Group::builder(config).on_message("log", |_| ()).join() {
///     Err(JoinError::UnknownSubgroup(name)) => assert_eq!(name, "log"),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The members did not find or trust each other.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// A subgroup's settings do not fit the group.
    #[error("subgroup `{subgroup}`: {error}")]
    Settings {
        /// The subgroup's name.
        subgroup: String,
        /// What is wrong.
        error: SubgroupSettingsError,
    },
    /// The file for the flight record cannot be opened.
    #[error("failed to open {} for this member's flight record: {cause}; correct `flight_record`", file.display())]
    FlightRecord {
        /// The file.
        file: Box<Path>,
        /// Why.
        cause: std::io::Error,
    },
    /// An upcall was given for a subgroup that the configuration does not have.
    #[error("there is no subgroup `{0}` in the configuration")]
    UnknownSubgroup(String),
    /// An upcall was given for a subgroup that is divided into shards.
    #[error(
        "`{0}` is divided into shards, whose messages are the updates of an object: open that with `Group::object`, and give no upcall"
    )]
    DividedSubgroup(String),
    /// An upcall was given for messages to shards, and the configuration has none.
    #[error(
        "there are no shards for `Builder::on_multicast`: add tables [genuine.shards.NAME] to the configuration"
    )]
    NoShards,
    /// A durable subgroup was given a layout of its own.
    #[error(
        "subgroup `{0}` is durable, and its members are those that the configuration names, by which the group restarts from its logs: \
         do not give it to `Builder::place`"
    )]
    PlacedDurable(String),
    /// The transport could not be set up.
    #[error("cannot set up the transport: {0}")]
    Transport(std::io::Error),
    /// `transport = "shm"` is configured, and this process cannot share memory.
    #[error(transparent)]
    SharedMemory(#[from] ShmUnavailable),
    /// The members did not agree on how to reach each other.
    #[error(transparent)]
    Transports(#[from] CompositeError),
    /// RDMA cannot be used here.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The system has no memory or descriptors for the group's windows.
    #[error(transparent)]
    Shortage(#[from] Shortage),
    /// The address for metrics cannot be used.
    #[error(
        "cannot show metrics at {address}: {cause}; write another `listen` in [metrics], or leave that out"
    )]
    Metrics {
        /// The address.
        address: Address,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The folder of the log cannot be used.
    #[error(transparent)]
    Log(#[from] LogFolderError),
    /// The group ended before it began.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Too few members of the last view are here for the group to restart from their logs.
    #[error(
        "the group has not restarted from its logs within {seconds} s: {present} of the {members} members of its last view ({view}) are \
         here, and {needed} are needed, with two logs of each durable subgroup{silent}{obstacle}. {advice}"
    )]
    Restart {
        /// The time waited, in seconds.
        seconds: u64,
        /// The number of the last view.
        view: u64,
        /// How many of its members are here.
        present: usize,
        /// How many members it has.
        members: usize,
        /// How many have to be here.
        needed: usize,
        /// The contacts that do not take part, each with the reason.
        silent: String,
        /// What else is in the way.
        obstacle: &'static str,
        /// What to do next.
        advice: &'static str,
    },
    /// The leader has admitted this process with a token that it cannot read.
    #[error("the group's leader runs another version: run the same release at all members")]
    Token,
    /// The leader has admitted this process, but no view has included it, nor at further attempts.
    #[error(
        "admitted to the group, but no view included this process within {seconds} s: see the leader's log, or raise `timeouts.join`"
    )]
    NoView {
        /// The time waited, in seconds.
        seconds: u64,
    },
    /// The members found each other, but not all of them began in time.
    #[error(
        "the group did not begin within {seconds} s, because not all members have attached: see their logs"
    )]
    NotReady {
        /// The time waited, in seconds.
        seconds: u64,
    },
}

impl From<std::io::Error> for JoinError {
    fn from(cause: std::io::Error) -> Self {
        Self::Transport(cause)
    }
}

/// Why a handle of a subgroup is not available.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// use squall::HandleError;
///
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-handle-error-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// assert!(matches!(group.subgroup("lag"), Err(HandleError::UnknownSubgroup(name)) if name == "lag"));
/// let log = group.subgroup("log")?;
/// let _sender = log.sender()?;
/// assert!(matches!(log.sender(), Err(HandleError::Taken { .. }))); // there is one for each member
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// No such subgroup.
    #[error("this member is in no subgroup `{0}`: check [subgroups] in the configuration")]
    UnknownSubgroup(String),
    /// The group has no shards.
    #[error("the group has no shards: add tables [genuine.shards.NAME] to the configuration")]
    NoShards,
    /// The shards have no object.
    #[error("the group's shards have no object: write `object = true` in [genuine], at all members")]
    NoShardedObject,
    /// Messages to shards are updates of the object in them.
    #[error(
        "the group's shards hold an object, so messages to them are its updates: make them with what `sharded_object` returns"
    )]
    ShardsHoldObject,
    /// The sending end for messages to shards was given out before.
    #[error("the sender of messages to shards has been taken already: there is one for each member")]
    MulticastTaken,
    /// This member is not among the senders.
    #[error("this member is not a sender of `{0}`: add its rank to `senders`")]
    NotASender(String),
    /// The handle was given out before.
    #[error("the {what} of `{subgroup}` has been taken already: there is one for each member")]
    Taken {
        /// "sender" or "deliveries".
        what: &'static str,
        /// The subgroup's name.
        subgroup: String,
    },
    /// Only durable subgroups have a log.
    #[error("`{0}` keeps no log: write `mode = \"durable\"`")]
    NoLog(String),
    /// Objects need the total order.
    #[error(
        "`{0}` cannot carry an object: write `mode = \"atomic\"`, or `mode = \"durable\"` if its state is to survive the end of all members"
    )]
    Mode(String),
    /// Updates of an object cannot be discarded: its state is made of them.
    #[error("`{0}` discards its messages, of which an object's state is made: remove `retain.automatic`")]
    Discards(String),
    /// The member cannot listen for requests.
    #[error("this member cannot serve its objects to other processes: {cause}")]
    Service {
        /// Why.
        cause: String,
    },
    /// No contact answers.
    #[error("no contact answers: {cause}; check that the group runs, and check `contacts`")]
    Contact {
        /// The error of the last contact.
        cause: String,
    },
    /// The messages are delivered to an upcall.
    #[error(
        "messages of `{0}` are delivered to the upcall that was given to the builder: use that, or give none"
    )]
    Upcall(String),
}

/// Why a message was not sent.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// use squall::SendError;
///
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-send-error-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let mut sender = group.subgroup("log")?.sender()?;
/// match sender.send_bytes(b"hello") {
///     Ok(()) => {}
///     Err(error) if error.is_passing() => println!("later: {error}"),
///     Err(SendError::TooLong { message_max, .. }) => println!("{message_max} bytes are the most"),
///     Err(error) => return Err(error.into()), // the group has ended here
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The window is full: members have yet to deliver older messages.
    #[error("the window is full: members have yet to deliver older messages; wait, or send again later")]
    Full,
    /// The view is changing, because a member joins, leaves or has failed. Nothing is lost; messages sent before are
    /// sent first.
    #[error(
        "the view is changing, because a member joins, leaves or has failed: send again in some milliseconds, or use \
         send_blocking, which waits"
    )]
    ViewChanging,
    /// The disk of this member's log is nearly full, so that the subgroup takes no new messages here. What was sent before is delivered.
    #[error(
        "the disk of this member's log is nearly full, so that it takes no new messages of durable subgroups: free space on it, and send again; \
         what is there can be read"
    )]
    DiskFull,
    /// This member is not in the subgroup in the current view.
    #[error(
        "this member is not in the subgroup in the current view: send again in a view that includes it, or use \
         send_blocking, which waits"
    )]
    Absent,
    /// No such shard.
    #[error("there is no shard `{0}`: check [genuine.shards] in the configuration")]
    UnknownShard(String),
    /// A message to shards names none.
    #[error("the message is for no shard: name at least one")]
    NoShard,
    /// The sending end for messages to shards is not here.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// The message is longer than the subgroup allows.
    #[error(
        "a message of {length} bytes is longer than the limit ({message_max}): raise message_max in the configuration, or large_max, which subgroups have"
    )]
    TooLong {
        /// The message's bytes.
        length: usize,
        /// The longest message in bytes.
        message_max: usize,
    },
    /// The value cannot be serialised.
    #[error("the value cannot be serialised: {0}")]
    Value(String),
    /// The group has ended.
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl SendError {
    /// Returns whether the same message may be sent later: it was not sent because the window is full or there is
    /// none now.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Full | Self::ViewChanging | Self::Absent)
    }
}

/// Why there is no further message.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// use squall::ReceiveError;
///
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-receive-error-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let mut deliveries = group.subgroup("log")?.deliveries()?;
/// drop(group);
/// match deliveries.try_next() {
///     Ok(_) => println!("it was delivered before"),
///     Err(ReceiveError::Group(error)) => println!("the group has ended: {error}"),
///     Err(error) => println!("{error}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The group has ended, and everything delivered has been taken.
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl ReceiveError {
    /// Returns whether this member has left in order, so that the end was expected.
    #[must_use]
    pub const fn is_left(&self) -> bool {
        matches!(self, Self::Group(GroupError::Left))
    }
}

/// Why bytes are no value of the type that was asked for ([`crate::read_value`]).
///
/// ```
/// use squall::{ValueError, read_value};
///
/// assert_eq!(read_value::<u8>(&[7]).unwrap(), 7);
/// assert!(matches!(read_value::<u8>(&[7, 8]), Err(ValueError::Rest { bytes: 1 })));
/// assert!(matches!(read_value::<bool>(&[7]), Err(ValueError::Form(_))));
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// They are of another form.
    #[error(
        "the message is no value of the expected type ({0}): let senders and receivers use the same type"
    )]
    Form(String),
    /// There are more bytes than the value has.
    #[error("{bytes} bytes follow the value: let senders and receivers use the same type")]
    Rest {
        /// Their number.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The standard library prints an error that `main` returns by Debug.
    #[test]
    fn an_error_that_reaches_main_is_printed_as_its_text() {
        let stopped = GroupError::Stopped(StopReason::Minority { lost: 1, members: 2 });
        let text = stopped.to_string();
        assert!(text.contains("majority"), "{text}");
        assert_eq!(format!("{stopped:?}"), text);
        assert_eq!(format!("{:?}", JoinError::from(stopped.clone())), text);
        assert_eq!(format!("{:?}", SendError::from(stopped)), text);

        let config = crate::Config::load("no-such-folder/squall.toml").expect_err("it does not exist");
        let text = config.to_string();
        let boxed: Box<dyn std::error::Error> = JoinError::from(config).into();
        assert_eq!(format!("{boxed:?}"), text);

        // What a text contains of its cause is not repeated.
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let transport = JoinError::from(refused);
        assert_eq!(format!("{transport:?}"), "cannot set up the transport: connection refused");
    }
}
