//! Peers that come later, and peers that are removed (Derecho §3.3: each view has its own members).
//!
//! A newcomer meets this node while everything else goes on, and is a peer when both have agreed on their way: then its part
//! takes it in. Until then it waits like any node that is no peer yet [M5]. What is *published* for it waits in the parts
//! that have a mirror of that key, each of which may be its way. What is *attached* from it is memory of the part for
//! shared memory, which gets the owner's pages if that is the way, and is lent to another part to be filled if it is not.

use std::io;
use std::sync::{Arc, Weak};

use rustix::event::epoll;
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};
use squall_fabric::region::Access;
use squall_fabric::{BreakReason, Event, Fabric as _, MirrorKey, NodeId, Region};

use super::fabric::{NO_PART, part};
use super::means::{Choice, Network, Offer, Way};
use super::meeting::Met;
use super::{ALL_WAYS, CompositeError, CompositeFabric};
use crate::Sleeper as _;
use crate::session::PeerStream;
use crate::tcp::TcpFabric;
use crate::verbs::VerbsFabric;

/// What holds a view that was attached before the way to its owner was known.
#[derive(Debug)]
pub(super) struct Handle {
    /// As the part for shared memory has it.
    region: Region,
}

/// What is known of a view.
#[derive(Debug)]
pub(super) enum View {
    /// A part's own. Views that are gone leave this, of which the next one at the address takes the place.
    Of(Way),
    /// Waits for its owner, or was shown to it by shared memory.
    Awaited(NodeId, MirrorKey, Weak<Handle>),
    /// Lent to a part, which calls it so.
    Lent(Way, Region, Weak<Handle>),
}

