//! A common interface to the transports that can add and remove peers, and a few nodes that are driven by one
//! thread.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use squall_fabric::{Fabric, FabricEvent, NodeId};
use squall_transports::bootstrap::LinkSocket;
use squall_transports::session::PeerStream;
use squall_transports::shm::ShmFabric;
use squall_transports::tcp::TcpFabric;

/// A transport to which peers can be added later.
pub(crate) trait Backend: Fabric + Sized {
    type Stream: LinkSocket;

    /// Creates a node without peers.
    fn alone(node: NodeId) -> Self;

    /// Returns both ends of a connected stream.
    fn pair() -> (<Self::Stream as LinkSocket>::Secured, <Self::Stream as LinkSocket>::Secured);

    fn add(&mut self, node: NodeId, stream: <Self::Stream as LinkSocket>::Secured) -> std::io::Result<()>;

    fn remove(&mut self, node: NodeId);

    /// Returns whether a node that was added has become a peer.
    fn has_met(&self, _node: NodeId) -> bool {
        true
    }
}

impl Backend for ShmFabric {
    type Stream = UnixStream;

    fn alone(node: NodeId) -> Self {
        Self::new(node, Vec::new()).expect("a fabric")
    }

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("sockets")
    }

    fn add(&mut self, node: NodeId, stream: UnixStream) -> std::io::Result<()> {
        self.add_peer(node, stream)
    }

    fn remove(&mut self, node: NodeId) {
        self.remove_peer(node);
    }
}

impl Backend for TcpFabric {
    type Stream = TcpStream;

    fn alone(node: NodeId) -> Self {
        Self::new(node, Vec::<(NodeId, PeerStream)>::new()).expect("a fabric")
    }

    fn pair() -> (PeerStream, PeerStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let (far, _) = listener.accept().expect("a client");
        (near.into(), far.into())
    }

    fn add(&mut self, node: NodeId, stream: PeerStream) -> std::io::Result<()> {
        self.add_peer(node, stream)
    }

    fn remove(&mut self, node: NodeId) {
        self.remove_peer(node);
    }
}

/// Nodes by number, and the events that they have yielded.
pub(crate) struct BackendNodes<F> {
    nodes: BTreeMap<u32, F>,
    events: BTreeMap<u32, Vec<FabricEvent>>,
}

impl<F: Backend> BackendNodes<F> {
    /// Starts these nodes, none of which is connected to another.
    pub(crate) fn apart(nodes: &[u32]) -> Self {
        let mut all = Self { nodes: BTreeMap::new(), events: BTreeMap::new() };
        nodes.iter().for_each(|node| all.start(*node));
        all
    }

    /// Starts nodes that are all connected.
    pub(crate) fn joined(nodes: &[u32]) -> Self {
        let mut all = Self::apart(nodes);
        for (i, a) in nodes.iter().enumerate() {
            nodes[i + 1..].iter().for_each(|b| all.join(*a, *b));
        }
        all
    }

    pub(crate) fn start(&mut self, node: u32) {
        self.nodes.insert(node, F::alone(NodeId(node)));
        self.events.insert(node, Vec::new());
    }

    /// Ends a node as `kill -9` would.
    pub(crate) fn kill(&mut self, node: u32) {
        self.nodes.remove(&node).expect("alive");
        self.events.remove(&node);
    }

    pub(crate) fn join(&mut self, a: u32, b: u32) {
        let (at_a, at_b) = F::pair();
        self.node(a).add(NodeId(b), at_a).expect("added");
        self.node(b).add(NodeId(a), at_b).expect("added");
        self.meet(a, b);
    }

    /// Waits until both are peers, on transports where this takes time.
    pub(crate) fn meet(&mut self, a: u32, b: u32) {
        self.until("the meeting", |all| all.node(a).has_met(NodeId(b)) && all.node(b).has_met(NodeId(a)));
    }

    pub(crate) fn node(&mut self, node: u32) -> &mut F {
        self.nodes.get_mut(&node).expect("alive")
    }

    pub(crate) fn events(&mut self, node: u32) -> &mut Vec<FabricEvent> {
        self.events.get_mut(&node).expect("alive")
    }

    pub(crate) fn poll(&mut self) {
        for (node, fabric) in &mut self.nodes {
            let events = self.events.get_mut(node).expect("alive");
            fabric.poll(&mut |event| events.push(event));
        }
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            self.poll();
            assert!(begin.elapsed() < PATIENCE, "waited {PATIENCE:?} for: {what}; {:?}", self.events);
        }
    }

    /// Waits for an event and removes it.
    pub(crate) fn expect(
        &mut self,
        node: u32,
        what: &str,
        matches: impl Fn(&FabricEvent) -> bool,
    ) -> FabricEvent {
        let mut found = None;
        self.until(what, |all| {
            let events = all.events(node);
            found = events.iter().position(&matches).map(|at| events.remove(at));
            found.is_some()
        });
        found.expect("`until` returns when it is found")
    }

    pub(crate) fn expect_lost(&mut self, node: u32, peer: u32) {
        self.expect(
            node,
            "PeerLost",
            |event| matches!(event, FabricEvent::PeerLost { peer: lost, .. } if lost.0 == peer),
        );
    }

    /// Polls for a while; what has not arrived by then would be late even on a busy machine.
    pub(crate) fn settle(&mut self) {
        for _ in 0..200 {
            self.poll();
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
