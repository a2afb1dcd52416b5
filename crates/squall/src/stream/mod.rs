//! Streams: sockets for who needs RDMA's speed without its verbs (UNH EXS).
//!
//! Two processes are joined by an address and a secret; on one host they share memory, else they use TCP, or RDMA if one
//! of them asks for it ([`StreamTransport`]). Data goes straight from the sender's memory into the receiver's when the receiver
//! is ahead, and through a hidden ring of the receiver when it is not.
//!
//! - [`Socket`] is asynchronous: post buffers to be sent and to be filled, and take events. Nothing is copied on the way
//!   unless the receiver is late.
//! - [`Stream`] reads and writes like a TCP connection, and blocks; with the feature `tokio`, `AsyncStream` does not.
//! - [`Endpoint`] is below both: it posts ranges of registered memory, or of memory of the user's own
//!   ([`Endpoint::adopt`]).
//!
//! **Who drives.** There is no thread behind a socket: it moves when its user polls, waits, reads or writes. On shared
//! memory and by RDMA the peer's direct transfers land meanwhile all the same; over TCP they wait.
//!
//! **Ends.** [`Socket::shut_down`] ends this end's stream, and the peer sees its end behind all data. When both have
//! done so, the socket closes. A peer that dies is noticed at once on shared memory; what it sent before can still be
//! received. Dropping a socket ends its stream and waits a little for the peer to take what was sent
//! ([`StreamOptions::linger`]); [`Socket::abort`] waits for nothing.
//!
//! ```
//! use std::io::{Read as _, Write as _};
//! use squall::stream::{Listener, StreamOptions, Stream};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = StreamOptions::local("doc-streams");
//! let listener = Listener::bind(&"127.0.0.1:0".parse()?, &options)?;
//! let address = listener.address().clone();
//! let server = std::thread::spawn(move || {
//!     let mut stream = Stream::new(listener.accept().unwrap()).unwrap();
//!     let mut text = String::new();
//!     stream.read_to_string(&mut text).unwrap();
//!     text
//! });
//! let mut stream = Stream::connect(&address, &options)?;
//! stream.write_all(b"at memory speed")?;
//! stream.shut_down()?;
//! assert_eq!(server.join().unwrap(), "at memory speed");
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod endpoint;
mod error;
mod options;
mod socket;

pub use squall_fabric::region::Access;
pub use squall_fabric::{Buffer, Region, RegionId};
pub use squall_protocols::stream::{
    Completion, PostRefused, ReceiveId, ReceiveOutcome, SendId, SendOutcome, SocketFailure, SocketKind,
    Statistics, StreamSettings, TransferPolicy,
};
pub use squall_transports::bootstrap::Address;
pub use squall_transports::bootstrap::Secret;
pub use squall_transports::bootstrap::pair::StreamTransport;
pub use squall_transports::verbs::VerbsSettings;

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncListener, AsyncStream};
pub use blocking::Stream;
pub use endpoint::{Endpoint, wait_any};
pub use error::StreamError;
pub use options::StreamOptions;
pub use socket::{Listener, Socket, SocketEvent};
