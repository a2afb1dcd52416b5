//! Events that a fabric reports to its node.

use std::fmt;

use crate::{ConnId, Grant, MirrorKey, NodeId};

/// A number that the poster chooses; the event that answers the post returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// An event of the fabric, yielded by [`crate::Fabric::poll`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// Both ends of `conn` have opened it: posts are now possible.
    Connected {
        /// The connection.
        conn: ConnId,
        /// The node at the other end.
        peer: NodeId,
    },
    /// `reader` has attached the mirror that this node published as `key`: pushes from now on reach it.
    Attached {
        /// The mirror's key.
        key: MirrorKey,
        /// The reader.
        reader: NodeId,
    },
    /// The signalled post `token` and all earlier posts on `conn` are in the target's memory [F6].
    Done {
        /// The connection.
        conn: ConnId,
        /// The token of the post.
        token: Token,
    },
    /// A write with immediate has arrived and consumed the receive `token` [F7].
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
    /// The grant is revoked: no further write under it lands, and all that landed are visible [F9].
    Revoked {
        /// The grant.
        grant: Grant,
    },
    /// The peer refused a write because there was no valid grant; the connection is broken [F10].
    Refused {
        /// The connection, which is no longer usable.
        conn: ConnId,
    },
    /// The connection broke: some prefix of its posts has landed [F11].
    Broken {
        /// The connection, which is no longer usable.
        conn: ConnId,
        /// The reason, as far as this end can determine it.
        reason: BreakReason,
    },
    /// The kernel is ending the peer's process, which does not run any more: [`FabricEvent::PeerLost`] follows, and only then is it
    /// certain that nothing of it lands, and that all of its events have been reported. Where the kernel shows this (shared memory), it
    /// is known a millisecond or more before the loss, since a process gives back its memory before it closes what it had open.
    PeerDying {
        /// The peer.
        peer: NodeId,
    },
    /// The peer's process, or the path to it, is lost. All connections to it break and the mirrors that it
    /// published no longer change; their attachments remain readable [M4].
    PeerLost {
        /// The peer.
        peer: NodeId,
        /// The reason, as far as this end can determine it.
        reason: BreakReason,
    },
}

/// Why a connection broke, as far as this end can determine. A crash, a partition and a refusal look alike
/// until the control path distinguishes them [F11].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakReason {
    /// The other end closed the connection, or its process died.
    PeerClosed,
    /// The path is down or the peer does not answer.
    Unreachable,
    /// A send or a write with immediate found no posted receive for too long [F7].
    ReceiverNotReady,
    /// The peer refused a write (RDMA: remote access error) [F10].
    Refused,
    /// The peer violated the transport protocol; a log line says how.
    Protocol,
    /// The peer lives, and has removed this node or lost it.
    Removed,
    /// This node lacks a resource that the device needs for the connection, such as lockable memory; a log
    /// line says which.
    Shortage,
}

impl fmt::Display for BreakReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PeerClosed => "the peer closed the connection or its process died",
            Self::Unreachable => "the peer cannot be reached",
            Self::ReceiverNotReady => "the peer had no receive posted",
            Self::Refused => "the peer refused a write",
            Self::Protocol => "the peer violated the transport protocol",
            Self::Removed => "the peer has removed this node, or lost it",
            Self::Shortage => {
                "the device could not lock the memory that it needs (the log says how much; `ulimit -l unlimited` \
                 removes the limit)"
            }
        })
    }
}
