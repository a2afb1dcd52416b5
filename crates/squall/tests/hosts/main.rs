//! Processes in containers and on hosts of their own: groups, objects with joiners, clients and streams, where processes have
//! process namespaces of their own, share a network or have one each, and where a sandbox refuses what shared memory needs.
//!
//! Each test runs in a network of its own (`lab`), as root or in a user namespace.

mod addresses;
mod lab;
mod roles;
mod sandboxes;
mod trial;

use lab::{Host, Network, in_lab};
use trial::GroupTrial;

/// Where all members listen in `lab::Network::OwnEach`, and a host's clients.
const PORT: u16 = 7400;

/// The role of a process of the tests; not a test of its own.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn role() {
    roles::play();
}
