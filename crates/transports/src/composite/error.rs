//! Errors in the choice and the setup of transports.

use std::io;

use squall_fabric::NodeId;

use crate::verbs::VerbsError;

squall_fabric::debug_as_text!(CompositeError);

/// Why a [`super::CompositeFabric`] could not be created.
#[derive(thiserror::Error)]
pub enum CompositeError {
    /// A peer did not send its offer.
    #[error(
        "{peer} did not agree on a transport ({cause}): check its log, and start all members with the same \
         version and the same `transport`"
    )]
    Silent {
        /// The peer.
        peer: NodeId,
        /// The system's error.
        cause: io::Error,
    },
    /// A peer sent an invalid offer.
    #[error(
        "{peer} sent {what} instead of its offer: start all members with the same version and `transport`"
    )]
    Nonsense {
        /// The peer.
        peer: NodeId,
        /// What it sent.
        what: &'static str,
    },
    /// RDMA was chosen, but cannot be used after all.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A system call failed.
    #[error("failed to set up the transports: {0}")]
    System(io::Error),
}

impl From<io::Error> for CompositeError {
    fn from(cause: io::Error) -> Self {
        Self::System(cause)
    }
}
