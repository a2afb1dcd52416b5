//! Means: what a node has to reach a peer by, and which of them two nodes choose.

use std::fmt;

use squall_fabric::NodeId;

use crate::verbs::VerbsSettings;

/// How a peer is reached.
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

/// The way to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportChoice {
    /// The peer.
    pub peer: NodeId,
    /// How it is reached.
    pub transport: PeerTransport,
    /// Why so, in words.
    pub reason: String,
}

/// What may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompositeSettings {
    /// Whether peers on this host are reached by shared memory.
    pub shm: bool,
    /// The RDMA device; `None`: RDMA is not used. A device that is *named* is used whatever network the members have met
    /// on.
    pub verbs: Option<VerbsSettings>,
}

impl Default for CompositeSettings {
    /// All that is there.
    fn default() -> Self {
        Self { shm: true, verbs: Some(VerbsSettings::default()) }
    }
}

/// What a node says to a peer about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportOffer {
    /// Names the host, until it boots again.
    pub host: [u8; 16],
    /// Who runs the node.
    pub user: u32,
    /// Where and how it can be met by a Unix socket.
    pub socket: Option<Rendezvous>,
    /// The network of its RDMA device.
    pub network: Option<RdmaNetwork>,
}

/// A Unix socket for one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// Its name, without a file.
    pub name: [u8; 16],
    /// What the peer has to say there. The name can be read by all on the host; this cannot.
    pub key: [u8; 32],
}

/// RDMA devices of one network reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaNetwork {
    /// RoCE version 2, which is routed as the streams are.
    Ethernet,
    /// A subnet of InfiniBand.
    InfiniBand([u8; 8]),
}

impl TransportOffer {
    /// As it travels. All is in order of the fields, behind a mark with the version.
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
    /// A description of the bytes, if they are no offer.
    pub fn from_bytes(bytes: &[u8; OFFER_BYTES]) -> Result<Self, &'static str> {
        if bytes[..8] != MARK {
            return Err("something else");
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
        // Whatever this version would not have written is of another one.
        if offer.to_bytes() == *bytes { Ok(offer) } else { Err("an offer of another version") }
    }

    /// Whether shared memory is worth a try: whether the sockets can be reached shows only then.
    pub(super) fn may_share_memory(&self, other: &Self) -> bool {
        let both = self.socket.is_some() && other.socket.is_some();
        both && (self.host, self.user) == (other.host, other.user)
    }

    /// Whether the devices of both reach each other.
    pub(super) fn shares_network(&self, other: &Self) -> bool {
        self.network.is_some() && self.network == other.network
    }
}

fn part<const N: usize>(bytes: &[u8; OFFER_BYTES], first: usize) -> [u8; N] {
    bytes[first..first + N].try_into().expect("inside the offer")
}

/// The length of an offer.
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
    fn an_offer_is_read_as_it_was_written() {
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
    fn only_who_has_the_same_can_use_it() {
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
