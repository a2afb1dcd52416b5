//! Peers that come later, and peers that are removed (Derecho §3.3: each view has its own members).
//!
//! What is published for a node, or attached from one, that is no peer yet waits here until it is [M5]. A peer that is
//! removed is forgotten at once, but for one thing: it may live and be in the middle of a write under a grant. So its
//! grants are revoked like any other, and its link keeps its number until that is done [F9].

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

/// Attachments of mirrors whose owners are no peers yet.
pub(super) type AwaitedAttachments = BTreeMap<NodeId, BTreeMap<MirrorKey, Weak<ShmAttachment>>>;

impl ShmFabric {
    /// Takes a further peer in, by a connected stream socket whose other end is the peer's process; both ends have
    /// proved to each other who they are. Does not wait for the peer: if it is dead already, the next `poll` says so
    /// ([`FabricEvent::PeerLost`]). A host's next incarnation is another node: numbers are never used again.
    ///
    /// # Errors
    /// If the node is this one or a peer already, runs as another user, or is one too many; or if memory or file
    /// descriptors run out. Nothing has changed then.
    pub fn add_peer(&mut self, node: NodeId, stream: UnixStream) -> io::Result<()> {
        let invalid = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
        if node == self.node || self.links.find(node).is_some() {
            return Err(invalid(format!("{node} exists already: give each process a different number")));
        }
        let Some(number) = self.links.insert(ShmLink::new(node, stream)?) else {
            let text = format!("more than {PEERS_MAX} peers on one host: use tcp, or remove some");
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

    /// Parts with a peer deliberately: the connection is closed, connections and grants end, and what the peer held
    /// is given back. Nothing tells of it; what already waits to be yielded about its connections may still come.
    /// Attachments of its mirrors stay readable [M4] and its stores into them may still be seen, unless they are frozen. Of a
    /// node that is no peer, what waits for it is forgotten.
    ///
    /// Grants to the peer are revoked; who revokes one of them is answered as always [F9].
    pub fn remove_peer(&mut self, node: NodeId) {
        self.awaited_attachments.remove(&node);
        self.forget_awaited(node);
        let Some(number) = self.links.find(node) else { return };
        // What was stored for it, if it sleeps.
        self.ring_sleepers();
        for slot in std::mem::take(&mut self.links[number].connections) {
            self.end_silently(slot);
        }
        self.events.retain(|event| match event {
            FabricEvent::PeerLost { peer, .. } | FabricEvent::Attached { reader: peer, .. } => *peer != node,
            FabricEvent::Connected { peer, .. } => *peer != node,
            _ => true,
        });
        self.unheard.retain(|(link, _)| *link != number);
        self.mirrors.iter_mut().for_each(|mirror| mirror.forget_reader(number));
        let link = &mut self.links[number];
        if link.is_up() {
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

    /// Gives the number of a removed link back, once none of its peer's writes can be under way.
    pub(super) fn end_removed(&mut self, number: usize) {
        if self.links[number].removed && self.links[number].issued.slots().is_empty() {
            self.links.remove(number);
            self.to_ring.remove(number);
            self.doubtful.remove(number);
            self.moves.iter_mut().for_each(|under_way| under_way.forget(number));
        }
    }
}
