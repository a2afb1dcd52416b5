//! Errors of the bridge; each message says what to do next.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use squall_dds::{EntityError, ReadError, WriteError};

squall_fabric::debug_as_text!(BridgeError, ForwardError, FormError);

/// Why a bridge does not start.
///
/// ```
/// use squall_dds_bridge::{BridgeError, BridgeSettings};
///
/// let error = BridgeSettings::parse("[topics]").unwrap_err();
/// assert!(matches!(error, BridgeError::Settings(_)));
/// assert!(error.to_string().contains("at least one topic"));
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// The file with the topics cannot be read.
    #[error("failed to read {}: {error}; name the file that lists the topics", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: io::Error,
    },
    /// The file says something that cannot be.
    #[error("the list of topics: {0}")]
    Settings(String),
    /// A topic of the Squall domain is not available.
    #[error("topic `{topic}` of the Squall domain: {error}")]
    Squall {
        /// The topic's name in the Squall domain.
        topic: String,
        /// What is wrong.
        error: Box<EntityError>,
    },
    /// The participant of the RTPS domain does not start.
    #[error(
        "the participant of RTPS domain {domain}: {reason}; check `networks`, and that UDP ports are free"
    )]
    Participant {
        /// The domain's number.
        domain: u16,
        /// What is wrong.
        reason: String,
    },
    /// An endpoint of the RTPS domain is not created.
    #[error("topic `{topic}` of the RTPS domain: {reason}")]
    Rtps {
        /// The topic's name in the RTPS domain.
        topic: String,
        /// What is wrong.
        reason: String,
    },
    /// The system refuses a thread.
    #[error("cannot start the thread of a topic: {0}; end other processes, or bridge fewer topics")]
    Thread(io::Error),
}

/// Why a sample was not forwarded, a peer is left out, or a topic is not bridged any more. Other topics continue.
///
/// ```
/// use squall_dds_bridge::ForwardError;
/// use std::time::Duration;
///
/// let error = ForwardError::PeerSlow { waited: Duration::from_secs(1) };
/// assert!(error.to_string().contains("no space within 1s"));
/// assert!(!error.is_end());
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// A reliable reader of the RTPS domain does not confirm samples as fast as they come; some are dropped, for all readers of the topic.
    #[error(
        "no space within {waited:?}: a reader of the RTPS domain is slow, does not match in its type or partition, or has gone without a word; \
         the samples of the next {waited:?} are dropped, for all readers"
    )]
    PeerSlow {
        /// How long the bridge has waited.
        waited: Duration,
    },
    /// This number of samples of a writer of the RTPS domain, between two that came, did not.
    #[error(
        "{0} samples of a writer of the RTPS domain did not come: raise `read_ahead` if the Squall domain is slower than it, and the history of \
         the writer if the network loses some"
    )]
    Missed(u64),
    /// A reader or writer of the RTPS domain is left out, for the sake of this policy.
    #[error(
        "a reader or writer of the RTPS domain is left out, since its policy {0} does not match the bridge's: change it, or `reliable` and \
         `profile` in the list of topics"
    )]
    Incompatible(String),
    /// A thread of the bridge has failed, which it has reported on standard error.
    #[error("a thread of the topic has failed by a bug: start the bridge again, and report what it printed")]
    Panicked,
    /// The sample does not have the form that the list of topics states.
    #[error(transparent)]
    Form(#[from] FormError),
    /// The Squall domain does not take the sample.
    #[error("the Squall domain does not take the sample: {0}")]
    Write(#[from] WriteError),
    /// The RTPS side reports an error of its own.
    #[error("the RTPS domain: {0}")]
    Rtps(String),
    /// The RTPS side has ended, as it does when the process is stopped and continued: nothing more is forwarded. Start another
    /// [`crate::DdsBridge`], as `squall-dds-bridge` does; the participant in the Squall domain is as it was.
    #[error(
        "the RTPS side has ended, as it does when the process is stopped and continued: start the bridge again (squall-dds-bridge does it \
         itself)"
    )]
    RtpsEnded,
    /// The Squall domain has ended for this process: nothing more is forwarded.
    #[error("the bridge is no member of the Squall domain any more: {0}")]
    Ended(ReadError),
}

impl ForwardError {
    /// Returns whether nothing more is forwarded.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::RtpsEnded | Self::Panicked | Self::Write(WriteError::Group(_)))
    }
}

/// Why bytes are no sample of a topic's form.
///
/// ```
/// use squall_dds_bridge::{FormError, TopicForm};
///
/// assert!(matches!(TopicForm::Text.to_rtps(b"\xff"), Err(FormError::NotText)));
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// A sample in CDR begins with four bytes that name the encoding.
    #[error("the sample has {0} bytes: CDR begins with four that name the encoding")]
    Short(usize),
    /// The bridge writes one encoding.
    #[error("the sample has the encoding {:02x}{:02x}: write it in plain CDR (XCDR1), as CDR_LE (0001)", .0[0], .0[1])]
    Encoding([u8; 2]),
    /// The sample is no structure of one string.
    #[error("the sample is no structure of one string: {0}; use form = \"cdr\" for other types")]
    NotOneString(&'static str),
    /// The sample is to be text.
    #[error("the sample is not UTF-8 text without NUL: use form = \"cdr\" for other types")]
    NotText,
}
