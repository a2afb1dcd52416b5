//! Streams: sockets with RDMA's speed, without its verbs (UNH EXS).
//!
//! Two processes connect with an address and a secret. On one host they share memory; otherwise they use TCP, or RDMA
//! if one of them asks for it ([`Transport`]). Data goes directly from the sender's memory into the receiver's
//! when the receiver is ahead, and through an intermediate ring at the receiver when it is not.
//!
//! - [`Socket`] is asynchronous: post buffers to be sent and to be filled, and take events. Nothing is copied unless
//!   the receiver is late.
//! - [`Stream`] reads and writes like a TCP connection, and blocks; with the feature `tokio`, `AsyncStream` does not.
//! - [`Endpoint`] is the layer below both: it posts ranges of registered memory, or of the user's own memory
//!   ([`Endpoint::adopt`]).
//!
//! **Progress.** There is no thread behind a socket: it makes progress when its user polls, waits, reads or writes.
//! On shared memory and over RDMA the peer's direct transfers complete even in between; over TCP they wait.
//!
//! **Closing.** [`Socket::shut_down`] ends this end's stream, and the peer sees the end after all data. When both
//! ends have done so, the socket closes. On shared memory a peer that dies is noticed at once; what it sent before
//! can still be received. Dropping a socket ends its stream and waits for a limited time until the peer has taken
//! what was sent ([`StreamOptions::linger`]); [`Socket::abort`] does not wait.
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

pub(crate) mod acceptor;
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
pub use squall_transports::Transport;
pub use squall_transports::bootstrap::Address;
pub use squall_transports::bootstrap::Secret;
pub use squall_transports::verbs::VerbsSettings;

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncListener, AsyncStream};
pub use blocking::Stream;
pub use endpoint::{Endpoint, wait_any};
pub use error::StreamError;
pub use options::StreamOptions;
pub use socket::{Listener, Socket, SocketEvent};
