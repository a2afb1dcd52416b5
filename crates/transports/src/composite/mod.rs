//! Several transports as one fabric: to each peer the best that both ends have (`transport = "auto"`).
//!
//! | peer | way |
//! |---|---|
//! | on this host, under the same user, reachable by Unix sockets | shared memory |
//! | elsewhere, and both have RDMA devices of one kind on the network by which they met | verbs |
//! | else | TCP |
//!
//! The members meet over TCP; then each pair agrees on its way (`meeting`), when it begins or when a peer comes later
//! (`joining`). A way is chosen once: if it breaks, the peer is lost, as on any transport.
//!
//! **Law.** As [`squall_fabric::Fabric`] and [`crate::TransportFabric`] say.
//!
//! # How the axioms are kept
//! - All of a peer's connections and mirrors go by one part, which keeps the axioms. Between connections nothing is
//!   promised anyway [F2]. A push to readers on several parts is one push on each [M1].
//! - *Memory.* Regions are made by the part for shared memory, which is there in any case. The others use them where they
//!   lie: TCP reads and writes any memory, verbs registers it.
//! - *Revocation* [F9]. Shared memory may have to move a region to other pages to keep a stopped writer out. A device does
//!   not follow, so it is first kept from writing the old pages: writers by verbs are refused [F10] and ask for new
//!   grants.
//! - *Early sight* [M2] is what a reader on shared memory has; *progress* [F12] is promised if nobody is reached by TCP.
//!
//! Names of connections carry their part in the lowest two bits.

mod error;
mod fabric;
mod joining;
mod meeting;
mod park;
mod transport_choice;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;

use rustix::event::epoll;
use rustix::fd::{AsFd as _, OwnedFd};
use squall_fabric::{ConnId, FabricEvent, MirrorId, MirrorKey, NodeId, Region};

pub use self::error::CompositeError;
pub use self::transport_choice::{CompositeSettings, PeerTransport, TransportChoice};
#[doc(hidden)]
pub use self::transport_choice::{OFFER_BYTES, RdmaNetwork, Rendezvous, TransportOffer};

use self::joining::CompositeAttachment;
use self::meeting::Meetings;
use crate::clock::Clock;
use crate::session::PeerStream;
use crate::shm::ShmFabric;
use crate::slot_map::SlotMap;
use crate::tcp::TcpFabric;
use crate::verbs::{TriedDevice, VerbsFabric};
use crate::{Sleeper as _, Waker, wait_readable};

/// A node's access to its peers, to each by the best way that both ends have.
pub struct CompositeFabric {
    node: NodeId,
    settings: CompositeSettings,
    /// What peers are offered, or why there is none.
    device: Result<TriedDevice, String>,
    /// In order of their nodes.
    choices: Vec<TransportChoice>,
    /// With nodes that are no peers yet.
    meetings: Meetings,
    /// What the next poll yields first.
    events: VecDeque<FabricEvent>,
    shm: ShmFabric,
    /// Made for the first peer by this way.
    verbs: Option<Box<VerbsFabric>>,
    /// As above.
    tcp: Option<TcpFabric>,
    mirrors: SlotMap<Mirror>,
    /// By the address of their first word.
    attachments: BTreeMap<usize, CompositeAttachment>,
    waker: Waker,
    /// Readable when the bell of a part is, or that of the meetings.
    bells: OwnedFd,
    clock: Clock,
}

/// A mirror of this node.
#[derive(Debug)]
struct Mirror {
    key: MirrorKey,
    /// What each part calls it, if it has a reader there. Each has been told of all that were awaited then.
    ids: [Option<MirrorId>; TRANSPORTS],
    /// Readers that are no peers yet, and what they will be shown.
    awaited: Vec<NodeId>,
    region: Option<Region>,
}

impl Mirror {
    /// What `node` is to be shown, if it is awaited.
    fn waiting_for(&self, node: NodeId) -> Option<(MirrorKey, Region)> {
        self.region.clone().filter(|_| self.awaited.contains(&node)).map(|region| (self.key, region))
    }

    /// It has come, or never will.
    fn stop_waiting_for(&mut self, node: NodeId) {
        self.awaited.retain(|awaited| *awaited != node);
        if self.awaited.is_empty() {
            self.region = None;
        }
    }
}

impl CompositeFabric {
    /// A node with one connected stream to each peer, which has been authenticated and which nothing but this fabric
    /// uses from now on. Agrees with each peer on a way, which takes some milliseconds; each must call this, or
    /// [`CompositeFabric::add_peer`].
    ///
    /// # Errors
    /// If a peer does not answer or speaks another protocol, or a way that was chosen cannot be set up.
    pub fn new(
        node: NodeId,
        streams: Vec<(NodeId, impl Into<PeerStream>)>,
        settings: &CompositeSettings,
    ) -> Result<Self, CompositeError> {
        let mut fabric = Self::begin(node, streams, settings)?;
        loop {
            fabric.meet().into_iter().try_for_each(|met| met.map_err(|(_, error)| error))?;
            if fabric.meetings.is_empty() {
                return Ok(fabric);
            }
            wait_readable(&[fabric.meetings.bell.as_fd()], fabric.meetings.patience())?;
        }
    }

