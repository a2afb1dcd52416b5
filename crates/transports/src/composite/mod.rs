//! Several transports as one fabric: each peer is reached by the best transport that both ends have
//! (`transport = "auto"`).
//!
//! | peer | transport |
//! |---|---|
//! | on this host, under the same user, reachable by Unix sockets | shared memory |
//! | elsewhere, and both have RDMA devices of one kind on the network over which they met | verbs |
//! | otherwise | TCP |
//!
//! The members meet over TCP; then each pair agrees on its transport (`meeting`), at the beginning or when a
//! peer joins later (`joining`). A transport is chosen once: if it breaks, the peer is lost, as on any
//! transport.
//!
//! **Contract.** That of [`squall_fabric::Fabric`] and [`crate::TransportFabric`].
//!
//! # How the axioms are kept
//! - All of a peer's connections and mirrors use one part, which keeps the axioms. Nothing is promised
//!   between connections [F1]. A push to readers on several parts is one push on each [M1].
//! - *Memory.* Regions are created by the shared-memory part, which always exists; where this process cannot
//!   share memory, they are its own. The other parts use them in place: TCP reads and writes any memory,
//!   verbs registers it.
//! - *Revocation* [F9]. Shared memory may have to move a region to other pages to exclude a stopped writer. A
//!   device does not follow, so it is first kept from writing the old pages: writers on verbs are refused
//!   [F10] and ask for new grants.
//! - *Early sight* [M2] applies to readers on shared memory; *progress* [F12] is promised if no peer is
//!   reached by TCP.
//!
//! The id of a connection has its part in the lowest two bits.

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
pub use self::transport_choice::{CompositeSettings, PeerTransport, Transport, TransportChoice};
#[doc(hidden)]
pub use self::transport_choice::{OFFER_BYTES, RdmaNetwork, Rendezvous, TransportOffer};

use self::joining::CompositeAttachment;
use self::meeting::Meetings;
use crate::clock::Clock;
use crate::session::PeerStream;
use crate::shm::{self, ShmFabric};
use crate::slot_map::SlotMap;
use crate::tcp::TcpFabric;
use crate::verbs::{TriedDevice, VerbsFabric};
use crate::{Sleeper as _, Waker, wait_readable};

/// A node's access to its peers, to each by the best transport that both ends have.
pub struct CompositeFabric {
    node: NodeId,
    settings: CompositeSettings,
    /// The device that is offered to peers, or why there is none.
    device: Result<TriedDevice, String>,
    /// Why no memory is shared, if this process cannot or must not share any.
    no_shm: Option<String>,
    /// Ordered by their nodes.
    choices: Vec<TransportChoice>,
    /// Meetings with nodes that are not peers yet.
    meetings: Meetings,
    /// Events that the next poll yields first.
    events: VecDeque<FabricEvent>,
    shm: ShmFabric,
    /// Created for the first peer of this transport.
    verbs: Option<Box<VerbsFabric>>,
    /// As above.
    tcp: Option<TcpFabric>,
    mirrors: SlotMap<Mirror>,
    /// By the address of the first word.
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
    /// The id in each part, if it has a reader there. Each part knows the readers that were awaited when it
    /// was published.
    ids: [Option<MirrorId>; TRANSPORTS],
    /// Readers that are not peers yet, and the region to publish for them.
    awaited: Vec<NodeId>,
    region: Option<Region>,
}

impl Mirror {
    /// Returns what to publish for `node`, if it is awaited.
    fn waiting_for(&self, node: NodeId) -> Option<(MirrorKey, Region)> {
        self.region.clone().filter(|_| self.awaited.contains(&node)).map(|region| (self.key, region))
    }

    /// Notes that `node` has joined, or never will.
    fn stop_waiting_for(&mut self, node: NodeId) {
        self.awaited.retain(|awaited| *awaited != node);
        if self.awaited.is_empty() {
            self.region = None;
        }
    }
}

impl CompositeFabric {
    /// Creates a node with one connected stream to each peer, which has been authenticated and which only
    /// this fabric uses from now on. Agrees with each peer on a transport, which takes some milliseconds;
    /// each peer must call this, or [`CompositeFabric::add_peer`].
    ///
    /// # Errors
    /// Returns an error if a peer does not answer or uses another protocol, or a chosen transport cannot be
    /// set up.
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

    /// Same as [`CompositeFabric::new`], for a process that joins a running group: does not wait for the
    /// peers, which are added in the calls of `poll` as after [`CompositeFabric::add_peer`]. A peer that dies
    /// meanwhile is lost, without further consequences.
    ///
    /// # Errors
    /// Returns an error if a system call fails.
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
            no_shm: no_shm(settings),
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

    /// Returns the transport of each peer and the reason for the choice, ordered by their nodes.
    #[must_use]
    pub fn choices(&self) -> &[TransportChoice] {
        &self.choices
    }

    /// Returns whether a part uses a device that is software on this machine's processors.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.verbs.as_ref().is_some_and(|verbs| verbs.is_software())
    }

    /// Returns whether any posts wait in this process.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.shm.has_waiting()
            || self.verbs.as_ref().is_some_and(|verbs| verbs.has_posts())
            || self.tcp.as_ref().is_some_and(TcpFabric::has_output)
    }

    /// Returns the transport to `peer`.
    ///
    /// # Panics
    /// Panics if it is not a peer.
    fn transport_to(&self, peer: NodeId) -> PeerTransport {
        let transport = self.transport_if_met(peer);
        transport.unwrap_or_else(|| {
            panic!("{peer} is not a peer of {}: add it first, and wait until it has met this node", self.node)
        })
    }

    /// Returns the transport to `node`, if it is a peer.
    #[inline]
    fn transport_if_met(&self, node: NodeId) -> Option<PeerTransport> {
        let place = self.choices.binary_search_by_key(&node, |choice| choice.peer);
        place.ok().map(|place| self.choices[place].transport)
    }
}

/// Returns why no memory is shared, if so.
fn no_shm(settings: &CompositeSettings) -> Option<String> {
    if !settings.shm {
        return Some("shared memory is disabled".into());
    }
    shm::check_or_warn().err().map(|why| why.to_string())
}

/// Returns the device that will be used, or why there is none.
fn device(settings: &CompositeSettings, streams: &[(NodeId, PeerStream)]) -> Result<TriedDevice, String> {
    let Some(wanted) = &settings.verbs else { return Err("RDMA is disabled".into()) };
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

/// Returns the id in this fabric of connection `conn` of a part.
fn named(conn: ConnId, transport: PeerTransport) -> ConnId {
    assert!(conn.0 >> (64 - TRANSPORT_BITS) == 0, "{conn:?} of {transport:?} leaves no bits for its part");
    ConnId(conn.0 << TRANSPORT_BITS | transport as u64)
}

/// Returns the part of a connection, and its id there.
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
