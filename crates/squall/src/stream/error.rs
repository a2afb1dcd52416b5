//! Errors of streams; each message says what to do next.

use std::io;

use squall_fabric::Shortage;
use squall_protocols::stream::{PostRefused, SocketFailure, StreamSettingsError};
use squall_transports::bootstrap::{Address, BootstrapError};
use squall_transports::verbs::VerbsError;

squall_fabric::debug_as_text!(StreamError);

/// Why a socket cannot be created or used.
///
/// ```
/// use squall::stream::{Stream, StreamError, StreamOptions};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut options = StreamOptions::local("doc-stream-error");
/// options.timeout = Duration::from_millis(50);
/// match Stream::connect(&"unix:@doc-no-listener".parse()?, &options) {
///     Err(error @ StreamError::Connect(_)) => println!("{error}"), // says what to start, or to correct
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The ends did not find or trust each other.
    #[error("{}", connect_failure(.0))]
    Connect(BootstrapError),
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

/// Without a source: the message of the stream's error replaces that of the bootstrap.
impl From<BootstrapError> for StreamError {
    fn from(error: BootstrapError) -> Self {
        Self::Connect(error)
    }
}

/// Returns why two ends did not meet, in the words of streams: they have options instead of a configuration.
fn connect_failure(error: &BootstrapError) -> String {
    match error {
        BootstrapError::Unreachable { contacts, waited, cause } => {
            let addresses: Vec<String> = contacts.iter().map(shown).collect();
            format!(
                "no process at {} has accepted this connection within {waited:.1?} (last: {cause}): start the process that \
                 listens there, or correct the address",
                addresses.join(", ")
            )
        }
        BootstrapError::SecretRefused { address } => format!(
            "{} does not have the same secret: compare `StreamOptions::secret` of both ends",
            shown(address)
        ),
        BootstrapError::OtherCluster { address, cluster } => format!(
            "{} belongs to another cluster than `{cluster}`: compare `StreamOptions::cluster` of both ends",
            shown(address)
        ),
        BootstrapError::NotSquall { address } => {
            format!("the process that listens at {} is not Squall: correct the address", shown(address))
        }
        other => other.to_string(),
    }
}

/// Returns the address that the user knows: ends on one host meet at a Unix socket that is named after it.
fn shown(address: &Address) -> String {
    let text = address.to_string();
    text.strip_prefix(PAIR_SOCKET).map_or(text.clone(), Into::into)
}

const PAIR_SOCKET: &str = "unix:@squall-pair/";

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A user of streams has an address and options, but no `contacts`, `listen` or `secret_file`.
    #[test]
    fn streams_have_words_of_their_own() {
        let address: Address = "unix:@squall-pair/127.0.0.1:41009".parse().unwrap();
        let unreachable = BootstrapError::Unreachable {
            contacts: vec!["127.0.0.1:1".parse().unwrap()],
            waited: Duration::from_secs(10),
            cause: "connection refused".into(),
        };
        let cluster = "c".to_owned();
        let errors = [
            unreachable,
            BootstrapError::SecretRefused { address: address.clone() },
            BootstrapError::OtherCluster { address: address.clone(), cluster },
            BootstrapError::NotSquall { address },
        ];
        for error in errors {
            let text = StreamError::from(error).to_string();
            assert!(text.contains("127.0.0.1:") && !text.contains("squall-pair"), "{text}");
            for word in ["contacts", "listen`", "secret_file", "coordinator"] {
                assert!(!text.contains(word), "{word}: {text}");
            }
        }
    }
}