    /// As [`CompositeFabric::new`], for who joins a group that runs: does not wait for the peers, which become such in the
    /// calls of `poll` as after [`CompositeFabric::add_peer`]. One that dies meanwhile is lost, and no more.
    ///
    /// # Errors
    /// If a call to the system fails.
    pub fn begin(
        node: NodeId,
        streams: Vec<(NodeId, impl Into<PeerStream>)>,
        settings: &CompositeSettings,
    ) -> Result<Self, CompositeError> {
        let streams: Vec<(NodeId, PeerStream)> =
            streams.into_iter().map(|(peer, stream)| (peer, stream.into())).collect();
        let waker = Waker::new()?;
        let shm = ShmFabric::with_waker(node, Vec::new(), waker.clone())?;
        let bells = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let mut fabric = Self {
            node,
            settings: settings.clone(),
            device: device(settings, &streams),
            choices: Vec::new(),
            meetings: Meetings::new(node)?,
            events: VecDeque::new(),
            shm,
            verbs: None,
            tcp: None,
            mirrors: SlotMap::default(),
            attachments: BTreeMap::new(),
            waker,
            bells,
            clock: Clock::start(),
        };
        fabric.watch(fabric.shm.bell())?;
        fabric.watch(fabric.meetings.bell.as_fd())?;
        for (peer, stream) in streams {
            fabric.add_peer(peer, stream)?;
        }
        Ok(fabric)
    }

    /// How each peer is reached, and why so, in order of their nodes.
    #[must_use]
    pub fn choices(&self) -> &[TransportChoice] {
        &self.choices
    }

    /// Whether a part uses a device that is software on this machine's processors.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.verbs.as_ref().is_some_and(|verbs| verbs.is_software())
    }

    /// Whether anything that was posted waits in this process.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.shm.has_waiting()
            || self.verbs.as_ref().is_some_and(|verbs| verbs.has_posts())
            || self.tcp.as_ref().is_some_and(TcpFabric::has_output)
    }

    /// The way to `peer`.
    ///
    /// # Panics
    /// If it is not a peer.
    fn transport_to(&self, peer: NodeId) -> PeerTransport {
        let transport = self.transport_if_met(peer);
        transport
            .unwrap_or_else(|| panic!("{peer} is not a peer of {}: add it first, and let it come", self.node))
    }

    /// The way to `node`, if it is a peer.
    #[inline]
    fn transport_if_met(&self, node: NodeId) -> Option<PeerTransport> {
        let place = self.choices.binary_search_by_key(&node, |choice| choice.peer);
        place.ok().map(|place| self.choices[place].transport)
    }
}

/// The device that will be used, or why there is none.
fn device(settings: &CompositeSettings, streams: &[(NodeId, PeerStream)]) -> Result<TriedDevice, String> {
    let Some(wanted) = &settings.verbs else { return Err("RDMA is switched off".into()) };
    let addresses = streams.iter().filter_map(|(_, stream)| Some(stream.local_addr().ok()?.ip()));
    TriedDevice::choose(wanted, &addresses.collect::<Vec<IpAddr>>()).map_err(|error| error.to_string())
}

impl fmt::Debug for CompositeFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompositeFabric")
            .field("node", &self.node)
            .field("choices", &self.choices)
            .finish_non_exhaustive()
    }
}

/// The connection `conn` of a part, as this fabric names it.
fn named(conn: ConnId, transport: PeerTransport) -> ConnId {
    assert!(conn.0 >> (64 - TRANSPORT_BITS) == 0, "{conn:?} of {transport:?} has no space for its part");
    ConnId(conn.0 << TRANSPORT_BITS | transport as u64)
}

/// The part of a connection, and what it is called there.
fn split(conn: ConnId) -> (PeerTransport, ConnId) {
    let transport = match conn.0 & ((1 << TRANSPORT_BITS) - 1) {
        0 => PeerTransport::Shm,
        1 => PeerTransport::Verbs,
        2 => PeerTransport::Tcp,
        _ => panic!("{conn:?} was never opened here"),
    };
    (transport, ConnId(conn.0 >> TRANSPORT_BITS))
}

const ALL_TRANSPORTS: [PeerTransport; TRANSPORTS] =
    [PeerTransport::Shm, PeerTransport::Verbs, PeerTransport::Tcp];
const TRANSPORTS: usize = 3;
const TRANSPORT_BITS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_keep_their_part() {
        for transport in [PeerTransport::Shm, PeerTransport::Verbs, PeerTransport::Tcp] {
            let conn = ConnId(7 << 32 | 9);
            assert_eq!(split(named(conn, transport)), (transport, conn));
        }
    }
}
