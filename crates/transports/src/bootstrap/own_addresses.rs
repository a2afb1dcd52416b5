//! Which addresses are this host's own: those of its interfaces.
//!
//! Whether an address can be bound does not show it: with `net.ipv4.ip_nonlocal_bind` every address can.

use std::io;
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, ToSocketAddrs,
};
use std::ptr::NonNull;

/// Returns whether one of the addresses that `host` names is this host's.
pub(super) fn is_this_host(host: &str) -> bool {
    let Ok(named) = (host, 0).to_socket_addrs() else { return false };
    let named: Vec<SocketAddr> = named.collect();
    if named.iter().any(|address| address.ip().is_loopback() || address.ip().is_unspecified()) {
        return true;
    }
    match own_addresses() {
        Ok(own) => named.iter().any(|address| own.iter().any(|own| is_same_host(own, address))),
        // A sandbox without netlink: what can be bound is the next best.
        Err(_) => named.iter().any(|address| TcpListener::bind(address).is_ok()),
    }
}

/// Returns whether two addresses are one, whatever their ports; a zone that only one of them has does not matter.
pub(super) fn is_same_host(one: &SocketAddr, other: &SocketAddr) -> bool {
    let zone = |address: &SocketAddr| match address {
        SocketAddr::V6(address) if address.scope_id() != 0 => Some(address.scope_id()),
        _ => None,
    };
    let is_same_zone = zone(one).zip(zone(other)).is_none_or(|(one, other)| one == other);
    one.ip().to_canonical() == other.ip().to_canonical() && is_same_zone
}

/// Returns the addresses of all interfaces of this network namespace.
fn own_addresses() -> io::Result<Vec<SocketAddr>> {
    let interfaces = Interfaces::read()?;
    let mut found = Vec::new();
    let mut next = NonNull::new(interfaces.0);
    while let Some(entry) = next {
        // SAFETY: an entry of the list, which lives until `interfaces` is dropped.
        let entry = unsafe { entry.as_ref() };
        found.extend(NonNull::new(entry.ifa_addr).and_then(read_address));
        next = NonNull::new(entry.ifa_next);
    }
    Ok(found)
}

/// Returns the IP address of an entry; `None` if it has another kind of address.
fn read_address(address: NonNull<libc::sockaddr>) -> Option<SocketAddr> {
    // SAFETY: the list's addresses have a family at least.
    let family = unsafe { address.as_ref() }.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is of this type.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, 0).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is of this type.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, 0, 0, address.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The system's list of interfaces, freed when dropped.
struct Interfaces(*mut libc::ifaddrs);

impl Interfaces {
    fn read() -> io::Result<Self> {
        let mut first = std::ptr::null_mut();
        // SAFETY: the call stores a list there, or fails.
        match unsafe { libc::getifaddrs(&raw mut first) } {
            0 => Ok(Self(first)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Interfaces {
    fn drop(&mut self) {
        // SAFETY: the list that `getifaddrs` has made; no entry is used any more.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

/// Returns an address's host as text, with its zone if it has one.
pub(super) fn host_text(address: &SocketAddr) -> String {
    match address {
        SocketAddr::V6(six) if six.scope_id() != 0 => format!("{}%{}", six.ip(), six.scope_id()),
        _ => address.ip().to_string(),
    }
}

/// Splits a host into its address and its zone, if it is an address that is only valid on one link.
pub(super) fn link_local(host: &str) -> Option<(Ipv6Addr, Option<&str>)> {
    let (ip, zone) = host.split_once('%').map_or((host, None), |(ip, zone)| (ip, Some(zone)));
    let ip: Ipv6Addr = ip.parse().ok()?;
    ip.is_unicast_link_local().then_some((ip, zone))
}

/// Returns whether a host is a wildcard, at which a process listens on all interfaces.
pub(super) fn is_wildcard(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_listed() {
        let own = own_addresses().expect("interfaces");
        assert!(own.iter().any(|address| address.ip() == IpAddr::from([127, 0, 0, 1])), "{own:?}");
        for host in ["127.0.0.1", "127.3.2.1", "::1", "0.0.0.0", "::", "localhost"] {
            assert!(is_this_host(host), "{host}");
        }
        // Of the blocks for documentation.
        for host in ["192.0.2.77", "2001:db8::77", "", "no such host"] {
            assert!(!is_this_host(host), "{host}");
        }
    }

    #[test]
    fn a_zone_matters_only_if_both_addresses_have_one() {
        let at = |zone| SocketAddr::from(SocketAddrV6::new("fe80::1".parse().unwrap(), 0, 0, zone));
        assert!(is_same_host(&at(0), &at(3)) && is_same_host(&at(3), &at(3)));
        assert!(!is_same_host(&at(2), &at(3)));
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:0".parse().unwrap();
        assert!(is_same_host(&mapped, &"192.0.2.1:9".parse().unwrap()));
        assert_eq!((host_text(&at(3)), host_text(&at(0))), ("fe80::1%3".into(), "fe80::1".into()));
    }

    #[test]
    fn only_addresses_of_one_link_have_zones() {
        let ip: Ipv6Addr = "fe80::1".parse().unwrap();
        assert_eq!(link_local("fe80::1%eth0"), Some((ip, Some("eth0"))));
        assert_eq!(link_local("fe80::1"), Some((ip, None)));
        assert_eq!(["fd00::1", "10.0.0.1", "host", ""].map(link_local), [None; 4]);
    }
}
