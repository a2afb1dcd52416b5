//! Transports: what a node offers a peer, and which transport two nodes choose.

use std::fmt;

use squall_fabric::NodeId;

use crate::bootstrap::Relinking;
use crate::verbs::VerbsSettings;

/// How the members of a group, or the two ends of a stream, may reach each other.
///
/// ```
/// use squall_transports::Transport;
///
/// assert_eq!(Transport::default(), Transport::Auto);
/// assert!(Transport::Shm.needs_unix_socket() && !Transport::Auto.needs_unix_socket());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The best that both ends have, chosen for each pair: shared memory if they are on one host and run as the same user; else RDMA
    /// if both have it on the network by which they meet, or the other end of a stream requires it; else TCP. They meet by TCP.
    #[default]
    Auto,
    /// Shared memory only: all on one host, under one user.
    Shm,
    /// TCP only.
    Tcp,
    /// RDMA by verbs only: hosts with InfiniBand or RoCE devices that reach each other. They meet by TCP.
    Verbs,
}

impl Transport {
    /// Returns whether members connect over Unix sockets, and not over TCP.
    #[must_use]
    pub const fn needs_unix_socket(self) -> bool {
        matches!(self, Self::Shm)
    }
}

/// The transport by which a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerTransport {
    /// Shared memory.
    Shm = 0,
    /// RDMA.
    Verbs = 1,
    /// TCP.
    Tcp = 2,
}

impl fmt::Display for PeerTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shm => "shared memory",
            Self::Verbs => "RDMA",
            Self::Tcp => "TCP",
        })
    }
}

/// The transport chosen for one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportChoice {
    /// The peer.
    pub peer: NodeId,
    /// The transport.
    pub transport: PeerTransport,
    /// The reason, for people.
    pub reason: String,
}

/// The transports that may be used.
#[derive(Clone, Debug)]
pub struct CompositeSettings {
    /// Whether peers on this host are reached by shared memory.
    pub shm: bool,
    /// The RDMA device; `None`: RDMA is not used. A device that is *named* is used whatever the network on
    /// which the members have met.
    pub verbs: Option<VerbsSettings>,
    /// How links over TCP are opened again when they break; `None`: their peers are lost.
    pub relinking: Option<Relinking>,
}

impl Default for CompositeSettings {
    /// Allows everything that is available.
    fn default() -> Self {
        Self { shm: true, verbs: Some(VerbsSettings::default()), relinking: None }
    }
}

/// A node's description of itself for a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportOffer {
    /// The name of the host, until it reboots.
    pub host: [u8; 16],
    /// The user that runs the node.
    pub user: u32,
    /// Where and how the node can be met by a Unix socket.
    pub socket: Option<Rendezvous>,
    /// The network of its RDMA device.
    pub network: Option<RdmaNetwork>,
}

/// A Unix socket for one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// Its name in the abstract namespace.
    pub name: [u8; 16],
    /// What the peer must send there. All processes on the host can read the name, but not this.
    pub key: [u8; 32],
}

/// The network of an RDMA device: devices of one network reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaNetwork {
    /// RoCE version 2, which is routed as the streams are.
    Ethernet,
    /// A subnet of InfiniBand.
    InfiniBand([u8; 8]),
}

impl TransportOffer {
    /// Returns the encoded form: the fields in order, after a mark with the version.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[..8].copy_from_slice(&MARK);
        bytes[8..24].copy_from_slice(&self.host);
        bytes[24..28].copy_from_slice(&self.user.to_le_bytes());
        if let Some(Rendezvous { name, key }) = &self.socket {
            bytes[28] = 1;
            bytes[32..48].copy_from_slice(name);
            bytes[48..80].copy_from_slice(key);
        }
        match &self.network {
            None => {}
            Some(RdmaNetwork::Ethernet) => bytes[29] = 1,
            Some(RdmaNetwork::InfiniBand(subnet)) => {
                bytes[29] = 2;
                bytes[80..88].copy_from_slice(subnet);
            }
        }
        bytes
    }

    /// Reads what a peer sent. Fuzzed as `offer`.
    ///
    /// # Errors
    /// Returns a description of the bytes, if they are not an offer.
    pub fn from_bytes(bytes: &[u8; OFFER_BYTES]) -> Result<Self, &'static str> {
        if bytes[..8] != MARK {
            return Err("bytes of another protocol");
        }
        let socket = Rendezvous { name: part(bytes, 32), key: part(bytes, 48) };
        let offer = Self {
            host: part(bytes, 8),
            user: u32::from_le_bytes(part(bytes, 24)),
            socket: (bytes[28] == 1).then_some(socket),
            network: match bytes[29] {
                1 => Some(RdmaNetwork::Ethernet),
                2 => Some(RdmaNetwork::InfiniBand(part(bytes, 80))),
                _ => None,
            },
        };
        // Bytes that this version would not have written are of another version.
        if offer.to_bytes() == *bytes { Ok(offer) } else { Err("an offer of another version") }
    }

    /// Returns whether shared memory is worth a try; only the try shows whether the sockets can be reached.
    pub(super) fn may_share_memory(&self, other: &Self) -> bool {
        let both = self.socket.is_some() && other.socket.is_some();
        both && (self.host, self.user) == (other.host, other.user)
    }

    /// Returns whether the devices of both reach each other.
    pub(super) fn shares_network(&self, other: &Self) -> bool {
        self.network.is_some() && self.network == other.network
    }
}

fn part<const N: usize>(bytes: &[u8; OFFER_BYTES], first: usize) -> [u8; N] {
    bytes[first..first + N].try_into().expect("inside the offer")
}

/// The length of an offer in bytes.
pub const OFFER_BYTES: usize = 88;

/// The last digit is the version.
const MARK: [u8; 8] = *b"sqlmeet1";

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> TransportOffer {
        let socket = Some(Rendezvous { name: [2; 16], key: [3; 32] });
        TransportOffer { host: [1; 16], user: 1000, socket, network: Some(RdmaNetwork::Ethernet) }
    }

    #[test]
    fn an_offer_survives_a_round_trip() {
        let subnet = Some(RdmaNetwork::InfiniBand([4; 8]));
        for offer in [
            offer(),
            TransportOffer { socket: None, ..offer() },
            TransportOffer { network: None, ..offer() },
            TransportOffer { network: subnet, ..offer() },
        ] {
            assert_eq!(TransportOffer::from_bytes(&offer.to_bytes()), Ok(offer));
        }
    }

    #[test]
    fn another_version_is_refused() {
        for (place, value) in [(0, b'x'), (7, b'2'), (28, 2), (29, 3), (30, 1), (80, 1)] {
            let mut bytes = offer().to_bytes();
            bytes[place] = value;
            assert!(TransportOffer::from_bytes(&bytes).is_err(), "byte {place}");
        }
    }

    #[test]
    fn a_transport_needs_the_same_at_both_ends() {
        let ours = offer();
        assert!(ours.may_share_memory(&ours) && ours.shares_network(&ours));
        let others = [
            TransportOffer { host: [9; 16], ..offer() },
            TransportOffer { user: 1001, ..offer() },
            TransportOffer { socket: None, ..offer() },
        ];
        assert!(others.iter().all(|other| !ours.may_share_memory(other) && ours.shares_network(other)));
        let subnet =
            |number| TransportOffer { network: Some(RdmaNetwork::InfiniBand([number; 8])), ..offer() };
        assert!(!ours.shares_network(&subnet(1)) && !subnet(1).shares_network(&subnet(2)));
        assert!(subnet(1).shares_network(&subnet(1)));
    }
}
