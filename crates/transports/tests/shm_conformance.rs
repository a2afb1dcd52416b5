//! The conformance suite on shared memory: a small cluster in one process, its nodes connected by socket
//! pairs.

use std::os::unix::net::UnixStream;

use squall_fabric::NodeId;
use squall_fabric::conformance::Harness;
use squall_transports::shm::ShmFabric;

struct Cluster<const FETCHES: bool> {
    nodes: Vec<Option<ShmFabric>>,
}

impl<const FETCHES: bool> Harness for Cluster<FETCHES> {
    type Fabric = ShmFabric;

    fn new(nodes: u32) -> Self {
        let mut sockets: Vec<Vec<(NodeId, UnixStream)>> = (0..nodes).map(|_| Vec::new()).collect();
        for a in 0..nodes {
            for b in a + 1..nodes {
                let (at_a, at_b) = UnixStream::pair().expect("sockets");
                sockets[a as usize].push((NodeId(b), at_a));
                sockets[b as usize].push((NodeId(a), at_b));
            }
        }
        let fabric = |(node, peers)| {
            let mut fabric = ShmFabric::new(NodeId(node), peers).expect("a fabric");
            fabric.set_fetching(FETCHES);
            // This makes the suite's writes large enough to be fetched.
            fabric.set_fetched_words_min(16);
            Some(fabric)
        };
        Self { nodes: (0..).zip(sockets).map(fabric).collect() }
    }

    fn node(&mut self, i: u32) -> &mut ShmFabric {
        self.nodes[i as usize].as_mut().expect("alive")
    }

    fn step(&mut self) {
        std::thread::yield_now();
    }

    fn kill(&mut self, i: u32) {
        self.nodes[i as usize] = None;
    }
}

squall_fabric::conformance_suite!(Cluster<true>);

/// Where the kernel does not let processes read each other's memory.
mod without_fetching {
    squall_fabric::conformance_suite!(super::Cluster<false>);
}
