//! What can go wrong, in the words of those who use groups; each message says what to do next.

use std::time::Duration;

use squall_fabric::Shortage;
use squall_protocols::membership::StopReason;
use squall_protocols::multicast::{SubgroupFailure, SubgroupSettingsError};
use squall_transports::bootstrap::BootstrapError;
use squall_transports::composite::CompositeError;
use squall_transports::verbs::VerbsError;

use crate::config::ConfigError;

/// Why a group cannot be joined or has ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// This member cannot go on. Everything that it has delivered is delivered by all who go on; what it had under way
    /// may not be.
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
    /// The others have gone on without this member, since it took no messages and so held them up.
    #[error(
        "excluded: its consumer of subgroup `{subgroup}` took no message for {:.1} s and held the others up \
         (slow_after_ms = {}): take messages faster, raise slow_after_ms, or write slow_consumer = \"wait\"; then \
         join again",
        .stood_still.as_secs_f64(), .slow_after.as_millis()
    )]
    Slow {
        /// The subgroup's name.
        subgroup: String,
        /// How long it has taken nothing, although there were messages.
        stood_still: Duration,
        /// How long the configuration allows.
        slow_after: Duration,
    },
    /// This handle has left the group.
    #[error("this member has left the group")]
    Left,
    /// The system gives no memory or descriptors for a view: this member has left the group, and the others go on.
    #[error("this member cannot continue: {0}")]
    Shortage(Shortage),
}

/// Why [`crate::Group::join`] failed.
#[derive(Debug, thiserror::Error)]
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
    /// An upcall was given for a subgroup that the configuration does not have.
    #[error("there is no subgroup `{0}` in the configuration")]
    UnknownSubgroup(String),
    /// The transport could not be set up.
    #[error("cannot set up the transport: {0}")]
    Transport(#[from] std::io::Error),
    /// The members did not agree on how to reach each other.
    #[error(transparent)]
    Transports(#[from] CompositeError),
    /// RDMA cannot be used here.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The system gives no memory or descriptors for the group's windows.
    #[error(transparent)]
    Shortage(#[from] Shortage),
    /// The group ended before it began.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The leader has admitted this process with words that it does not understand.
    #[error("the group's leader speaks another version: run the same release everywhere")]
    Token,
    /// The leader has admitted this process, and no view has come; nor at further attempts.
    #[error(
        "admitted, but in no view within {seconds} s: look at the leader's log, or raise `timeouts.join`"
    )]
    NoView {
        /// How long it was waited.
        seconds: u64,
    },
    /// The members found each other, but not all of them began in time.
    #[error("the group did not begin within {seconds} s: not all members have attached; see their logs")]
    NotReady {
        /// How long it was waited.
        seconds: u64,
    },
}

/// Why a handle of a subgroup cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// No such subgroup.
    #[error("there is no subgroup `{0}` that this member is in: look at [subgroups] in the configuration")]
    UnknownSubgroup(String),
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
    /// Objects need the total order.
    #[error("`{0}` cannot carry an object: write `mode = \"atomic\"`")]
    Mode(String),
    /// The member cannot answer others.
    #[error("this member cannot answer others about its objects: {cause}")]
    Service {
        /// Why.
        cause: String,
    },
    /// No contact answers.
    #[error("no contact answers: {cause}; look whether the group runs, and at `contacts`")]
    Contact {
        /// What the last one said.
        cause: String,
    },
    /// Deliveries go to an upcall.
    #[error("deliveries of `{0}` go to the upcall that was given to the builder")]
    Upcall(String),
}

/// Why a message was not sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The window is full: members have yet to deliver older messages.
    #[error("the window is full: members have yet to deliver older messages; wait, or send again later")]
    Full,
    /// The view is changing: a member joins, leaves or is gone. Nothing is lost; what was sent before goes first.
    #[error(
        "the view is changing, since a member joins, leaves or is gone: send again within milliseconds, or use \
         send_blocking, which waits"
    )]
    ViewChanging,
    /// This member is not in the subgroup in the present view.
    #[error(
        "this member is not in the subgroup in the present view: send again when a view has it there, or use \
         send_blocking, which waits"
    )]
    Absent,
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
    /// The group has ended.
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl SendError {
    /// Whether the same message may be sent later: it was not sent since the window is full or there is none now.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Full | Self::ViewChanging | Self::Absent)
    }
}

/// Why there is no further message.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The group has ended, and everything delivered has been taken.
    #[error(transparent)]
    Group(#[from] GroupError),
}
