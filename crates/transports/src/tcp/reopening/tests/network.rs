//! Nodes whose connections pass through relays that end them: after a number of bytes, or when the test says so.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use rustix::fd::{AsFd, AsRawFd};
use squall_fabric::{Fabric as _, FabricEvent};

use super::super::*;
use crate::bootstrap::Secret;
use crate::session::{CallerKind, ConnectionEnds, Encryption, HELLO_BYTES, Proof, SessionKeys};

/// When relays end connections.
#[derive(Clone, Copy, Debug)]
pub(super) enum Breaks {
    Never,
    /// The first connection, after this many bytes of its data in one direction.
    Once {
        direction: Wires,
        bytes: usize,
    },
    /// Each connection, after some bytes: up to `most`, in each direction.
    Random {
        seed: u64,
        most: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wires {
    Forth,
    Back,
}

/// What the relays share.
#[derive(Debug)]
struct Network {
    breaks: Breaks,
    state: Mutex<NetworkState>,
    proof: Proof,
}

#[derive(Debug, Default)]
struct NetworkState {
    /// Connections that were made so far.
    connections: u64,
    /// Both ends of each relay.
    relays: Vec<[TcpStream; 2]>,
    addresses: BTreeMap<NodeId, SocketAddr>,
    refuses: bool,
    random: u64,
}

pub(super) struct Cluster {
    nodes: Vec<Option<TcpFabric>>,
    network: Arc<Network>,
}

/// The caller of a node.
#[derive(Debug)]
struct ByRelay(Arc<Network>);

struct Proved {
    stream: TcpStream,
    session: SessionKeys,
}

#[derive(Debug)]
struct Visitor {
    request: ReopenRequest,
    stream: PeerStream,
}

const REQUEST_BYTES: usize = 32 + 8 + 4 + 8;
const REPLY_BYTES: usize = 1 + 8;

/// The bytes of a handshake and of a request or an answer, after which a connection carries data; of a record: its length and tag.
const PROLOGUE_FORTH: usize = HELLO_BYTES + RECORD_BYTES + REQUEST_BYTES + RECORD_BYTES;
const PROLOGUE_BACK: usize = crate::session::ANSWER_BYTES + REPLY_BYTES + RECORD_BYTES;
const RECORD_BYTES: usize = 2 + 16;

impl ReopenRequest {
    fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..32].copy_from_slice(&self.pair);
        bytes[32..40].copy_from_slice(&self.ballot.number.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.ballot.node.0.to_le_bytes());
        bytes[44..].copy_from_slice(&self.handled.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; REQUEST_BYTES]) -> Self {
        let number = |range: std::ops::Range<usize>| u64::from_le_bytes(bytes[range].try_into().unwrap());
        let node = u32::from_le_bytes(bytes[40..44].try_into().unwrap());
        let ballot = ReopenBallot { number: number(32..40), node: NodeId(node) };
        Self { pair: bytes[..32].try_into().unwrap(), ballot, handled: number(44..52) }
    }
}

fn failure(error: &io::Error) -> PairCallFailure {
    PairCallFailure { refused: error.kind() == ErrorKind::ConnectionRefused, cause: error.to_string() }
}

impl PeerCaller for ByRelay {
    fn call(&self, peer: NodeId) -> Result<Box<dyn ProvedCall>, PairCallFailure> {
        let mut stream = self.0.connect(peer).map_err(|error| failure(&error))?;
        let session = self.0.prove(&mut stream).map_err(|error| failure(&error))?;
        Ok(Box::new(Proved { stream, session }))
    }
}

