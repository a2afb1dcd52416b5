//! What can go wrong in a bulk multicast; each message says what to do next.

use squall_fabric::Shortage;
use squall_protocols::rdmc::local::LocalFailure;
use squall_protocols::rdmc::{BLOCKS_MAX, RdmcSettingsError};

use crate::error::JoinError;

/// Why an object was not sent or received, or a session not joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BulkError {
    /// The members did not come together.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The options do not fit.
    #[error(transparent)]
    Options(#[from] RdmcSettingsError),
    /// The system gives no memory or descriptors. If that was in the middle of an object, the session is over: drop it.
    #[error(transparent)]
    Shortage(#[from] Shortage),
    /// Only rank 0 sends.
    #[error(
        "only the root sends, and this member is not rank 0: let another session have this member as its root"
    )]
    NotRoot,
    /// The root does not receive.
    #[error("this member is the root, which has the objects already")]
    Root,
    /// All receivers are gone.
    #[error("all receivers are gone: start the session again")]
    Alone,
    /// The root is gone.
    #[error("the root is gone; the session has ended: start it again")]
    RootLost,
    /// The root goes on without this member, as others could not reach it, or it did not answer in time.
    #[error(
        "the root goes on without this member, which could not be reached for a while: join the next session"
    )]
    LeftOut,
    /// The caller's memory is too small for the object, which is still the next one.
    #[error(
        "the object has {bytes} bytes and the memory {capacity}: give larger memory, or ask for the size before"
    )]
    TooSmall {
        /// The object's bytes.
        bytes: usize,
        /// The bytes that there are.
        capacity: usize,
    },
    /// The object has too many blocks.
    #[error("an object of {bytes} bytes has more than {BLOCKS_MAX} blocks: choose larger blocks")]
    TooLarge {
        /// The object's bytes.
        bytes: u64,
    },
    /// A session of shared memory shares too many buffers.
    #[error("more than {max} buffers have been sent from: use them again", max = squall_protocols::rdmc::local::BUFFERS_MAX)]
    TooManyBuffers,
    /// The members that are left cannot agree on who is left.
    #[error("the members that are left do not reach each other: check the network between them")]
    Scattered,
    /// What is held already is about another object.
    #[error(
        "the object has {expected} blocks, what is held already is of {found}: use the session's block size"
    )]
    Held {
        /// The object's blocks.
        expected: u64,
        /// Those that the caller knows of.
        found: u64,
    },
    /// What the transport cannot do.
    #[error("files are not received over shared memory: choose TCP or RDMA")]
    NotFiles,
    /// A file could not be prepared.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// A member has broken the protocol.
    #[error("a member has broken the protocol: do all run the same version?")]
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
