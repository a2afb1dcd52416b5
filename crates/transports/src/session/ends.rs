//! Which connections are encrypted, depending on the wish of each end and on where the ends are.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

/// Whether data that travel by TCP are encrypted. If two ends differ, the stricter one decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Encryption {
    /// This end does not ask for it: anything on the path can then read and alter the data.
    Off,
    /// Between hosts, and wherever something such as a relay is between the two ends.
    #[default]
    On,
    /// Within this host, too.
    Always,
}

/// The two ends of a TCP connection as one of them sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionEnds {
    own: SocketAddr,
    peer: SocketAddr,
}

impl ConnectionEnds {
    /// Creates the ends from both addresses. (Both notations of an IPv4 address are treated as one.)
    #[must_use]
    pub const fn new(own: SocketAddr, peer: SocketAddr) -> Self {
        Self { own: canonical(own), peer: canonical(peer) }
    }

    /// Returns the ends of a connected stream.
    ///
    /// # Errors
    /// Returns an error if it is not connected any more.
    pub fn of(stream: &TcpStream) -> io::Result<Self> {
        Ok(Self::new(stream.local_addr()?, stream.peer_addr()?))
    }

    /// Returns whether the connection stays within this host, as far as this end can see.
    fn is_local(&self) -> bool {
        self.own.ip().is_loopback() && self.peer.ip().is_loopback() || self.own.ip() == self.peer.ip()
    }

    /// Returns the ends as the other end sees them, if nothing is in between.
    const fn mirrored(&self) -> Self {
        Self { own: self.peer, peer: self.own }
    }
}

/// What an end sends about itself in the handshake: where it believes the ends are (nothing on a Unix
/// socket), and its wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EncryptionWish {
    pub(super) encryption: Encryption,
    pub(super) ends: Option<ConnectionEnds>,
}

impl EncryptionWish {
    /// Returns whether this end requires encryption, whatever the other wishes.
    pub(super) fn insists(&self) -> bool {
        let Some(ends) = &self.ends else { return false };
        self.encryption == Encryption::Always || self.encryption == Encryption::On && !ends.is_local()
    }

    /// Returns whether the data of a connection are encrypted. Within one host the kernel carries them from
    /// one end to the other, and they need not be; but both ends must see the same two addresses. If they do
    /// not, something is in between.
    pub(super) fn settle(&self, theirs: &Self) -> bool {
        let wanted = self.encryption.max(theirs.encryption) > Encryption::Off;
        let direct = match (&self.ends, &theirs.ends) {
            (Some(ours), Some(theirs)) => *ours == theirs.mirrored(),
            (None, None) => true,
            _ => false,
        };
        self.insists() || theirs.insists() || wanted && !direct
    }

    pub(super) fn to_bytes(self) -> [u8; WISH_BYTES] {
        let mut bytes = [0; WISH_BYTES];
        bytes[0] = match self.encryption {
            Encryption::Off => 0,
            Encryption::On => 1,
            Encryption::Always => 2,
        };
        if let Some(ConnectionEnds { own, peer }) = self.ends {
            bytes[1] = 1;
            bytes[2..2 + ADDRESS_BYTES].copy_from_slice(&address_bytes(own));
            bytes[2 + ADDRESS_BYTES..].copy_from_slice(&address_bytes(peer));
        }
        bytes
    }

    /// Reads what an end that knows the secret has sent; `None` if it is not valid. Fuzzed as `encryption`.
    pub(super) fn from_bytes(bytes: &[u8; WISH_BYTES]) -> Option<Self> {
        let encryption = match bytes[0] {
            0 => Encryption::Off,
            1 => Encryption::On,
            2 => Encryption::Always,
            _ => return None,
        };
        let ends = match bytes[1] {
            0 => None,
            1 => {
                let (own, peer) = bytes[2..].split_at(ADDRESS_BYTES);
                Some(ConnectionEnds { own: read_address(own), peer: read_address(peer) })
            }
            _ => return None,
        };
        Some(Self { encryption, ends })
    }
}

const fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn address_bytes(address: SocketAddr) -> [u8; ADDRESS_BYTES] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_le_bytes());
    bytes
}

fn read_address(bytes: &[u8]) -> SocketAddr {
    let (ip, port) = bytes.split_first_chunk::<16>().expect("an address has 18 bytes");
    let port = u16::from_le_bytes(port.try_into().expect("an address has 18 bytes"));
    canonical(SocketAddr::new(IpAddr::from(*ip), port))
}

const ADDRESS_BYTES: usize = 16 + 2;
pub(super) const WISH_BYTES: usize = 2 + 2 * ADDRESS_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(encryption: Encryption, own: &str, peer: &str) -> EncryptionWish {
        let ends = ConnectionEnds::new(own.parse().unwrap(), peer.parse().unwrap());
        EncryptionWish { encryption, ends: Some(ends) }
    }

    /// Returns what both ends settle, which must be the same.
    fn settled(ours: EncryptionWish, theirs: EncryptionWish) -> bool {
        assert_eq!(ours.settle(&theirs), theirs.settle(&ours));
        let read = EncryptionWish::from_bytes(&ours.to_bytes()).unwrap();
        assert_eq!(read, ours);
        ours.settle(&theirs)
    }

    #[test]
    fn between_hosts_data_are_encrypted_unless_both_switch_it_off() {
        use Encryption::{Always, Off, On};
        let between = |ours, theirs| {
            let (near, far) = ("192.0.2.1:50000", "192.0.2.2:7400");
            settled(wish(ours, near, far), wish(theirs, far, near))
        };
        for (ours, theirs) in [(On, On), (On, Off), (Off, On), (Off, Always), (Always, Always)] {
            assert!(between(ours, theirs), "{ours:?} {theirs:?}");
        }
        assert!(!between(Off, Off));
    }

    #[test]
    fn within_a_host_data_are_encrypted_if_an_end_insists() {
        use Encryption::{Always, Off, On};
        for (near, far) in [
            ("127.0.0.1:50000", "127.0.0.1:7400"),
            ("[::1]:50000", "[::1]:7400"),
            ("192.0.2.1:50000", "192.0.2.1:7400"),
            ("[::ffff:127.0.0.1]:50000", "127.0.0.1:7400"),
        ] {
            let within = |ours, theirs| settled(wish(ours, near, far), wish(theirs, far, near));
            for (ours, theirs) in [(On, On), (On, Off), (Off, Off)] {
                assert!(!within(ours, theirs), "{ours:?} {theirs:?}");
            }
            assert!(within(Always, Off) && within(On, Always));
        }
    }

    /// Both see the loopback, but not the same connection: a relay forwards the bytes.
    #[test]
    fn a_relay_within_a_host_gets_nothing_to_read() {
        use Encryption::{Off, On};
        let caller = |encryption| wish(encryption, "127.0.0.1:50000", "127.0.0.1:7401");
        let called = |encryption| wish(encryption, "127.0.0.1:7400", "127.0.0.1:50001");
        assert!(settled(caller(On), called(On)));
        assert!(settled(caller(On), called(Off)) && settled(caller(Off), called(On)));
        assert!(!settled(caller(Off), called(Off)), "as both wish");
        let by_unix = EncryptionWish { encryption: On, ends: None };
        assert!(settled(by_unix, called(On)), "one end is on a Unix socket, the other is not");
        assert!(!settled(by_unix, by_unix));
    }
}
