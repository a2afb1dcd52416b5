//! The meeting: over the streams by which the bootstrap joined them, each pair of nodes agrees on its way.
//!
//! 1. Each node binds a Unix socket of a random name and sends to each peer an [`Offer`].
//! 2. Where both run on one host under one user, the lower node connects to the socket of the higher, proves itself by the
//!    key of the offer, and tells over the stream whether that went well: network namespaces may lie between.
//! 3. Who does not share memory uses RDMA if both offered devices of one network, and else TCP.
//!
//! Nobody waits in a circle: all offers are sent before any is read, all connections are made before any is awaited, and
//! a connection needs no answer. Every wait has a limit.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};
use squall_fabric::NodeId;

use super::CompositeError;
use super::means::{Choice, CompositeSettings, Network, OFFER_BYTES, Offer, Rendezvous, Way};
use crate::verbs::{self, DeviceSummary};

/// What a meeting leads to.
pub(super) struct Met {
    pub(super) choices: Vec<Choice>,
    pub(super) shm: Vec<(NodeId, UnixStream)>,
    pub(super) verbs: Vec<(NodeId, TcpStream)>,
    pub(super) tcp: Vec<(NodeId, TcpStream)>,
}

/// A peer during the meeting.
struct Visit {
    peer: NodeId,
    stream: TcpStream,
    ours: Offer,
    theirs: Offer,
    /// Stands if both share memory.
    socket: Option<UnixStream>,
}

/// Meets all peers; `streams` are in order of their nodes.
pub(super) fn meet(
    node: NodeId,
    streams: Vec<(NodeId, TcpStream)>,
    settings: &CompositeSettings,
) -> Result<Met, CompositeError> {
    let shares = settings.shm && !streams.is_empty() && streams.len() <= SHARING_PEERS_MAX;
    let listener = if shares { Some(Listener::new()?) } else { None };
    let device = device(settings, &streams);
    let mut visits = Vec::with_capacity(streams.len());
    for (peer, stream) in streams {
        let ours = offer(listener.as_ref(), device.as_ref().ok(), settings, &stream)?;
        send(peer, &stream, &ours.to_bytes())?;
        visits.push((peer, stream, ours));
    }
    let read = |(peer, stream, ours)| {
        let theirs = read_offer(peer, &stream)?;
        Ok(Visit { peer, stream, ours, theirs, socket: None })
    };
    let mut visits = visits.into_iter().map(read).collect::<Result<Vec<_>, CompositeError>>()?;
    for visit in visits.iter_mut().filter(|visit| visit.peer > node) {
        visit.call(node)?;
    }
    let mut awaited = Vec::new();
    for visit in visits.iter_mut().filter(|visit| visit.peer < node) {
        if visit.is_called()? {
            awaited.push(visit);
        }
    }
    if let Some(listener) = &listener {
        listener.receive(awaited)?;
    }
    sort(visits, device.err())
}

impl Visit {
    /// Connects to the socket of a higher node, if it runs on this host, and tells it whether that went well.
    fn call(&mut self, node: NodeId) -> Result<(), CompositeError> {
        if !self.ours.may_share_memory(&self.theirs) {
            return Ok(());
        }
        let socket = self.theirs.socket.expect("both have one");
        self.socket = connect(&socket, node).ok();
        send(self.peer, &self.stream, &[u8::from(self.socket.is_some())])
    }

    /// Whether a lower node on this host has connected to this node's socket.
    fn is_called(&mut self) -> Result<bool, CompositeError> {
        if !self.ours.may_share_memory(&self.theirs) {
            return Ok(false);
        }
        match receive(self.peer, &self.stream)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(CompositeError::Nonsense { peer: self.peer, what: "an odd verdict" }),
        }
    }

    fn choose(&self, no_device: Option<&str>) -> (Way, String) {
        if self.socket.is_some() {
            return (Way::Shm, "it runs on this host under the same user".into());
        }
        let why_no_memory = if self.ours.host != self.theirs.host {
            "it runs on another host"
        } else if self.ours.user != self.theirs.user {
            "it runs on this host under another user"
        } else if self.ours.may_share_memory(&self.theirs) {
            "it runs on this host in another network namespace"
        } else {
            "shared memory is switched off"
        };
        if self.ours.shares_network(&self.theirs) {
            return (Way::Verbs, format!("{why_no_memory}; both have RDMA devices on one network"));
        }
        let why_no_rdma = match (no_device, &self.ours.network, &self.theirs.network) {
            (Some(why), ..) => why,
            (None, None, _) => "this node's RDMA device is not on the network by which they met",
            (None, Some(_), None) => "it has no RDMA device on the network by which they met",
            (None, Some(_), Some(_)) => "its RDMA device is on another network",
        };
        (Way::Tcp, format!("{why_no_memory}; {why_no_rdma}"))
    }
}

/// Sorts the peers by their ways.
fn sort(visits: Vec<Visit>, no_device: Option<String>) -> Result<Met, CompositeError> {
    let mut met = Met { choices: Vec::new(), shm: Vec::new(), verbs: Vec::new(), tcp: Vec::new() };
    for visit in visits {
        let (way, reason) = visit.choose(no_device.as_deref());
        tracing::info!(peer = visit.peer.0, "reached by {way}: {reason}");
        met.choices.push(Choice { peer: visit.peer, way, reason });
        visit.stream.set_read_timeout(None)?;
        match (way, visit.socket) {
            (Way::Shm, Some(socket)) => met.shm.push((visit.peer, socket)),
            (Way::Verbs, _) => met.verbs.push((visit.peer, visit.stream)),
            (Way::Tcp | Way::Shm, _) => met.tcp.push((visit.peer, visit.stream)),
        }
    }
    Ok(met)
}

