//! A small cluster in one process whose nodes are connected by TCP, each in a thread of its own, and then
//! agree on their transports.

use std::marker::PhantomData;
use std::net::{TcpListener, TcpStream};

use squall_fabric::NodeId;
use squall_fabric::conformance::Harness;
use squall_transports::composite::{CompositeFabric, CompositeSettings};

/// The transports that each node may use.
pub(crate) trait NodeParts {
    fn settings(node: u32) -> CompositeSettings;
}

pub(crate) struct CompositeNodes<P> {
    nodes: Vec<Option<CompositeFabric>>,
    parts: PhantomData<P>,
}

impl<P: NodeParts> CompositeNodes<P> {
    pub(crate) fn build(nodes: u32) -> Self {
        let start = |(node, streams): (u32, Vec<(NodeId, TcpStream)>)| {
            let settings = P::settings(node);
            std::thread::spawn(move || CompositeFabric::new(NodeId(node), streams, &settings))
        };
        let threads: Vec<_> = (0..).zip(mesh(nodes)).map(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        let nodes = joined.map(|made| Some(made.unwrap_or_else(|error| panic!("{error}"))));
        Self { nodes: nodes.collect(), parts: PhantomData }
    }

    pub(crate) fn fabric(&mut self, i: usize) -> &mut CompositeFabric {
        self.nodes[i].as_mut().expect("alive")
    }
}

impl<P: NodeParts> Harness for CompositeNodes<P> {
    type Fabric = CompositeFabric;

    fn new(nodes: u32) -> Self {
        Self::build(nodes)
    }

    fn node(&mut self, i: u32) -> &mut CompositeFabric {
        self.fabric(i as usize)
    }

    fn step(&mut self) {
        std::thread::yield_now();
    }

    fn kill(&mut self, i: u32) {
        self.nodes[i as usize] = None;
    }
}

/// Returns for each of `nodes` nodes one stream to each other node.
fn mesh(nodes: u32) -> Vec<Vec<(NodeId, TcpStream)>> {
    let mut streams: Vec<Vec<_>> = (0..nodes).map(|_| Vec::new()).collect();
    for a in 0..nodes {
        for b in a + 1..nodes {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
            streams[a as usize].push((NodeId(b), ours));
            streams[b as usize].push((NodeId(a), listener.accept().expect("a client").0));
        }
    }
    streams
}
