//! Peers that join later, and peers that are removed (Derecho §3.3: each view has its own members).
//!
//! A joiner meets this node while everything else continues, and becomes a peer when both have agreed on
//! their transport: then it is added to the part of that transport. Until then it is treated like any node
//! that is not a peer yet [M5]. What is *published* for it waits in the parts that have a mirror of that key,
//! any of which may become its part. What is *attached* from it is memory of the shared-memory part, which
//! gets the owner's pages if that is the transport; otherwise it is lent to another part, which fills it.

use std::io;
use std::sync::{Arc, Weak};

use rustix::event::epoll;
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};
use squall_fabric::region::Access;
use squall_fabric::{BreakReason, Fabric as _, FabricEvent, MirrorKey, NodeId, Region};

use super::fabric::{NO_PART, part};
use super::meeting::MetPeer;
use super::transport_choice::{PeerTransport, RdmaNetwork, TransportChoice, TransportOffer};
use super::{ALL_TRANSPORTS, CompositeError, CompositeFabric};
use crate::Sleeper as _;
use crate::session::PeerStream;
use crate::tcp::TcpFabric;
use crate::verbs::VerbsFabric;

/// The handle of an attachment that was attached before the transport of its owner was known.
#[derive(Debug)]
pub(super) struct AttachmentHandle {
    /// The region in the shared-memory part.
    region: Region,
}

/// The state of an attachment.
#[derive(Debug)]
pub(super) enum CompositeAttachment {
    /// A part's own. Entries of attachments that are gone remain until another attachment has their address.
    Of(PeerTransport),
    /// Waits for its owner, or has been connected by shared memory.
    Awaited(NodeId, MirrorKey, Weak<AttachmentHandle>),
    /// Lent to a part, in which it is this region.
    Lent(PeerTransport, Region, Weak<AttachmentHandle>),
}