impl ProvedCall for Proved {
    fn ask(self: Box<Self>, request: &ReopenRequest) -> Result<(ReopenAnswer, PeerStream), PairCallFailure> {
        let mut stream = PeerStream::new(self.stream, self.session);
        let mut exchange = || {
            stream.write_all(&request.to_bytes())?;
            stream.flush()?;
            let mut reply = [0; REPLY_BYTES];
            stream.read_exact(&mut reply)?;
            Ok(reply)
        };
        let reply = exchange().map_err(|error| failure(&error))?;
        let number = u64::from_le_bytes(reply[1..].try_into().unwrap());
        let answers = [ReopenAnswer::Yes(number), ReopenAnswer::No(number), ReopenAnswer::Gone];
        Ok((answers[usize::from(reply[0])], stream))
    }
}

impl Asking for Visitor {
    fn request(&self) -> ReopenRequest {
        self.request
    }

    fn answer(mut self: Box<Self>, answer: ReopenAnswer) -> io::Result<PeerStream> {
        let (kind, number) = match answer {
            ReopenAnswer::Yes(handled) => (0, handled),
            ReopenAnswer::No(seen) => (1, seen),
            ReopenAnswer::Gone => (2, 0),
        };
        let mut bytes = [kind; REPLY_BYTES];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        self.stream.write_all(&bytes)?;
        self.stream.flush()?;
        Ok(self.stream)
    }
}

impl Network {
    /// Returns the number of data bytes after which the next connection ends, forth and back.
    fn next_limits(&self) -> [Option<usize>; 2] {
        let mut state = self.state.lock().unwrap();
        state.connections += 1;
        match self.breaks {
            Breaks::Once { direction, bytes } if state.connections == 1 => {
                [Wires::Forth, Wires::Back].map(|wires| (wires == direction).then_some(bytes))
            }
            Breaks::Never | Breaks::Once { .. } => [None; 2],
            Breaks::Random { most, .. } => [(); 2].map(|()| {
                state.random ^= state.random << 13;
                state.random ^= state.random >> 7;
                state.random ^= state.random << 17;
                Some(usize::try_from(state.random % most).unwrap())
            }),
        }
    }

    /// Connects to a node through a relay.
    fn connect(&self, to: NodeId) -> io::Result<TcpStream> {
        let address = {
            let state = self.state.lock().unwrap();
            let address = state.addresses.get(&to).copied().filter(|_| !state.refuses);
            address.ok_or(ErrorKind::ConnectionRefused)?
        };
        let far = TcpStream::connect(address)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let middle = listener.accept()?.0;
        for stream in [&near, &middle, &far] {
            stream.set_nodelay(true)?;
        }
        let limits = self.next_limits();
        let ends = [middle, far];
        self.state.lock().unwrap().relays.push([ends[0].try_clone()?, ends[1].try_clone()?]);
        for (from, limit) in limits.into_iter().enumerate() {
            let (source, target) = (ends[from].try_clone()?, ends[1 - from].try_clone()?);
            let prologue = [PROLOGUE_FORTH, PROLOGUE_BACK][from];
            std::thread::spawn(move || relay(source, target, limit.map(|limit| prologue + limit)));
        }
        Ok(near)
    }

    fn prove(&self, stream: &mut TcpStream) -> io::Result<SessionKeys> {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        let ends = Some(ConnectionEnds::of(stream)?);
        self.proof.prove(stream, ends, CallerKind::Member).map_err(io::Error::other)
    }
}

/// Passes bytes on; after `limit` of them both connections are reset.
fn relay(mut source: TcpStream, mut target: TcpStream, limit: Option<usize>) {
    let (mut left, mut buffer) = (limit.unwrap_or(usize::MAX), [0; 4096]);
    while left > 0 {
        let most = buffer.len().min(left);
        match source.read(&mut buffer[..most]) {
            Ok(0) => {
                let _ = target.shutdown(Shutdown::Write);
                return;
            }
            Ok(read) if target.write_all(&buffer[..read]).is_ok() => left -= read,
            _ => break,
        }
    }
    reset(&[source, target]);
}

