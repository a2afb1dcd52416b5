//! The Unix sockets beside a TCP address, at which processes of its host meet to share memory.

use std::net::{IpAddr, ToSocketAddrs};

use super::super::Address;
use super::super::own_addresses::is_this_host;
use super::PairService;

/// Returns the Unix sockets of listeners at a TCP address of this host: of one that listens at all addresses,
/// and of one at this address. The last is the one at which a listener with exactly this address listens.
pub(super) fn twins(address: &Address, prefix: &str) -> Vec<Address> {
    let Address::Tcp { host, port } = address else { return Vec::new() };
    if !is_this_host(host) {
        return Vec::new();
    }
    let name = |ip: IpAddr| {
        let ip = if ip.is_unspecified() { "*".into() } else { ip.to_string() };
        Address::Abstract(format!("squall-{prefix}/{ip}:{port}"))
    };
    let mut names = vec![Address::Abstract(format!("squall-{prefix}/*:{port}"))];
    let found = (host.as_str(), *port).to_socket_addrs().into_iter().flatten();
    names.extend(found.map(|address| name(address.ip())));
    names.dedup();
    names
}

/// The beginning of the names of a service's Unix sockets.
pub(super) fn twin_prefix(service: PairService) -> String {
    format!("serve/{service}")
}
