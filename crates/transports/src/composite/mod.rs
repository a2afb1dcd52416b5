//! Several transports as one fabric: to each peer the best that both ends have (`transport = "auto"`).
//!
//! | peer | way |
//! |---|---|
//! | on this host, under the same user, reachable by Unix sockets | shared memory |
//! | elsewhere, and both have RDMA devices of one kind on the network by which they met | verbs |
//! | else | TCP |
//!
//! The members meet over TCP; then each pair agrees on its way (`meeting`). A way is chosen once: if it breaks, the peer
//! is lost, as on any transport. The list of peers is fixed: there is no `add_peer`, which verbs has not either.
//!
//! **Law.** As [`squall_fabric::Fabric`] and [`crate::Transport`] say.
//!
//! # How the axioms are kept
//! - All of a peer's connections and mirrors go by one part, which keeps the axioms. Between connections nothing is
//!   promised anyway [F2]. A push to readers on several parts is one push on each [M1].
//! - *Memory.* A region is made by one part, in this order: shared memory, verbs, TCP. The others use it where it lies:
//!   TCP reads and writes any memory, verbs registers it.
//! - *Revocation* [F9]. Shared memory may have to move a region to other pages to keep a stopped writer out. A device does
//!   not follow, so it is first kept from writing the old pages: writers by verbs are refused [F10] and ask for new
//!   grants.
//! - *Early sight* [M2] is what a reader on shared memory has; *progress* [F12] is promised if all parts promise it.
//!
//! Names of connections carry their part in the lowest two bits.

mod error;
mod fabric;
mod means;
mod meeting;
mod park;

use std::collections::BTreeMap;
use std::fmt;
use std::net::TcpStream;

use rustix::event::epoll;
use rustix::fd::OwnedFd;
use squall_fabric::{ConnId, MirrorId, NodeId};

pub use self::error::CompositeError;
pub use self::means::{Choice, CompositeSettings, Way};
#[doc(hidden)]
pub use self::means::{Network, OFFER_BYTES, Offer, Rendezvous};

use self::meeting::Met;
use crate::Waker;
use crate::shm::ShmFabric;
use crate::slots::Slots;
use crate::tcp::TcpFabric;
use crate::verbs::VerbsFabric;

/// A node's access to its peers, to each by the best way that both ends have.
pub struct CompositeFabric {
    node: NodeId,
    /// In order of their nodes.
    choices: Vec<Choice>,
    shm: Option<ShmFabric>,
    verbs: Option<Box<VerbsFabric>>,
    tcp: Option<TcpFabric>,
    /// What each part calls a mirror.
    mirrors: Slots<[Option<MirrorId>; WAYS]>,
    /// The way to the owner of each view, by the address of its first word. Views that are gone leave theirs, of which the
    /// next one there takes the place.
    views: BTreeMap<usize, Way>,
    waker: Waker,
    /// Readable when the bell of a part is.
    bells: OwnedFd,
    origin: std::time::Instant,
}

impl CompositeFabric {
    /// A node with one connected stream to each peer, which has been authenticated and which nothing but this fabric
    /// uses from now on. Agrees with each peer on a way, which takes some milliseconds; all must call this.
    ///
    /// # Errors
    /// If a peer does not answer or speaks another protocol, or a way that was chosen cannot be set up.
    pub fn new(
        node: NodeId,
        mut streams: Vec<(NodeId, TcpStream)>,
        settings: &CompositeSettings,
    ) -> Result<Self, CompositeError> {
        streams.sort_by_key(|(peer, _)| *peer);
        let Met { choices, shm, verbs, tcp } = meeting::meet(node, streams, settings)?;
        let waker = Waker::new()?;
        // A node without peers needs a part all the same, for its memory.
        let needs_tcp = !tcp.is_empty() || choices.is_empty();
        let tcp = needs_tcp.then(|| TcpFabric::with_waker(node, tcp, waker.clone())).transpose()?;
        let mut shm =
            if shm.is_empty() { None } else { Some(ShmFabric::with_waker(node, shm, waker.clone())?) };
        let mut verbs = match &settings.verbs {
            Some(device) if !verbs.is_empty() => {
                Some(Box::new(VerbsFabric::with_waker(node, verbs, device, waker.clone())?))
            }
            _ => None,
        };
        if let (Some(shm), Some(verbs)) = (&mut shm, &mut verbs) {
            verbs.adopt_others();
            shm.hold_moves();
        }
        let (mirrors, views, origin) = (Slots::default(), BTreeMap::new(), std::time::Instant::now());
        let bells = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let fabric = Self { node, choices, shm, verbs, tcp, mirrors, views, waker, bells, origin };
        fabric.watch_bells()?;
        Ok(fabric)
    }

    /// How each peer is reached, and why so, in order of their nodes.
    #[must_use]
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Whether a part uses a device that is software on this machine's processors.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.verbs.as_ref().is_some_and(|verbs| verbs.is_software())
    }

    /// The way to `peer`.
    ///
    /// # Panics
    /// If it is not a peer.
    fn way_to(&self, peer: NodeId) -> Way {
        let place = self.choices.binary_search_by_key(&peer, |choice| choice.peer);
        place
            .map_or_else(|_| panic!("{peer} is not a peer of {}", self.node), |place| self.choices[place].way)
    }
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
fn named(conn: ConnId, way: Way) -> ConnId {
    assert!(conn.0 >> (64 - WAY_BITS) == 0, "{conn:?} of {way:?} has no room for its part");
    ConnId(conn.0 << WAY_BITS | way as u64)
}

/// The part of a connection, and what it is called there.
fn split(conn: ConnId) -> (Way, ConnId) {
    let way = match conn.0 & ((1 << WAY_BITS) - 1) {
        0 => Way::Shm,
        1 => Way::Verbs,
        2 => Way::Tcp,
        _ => panic!("{conn:?} was never opened here"),
    };
    (way, ConnId(conn.0 >> WAY_BITS))
}

const WAYS: usize = 3;
const WAY_BITS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_keep_their_part() {
        for way in [Way::Shm, Way::Verbs, Way::Tcp] {
            let conn = ConnId(7 << 32 | 9);
            assert_eq!(split(named(conn, way)), (way, conn));
        }
    }
}
