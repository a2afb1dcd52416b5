//! Loopback clusters in one process.

use std::net::{TcpListener, TcpStream};

use squall_fabric::NodeId;
use squall_fabric::conformance::Harness;
use squall_transports::tcp::TcpFabric;

/// Both ends of a connected stream.
pub(crate) fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let (far, _) = listener.accept().expect("somebody connects");
    (near, far)
}

/// Nodes that are all connected, driven by one thread.
#[derive(Debug)]
pub(crate) struct Loopback {
    nodes: Vec<Option<TcpFabric>>,
}

impl Harness for Loopback {
    type Fabric = TcpFabric;

    fn new(nodes: u32) -> Self {
        let mut streams: Vec<Vec<_>> = (0..nodes).map(|_| Vec::new()).collect();
        for a in 0..nodes {
            for b in 0..a {
                let (near, far) = pair();
                streams[a as usize].push((NodeId(b), near));
                streams[b as usize].push((NodeId(a), far));
            }
        }
        let fabric =
            |(node, streams)| Some(TcpFabric::new(NodeId(node), streams).expect("streams are connected"));
        Self { nodes: (0..nodes).zip(streams).map(fabric).collect() }
    }

    fn node(&mut self, i: u32) -> &mut TcpFabric {
        self.nodes[i as usize].as_mut().expect("the node lives")
    }

    fn step(&mut self) {
        // Loopback delivers within the sender's system call, or soon after.
        std::hint::spin_loop();
    }

    fn kill(&mut self, i: u32) {
        // The kernel does no more for a process that is killed: it closes the sockets.
        self.nodes[i as usize] = None;
    }
}
