//! Loopback clusters in one process.

use std::net::{TcpListener, TcpStream};

use squall_fabric::NodeId;
use squall_fabric::conformance::Harness;
use squall_transports::bootstrap::Secret;
use squall_transports::session::{CallerKind, ConnectionEnds, Encryption, PeerStream, Proof};
use squall_transports::tcp::TcpFabric;

/// Returns both ends of a connected stream.
pub(crate) fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let (far, _) = listener.accept().expect("a client");
    (near, far)
}

/// Returns both ends of an encrypted stream.
pub(crate) fn sealed_pair() -> (PeerStream, PeerStream) {
    let (near, far) = pair();
    sealed(near, far)
}

/// Turns two streams, which are connected to each other or through a relay, into the ends of a session.
pub(crate) fn sealed(mut near: TcpStream, mut far: TcpStream) -> (PeerStream, PeerStream) {
    let secret = Secret::new("the secret of sealed streams").expect("long enough");
    let proof = Proof::new(&secret, "tests").with_encryption(Encryption::Always);
    let ends = |stream: &TcpStream| Some(ConnectionEnds::of(stream).expect("connected"));
    std::thread::scope(|scope| {
        let far = scope.spawn(|| {
            let ends = ends(&far);
            PeerStream::new(
                far.try_clone().expect("a descriptor"),
                proof.demand(&mut far, ends, &[CallerKind::Member]).expect("proved").session,
            )
        });
        let ends = ends(&near);
        let session = proof.prove(&mut near, ends, CallerKind::Member).expect("proved");
        (PeerStream::new(near, session), far.join().expect("no panic"))
    })
}

fn plain_pair() -> (PeerStream, PeerStream) {
    let (near, far) = pair();
    (near.into(), far.into())
}

/// Nodes that are all connected, driven by one thread; their streams are encrypted if `SEALED`, and acknowledgements gathered if `GATHERS`.
#[derive(Debug)]
pub(crate) struct AnyLoopback<const SEALED: bool, const GATHERS: bool> {
    nodes: Vec<Option<TcpFabric>>,
}

pub(crate) type PlainLoopback = AnyLoopback<false, false>;
pub(crate) type SealedLoopback = AnyLoopback<true, false>;
pub(crate) type GatheringLoopback = AnyLoopback<false, true>;
pub(crate) type SealedGatheringLoopback = AnyLoopback<true, true>;

impl<const SEALED: bool, const GATHERS: bool> Harness for AnyLoopback<SEALED, GATHERS> {
    type Fabric = TcpFabric;

    fn new(nodes: u32) -> Self {
        let mut streams: Vec<Vec<(NodeId, PeerStream)>> = (0..nodes).map(|_| Vec::new()).collect();
        for a in 0..nodes {
            for b in 0..a {
                let (near, far) = if SEALED { sealed_pair() } else { plain_pair() };
                streams[a as usize].push((NodeId(b), near));
                streams[b as usize].push((NodeId(a), far));
            }
        }
        let fabric = |(node, streams)| {
            let mut fabric = TcpFabric::new(NodeId(node), streams).expect("streams are connected");
            if GATHERS {
                fabric.gather_answers();
            }
            Some(fabric)
        };
        Self { nodes: (0..nodes).zip(streams).map(fabric).collect() }
    }

    fn node(&mut self, i: u32) -> &mut TcpFabric {
        self.nodes[i as usize].as_mut().expect("the node is alive")
    }

    fn step(&mut self) {
        // Loopback delivers within the sender's system call, or soon after.
        std::hint::spin_loop();
    }

    fn kill(&mut self, i: u32) {
        // The kernel does the same for a process that is killed: it closes the sockets.
        self.nodes[i as usize] = None;
    }
}
