//! The addresses at which members listen, are announced and are reached, on hosts with networks of their own.

use super::*;

/// Members that listen at all interfaces are reached at the addresses that others see.
fn wildcard(anywhere: &str, address: impl Fn(usize) -> String) {
    let listen = [(); 3].map(|()| format!("{anywhere}:{PORT}"));
    GroupTrial { listen, ..GroupTrial::at(Network::OwnEach, "tcp", address) }.run();
}

#[test]
fn members_that_listen_at_all_addresses_of_ipv4() {
    in_lab("addresses::members_that_listen_at_all_addresses_of_ipv4", || {
        wildcard("0.0.0.0", |number| format!("10.77.0.{number}:{PORT}"));
    });
}

#[test]
fn members_that_listen_at_all_addresses_of_ipv6() {
    in_lab("addresses::members_that_listen_at_all_addresses_of_ipv6", || {
        wildcard("[::]", |number| format!("[fd77::{number}]:{PORT}"));
    });
}

/// Where each address can be bound, as on hosts with a virtual address, a contact is this host only if an interface has it.
#[test]
fn members_on_hosts_that_bind_foreign_addresses() {
    in_lab("addresses::members_on_hosts_that_bind_foreign_addresses", || {
        let listen = [(); 3].map(|()| format!("0.0.0.0:{PORT}"));
        let more = [(); 3].map(|()| " sysctl=net/ipv4/ip_nonlocal_bind".into());
        let address = |number| format!("10.77.0.{number}:{PORT}");
        GroupTrial { listen, more, ..GroupTrial::at(Network::OwnEach, "tcp", address) }.run();
    });
}

/// Addresses that are valid on one link have zones, which each host names for itself.
#[test]
fn members_with_addresses_of_one_link() {
    in_lab("addresses::members_with_addresses_of_one_link", || {
        GroupTrial::at(Network::OwnEach, "tcp", |number| format!("[fe80::{number}%eth0]:{PORT}")).run();
    });
}

/// Members and clients reach a member at the name that it advertises, wherever it listens.
#[test]
fn members_that_advertise_names() {
    in_lab("addresses::members_that_advertise_names", || {
        let listen = [(); 3].map(|()| format!("0.0.0.0:{PORT}"));
        let more = [1, 2, 3].map(|number| format!(" advertise=member-{number}:0"));
        let address = |number| format!("member-{number}:{PORT}");
        GroupTrial { listen, more, ..GroupTrial::at(Network::OwnEach, "tcp", address) }.run();
    });
}

/// Members behind a gateway that maps one port to each: members and clients reach them there, whatever they ask for.
#[test]
fn members_behind_port_maps() {
    in_lab("addresses::members_behind_port_maps", || {
        let mapped = |number| 17000 + u16::try_from(number).unwrap();
        for number in 1..=3 {
            lab::map_port(mapped(number), format!("10.77.0.{number}:{PORT}"));
        }
        let address = |number| format!("{}:{}", lab::GATEWAY, mapped(number));
        let listen = [1, 2, 3].map(|number| format!("10.77.0.{number}:{PORT}"));
        let more = [1, 2, 3].map(|number| format!(" advertise={}", address(number)));
        GroupTrial { listen, more, ..GroupTrial::at(Network::OwnEach, "tcp", address) }.run();
    });
}
