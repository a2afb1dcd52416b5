//! The meeting: over the stream that the bootstrap has established, each pair of nodes agrees on its
//! transport.
//!
//! 1. Both send a [`TransportOffer`], which names a Unix socket.
//! 2. If both run on one host under one user, the lower node connects to the socket of the higher, proves
//!    itself by the key of the offer, and reports over the stream whether that succeeded: the nodes may be in
//!    different network namespaces.
//! 3. A pair that does not share memory uses RDMA if both offered devices of one network, and TCP otherwise.
//!
//! No step blocks: each is taken when its input has arrived, while the node continues with its other peers. A
//! peer that takes too long, or dies, is given up.

use std::io::{self, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use squall_fabric::NodeId;

use super::CompositeError;
use super::transport_choice::{OFFER_BYTES, PeerTransport, Rendezvous, TransportOffer};
use crate::peer_process::PeerProcess;
use crate::session::PeerStream;

/// The meetings of a node that are in progress.
pub(super) struct Meetings {
    node: NodeId,
    /// Ordered by their peers.
    meetings: Vec<Meeting>,
    /// Exists while there are meetings.
    reception: Option<Reception>,
    /// Readable when there may be work.
    pub(super) bell: OwnedFd,
}

/// A peer that has met this node.
pub(super) struct MetPeer {
    pub(super) peer: NodeId,
    pub(super) transport: PeerTransport,
    pub(super) reason: String,
    pub(super) stream: PeerStream,
    /// Present if both share memory.
    pub(super) socket: Option<UnixStream>,
}

impl Meetings {
    pub(super) fn new(node: NodeId) -> io::Result<Self> {
        let bell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { node, meetings: Vec::new(), reception: None, bell })
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.meetings.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.meetings.len()
    }

    pub(super) fn is_with(&self, peer: NodeId) -> bool {
        self.meetings.iter().any(|meeting| meeting.peer == peer)
    }

    /// Returns where peers on this host can meet this node.
    pub(super) fn rendezvous(&mut self) -> io::Result<Rendezvous> {
        if self.reception.is_none() {
            let reception = Reception::new()?;
            watch(&self.bell, &reception.listener)?;
            self.reception = Some(reception);
        }
        let Reception { name, key, .. } = self.reception.as_ref().expect("just made");
        Ok(Rendezvous { name: *name, key: *key })
    }

    /// Begins a meeting. Afterwards the stream is non-blocking.
    pub(super) fn begin(
        &mut self,
        peer: NodeId,
        mut stream: PeerStream,
        ours: TransportOffer,
    ) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        watch(&self.bell, &stream)?;
        // The socket's buffer is empty, so there is space for this; if the peer is gone, reading detects it.
        let _ = stream.write_all(&ours.to_bytes());
        let (input, deadline) = (Input::default(), Instant::now() + PATIENCE);
        let stage = Stage::Offer;
        let meeting = Meeting { peer, stream, ours, theirs: None, stage, unreachable: None, input, deadline };
        let place = self.meetings.partition_point(|other| other.peer < peer);
        self.meetings.insert(place, meeting);
        Ok(())
    }

    /// Ends a meeting, because the peer is removed.
    pub(super) fn end(&mut self, peer: NodeId) {
        self.meetings.retain(|meeting| meeting.peer != peer);
        self.close_if_over();
    }

    /// Does everything that is possible now; returns the peers that have met, and those whose meetings
    /// failed.
    pub(super) fn advance(
        &mut self,
        no_device: Option<&str>,
        no_shm: Option<&str>,
    ) -> Vec<Result<MetPeer, (NodeId, CompositeError)>> {
        if let Some(reception) = &mut self.reception {
            reception.receive(&self.bell);
        }
        let mut over = Vec::new();
        for mut meeting in std::mem::take(&mut self.meetings) {
            match meeting.advance(self.node, self.reception.as_mut()) {
                Ok(None) => self.meetings.push(meeting),
                Ok(Some(socket)) => {
                    let (transport, reason) = meeting.choose(socket.is_some(), no_device, no_shm);
                    // The stream is passed on. An error means that it is not watched.
                    let _ = epoll::delete(&self.bell, &meeting.stream);
                    let Meeting { peer, stream, .. } = meeting;
                    over.push(Ok(MetPeer { peer, transport, reason, stream, socket }));
                }
                Err(error) => over.push(Err((meeting.peer, error))),
            }
        }
        self.close_if_over();
        over
    }

    /// Closes the reception if no more peers are expected.
    fn close_if_over(&mut self) {
        if self.meetings.is_empty() {
            self.reception = None;
        }
    }

    /// Returns the longest time to sleep.
    pub(super) fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let calls = self.meetings.iter().any(|meeting| meeting.stage == Stage::Calling);
        let least = self.meetings.iter().map(|meeting| meeting.deadline.saturating_duration_since(now)).min();
        least.map(|least| if calls { least.min(CALL_AGAIN) } else { least })
    }
}

