//! Peers that are added later, and peers that are removed (Derecho §3.3: each view has its own members).
//!
//! Each peer has its own protection domain, so adding one affects nothing that other peers use: its queue
//! pairs are created and its memory is registered while everything else continues. What is published to a
//! node, or attached from one, that is not a peer yet waits until it is [M5]. A removed peer takes with it
//! its queue pairs, its share of the completion queues, the keys of all memory in its domain, and the domain.
//! queues, the keys of all memory in its domain, and the domain.

use std::io;

use squall_fabric::{FabricEvent, NodeId};

use super::attachments::register_attachment;
use super::control::ControlStream;
use super::domain::ProtectionDomain;
use super::frame::VerbsFrame;
use super::peer::VerbsPeer;
use super::{VerbsError, VerbsFabric};
use crate::session::PeerStream;

impl VerbsFabric {
    /// Adds a peer, over a connected stream whose other end has been authenticated and which only this fabric
    /// uses from now on. Does not wait for the peer: if it is dead already, or its device cannot be reached,
    /// a later `poll` reports it ([`FabricEvent::PeerLost`]). A host's next incarnation is another node:
    /// numbers are never reused.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if the node is this one or a peer already
    /// ([`io::ErrorKind::InvalidInput`]), the memory that waits for it cannot be locked, or a call to the
    /// system or the device fails.
    pub fn add_peer(&mut self, node: NodeId, stream: impl Into<PeerStream>) -> io::Result<()> {
        self.take_in(node, stream.into()).map_err(|error| {
            let kind = match &error {
                VerbsError::Peers(_) => io::ErrorKind::InvalidInput,
                VerbsError::System { cause, .. } | VerbsError::MemoryLock { cause, .. } => cause.kind(),
                _ => io::ErrorKind::Other,
            };
            io::Error::new(kind, error)
        })
    }

    pub(super) fn take_in(&mut self, node: NodeId, stream: PeerStream) -> Result<(), VerbsError> {
        if node == self.node || self.peers.find(node).is_some() {
            let own = self.node;
            let text =
                format!("{own} needs exactly one stream to each other node, but {node} exists already");
            return Err(VerbsError::Peers(text));
        }
        let place = self.peers.free_place();
        let domain = ProtectionDomain::new(&self.device).map_err(VerbsError::system("ibv_alloc_pd"))?;
        // Everything that can fail precedes the first change.
        let awaited =
            self.attachments.attachments.iter().filter(|(_, attachment)| attachment.is_awaited(node));
        let keys = awaited
            .map(|(number, attachment)| Ok((*number, register_attachment(&domain, &attachment.region)?)));
        let keys = keys.collect::<Result<Vec<_>, VerbsError>>()?;
        let control = ControlStream::new(stream).map_err(VerbsError::system("setsockopt"))?;
        self.poller.watch_peer(control.fd(), place).map_err(VerbsError::system("epoll_ctl"))?;
        let mut peer = VerbsPeer::new(node, control, domain);
        peer.send(VerbsFrame::Hello { address: self.device.port_used().address });
        for mirror in self.mirrors.mirrors.iter().filter(|mirror| mirror.readers.contains(&node)) {
            peer.send(mirror.announcement());
        }
        for (number, memory) in keys {
            let attachment = self.attachments.attachments.get_mut(&number).expect("it was awaited");
            peer.send(attachment.attach_to(place, number, memory));
        }
        self.grants.begin(place);
        self.peers.insert(place, peer);
        Ok(())
    }

    /// Removes a peer deliberately: closes the stream (what was posted may or may not arrive [F11]), ends
    /// connections and revokes grants, and releases what the peer held. No event reports the removal; events
    /// about its connections that are already queued may still be yielded. Attachments of its mirrors remain
    /// readable [M4] and no longer change. For a node that is not a peer, this drops what waits for it.
    pub fn remove_peer(&mut self, node: NodeId) {
        for mirror in self.mirrors.mirrors.iter_mut() {
            mirror.readers.retain(|reader| *reader != node);
        }
        if let Some(place) = self.peers.find(node) {
            self.cut_off(place);
            self.end_all(place);
            // This follows the end of its queue pairs, without which no write can use a key.
            self.stop_attachments(place);
            self.grants.revoke_all(place);
            self.regions.forget_peer(place);
            self.peers.remove(node);
        }
        self.attachments
            .attachments
            .values_mut()
            .filter(|attachment| attachment.owner == node)
            .for_each(|attachment| attachment.give_up());
        self.events.retain(|event| match event {
            FabricEvent::PeerLost { peer, .. } | FabricEvent::Attached { reader: peer, .. } => *peer != node,
            FabricEvent::Connected { peer, .. } => *peer != node,
            _ => true,
        });
        self.sweep_attachments();
    }
}
