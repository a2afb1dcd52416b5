//! Errors of streams; each message says what to do next.

use std::io;

use squall_fabric::Shortage;
use squall_protocols::stream::{PostRefused, SocketFailure, StreamSettingsError};
use squall_transports::bootstrap::BootstrapError;
use squall_transports::verbs::VerbsError;

/// Why a socket cannot be created or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The ends did not find or trust each other.
    #[error(transparent)]
    Connect(#[from] BootstrapError),
    /// The settings are not valid.
    #[error(transparent)]
    Settings(#[from] StreamSettingsError),
    /// The transport could not be set up.
    #[error("cannot set up the transport: {0}")]
    Transport(io::Error),
    /// RDMA cannot be used here.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The system has no memory or descriptors for it.
    #[error(transparent)]
    Shortage(#[from] Shortage),
    /// The connection has failed.
    #[error(transparent)]
    Failed(#[from] SocketFailure),
    /// A buffer was refused.
    #[error(transparent)]
    Refused(#[from] PostRefused),
    /// The timeout expired.
    #[error("timed out: set a longer timeout, or check that the peer makes progress")]
    TimedOut,
}

impl From<StreamError> for io::Error {
    fn from(error: StreamError) -> Self {
        use io::ErrorKind;
        let kind = match &error {
            StreamError::Connect(BootstrapError::Unreachable { .. }) => ErrorKind::ConnectionRefused,
            StreamError::Connect(BootstrapError::AddressInUse { .. }) => ErrorKind::AddrInUse,
            StreamError::Connect(BootstrapError::SecretRefused { .. }) => ErrorKind::PermissionDenied,
            StreamError::Settings(_) => ErrorKind::InvalidInput,
            StreamError::Failed(failure) => kind_of(failure),
            StreamError::Refused(PostRefused::Ended | PostRefused::Closed) => ErrorKind::BrokenPipe,
            StreamError::TimedOut => ErrorKind::TimedOut,
            StreamError::Shortage(_) => ErrorKind::OutOfMemory,
            StreamError::Verbs(_) => ErrorKind::Unsupported,
            StreamError::Transport(cause) => cause.kind(),
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

fn kind_of(failure: &SocketFailure) -> io::ErrorKind {
    match failure {
        SocketFailure::Broken(_) => io::ErrorKind::ConnectionReset,
        SocketFailure::Aborted => io::ErrorKind::ConnectionAborted,
        SocketFailure::Unanswered => io::ErrorKind::TimedOut,
        SocketFailure::Violation(_) => io::ErrorKind::InvalidData,
    }
}
