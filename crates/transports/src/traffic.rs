//! What a transport has carried between this node and its peers, for operators.

use squall_fabric::NodeId;

use crate::composite::PeerTransport;

/// The bytes that a transport has carried between this node and a peer, since that became one.
///
/// Shared memory carries nothing: peers read what this node has stored where it is, so they have no traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTraffic {
    /// The peer.
    pub peer: NodeId,
    /// The transport.
    pub transport: PeerTransport,
    /// The bytes that the socket has taken, headers and encryption included; over RDMA, the bytes of the posts that the
    /// device has taken.
    pub sent: u64,
    /// The bytes that the socket has yielded; `None` over RDMA, where the device stores what the peer writes, and
    /// reports nothing about it.
    pub received: Option<u64>,
}