/// The device that would be used, or why there is none.
fn device(settings: &CompositeSettings, streams: &[(NodeId, TcpStream)]) -> Result<DeviceSummary, String> {
    let Some(wanted) = &settings.verbs else { return Err("RDMA is switched off".into()) };
    if streams.is_empty() {
        return Err("there is nobody to reach".into());
    }
    let addresses: Vec<IpAddr> = streams.iter().filter_map(|(_, stream)| local_address(stream)).collect();
    verbs::check(wanted, &addresses).map_err(|error| error.to_string())
}

fn local_address(stream: &TcpStream) -> Option<IpAddr> {
    Some(stream.local_addr().ok()?.ip())
}

/// What this node says to the peer behind `stream`.
fn offer(
    listener: Option<&Listener>,
    device: Option<&DeviceSummary>,
    settings: &CompositeSettings,
    stream: &TcpStream,
) -> Result<Offer, CompositeError> {
    let named = settings.verbs.as_ref().is_some_and(|settings| settings.device.is_some());
    let met_by = |device: &DeviceSummary| local_address(stream).is_some_and(|address| device.has(address));
    let network = device
        .filter(|device| named || !device.ethernet || met_by(device))
        .map(|device| if device.ethernet { Network::Ethernet } else { Network::InfiniBand(device.subnet()) });
    let socket = listener.map(|listener| Rendezvous { name: listener.name, key: listener.key });
    Ok(Offer { host: host()?, user: geteuid().as_raw(), socket, network })
}

/// A name of this host that no other has, until it boots again.
fn host() -> io::Result<[u8; 16]> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    let digest = Sha256::digest(boot);
    Ok(digest[..16].try_into().expect("a digest has 32 bytes"))
}

/// The Unix socket by which peers on this host meet this node.
struct Listener {
    socket: UnixListener,
    name: [u8; 16],
    key: [u8; 32],
}

impl Listener {
    fn new() -> io::Result<Self> {
        let (mut name, mut key) = ([0; 16], [0; 32]);
        getrandom::fill(&mut name).map_err(io::Error::other)?;
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        let socket = UnixListener::bind_addr(&address(&name)?)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, name, key })
    }

    /// Takes the connections of all that are awaited; they have been made already.
    fn receive(&self, mut awaited: Vec<&mut Visit>) -> Result<(), CompositeError> {
        let deadline = Instant::now() + PATIENCE;
        while let Some(peer) = awaited.first().map(|visit| visit.peer) {
            match self.socket.accept() {
                Ok((stream, _)) => {
                    let caller = self.caller(&stream).ok().flatten();
                    let place = awaited.iter().position(|visit| Some(visit.peer) == caller);
                    // Whoever else connects is not answered.
                    if let Some(place) = place {
                        awaited.swap_remove(place).socket = Some(stream);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(cause) => return Err(CompositeError::Silent { peer, cause }),
            }
        }
        Ok(())
    }

    /// Who has connected, if it knows the key.
    fn caller(&self, mut stream: &UnixStream) -> io::Result<Option<NodeId>> {
        if socket_peercred(stream)?.uid != geteuid() {
            return Ok(None);
        }
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GREETING_PATIENCE))?;
        let (mut node, mut key) = ([0; 4], [0; 32]);
        stream.read_exact(&mut node)?;
        stream.read_exact(&mut key)?;
        stream.set_read_timeout(None)?;
        Ok((key == self.key).then_some(NodeId(u32::from_le_bytes(node))))
    }
}

fn connect(socket: &Rendezvous, node: NodeId) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&address(&socket.name)?)?;
    if socket_peercred(&stream)?.uid != geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.write_all(&node.0.to_le_bytes())?;
    stream.write_all(&socket.key)?;
    Ok(stream)
}

fn address(name: &[u8; 16]) -> io::Result<SocketAddr> {
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("squall-{name}"))
}

fn send(peer: NodeId, mut stream: &TcpStream, bytes: &[u8]) -> Result<(), CompositeError> {
    stream.write_all(bytes).map_err(|cause| CompositeError::Silent { peer, cause })
}

fn read_offer(peer: NodeId, stream: &TcpStream) -> Result<Offer, CompositeError> {
    let bytes = receive::<OFFER_BYTES>(peer, stream)?;
    Offer::from_bytes(&bytes).map_err(|what| CompositeError::Nonsense { peer, what })
}

fn receive<const N: usize>(peer: NodeId, mut stream: &TcpStream) -> Result<[u8; N], CompositeError> {
    let mut bytes = [0; N];
    let read = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.read_exact(&mut bytes));
    read.map_err(|cause| CompositeError::Silent { peer, cause })?;
    Ok(bytes)
}

/// All members come here right after the bootstrap; the trial of a device takes some milliseconds, and more on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// So many calls wait at a socket until it accepts them (the queue of std's listeners is 128 long): more peers could wait
/// in a circle, so members of larger groups do not share memory.
const SHARING_PEERS_MAX: usize = 120;

/// Who has connected has also written.
const GREETING_PATIENCE: Duration = Duration::from_secs(2);
