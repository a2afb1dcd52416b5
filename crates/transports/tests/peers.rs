//! Peers that are added later and peers that are removed, on the transports that every machine has. (For
//! RDMA, see `verbs.rs`.)

#[path = "peers/backend.rs"]
mod backend;
#[path = "peers/mixture.rs"]
mod mixture;
#[path = "peers/scenes.rs"]
mod scenes;

use squall_fabric::NodeId;

/// Returns the device of a node: none, without RDMA.
fn device_of(_node: NodeId) -> mixture::NodeDevice {
    None
}

/// Defines one test for each transport.
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

scenes::each!(on_each);
