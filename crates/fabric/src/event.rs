//! What a fabric tells its node.

use std::fmt;

use crate::{ConnId, Grant, MirrorKey, NodeId};

/// A number that the poster chooses and gets back in the event that answers its post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Something that happened; yielded by [`crate::Fabric::poll`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// Both ends of `conn` have opened it: posts are possible.
    Connected {
        /// The connection.
        conn: ConnId,
        /// Who is at the other end.
        peer: NodeId,
    },
    /// `reader` has attached the mirror that this node published as `key`: pushes from now on reach it.
    Attached {
        /// The mirror's key.
        key: MirrorKey,
        /// The reader.
        reader: NodeId,
    },
    /// The signalled post `token` and all posts before it on `conn` have been placed [F6].
    Done {
        /// The connection.
        conn: ConnId,
        /// The token of the post.
        token: Token,
    },
    /// A write with immediate has arrived and has consumed the receive `token` [F7].
    Arrived {
        /// The connection.
        conn: ConnId,
        /// The token of the posted receive that it consumed.
        token: Token,
        /// The immediate value that came with the write.
        immediate: u32,
    },
    /// A send has arrived in the memory of the receive `token` [F7].
    Received {
        /// The connection.
        conn: ConnId,
        /// The token of the posted receive that it consumed.
        token: Token,
        /// The message's length in bytes; it begins at the first word of the posted range.
        length: usize,
    },
    /// The grant is revoked: no write under it lands any more, and all that landed is visible [F9].
    Revoked {
        /// The grant.
        grant: Grant,
    },
    /// The peer refused a write for want of a valid grant; the connection is broken [F10].
    Refused {
        /// The connection, which is unusable now.
        conn: ConnId,
    },
    /// The connection broke: some prefix of its posts has landed [F11].
    Broken {
        /// The connection, which is unusable now.
        conn: ConnId,
        /// Why, as far as this end can tell.
        reason: BreakReason,
    },
    /// The peer's process is gone, or the path to it. All connections to it break and mirrors that it
    /// published stand still; their attachments stay readable [M4].
    PeerLost {
        /// The peer.
        peer: NodeId,
        /// Why, as far as this end can tell.
        reason: BreakReason,
    },
}

/// Why a connection broke, as far as this end can tell. A crash, a partition and a refusal look alike until
/// the control path tells [F11].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakReason {
    /// The other end closed, or its process died.
    PeerClosed,
    /// The path is cut or the peer does not answer.
    Unreachable,
    /// A send or a write with immediate found no posted receive for too long [F7].
    ReceiverNotReady,
    /// The peer refused a write (RDMA: remote access error) [F10].
    Refused,
    /// The peer broke the protocol of the transport; a log line says how.
    Protocol,
    /// This node has not got what the device needs for it, such as memory that may be locked; a log line says what.
    Shortage,
}

impl fmt::Display for BreakReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PeerClosed => "the peer closed the connection or its process died",
            Self::Unreachable => "the peer cannot be reached",
            Self::ReceiverNotReady => "the peer had no receive posted",
            Self::Refused => "the peer refused a write",
            Self::Protocol => "the peer broke the transport protocol",
            Self::Shortage => {
                "the device did not get the memory that it needs here (`ulimit -l unlimited` allows more; the log says how \
                 much)"
            }
        })
    }
}
