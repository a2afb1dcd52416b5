//! Completions: what the event queue tells of sends and receives (EXS §II.B; ES-API `exs_qdequeue`).

use std::fmt;

use squall_fabric::BreakReason;

use super::StreamViolation;

/// Names a send of one socket; later sends have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub u64);

/// Names a receive of one socket; later receives have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiveId(pub u64);

/// Something that the user asked for is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum Completion {
    /// Both ends are there: what is posted now may travel at once.
    Connected,
    /// A send is done; its memory may be used again.
    Send {
        /// Which.
        id: SendId,
        /// How.
        outcome: SendOutcome,
    },
    /// A receive is done; its memory belongs to the user again.
    Receive {
        /// Which.
        id: ReceiveId,
        /// Bytes that it got, from its beginning.
        bytes: u64,
        /// How.
        outcome: ReceiveOutcome,
    },
    /// The connection is over, in order or not; outstanding sends and receives have completed before.
    Closed {
        /// Why, if not in order.
        failure: Option<SocketFailure>,
    },
}

/// How a send ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum SendOutcome {
    /// All its bytes are in the peer's memory: the peer's application can get them whatever happens to this end.
    Placed,
    /// It was cancelled before anything was sent.
    Cancelled,
    /// The peer may have got all of it, a part, or nothing.
    Failed(SocketFailure),
}

/// How a receive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum ReceiveOutcome {
    /// Bytes have come: all that it has space for, if it wanted all.
    Filled,
    /// The peer has ended its stream; the bytes are the last.
    End,
    /// It was cancelled.
    Cancelled,
    /// The next packet is longer than the receive. It is not lost: post a receive of at least `length` bytes.
    TooLong {
        /// The packet's length in bytes.
        length: u64,
    },
    /// Nothing more will come.
    Failed(SocketFailure),
}

/// Why a socket cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketFailure {
    /// The connection broke.
    Broken(BreakReason),
    /// The peer broke the protocol and was disconnected.
    Violation(StreamViolation),
    /// The peer did not open its end in time.
    Unanswered,
    /// This end gave up.
    Aborted,
}

impl fmt::Display for SocketFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(reason) => write!(f, "the connection broke: {reason}; connect again"),
            Self::Violation(violation) => write!(f, "the peer was disconnected: {violation}"),
            Self::Unanswered => f.write_str("the peer did not answer: start it, or wait longer"),
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

/// Why a send or a receive was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostRefused {
    /// As many as the settings allow are outstanding: wait for completions.
    Full,
    /// No bytes; only packets may be empty.
    Empty,
    /// The packet is longer than [`super::TRANSFER_BYTES_MAX`].
    TooLong(u64),
    /// The memory does not begin at a word, or ends beyond its region.
    Memory,
    /// This end has said that it will send nothing more.
    Ended,
    /// The connection is over.
    Closed,
}

impl fmt::Display for PostRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("too many are outstanding: take completions, then post again"),
            Self::Empty => f.write_str("a stream carries no empty sends and receives"),
            Self::TooLong(length) => write!(f, "a packet of {length} bytes: send it in parts"),
            Self::Memory => {
                f.write_str("the memory must begin at a multiple of 8 bytes and lie inside its region")
            }
            Self::Ended => f.write_str("this end has shut down sending"),
            Self::Closed => f.write_str("the connection is over: connect again"),
        }
    }
}

impl std::error::Error for PostRefused {}
