//! Why the members did not agree on their ways, or a way could not be set up.

use std::io;

use squall_fabric::NodeId;

use crate::verbs::VerbsError;

/// Why a [`super::CompositeFabric`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CompositeError {
    /// A peer did not say what it has.
    #[error(
        "{peer} did not agree on a way to reach it ({cause}): look into its log, and start all members with the same \
         version and the same `transport`"
    )]
    Silent {
        /// The peer.
        peer: NodeId,
        /// What the system says.
        cause: io::Error,
    },
    /// A peer said what cannot be understood.
    #[error(
        "{peer} sent {what} instead of what it has: start all members with the same version and `transport`"
    )]
    Nonsense {
        /// The peer.
        peer: NodeId,
        /// What it sent.
        what: &'static str,
    },
    /// RDMA was chosen and cannot be used after all.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A call to the system failed.
    #[error("cannot set up the transports: {0}")]
    System(#[from] io::Error),
}