/// A peer during its meeting.
struct Meeting {
    peer: NodeId,
    stream: PeerStream,
    ours: TransportOffer,
    theirs: Option<TransportOffer>,
    stage: Stage,
    /// Why the peer's socket could not be used, if this node has tried.
    unreachable: Option<String>,
    input: Input<OFFER_BYTES>,
    deadline: Instant,
}

/// What must happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The peer's offer must arrive.
    Offer,
    /// The queue of the higher node's socket must have space.
    Calling,
    /// The lower node must report whether it has connected.
    Verdict,
    /// The lower node's connection, which has been made, must arrive.
    Called,
}

impl Meeting {
    /// Does everything that is possible now; when all is done, returns the socket for shared memory, if there
    /// is one.
    fn advance(
        &mut self,
        node: NodeId,
        reception: Option<&mut Reception>,
    ) -> Result<Option<Option<UnixStream>>, CompositeError> {
        if self.stage == Stage::Offer {
            let Some(bytes) = self.read::<OFFER_BYTES>()? else { return Ok(None) };
            let peer = self.peer;
            let theirs = TransportOffer::from_bytes(&bytes);
            let theirs = theirs.map_err(|what| CompositeError::Nonsense { peer, what })?;
            let shares = self.ours.may_share_memory(&theirs);
            self.theirs = Some(theirs);
            if !shares {
                return Ok(Some(None));
            }
            self.stage = if peer > node { Stage::Calling } else { Stage::Verdict };
        }
        if self.stage == Stage::Calling {
            let socket = self.theirs.as_ref().and_then(|theirs| theirs.socket).expect("both have one");
            let socket = match connect(&socket, node) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.wait(),
                connected => connected.map_err(|error| self.unreachable = Some(error.to_string())).ok(),
            };
            let _ = self.stream.write_all(&[u8::from(socket.is_some())]);
            return Ok(Some(socket));
        }
        if self.stage == Stage::Verdict {
            match self.read()? {
                None => return Ok(None),
                Some([0]) => return Ok(Some(None)),
                Some([1]) => self.stage = Stage::Called,
                Some(_) => {
                    return Err(CompositeError::Nonsense { peer: self.peer, what: "an invalid verdict" });
                }
            }
        }
        match reception.and_then(|reception| reception.take(self.peer)) {
            Some(socket) => Ok(Some(Some(socket))),
            None => self.wait(),
        }
    }

    /// Returns the next bytes of the stream when all of them have arrived; not one more is read.
    fn read<const N: usize>(&mut self) -> Result<Option<[u8; N]>, CompositeError> {
        match self.input.fill(&mut self.stream, N) {
            Ok(true) => Ok(Some(self.input.take())),
            Ok(false) => self.wait(),
            Err(cause) => Err(CompositeError::Silent { peer: self.peer, cause }),
        }
    }

    /// Returns `None`, or an error if the deadline has passed.
    fn wait<T>(&self) -> Result<Option<T>, CompositeError> {
        if Instant::now() < self.deadline {
            return Ok(None);
        }
        Err(CompositeError::Silent { peer: self.peer, cause: ErrorKind::TimedOut.into() })
    }

    fn choose(
        &self,
        has_socket: bool,
        no_device: Option<&str>,
        no_shm: Option<&str>,
    ) -> (PeerTransport, String) {
        let theirs = self.theirs.as_ref().expect("they have met");
        if has_socket {
            return (PeerTransport::Shm, "it runs on this host under the same user".into());
        }
        let why_no_memory = self.why_no_memory(theirs, no_shm);
        if self.ours.shares_network(theirs) {
            return (PeerTransport::Verbs, format!("{why_no_memory}; both have RDMA devices on one network"));
        }
        let why_no_rdma = match (no_device, &self.ours.network, &theirs.network) {
            (Some(why), ..) => why,
            (None, None, _) => "this node's RDMA device is not on the network over which they met",
            (None, Some(_), None) => "it has no RDMA device on the network over which they met",
            (None, Some(_), Some(_)) => "its RDMA device is on another network",
        };
        (PeerTransport::Tcp, format!("{why_no_memory}; {why_no_rdma}"))
    }
}