/// Resets connections at once, whatever other descriptors they have: each is connected to nothing.
pub(super) fn reset(ends: &[impl AsRawFd]) {
    for end in ends {
        // SAFETY: a `sockaddr` of zeros is valid: it has the family `AF_UNSPEC`.
        let nothing: libc::sockaddr = unsafe { std::mem::zeroed() };
        let length = libc::socklen_t::try_from(size_of::<libc::sockaddr>()).unwrap();
        // SAFETY: the address is valid and has that length.
        unsafe { libc::connect(end.as_raw_fd(), &raw const nothing, length) };
    }
}

/// From now on nothing arrives at a socket, as if its path were interrupted.
pub(super) fn interrupt(socket: &TcpSocket) {
    // Returns 0 for each packet: so much of it is kept.
    let mut nothing = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
    let length = libc::socklen_t::try_from(size_of_val(&program)).unwrap();
    // SAFETY: the program has one instruction, which the kernel copies.
    let set = unsafe {
        libc::setsockopt(
            socket.fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            length,
        )
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

/// The path is mended.
pub(super) fn mend(socket: &TcpSocket) {
    let none: libc::c_int = 0;
    let length = libc::socklen_t::try_from(size_of_val(&none)).unwrap();
    // SAFETY: the value is an `int` of that length.
    let set = unsafe {
        libc::setsockopt(
            socket.fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_DETACH_FILTER,
            (&raw const none).cast(),
            length,
        )
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

impl Cluster {
    pub(super) fn new(nodes: u32, sealed: bool, breaks: Breaks) -> Self {
        Self::with_silence(nodes, sealed, breaks, None)
    }

    /// As [`Cluster::new`], where the kernel ends connections that are silent for `silence`.
    pub(super) fn with_silence(nodes: u32, sealed: bool, breaks: Breaks, silence: Option<Duration>) -> Self {
        let secret = Secret::new("the secret of relayed streams").expect("long enough");
        let encryption = if sealed { Encryption::Always } else { Encryption::Off };
        let proof = Proof::new(&secret, "tests").with_encryption(encryption);
        let seed = if let Breaks::Random { seed, .. } = breaks { seed } else { 1 };
        let state =
            NetworkState { random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), ..NetworkState::default() };
        let network = Arc::new(Network { breaks, state: Mutex::new(state), proof });
        let mut fabrics = Vec::new();
        for node in (0..nodes).map(NodeId) {
            let none: Vec<(NodeId, PeerStream)> = Vec::new();
            let mut fabric = TcpFabric::new(node, none).unwrap();
            let desk = fabric.reopen_by(Arc::new(ByRelay(Arc::clone(&network))), silence).unwrap();
            fabrics.push((fabric, desk));
        }
        let (first, arrivals) = channel();
        for (node, (_, desk)) in (0..nodes).zip(&fabrics) {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            network.state.lock().unwrap().addresses.insert(NodeId(node), listener.local_addr().unwrap());
            let (network, desk, first) = (Arc::clone(&network), desk.clone(), first.clone());
            std::thread::spawn(move || listen(&listener, NodeId(node), &network, &desk, &first));
        }
        for a in 0..nodes {
            for b in 0..a {
                let mut stream = network.connect(NodeId(b)).unwrap();
                let session = network.prove(&mut stream).unwrap();
                let mut near = PeerStream::new(stream, session);
                // The first connection of a pair: of zeros.
                let ballot = ReopenBallot { number: 0, node: NodeId(a) };
                near.write_all(&ReopenRequest { pair: [0; 32], ballot, handled: 0 }.to_bytes()).unwrap();
                near.flush().unwrap();
                let (caller, far) = arrivals.recv().unwrap();
                assert_eq!(caller, NodeId(a));
                fabrics[a as usize].0.add_peer(NodeId(b), near).unwrap();
                fabrics[b as usize].0.add_peer(NodeId(a), far).unwrap();
            }
        }
        let nodes = fabrics.into_iter().map(|(fabric, _)| Some(fabric)).collect();
        let mut cluster = Self { nodes, network };
        while !cluster.has_sentinels() {
            assert!(cluster.poll_all().is_empty());
        }
        cluster
    }

    pub(super) fn node(&mut self, i: u32) -> &mut TcpFabric {
        self.nodes[i as usize].as_mut().expect("it lives")
    }

    /// Polls all; returns their events.
    pub(super) fn poll_all(&mut self) -> Vec<FabricEvent> {
        let mut events = Vec::new();
        for node in self.nodes.iter_mut().flatten() {
            node.poll(&mut |event| events.push(event));
        }
        std::thread::yield_now();
        events
    }

    /// Whether each end of each pair has a sentinel.
    pub(super) fn has_sentinels(&self) -> bool {
        let peers = self.nodes.iter().flatten().flat_map(|node| &node.peers);
        let mut pairs = peers.filter_map(|peer| peer.reopening.as_ref());
        pairs.all(|reopening| reopening.sentinel.stream.is_some())
    }

    /// How often an end has continued with a new connection.
    pub(super) fn reopened(&self) -> usize {
        let counts = self.nodes.iter().flatten().map(|node| node.counters().reopened);
        usize::try_from(counts.sum::<u64>()).unwrap()
    }

    /// Kills a node: its host closes its connections, and refuses others.
    pub(super) fn kill(&mut self, i: u32) {
        let address = self.network.state.lock().unwrap().addresses.remove(&NodeId(i));
        // Wakes the listening thread, which ends.
        let _ = address.map(TcpStream::connect);
        if let Some(mut fabric) = self.nodes[i as usize].take() {
            fabric.peers.iter_mut().for_each(TcpPeer::drop_connection);
            fabric.peers.clear();
        }
    }

    pub(super) fn refuse(&self, refuses: bool) {
        self.network.state.lock().unwrap().refuses = refuses;
    }

    /// Ends all connections: each end sees the end of its stream.
    pub(super) fn cut(&self) {
        for end in self.network.state.lock().unwrap().relays.drain(..).flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Resets the connections that carry data, at one end each.
    pub(super) fn reset_links(&self) {
        let peers = self.nodes.iter().flatten().flat_map(|node| &node.peers);
        peers.filter_map(|peer| peer.socket.as_ref()).for_each(|socket| reset(&[socket.fd()]));
    }

    /// Ends the sentinels of node 0, or resets them.
    pub(super) fn end_sentinels(&self, ends: bool) {
        let peers = self.nodes[0].iter().flat_map(|node| &node.peers);
        for stream in peers.filter_map(|peer| peer.reopening.as_ref()?.sentinel.stream.as_ref()) {
            if ends {
                let _ = stream.shutdown(Shutdown::Both);
            } else {
                reset(&[stream.as_fd()]);
            }
        }
    }

    /// Resets all connections.
    pub(super) fn reset(&self) {
        self.network.state.lock().unwrap().relays.drain(..).for_each(|ends| reset(&ends));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..u32::try_from(self.nodes.len()).unwrap()).for_each(|i| self.kill(i));
        self.cut();
    }
}

/// Accepts for a node until it is killed.
fn listen(
    listener: &TcpListener,
    node: NodeId,
    network: &Network,
    desk: &AskedDesk,
    first: &Sender<(NodeId, PeerStream)>,
) {
    loop {
        let mut stream = listener.accept().unwrap().0;
        if !network.state.lock().unwrap().addresses.contains_key(&node) {
            return;
        }
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let Ok(ends) = ConnectionEnds::of(&stream) else { continue };
        let Ok(caller) = network.proof.demand(&mut stream, Some(ends), &[CallerKind::Member]) else {
            continue;
        };
        let mut stream = PeerStream::new(stream, caller.session);
        let mut bytes = [0; REQUEST_BYTES];
        if stream.read_exact(&mut bytes).is_err() {
            continue;
        }
        let request = ReopenRequest::from_bytes(&bytes);
        if request.pair == [0; 32] {
            let _ = first.send((request.ballot.node, stream));
        } else {
            desk.hand_over(Box::new(Visitor { request, stream }));
        }
    }
}