impl CompositeFabric {
    /// Takes a further peer in, by a connected stream whose other end has been authenticated and which nothing but this
    /// fabric uses from now on; the other end does the same, or begins with it. Does not wait: they meet in the calls of
    /// `poll`. If the peer is dead, does not answer or speaks another protocol, one of these says so
    /// ([`Event::PeerLost`]). A connection can be opened and a right granted once it is among the
    /// [`choices`](Self::choices), which it is when it has attached a mirror or published one that is seen here. A host's
    /// next incarnation is another node: numbers are never used again.
    ///
    /// # Errors
    /// If the node is this one or a peer already ([`io::ErrorKind::InvalidInput`]), or a system call fails. Nothing has
    /// changed then.
    pub fn add_peer(&mut self, node: NodeId, stream: impl Into<PeerStream>) -> io::Result<()> {
        let stream = stream.into();
        if node == self.node || self.way_if_met(node).is_some() || self.meetings.is_with(node) {
            let text = format!("{node} is there already: give each process a number of its own");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let ours = self.offer(&stream)?;
        self.meetings.begin(node, stream, ours)
    }

    /// Parts with a peer deliberately, as its part does. Of a node that is no peer, what waits for it is forgotten.
    pub fn remove_peer(&mut self, node: NodeId) {
        self.meetings.end(node);
        self.choices.retain(|choice| choice.peer != node);
        for mirror in self.mirrors.iter_mut() {
            mirror.stop_waiting_for(node);
        }
        for way in ALL_WAYS {
            self.forget_at(way, node);
        }
        self.events.retain(|event| !matches!(event, Event::PeerLost { peer, .. } if *peer == node));
    }

    /// A part forgets a node.
    fn forget_at(&mut self, way: Way, node: NodeId) {
        match way {
            Way::Shm => self.shm.remove_peer(node),
            Way::Verbs => self.verbs.iter_mut().for_each(|part| part.remove_peer(node)),
            Way::Tcp => self.tcp.iter_mut().for_each(|part| part.remove_peer(node)),
        }
    }

    /// What this node says to the peer behind `stream`.
    fn offer(&mut self, stream: &PeerStream) -> io::Result<Offer> {
        let wanted = self.settings.verbs.as_ref();
        let is_named = wanted.is_some_and(|settings| settings.device.is_some());
        let address = stream.local_addr()?.ip();
        let device = self.device.as_ref().ok().map(|device| device.summary());
        let network =
            device.filter(|device| is_named || !device.ethernet || device.has(address)).map(|device| {
                if device.ethernet { Network::Ethernet } else { Network::InfiniBand(device.subnet()) }
            });
        let sharing =
            self.choices.iter().filter(|choice| choice.way == Way::Shm).count() + self.meetings.len();
        let shares = self.settings.shm && sharing < SHARING_PEERS_MAX;
        let socket = if shares { Some(self.meetings.rendezvous()?) } else { None };
        Ok(Offer { host: host()?, user: geteuid().as_raw(), socket, network })
    }

    /// Goes on with the meetings; returns how many are over.
    #[cold]
    pub(super) fn poll_meetings(&mut self) -> usize {
        let over = self.meet();
        let met = over.len();
        for (peer, error) in over.into_iter().filter_map(Result::err) {
            tracing::warn!(node = self.node.0, peer = peer.0, "lost a peer: {error}");
            let reason = match &error {
                CompositeError::Silent { cause, .. } if cause.kind() != io::ErrorKind::TimedOut => {
                    BreakReason::PeerClosed
                }
                CompositeError::Nonsense { .. } => BreakReason::Protocol,
                _ => BreakReason::Unreachable,
            };
            self.events.push_back(Event::PeerLost { peer, reason });
        }
        met
    }

    /// Goes on with the meetings and takes in who has met.
    pub(super) fn meet(&mut self) -> Vec<Result<(), (NodeId, CompositeError)>> {
        let no_device = self.device.as_ref().err().map(String::as_str);
        let over = self.meetings.advance(no_device);
        over.into_iter()
            .map(|met| {
                let met = met?;
                let peer = met.peer;
                self.take_in(met).map_err(|error| (peer, error))
            })
            .collect()
    }

    /// A peer has met this node: its part takes it in, with what has waited for it.
    fn take_in(&mut self, met: Met) -> Result<(), CompositeError> {
        let Met { peer, way, reason, stream, socket } = met;
        tracing::info!(peer = peer.0, "reached by {way}: {reason}");
        self.begin_part(way)?;
        self.settle_views(peer, way);
        self.settle_mirrors(peer, way);
        for other in ALL_WAYS.into_iter().filter(|other| *other != way) {
            self.forget_at(other, peer);
        }
        match (way, socket) {
            (Way::Shm, Some(socket)) => self.shm.add_peer(peer, socket)?,
            (Way::Verbs, _) => self.verbs.as_mut().expect(NO_PART).add_peer(peer, stream)?,
            _ => self.tcp.as_mut().expect(NO_PART).add_peer(peer, stream)?,
        }
        let place = self.choices.partition_point(|choice| choice.peer < peer);
        self.choices.insert(place, Choice { peer, way, reason });
        Ok(())
    }

    /// Makes the part for a way, unless it is there.
    fn begin_part(&mut self, way: Way) -> Result<(), CompositeError> {
        if way == Way::Verbs && self.verbs.is_none() {
            let device = self.device.as_ref().expect("a network was offered");
            let mut part = Box::new(VerbsFabric::on(device, self.node, self.waker.clone())?);
            part.adopt_others();
            self.watch(part.bell())?;
            self.verbs = Some(part);
            self.shm.hold_moves();
        }
        if way == Way::Tcp && self.tcp.is_none() {
            let part = TcpFabric::with_waker(self.node, Vec::new(), self.waker.clone())?;
            self.watch(part.bell())?;
            self.tcp = Some(part);
        }
        Ok(())
    }

    /// Readable as soon as `bell` is.
    pub(super) fn watch(&self, bell: rustix::fd::BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.bells, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
    }

    /// A view of a mirror of a node that has not met this one.
    pub(super) fn await_view(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        let region = self.shm.attach(owner, key, words);
        let address = region.pointer(0).as_ptr().addr();
        let handle = match self.views.get(&address) {
            Some(View::Awaited(.., handle)) => handle.upgrade(),
            _ => None,
        };
        let handle = handle.unwrap_or_else(|| Arc::new(Handle { region: region.clone() }));
        self.views.insert(address, View::Awaited(owner, key, Arc::downgrade(&handle)));
        // SAFETY: the view's own memory, which the handle keeps.
        unsafe { Region::from_raw(region.id(), region.pointer(0), words, Access::ReadOnly, handle) }
    }

    /// Lends the views of a peer's mirrors to its part, unless that has them.
    fn settle_views(&mut self, peer: NodeId, way: Way) {
        if way == Way::Shm {
            return;
        }
        let mut lent = Vec::new();
        for (address, view) in &self.views {
            let View::Awaited(owner, key, handle) = view else { continue };
            if *owner == peer
                && let Some(memory) = self.shm.lend_view(peer, *key)
            {
                lent.push((*address, *key, memory, handle.clone()));
            }
        }
        for (address, key, memory, handle) in lent {
            let region = match way {
                Way::Verbs => self.verbs.as_mut().expect(NO_PART).attach_over(peer, key, &memory),
                Way::Tcp | Way::Shm => self.tcp.as_mut().expect(NO_PART).attach_over(peer, key, &memory),
            };
            self.views.insert(address, View::Lent(way, region, handle));
        }
    }

    /// Shows a peer, by its part, what was published for it before.
    fn settle_mirrors(&mut self, peer: NodeId, way: Way) {
        let names: Vec<u32> = self.mirrors.names().collect();
        for name in names {
            let mirror = self.mirrors.at_mut(name).expect("just named");
            let Some((key, region)) = mirror.waiting_for(peer) else { continue };
            // A part that has a mirror of this key was told of all who may come.
            if mirror.ids[way as usize].is_none() {
                let readers = mirror.awaited.clone();
                let id = part!(self, way, part => part.publish(key, &region, &readers));
                self.mirrors.at_mut(name).expect("as before").ids[way as usize] = Some(id);
            }
            self.mirrors.at_mut(name).expect("as before").stop_waiting_for(peer);
        }
    }

    /// Lets go what was lent for views that nobody holds any more [M6].
    pub(super) fn sweep_views(&mut self) {
        self.views.retain(|_, view| match view {
            View::Of(_) => true,
            View::Awaited(.., handle) => handle.strong_count() > 0,
            View::Lent(way, _, handle) => {
                if handle.strong_count() == 0 {
                    // Whoever has attached it since holds it by the part.
                    *view = View::Of(*way);
                }
                true
            }
        });
    }

    /// Stops a view [M3].
    ///
    /// # Panics
    /// If it is none.
    pub(super) fn freeze_view(&mut self, view: &Region) {
        match self.views.get(&view.pointer(0).as_ptr().addr()) {
            None => panic!("{view:?} is not a view of a mirror"),
            Some(View::Of(way)) => {
                let way = *way;
                part!(self, way, part => part.freeze(view));
            }
            Some(View::Awaited(.., handle)) => match handle.upgrade() {
                Some(handle) => self.shm.freeze(&handle.region),
                None => self.shm.freeze(view),
            },
            Some(View::Lent(way, region, _)) => {
                let (way, region) = (*way, region.clone());
                part!(self, way, part => part.freeze(&region));
            }
        }
    }
}

/// A name of this host that no other has, until it boots again.
fn host() -> io::Result<[u8; 16]> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    let digest = Sha256::digest(boot);
    Ok(digest[..16].try_into().expect("a digest has 32 bytes"))
}

/// A few less than shared memory takes, so that none that was invited is turned away.
const SHARING_PEERS_MAX: usize = 240;
