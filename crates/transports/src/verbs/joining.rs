//! Peers that come later, and peers that are removed (Derecho §3.3: each view has its own members).
//!
//! A peer brings a protection domain of its own, so nothing that others have is touched when it comes: its queue pairs
//! are made and its memory is registered while everything else goes on. What is published for a node, or attached from
//! one, that is no peer yet waits until it is [M5]. With a removed peer go its queue pairs, its share of the completion
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
    /// Takes a further peer in, by a connected stream whose other end has been authenticated and which nothing but
    /// this fabric uses from now on. Does not wait for the peer: if it is dead already, or its device cannot be reached,
    /// a later `poll` says so ([`FabricEvent::PeerLost`]). A host's next incarnation is another node: numbers are never used
    /// again.
    ///
    /// # Errors
    /// If the node is this one or a peer already ([`io::ErrorKind::InvalidInput`]), the memory that waits for it cannot be
    /// locked, or a call to the system or the device fails. Nothing has changed then.
    pub fn add_peer(&mut self, node: NodeId, stream: impl Into<PeerStream>) -> io::Result<()> {
        self.take_in(node, stream.into()).map_err(|error| {
            let kind = match &error {
                VerbsError::Peers(_) => io::ErrorKind::InvalidInput,
                VerbsError::System { source, .. } | VerbsError::MemoryLock { source, .. } => source.kind(),
                _ => io::ErrorKind::Other,
            };
            io::Error::new(kind, error)
        })
    }

    pub(super) fn take_in(&mut self, node: NodeId, stream: PeerStream) -> Result<(), VerbsError> {
        if node == self.node || self.peers.find(node).is_some() {
            let own = self.node;
            let text =
                format!("{own} needs exactly one stream to each other node, and {node} is there already");
            return Err(VerbsError::Peers(text));
        }
        let place = self.peers.free_place();
        let domain = ProtectionDomain::new(&self.device).map_err(VerbsError::system("ibv_alloc_pd"))?;
        // All that can fail comes before anything changes.
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

    /// Parts with a peer deliberately: the stream is closed (what was posted may arrive or not [F11]), connections and
    /// grants end, and what the peer held is given back. Nothing tells of it; what already waits to be yielded about
    /// its connections may still come. Attachments of its mirrors stay readable [M4] and stand still. Of a node that is no
    /// peer, what waits for it is forgotten.
    pub fn remove_peer(&mut self, node: NodeId) {
        for mirror in self.mirrors.mirrors.iter_mut() {
            mirror.readers.retain(|reader| *reader != node);
        }
        if let Some(place) = self.peers.find(node) {
            self.cut_off(place);
            self.end_all(place);
            // After its queue pairs: without them nothing names a key.
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