impl Meeting {
    /// Returns why the two do not share memory.
    fn why_no_memory(&self, theirs: &TransportOffer, no_shm: Option<&str>) -> String {
        if self.ours.host != theirs.host {
            return "it runs on another host".into();
        }
        if self.ours.user != theirs.user {
            return "it runs on this host under another user".into();
        }
        match (&self.ours.socket, &theirs.socket, &self.unreachable) {
            (None, ..) => no_shm.unwrap_or("too many peers share memory already").into(),
            (_, None, _) => "it runs on this host, but does not share memory (its log says why)".into(),
            (.., Some(error)) => format!(
                "it runs on this host, but its socket cannot be reached ({error}), as in another network namespace"
            ),
            (.., None) => {
                "it runs on this host, but cannot reach this process's socket, as in another network namespace"
                    .into()
            }
        }
    }
}

/// Bytes that arrive in pieces.
struct Input<const MOST: usize> {
    bytes: [u8; MOST],
    filled: usize,
}

impl<const MOST: usize> Default for Input<MOST> {
    fn default() -> Self {
        Self { bytes: [0; MOST], filled: 0 }
    }
}

impl<const MOST: usize> Input<MOST> {
    /// Reads what has arrived, up to `wanted` bytes in total; returns whether they are complete.
    fn fill(&mut self, stream: &mut impl Read, wanted: usize) -> io::Result<bool> {
        while self.filled < wanted {
            match stream.read(&mut self.bytes[self.filled..wanted]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes bytes that are complete.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        self.filled = 0;
        self.bytes[..N].try_into().expect("as many as were filled")
    }
}

/// The Unix socket at which peers on this host meet this node.
struct Reception {
    listener: UnixListener,
    name: [u8; 16],
    key: [u8; 32],
    /// Callers that have connected and not yet sent their number and key; at most [`CALLERS_MAX`].
    callers: Vec<(UnixStream, Input<CALL_BYTES>, Instant)>,
    /// Callers that have sent them.
    known: Vec<(NodeId, UnixStream)>,
}

impl Reception {
    fn new() -> io::Result<Self> {
        let (mut name, mut key) = ([0; 16], [0; 32]);
        getrandom::fill(&mut name).map_err(io::Error::other)?;
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(text(&name))?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, name, key, callers: Vec::new(), known: Vec::new() })
    }

    /// Accepts pending connections; a caller that does not know the key gets no answer. Not fuzzed: a call is
    /// a number, all of whose values are valid, and the key.
    fn receive(&mut self, bell: &OwnedFd) {
        while self.callers.len() < CALLERS_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            let ours = PeerProcess::of(&stream).is_ok_and(|peer| peer.is_of_this_user());
            if ours && stream.set_nonblocking(true).is_ok() && watch(bell, &stream).is_ok() {
                self.callers.push((stream, Input::default(), Instant::now() + GREETING_PATIENCE));
            }
        }
        for (mut stream, mut input, until) in std::mem::take(&mut self.callers) {
            match input.fill(&mut stream, CALL_BYTES) {
                Ok(true) => {
                    let call: [u8; CALL_BYTES] = input.take();
                    let node = NodeId(u32::from_le_bytes(call[..4].try_into().expect("4 bytes")));
                    if call[4..] == self.key && epoll::delete(bell, &stream).is_ok() {
                        self.known.push((node, stream));
                    }
                }
                Ok(false) if Instant::now() < until => self.callers.push((stream, input, until)),
                Ok(false) | Err(_) => {}
            }
        }
    }

    fn take(&mut self, peer: NodeId) -> Option<UnixStream> {
        let place = self.known.iter().position(|(node, _)| *node == peer)?;
        Some(self.known.swap_remove(place).1)
    }
}

/// Connects without waiting; returns `WouldBlock` if too many connections are pending there.
fn connect(socket: &Rendezvous, node: NodeId) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new_abstract_name(text(&socket.name).as_bytes())?)?;
    if !PeerProcess::of(&stream)?.is_of_this_user() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let mut stream = UnixStream::from(stream);
    stream.write_all(&node.0.to_le_bytes())?;
    stream.write_all(&socket.key)?;
    Ok(stream)
}

fn text(name: &[u8; 16]) -> String {
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("squall-{name}")
}

fn watch(bell: &OwnedFd, socket: &impl AsFd) -> io::Result<()> {
    Ok(epoll::add(bell, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

/// Both ends arrive right after the bootstrap; the trial of a device takes some milliseconds, and more on a
/// loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// A caller writes immediately after it has connected.
const GREETING_PATIENCE: Duration = Duration::from_secs(2);
/// The pause between calls to a socket whose queue is full.
const CALL_AGAIN: Duration = Duration::from_millis(5);
/// A node's number and the key.
const CALL_BYTES: usize = 4 + 32;
const CALLERS_MAX: usize = 128;
