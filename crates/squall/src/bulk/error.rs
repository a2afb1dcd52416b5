//! Errors of bulk multicasts; each message says what to do next.

use squall_fabric::Shortage;
use squall_protocols::rdmc::local::LocalFailure;
use squall_protocols::rdmc::{BLOCKS_MAX, RdmcSettingsError};

use crate::error::JoinError;

squall_fabric::debug_as_text!(BulkError);

/// Why an object was not sent or received, or a session not joined.
///
/// ```
/// use squall::Config;
/// use squall::bulk::{BulkError, Session};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::local(&format!("doc-bulk-error-{}", std::process::id()), 1);
/// let mut root = Session::join(&config)?;
/// assert!(matches!(root.next_object(), Err(BulkError::Root))); // it sends
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BulkError {
    /// The members did not find each other.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The options are not valid.
    #[error(transparent)]
    Options(#[from] RdmcSettingsError),
    /// The system has no memory or descriptors for it. If that happened in the middle of an object, the session has
    /// ended: drop it.
    #[error(transparent)]
    Shortage(#[from] Shortage),
    /// Only rank 0 sends.
    #[error(
        "only the root sends, and this member is not rank 0: start another session with this member as its root"
    )]
    NotRoot,
    /// The root does not receive.
    #[error("only receivers receive, and this member is the root: use the buffer that it has sent")]
    Root,
    /// All receivers are gone.
    #[error("all receivers are gone: start the session again")]
    Alone,
    /// The root is gone.
    #[error("the root is gone, and the session has ended: start it again")]
    RootLost,
    /// The root continues without this member, because others could not reach it, or it did not answer in time.
    #[error(
        "the root continues without this member, which could not be reached for a while: join the next session"
    )]
    LeftOut,
    /// The caller's memory is too small for the object, which is still the next one.
    #[error(
        "the object has {bytes} bytes and the memory {capacity}: provide more memory, or call next_object first to learn the size"
    )]
    TooSmall {
        /// The object's bytes.
        bytes: usize,
        /// The size of the memory in bytes.
        capacity: usize,
    },
    /// The object has too many blocks.
    #[error("an object of {bytes} bytes has more than {BLOCKS_MAX} blocks: choose larger blocks")]
    TooLarge {
        /// The object's bytes.
        bytes: u64,
    },
    /// A session on shared memory shares too many buffers.
    #[error("more than {max} buffers have been used for sending: reuse them", max = squall_protocols::rdmc::local::BUFFERS_MAX)]
    TooManyBuffers,
    /// The remaining members cannot agree on which members remain.
    #[error("the remaining members do not reach each other: check the network between them")]
    Scattered,
    /// The blocks that are already held belong to an object of another size.
    #[error(
        "the object has {expected} blocks, but those already held are of an object of {found}: use the session's block size"
    )]
    Held {
        /// The object's blocks.
        expected: u64,
        /// The blocks of the caller's object.
        found: u64,
    },
    /// The transport cannot send or receive files.
    #[error("files cannot be sent or received over shared memory: choose TCP or RDMA")]
    NotFiles,
    /// A file could not be prepared.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// A member has violated the protocol.
    #[error("a member has violated the protocol: run the same release at all members")]
    Breached,
}

impl From<LocalFailure> for BulkError {
    fn from(failure: LocalFailure) -> Self {
        match failure {
            LocalFailure::RootLost => Self::RootLost,
            LocalFailure::Breached => Self::Breached,
        }
    }
}
