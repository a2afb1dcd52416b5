//! Peers that join later, and peers that are removed (Derecho §3.3: each view has its own members).
//!
//! What is published for a node that is not a peer yet, or attached from one, waits here until it is [M5]. A
//! peer that is removed is forgotten at once, with one exception: it may be alive and in the middle of a
//! write under a grant. So its grants are revoked like any other, and its link keeps its number until that is
//! done [F9].

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Weak;

use rustix::fd::AsFd;
use squall_fabric::{FabricEvent, MirrorKey, NodeId};

use super::ShmFabric;
use super::link::{PeerLiveness, ShmLink};
use super::mirrors::ShmAttachment;
use super::peers::PEERS_MAX;
use super::wire::ShmMessage;

/// Attachments of mirrors whose owners are not peers yet.
pub(super) type AwaitedAttachments = BTreeMap<NodeId, BTreeMap<MirrorKey, Weak<ShmAttachment>>>;

impl ShmFabric {
    /// Adds a further peer, by a connected stream socket whose other end is the peer's process; both ends
    /// have authenticated each other. Does not wait for the peer: if it is dead already, the next `poll`
    /// reports that ([`FabricEvent::PeerLost`]). A host's next incarnation is another node: numbers are never
    /// reused.
    ///
    /// # Errors
    /// Returns an error if the node is this one or already a peer, runs as another user, or exceeds the
    /// number of peers; or if memory or file descriptors run out. Nothing has changed then.
    pub fn add_peer(&mut self, node: NodeId, stream: UnixStream) -> io::Result<()> {
        let invalid = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
        if node == self.node || self.links.find(node).is_some() {
            return Err(invalid(format!("{node} exists already: give each process a different number")));
        }
        let Some(number) = self.links.insert(ShmLink::new(node, stream)?) else {
            let text = format!("more than {PEERS_MAX} peers on one host: use `tcp`, or remove some");
            return Err(invalid(text));
        };
        if let Err(error) = self.parking.watch(&self.links[number].socket, number) {
            self.links.remove(number);
            return Err(error);
        }
        self.parking.mark(&self.links[number]);
        let segment = self.links[number].segment().clone();
        let file = segment.file();
        self.send_message(
            number,
            ShmMessage::Hello { node: self.node.0, witness: self.witness.shown() },
            Some(file.as_fd()),
        );
        drop(file);
        if let Some(attachments) = self.awaited_attachments.remove(&node) {
            self.links[number].attachments = attachments;
        }
        self.publish_awaited(number);
        self.pace.enliven();
        Ok(())
    }

    /// Removes a peer deliberately: the socket is closed, connections and grants end, and the peer's
    /// resources are freed. No event reports this; pending events of its connections may still be yielded.
    /// Attachments of its mirrors remain readable [M4] and its stores into them may still be seen, unless
    /// they are frozen. For a node that is not a peer, everything that waits for it is dropped.
    ///
    /// Grants to the peer are revoked; a caller that revokes one of them gets [`FabricEvent::Revoked`] as
    /// always [F9].
    pub fn remove_peer(&mut self, node: NodeId) {
        self.awaited_attachments.remove(&node);
        self.forget_awaited(node);
        let Some(number) = self.links.find(node) else { return };
        // If it sleeps, it must learn of earlier stores.
        self.ring_sleepers();
        for slot in std::mem::take(&mut self.links[number].connections) {
            self.end_silently(slot);
        }
        self.events.retain(|event| match event {
            FabricEvent::PeerLost { peer, .. }
            | FabricEvent::PeerDying { peer }
            | FabricEvent::Attached { reader: peer, .. } => *peer != node,
            FabricEvent::Connected { peer, .. } => *peer != node,
            _ => true,
        });
        self.unheard.retain(|(link, _)| *link != number);
        self.mirrors.iter_mut().for_each(|mirror| mirror.forget_reader(number));
        let link = &mut self.links[number];
        if link.is_dying() {
            // Its end is awaited: then none of its writes is in progress.
            link.life = PeerLiveness::Dying;
        } else if link.is_up() {
            link.life = PeerLiveness::Lost;
            self.parking.forget(&link.socket);
            link.socket.shut_down();
        }
        link.remove();
        let slots = link.issued.slots();
        if slots.is_empty() {
            self.end_removed(number);
        }
        // The end of the last one ends the link.
        for slot in slots {
            self.take_back_silently(number, slot);
        }
    }

    /// Frees the number of a removed link, once none of its peer's writes can be in progress.
    pub(super) fn end_removed(&mut self, number: usize) {
        if self.links[number].removed && self.links[number].issued.slots().is_empty() {
            self.parking.forget(&self.links[number].socket);
            self.links.remove(number);
            self.to_ring.remove(number);
            self.doubtful.remove(number);
            self.moves.iter_mut().for_each(|under_way| under_way.forget(number));
        }
    }
}
