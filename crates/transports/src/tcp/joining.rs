//! Peers that join later, and peers that are removed (Derecho §3.3: each view has its own members).
//!
//! What is attached from a node that is not a peer yet is kept apart until it joins; what is published for it
//! waits for its requests, as for any peer [M5].

use std::io;

use squall_fabric::{FabricEvent, MirrorKey, NodeId, Region};

use super::TcpFabric;
use super::frame::TcpFrame;
use super::pair::Pair;
use super::peer::TcpPeer;
use super::reopening::Reopening;
use super::socket::TcpSocket;
use crate::session::PeerStream;

impl TcpFabric {
    /// Adds a further peer, by a connected stream whose other end has been authenticated and which only this
    /// fabric uses from now on. Does not wait for the peer: if it is dead already, the next `poll` reports
    /// that ([`FabricEvent::PeerLost`]). A host's next incarnation is another node: numbers are never reused.
    ///
    /// # Errors
    /// Returns an error if the node is this one or already a peer ([`io::ErrorKind::InvalidInput`]), or a
    /// system call fails. Nothing has changed then.
    pub fn add_peer(&mut self, node: NodeId, stream: impl Into<PeerStream>) -> io::Result<()> {
        let own = self.local.grants.owner();
        if node == own || self.places.contains_key(&node) {
            let text =
                format!("{own} needs exactly one stream to each other node, but {node} exists already");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let stream = stream.into();
        let pair = stream.pair().filter(|_| self.calls.is_some());
        let reopening = pair.map(|pair| Reopening::new(Pair::new(pair, own)));
        let (stream, records) = stream.into_parts();
        let socket = TcpSocket::new(stream)?;
        if reopening.is_some() {
            self.limit_silence(node, &socket)?;
        }
        let place = self.free_places.last().copied().unwrap_or(self.peers.len());
        self.poller.add(&socket, place)?;
        let first_connection = self.peers.get(place).map_or(0, |before| before.connections.next_number());
        let mut peer = TcpPeer::new(node, place, socket, records, reopening, first_connection);
        peer.attachments = self.awaited_attachments.remove(&node).unwrap_or_default();
        for (attachment, key, words) in peer.attachments.all() {
            peer.output.push_frame(TcpFrame::Attach { attachment, key: key.0, words: words as u64 });
            self.local.counters.frames_sent += 1;
        }
        if let (Some(reopening), Some(calls)) = (&mut peer.reopening, &self.calls) {
            reopening.ask_for_sentinel(node, own, calls);
        }
        self.places.insert(node, place);
        if self.free_places.pop().is_some() {
            self.peers[place] = peer;
        } else {
            self.peers.push(peer);
        }
        Ok(())
    }

    /// Removes a peer deliberately: the stream is closed (posts may arrive or not [F11]), connections and
    /// grants end, and the peer's resources are freed. No event reports this; pending events of its
    /// connections may still be yielded. Attachments of its mirrors remain readable [M4] and no longer
    /// change. For a node that is not a peer, everything that waits for it is dropped.
    pub fn remove_peer(&mut self, node: NodeId) {
        self.awaited_attachments.remove(&node);
        let Some(place) = self.places.remove(&node) else { return };
        self.peers[place].remove(&mut self.local);
        self.free_places.push(place);
        self.local.grants.revoke_all(node);
        self.local.events.retain(|event| match event {
            FabricEvent::PeerLost { peer, .. } | FabricEvent::Attached { reader: peer, .. } => *peer != node,
            FabricEvent::Connected { peer, .. } => *peer != node,
            _ => true,
        });
    }

    /// Same as [`squall_fabric::Fabric::attach`], for a node that is not a peer yet, with memory of another
    /// fabric of this node.
    pub(crate) fn attach_over(&mut self, owner: NodeId, key: MirrorKey, memory: &Region) -> Region {
        let memory = memory.clone().renamed(self.region_id());
        let words = memory.words();
        let attachments = self.awaited_attachments.entry(owner).or_default();
        attachments.attach(key, words, &self.ended_attachments, |_| memory).0
    }

    /// Drops the attachments that are no longer held [M6].
    #[inline]
    pub(super) fn sweep_attachments(&mut self) {
        let ended = self.ended_attachments.count();
        if ended != self.swept_attachments {
            self.swept_attachments = ended;
            self.let_attachments_go();
        }
    }

    #[cold]
    fn let_attachments_go(&mut self) {
        for peer in &mut self.peers {
            peer.sweep_attachments(&mut self.local.counters);
        }
        for attachments in self.awaited_attachments.values_mut() {
            attachments.sweep(|_, _| false);
        }
        self.awaited_attachments.retain(|_, attachments| attachments.all().next().is_some());
    }
}
