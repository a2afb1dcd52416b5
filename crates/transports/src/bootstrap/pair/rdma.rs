//! Decides whether an end can use RDMA: with a device that works, for which enough memory may be locked, and
//! which is on the network by which the ends meet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};

use super::PairTerms;
use crate::bootstrap::Address;
use crate::verbs::{self, VerbsError};

impl PairTerms {
    /// Returns whether any device is usable, for an end of which RDMA is required.
    pub(super) fn has_rdma(&self) -> bool {
        let found = verbs::check_for(&self.verbs, &[], self.locked_bytes);
        if let Err(error) = &found {
            crate::log::warn!("a caller requires RDMA, which is not available: {error}");
        }
        found.is_ok()
    }

    /// Returns whether a device is usable that is named or has the address `local`, by which the other end is
    /// met; for an end of which nothing is required.
    pub(super) fn would_use_rdma(&self, local: Option<IpAddr>) -> bool {
        let addresses: Vec<IpAddr> = local.into_iter().collect();
        match verbs::check_for(&self.verbs, &addresses, self.locked_bytes) {
            Ok(device) => self.verbs.device.is_some() || addresses.iter().any(|local| device.has(*local)),
            Err(error @ VerbsError::MemoryLock { .. }) => {
                crate::log::warn!("a stream uses TCP instead of RDMA: {error}");
                false
            }
            Err(error) => {
                crate::log::debug!("a stream uses TCP: {error}");
                false
            }
        }
    }
}

/// Returns the address of this host from which packets to `address` are sent.
pub(super) fn local_address(address: &Address) -> Option<IpAddr> {
    let Address::Tcp { host, port } = address else { return None };
    let peer = (host.as_str(), *port).to_socket_addrs().ok()?.next()?;
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Nothing is sent: the kernel only looks up the route.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_to_this_host_is_the_loopback() {
        let local = |address: &str| local_address(&address.parse().expect("an address"));
        assert_eq!(local("127.0.0.1:7000"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(local("unix:@name"), None);
    }
}