impl CompositeFabric {
    /// Adds a further peer, by a connected stream whose other end has been authenticated and which only this
    /// fabric uses from now on; the other end does the same, or begins with it. Does not wait: they meet in
    /// the calls of `poll`. If the peer is dead, does not answer or uses another protocol, one of these calls
    /// reports it ([`FabricEvent::PeerLost`]). Connections can be opened and grants issued once the peer is
    /// among the [`choices`](Self::choices), which is the case when it has attached a mirror or published one
    /// that is visible here. A host's next incarnation is another node: numbers are never reused.
    ///
    /// # Errors
    /// Returns an error if the node is this one or already a peer ([`io::ErrorKind::InvalidInput`]), or a
    /// system call fails. Nothing has changed then.
    pub fn add_peer(&mut self, node: NodeId, stream: impl Into<PeerStream>) -> io::Result<()> {
        let stream = stream.into();
        if node == self.node || self.transport_if_met(node).is_some() || self.meetings.is_with(node) {
            let text = format!("{node} exists already: give each process a different number");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let ours = self.offer(&stream)?;
        self.meetings.begin(node, stream, ours)
    }

    /// Removes a peer deliberately, as its part does. For a node that is not a peer, everything that waits
    /// for it is dropped.
    pub fn remove_peer(&mut self, node: NodeId) {
        self.meetings.end(node);
        self.choices.retain(|choice| choice.peer != node);
        for mirror in self.mirrors.iter_mut() {
            mirror.stop_waiting_for(node);
        }
        for transport in ALL_TRANSPORTS {
            self.forget_at(transport, node);
        }
        self.events.retain(|event| !matches!(event, FabricEvent::PeerLost { peer, .. } if *peer == node));
    }

    /// Lets a part forget a node.
    fn forget_at(&mut self, transport: PeerTransport, node: NodeId) {
        match transport {
            PeerTransport::Shm => self.shm.remove_peer(node),
            PeerTransport::Verbs => self.verbs.iter_mut().for_each(|part| part.remove_peer(node)),
            PeerTransport::Tcp => self.tcp.iter_mut().for_each(|part| part.remove_peer(node)),
        }
    }

    /// Returns this node's offer to the peer behind `stream`.
    fn offer(&mut self, stream: &PeerStream) -> io::Result<TransportOffer> {
        let wanted = self.settings.verbs.as_ref();
        let is_named = wanted.is_some_and(|settings| settings.device.is_some());
        let address = stream.local_addr()?.ip();
        let device = self.device.as_ref().ok().map(|device| device.summary());
        let network =
            device.filter(|device| is_named || !device.ethernet || device.has(address)).map(|device| {
                if device.ethernet { RdmaNetwork::Ethernet } else { RdmaNetwork::InfiniBand(device.subnet()) }
            });
        let sharing = self.choices.iter().filter(|choice| choice.transport == PeerTransport::Shm).count()
            + self.meetings.len();
        let shares = self.no_shm.is_none() && sharing < SHARING_PEERS_MAX;
        let socket = if shares { Some(self.meetings.rendezvous()?) } else { None };
        Ok(TransportOffer { host: host()?, user: geteuid().as_raw(), socket, network })
    }

    /// Continues the meetings; returns the number of those that have ended.
    #[cold]
    pub(super) fn poll_meetings(&mut self) -> usize {
        let over = self.meet();
        let met = over.len();
        for (peer, error) in over.into_iter().filter_map(Result::err) {
            crate::log::warn!(node = self.node.0, peer = peer.0, "lost a peer: {error}");
            let reason = match &error {
                CompositeError::Silent { cause, .. } if cause.kind() != io::ErrorKind::TimedOut => {
                    BreakReason::PeerClosed
                }
                CompositeError::Nonsense { .. } => BreakReason::Protocol,
                _ => BreakReason::Unreachable,
            };
            self.events.push_back(FabricEvent::PeerLost { peer, reason });
        }
        met
    }

    /// Continues the meetings and adds the peers that have met.
    pub(super) fn meet(&mut self) -> Vec<Result<(), (NodeId, CompositeError)>> {
        let no_device = self.device.as_ref().err().map(String::as_str);
        let over = self.meetings.advance(no_device, self.no_shm.as_deref());
        over.into_iter()
            .map(|met| {
                let met = met?;
                let peer = met.peer;
                self.take_in(met).map_err(|error| (peer, error))
            })
            .collect()
    }

    /// Adds a peer that has met this node to its part, with everything that has waited for it.
    fn take_in(&mut self, met: MetPeer) -> Result<(), CompositeError> {
        let MetPeer { peer, transport, reason, stream, socket } = met;
        crate::log::info!(peer = peer.0, "reached by {transport}: {reason}");
        self.begin_part(transport)?;
        self.settle_attachments(peer, transport);
        self.settle_mirrors(peer, transport);
        for other in ALL_TRANSPORTS.into_iter().filter(|other| *other != transport) {
            self.forget_at(other, peer);
        }
        match (transport, socket) {
            (PeerTransport::Shm, Some(socket)) => self.shm.add_peer(peer, socket)?,
            (PeerTransport::Verbs, _) => self.verbs.as_mut().expect(NO_PART).add_peer(peer, stream)?,
            _ => self.tcp.as_mut().expect(NO_PART).add_peer(peer, stream)?,
        }
        let place = self.choices.partition_point(|choice| choice.peer < peer);
        self.choices.insert(place, TransportChoice { peer, transport, reason });
        Ok(())
    }

    /// Creates the part for a transport, unless it exists.
    fn begin_part(&mut self, transport: PeerTransport) -> Result<(), CompositeError> {
        if transport == PeerTransport::Verbs && self.verbs.is_none() {
            let device = self.device.as_ref().expect("a network is offered only with a device");
            let mut part = Box::new(VerbsFabric::on(device, self.node, self.waker.clone())?);
            part.adopt_others();
            self.watch(part.bell())?;
            self.verbs = Some(part);
            self.shm.hold_moves();
        }
        if transport == PeerTransport::Tcp && self.tcp.is_none() {
            let mut part = TcpFabric::with_waker(self.node, Vec::new(), self.waker.clone())?;
            if let Some(relinking) = &self.settings.relinking {
                part.relink_by(relinking)?;
            }
            self.watch(part.bell())?;
            self.tcp = Some(part);
        }
        Ok(())
    }

    /// Makes the bells readable whenever `bell` is.
    pub(super) fn watch(&self, bell: rustix::fd::BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.bells, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
    }

    /// Attaches a mirror of a node that has not met this one.
    pub(super) fn await_attachment(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        let region = self.shm.attach(owner, key, words);
        let address = region.pointer(0).as_ptr().addr();
        let handle = match self.attachments.get(&address) {
            Some(CompositeAttachment::Awaited(.., handle)) => handle.upgrade(),
            _ => None,
        };
        let handle = handle.unwrap_or_else(|| Arc::new(AttachmentHandle { region: region.clone() }));
        self.attachments.insert(address, CompositeAttachment::Awaited(owner, key, Arc::downgrade(&handle)));
        // SAFETY: the attachment's own memory, which the handle keeps alive.
        unsafe { Region::from_raw(region.id(), region.pointer(0), words, Access::ReadOnly, handle) }
    }

    /// Lends the attachments of a peer's mirrors to its part, unless it is the part that has them.
    fn settle_attachments(&mut self, peer: NodeId, transport: PeerTransport) {
        if transport == PeerTransport::Shm {
            return;
        }
        let mut lent = Vec::new();
        for (address, attachment) in &self.attachments {
            let CompositeAttachment::Awaited(owner, key, handle) = attachment else { continue };
            if *owner == peer
                && let Some(memory) = self.shm.lend_attachment(peer, *key)
            {
                lent.push((*address, *key, memory, handle.clone()));
            }
        }
        for (address, key, memory, handle) in lent {
            let region = match transport {
                PeerTransport::Verbs => self.verbs.as_mut().expect(NO_PART).attach_over(peer, key, &memory),
                PeerTransport::Tcp | PeerTransport::Shm => {
                    self.tcp.as_mut().expect(NO_PART).attach_over(peer, key, &memory)
                }
            };
            self.attachments.insert(address, CompositeAttachment::Lent(transport, region, handle));
        }
    }

    /// Publishes, through its part, what was published for a peer before.
    fn settle_mirrors(&mut self, peer: NodeId, transport: PeerTransport) {
        let names: Vec<u32> = self.mirrors.names().collect();
        for name in names {
            let mirror = self.mirrors.at_mut(name).expect("just named");
            let Some((key, region)) = mirror.waiting_for(peer) else { continue };
            // A part that has a mirror of this key knows all awaited readers.
            if mirror.ids[transport as usize].is_none() {
                let readers = mirror.awaited.clone();
                let id = part!(self, transport, part => part.publish(key, &region, &readers));
                self.mirrors.at_mut(name).expect("as before").ids[transport as usize] = Some(id);
            }
            self.mirrors.at_mut(name).expect("as before").stop_waiting_for(peer);
        }
    }

    /// Drops entries of attachments that are no longer held [M6].
    pub(super) fn sweep_attachments(&mut self) {
        self.attachments.retain(|_, attachment| match attachment {
            CompositeAttachment::Of(_) => true,
            CompositeAttachment::Awaited(.., handle) => handle.strong_count() > 0,
            CompositeAttachment::Lent(transport, _, handle) => {
                if handle.strong_count() == 0 {
                    // If it has been attached again since, the part holds it.
                    *attachment = CompositeAttachment::Of(*transport);
                }
                true
            }
        });
    }

    /// Freezes an attachment [M3].
    ///
    /// # Panics
    /// Panics if it is not an attachment.
    pub(super) fn freeze_attachment(&mut self, attachment: &Region) {
        match self.attachments.get(&attachment.pointer(0).as_ptr().addr()) {
            None => panic!("{attachment:?} is not an attachment of a mirror"),
            Some(CompositeAttachment::Of(transport)) => {
                let transport = *transport;
                part!(self, transport, part => part.freeze(attachment));
            }
            Some(CompositeAttachment::Awaited(.., handle)) => match handle.upgrade() {
                Some(handle) => self.shm.freeze(&handle.region),
                None => self.shm.freeze(attachment),
            },
            Some(CompositeAttachment::Lent(transport, region, _)) => {
                let (transport, region) = (*transport, region.clone());
                part!(self, transport, part => part.freeze(&region));
            }
        }
    }
}

/// Returns a name of this host that no other host has, until it reboots.
fn host() -> io::Result<[u8; 16]> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    let digest = Sha256::digest(boot);
    Ok(digest[..16].try_into().expect("a digest has 32 bytes"))
}

/// Slightly fewer than shared memory allows, so that no invited peer is rejected.
const SHARING_PEERS_MAX: usize = 240;
