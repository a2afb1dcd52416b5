//! Peers that come later and peers that are removed, on the transports that every machine has. (On RDMA: `verbs.rs`.)

#[path = "peers/backend.rs"]
mod backend;
#[path = "peers/mixture.rs"]
mod mixture;
#[path = "peers/scenes.rs"]
mod scenes;

use squall_fabric::NodeId;

/// Without RDMA.
fn device_of(_node: NodeId) -> mixture::Device {
    None
}

/// One test for each transport.
macro_rules! on_each {
    ($($test:ident,)*) => {
        mod shm {
            $(#[test] fn $test() { crate::scenes::$test::<squall_transports::shm::ShmFabric>(); })*
        }
        mod mixed {
            $(#[test] fn $test() { crate::scenes::$test::<squall_transports::composite::CompositeFabric>(); })*
        }
        mod tcp {
            $(#[test] fn $test() { crate::scenes::$test::<squall_transports::tcp::TcpFabric>(); })*
        }
    };
}

on_each! {
    who_comes_later_is_like_any_other,
    what_was_published_and_attached_before_waits,
    a_removed_peer_is_forgotten,
    grants_of_a_removed_peer_end,
    names_of_connections_are_not_used_again,
    who_will_not_come_is_forgotten,
    a_node_is_taken_in_once,
    a_peer_that_dies_on_the_way_is_lost,
    a_retired_mirror_is_not_shown_to_who_comes_later,
}
