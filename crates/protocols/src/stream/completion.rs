//! Completions: the event queue's reports about sends and receives (EXS §II.B; ES-API `exs_qdequeue`).
//!
//! `Deviation:` (EXS §II.B) a send completes when all of it is in the peer's memory.

use std::fmt;

use squall_fabric::BreakReason;

use super::StreamViolation;

/// Identifies a send of a socket. Later sends have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub u64);

/// Identifies a receive of a socket. Later receives have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiveId(pub u64);

/// A completion of an operation of the user, or of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum Completion {
    /// Both ends are connected; data may travel at once.
    Connected,
    /// A send has completed; its memory may be used again.
    Send {
        /// The send.
        id: SendId,
        /// Its outcome.
        outcome: SendOutcome,
    },
    /// A receive has completed; its memory belongs to the user again.
    Receive {
        /// The receive.
        id: ReceiveId,
        /// The number of bytes received, from the beginning of its memory.
        bytes: u64,
        /// Its outcome.
        outcome: ReceiveOutcome,
    },
    /// The connection is over, after an orderly close or a failure. All outstanding sends and receives have completed
    /// before.
    Closed {
        /// The failure; `None` after an orderly close.
        failure: Option<SocketFailure>,
    },
}

/// How a send ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum SendOutcome {
    /// All its bytes are in the peer's memory: the peer's application can read them whatever happens to this end.
    Placed,
    /// It was cancelled before anything was sent.
    Cancelled,
    /// The send failed; the peer may have received all of it, a part, or nothing.
    Failed(SocketFailure),
}

/// How a receive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum ReceiveOutcome {
    /// Bytes have arrived; with `wait_all`, its memory is full.
    Filled,
    /// The peer has ended its stream; these bytes are the last.
    End,
    /// It was cancelled.
    Cancelled,
    /// The next packet is longer than the receive. It is not lost: post a receive of at least `length` bytes.
    TooLong {
        /// The packet's length in bytes.
        length: u64,
    },
    /// The connection failed, and no more data comes.
    Failed(SocketFailure),
}

/// Why a socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketFailure {
    /// The connection broke.
    Broken(BreakReason),
    /// The peer violated the protocol and was disconnected.
    Violation(StreamViolation),
    /// The peer did not open its end in time.
    Unanswered,
    /// This end aborted the connection.
    Aborted,
}

impl fmt::Display for SocketFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(reason) => write!(f, "the connection broke: {reason}; connect again"),
            Self::Violation(violation) => write!(f, "the peer was disconnected: {violation}"),
            Self::Unanswered => f.write_str("the peer did not answer in time: start it, or allow more time"),
            Self::Aborted => f.write_str("this end aborted the connection"),
        }
    }
}

impl std::error::Error for SocketFailure {}

#[cfg(test)]
impl std::hash::Hash for SocketFailure {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
    }
}

/// Why a send or a receive was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostRefused {
    /// The settings allow no further outstanding operation; wait for completions.
    Full,
    /// The memory has no bytes; only packets may be empty.
    Empty,
    /// The packet is longer than [`super::TRANSFER_BYTES_MAX`].
    TooLong(u64),
    /// The memory does not begin at a word, or ends beyond its region.
    Memory,
    /// This end has shut down sending.
    Ended,
    /// The connection is over.
    Closed,
}

impl fmt::Display for PostRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => {
                f.write_str("too many operations are outstanding: take completions, then post again")
            }
            Self::Empty => f.write_str("a send or a receive of 0 bytes on a stream: use at least 1 byte"),
            Self::TooLong(length) => write!(f, "a packet of {length} bytes is too long: send it in parts"),
            Self::Memory => {
                f.write_str("the memory must begin at a multiple of 8 bytes and be inside its region")
            }
            Self::Ended => f.write_str("this end has shut down sending"),
            Self::Closed => f.write_str("the connection is over: connect again"),
        }
    }
}

impl std::error::Error for PostRefused {}
