//! A small cluster over RDMA devices in one process: control streams over the loopback, data over the devices
//! in rotation.

use std::net::{TcpListener, TcpStream};

use squall_fabric::NodeId;
use squall_fabric::conformance::Harness;
use squall_transports::session::PeerStream;
use squall_transports::verbs::{VerbsFabric, VerbsSettings};

use crate::backend::Backend;

/// The nodes of one process.
pub(crate) struct VerbsHarness {
    nodes: Vec<Option<VerbsFabric>>,
}

impl Harness for VerbsHarness {
    type Fabric = VerbsFabric;

    fn new(nodes: u32) -> Self {
        let nodes = mesh(nodes).into_iter().enumerate().map(|(i, streams)| Some(fabric(i, streams)));
        Self { nodes: nodes.collect() }
    }

    fn node(&mut self, i: u32) -> &mut VerbsFabric {
        self.nodes[i as usize].as_mut().expect("the node is alive")
    }

    fn step(&mut self) {
        // Software devices need the processor, too.
        std::thread::yield_now();
    }

    fn kill(&mut self, i: u32) {
        self.nodes[i as usize] = None;
    }
}

/// Creates node `i` on one of the devices.
pub(crate) fn fabric(i: usize, streams: Vec<(NodeId, TcpStream)>) -> VerbsFabric {
    let node = NodeId(u32::try_from(i).expect("few nodes"));
    VerbsFabric::new(node, streams, &settings(i)).unwrap_or_else(|error| panic!("{node}: {error}"))
}

/// Returns the settings of node `i`, with one of the devices.
pub(crate) fn settings(i: usize) -> VerbsSettings {
    let devices = devices();
    let device = (!devices.is_empty()).then(|| devices[i % devices.len()].clone());
    VerbsSettings { device, ..VerbsSettings::default() }
}

/// Returns for each of `nodes` nodes one stream to each other node.
pub(crate) fn mesh(nodes: u32) -> Vec<Vec<(NodeId, TcpStream)>> {
    let mut streams: Vec<Vec<_>> = (0..nodes).map(|_| Vec::new()).collect();
    for a in 0..nodes {
        for b in a + 1..nodes {
            let (ours, theirs) = pair();
            streams[a as usize].push((NodeId(b), ours));
            streams[b as usize].push((NodeId(a), theirs));
        }
    }
    streams
}

/// Returns both ends of a stream.
pub(crate) fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
    (ours, listener.accept().expect("a client").0)
}

/// Returns the devices of this machine that verbs may use.
fn devices() -> Vec<String> {
    let folder = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    let names = folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // In the virtual machine there may be iWARP devices as well, which are refused.
    let mut names: Vec<_> = names.filter(|name| !name.starts_with("siw")).collect();
    names.sort();
    names
}

impl Backend for VerbsFabric {
    type Stream = TcpStream;

    fn alone(node: NodeId) -> Self {
        fabric(node.0 as usize, Vec::new())
    }

    fn pair() -> (PeerStream, PeerStream) {
        let (ours, theirs) = pair();
        (ours.into(), theirs.into())
    }

    fn add(&mut self, node: NodeId, stream: PeerStream) -> std::io::Result<()> {
        self.add_peer(node, stream)
    }

    fn remove(&mut self, node: NodeId) {
        self.remove_peer(node);
    }
}
