//! Nodes that reach each other in several ways: those with even numbers by shared memory, all others by the
//! other transports.

use std::net::TcpStream;

use squall_fabric::NodeId;
use squall_transports::composite::{CompositeFabric, CompositeSettings};
use squall_transports::session::PeerStream;
use squall_transports::tcp::TcpFabric;
use squall_transports::verbs::VerbsSettings;

use crate::backend::Backend;

impl Backend for CompositeFabric {
    type Stream = TcpStream;

    fn alone(node: NodeId) -> Self {
        let settings = CompositeSettings {
            shm: node.0.is_multiple_of(2),
            verbs: crate::device_of(node),
            relinking: None,
        };
        Self::new(node, Vec::<(NodeId, PeerStream)>::new(), &settings)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn pair() -> (PeerStream, PeerStream) {
        TcpFabric::pair()
    }

    fn add(&mut self, node: NodeId, stream: PeerStream) -> std::io::Result<()> {
        self.add_peer(node, stream)
    }

    fn remove(&mut self, node: NodeId) {
        self.remove_peer(node);
    }

    fn has_met(&self, node: NodeId) -> bool {
        self.choices().iter().any(|choice| choice.peer == node)
    }
}

/// The device of a node, if it has one.
pub(crate) type NodeDevice = Option<VerbsSettings>;
