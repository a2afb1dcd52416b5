//! Errors of external clients; each message says what to do next.

use std::time::Duration;

use crate::slot::Position;

squall_fabric::debug_as_text!(ExternalError, PublishError);

/// Why an external client cannot continue.
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::Config;
/// use squall::external::{ExternalError, Observer};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::local("doc-external-error", 1).subgroup("log", SubgroupConfig::default());
/// let error = Observer::connect(&config, "lag").unwrap_err();
/// assert!(matches!(error, ExternalError::UnknownSubgroup { .. }));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalError {
    /// The configuration has no such subgroup.
    #[error("the configuration has no subgroup `{subgroup}`: it has {known}")]
    UnknownSubgroup {
        /// The name that was asked for.
        subgroup: String,
        /// The names of the subgroups in the configuration, as text.
        known: String,
    },
    /// No member serves this client.
    #[error(
        "no member serves clients of `{subgroup}` (tried for {:.1} s): {cause}; check that the group runs \
         (squall status), and check `contacts`",
        .tried_for.as_secs_f64()
    )]
    Unserved {
        /// The subgroup.
        subgroup: String,
        /// For how long members were tried.
        tried_for: Duration,
        /// The last one's answer.
        cause: String,
    },
    /// The member cannot report what has become of messages.
    #[error(
        "the member that took them has failed or has left the group: {cause}; connect again, and send again what may be delivered twice"
    )]
    MemberLost {
        /// What has happened to the connection.
        cause: String,
    },
    /// The subgroup is not durable, so it keeps no messages.
    #[error(
        "subgroup `{subgroup}` keeps no log: set mode = \"durable\" for it, or observe what is delivered from now on"
    )]
    NoLog {
        /// The subgroup.
        subgroup: String,
    },
    /// What was to be read is not kept any more.
    #[error(
        "`{subgroup}` keeps the messages from position {} of view {} on, and not what was before: begin there, or let `retain` in the \
         configuration keep more from now on",
        oldest.sequence, oldest.view
    )]
    Compacted {
        /// The subgroup.
        subgroup: String,
        /// The oldest position that the member has.
        oldest: Position,
    },
    /// Another group has begun under the name of this one, whose positions mean something else.
    #[error(
        "another group runs as `{cluster}` now, whose messages are not those that were read before: begin at its start"
    )]
    OtherGroup {
        /// The cluster.
        cluster: String,
    },
    /// The message is longer than the subgroup allows.
    #[error(
        "a message of {length} bytes is longer than the limit ({message_max}): raise message_max or large_max in the configuration"
    )]
    TooLong {
        /// The message's bytes.
        length: usize,
        /// The longest message in bytes.
        message_max: usize,
    },
}

/// Why not all messages were published, and what has become of them: of the messages of a call, the first `delivered`
/// are delivered by all members, the next `unknown` may or may not be, and the rest were not sent.
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::external::Publisher;
/// use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-publish-error-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// let _member = Group::builder(config.clone()).on_message("log", |_| ()).join()?;
///
/// let messages = vec!["one", "two"];
/// if let Err(error) = Publisher::connect(&config, "log")?.publish(&messages) {
///     println!("{} of {} are delivered: {error}", error.delivered, messages.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{delivered} messages are delivered; whether {unknown} more are is unknown: {cause}")]
#[non_exhaustive]
pub struct PublishError {
    /// The number of messages that all members have delivered.
    pub delivered: usize,
    /// The number of messages after these that may or may not be delivered.
    pub unknown: usize,
    /// What happened.
    pub cause: ExternalError,
}
