//! Readiness covers all that ends a park: a thread that waits for it watches nothing else of the node.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_transports::shm::ShmFabric;
use squall_transports::tcp::TcpFabric;
use squall_transports::{TransportFabric, wait_readable};

/// The descriptor is readable from a waker's call until the node continues, each time that it parks.
fn a_waker_is_seen(mut fabric: impl TransportFabric) {
    for round in 0..3 {
        fabric.prepare_park();
        fabric.poll(&mut |event| panic!("{event:?}"));
        assert!(!is_ready(&fabric, Duration::ZERO), "round {round}: nothing has happened");
        fabric.waker().wake();
        assert!(is_ready(&fabric, Duration::from_secs(10)), "round {round}: the waker was used");
        fabric.poll(&mut |event| panic!("{event:?}"));
        assert!(is_ready(&fabric, Duration::ZERO), "round {round}: a poll does not silence the waker");
        fabric.unpark();
        assert!(!is_ready(&fabric, Duration::ZERO), "round {round}: the node has continued");
    }
}

fn is_ready(fabric: &impl TransportFabric, timeout: Duration) -> bool {
    wait_readable(&[fabric.readiness().0], Some(timeout)).expect("a descriptor")
}

#[test]
fn a_waker_is_seen_on_shared_memory() {
    a_waker_is_seen(ShmFabric::new(NodeId(0), Vec::<(NodeId, UnixStream)>::new()).expect("a fabric"));
}

#[test]
fn a_waker_is_seen_on_tcp() {
    a_waker_is_seen(TcpFabric::new(NodeId(0), Vec::<(NodeId, TcpStream)>::new()).expect("a fabric"));
}
