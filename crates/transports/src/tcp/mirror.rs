//! Mirrors: rows that this node writes and others read. See `attachments` for the other side.

use std::collections::BTreeMap;

use squall_fabric::{FabricEvent, MirrorId, MirrorKey, NodeId, Region};

use super::frame::TcpViolation;
use crate::slot_map::SlotMap;

/// A mirror that this node has published.
#[derive(Debug)]
pub(super) struct TcpMirror {
    pub(super) key: MirrorKey,
    pub(super) region: Region,
    /// The nodes that may attach.
    readers: Vec<NodeId>,
    /// The readers that have attached and get pushes.
    pub(super) subscribers: Vec<MirrorSubscriber>,
}

/// A reader that has attached.
#[derive(Clone, Copy, Debug)]
pub(super) struct MirrorSubscriber {
    /// The reader's index among the peers.
    pub(super) peer: usize,
    /// The reader's number of its attachment.
    pub(super) attachment: u32,
}

/// A peer's request to attach a mirror.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpAttachRequest {
    pub(super) attachment: u32,
    pub(super) words: u64,
}

/// The mirrors that this node has published.
#[derive(Debug, Default)]
pub(super) struct TcpMirrors {
    mirrors: SlotMap<TcpMirror>,
    by_key: BTreeMap<MirrorKey, MirrorId>,
}

impl TcpMirrors {
    /// Adds a mirror without subscribers.
    ///
    /// # Panics
    /// Panics if the key is in use, or the region is larger than a frame can address.
    pub(super) fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        assert!(u32::try_from(region.words()).is_ok(), "a mirror of 32 GiB or more");
        assert!(!self.by_key.contains_key(&key), "mirror {key:?} is published already");
        let (region, readers) = (region.clone(), readers.to_vec());
        let id = MirrorId(self.mirrors.insert(TcpMirror { key, region, readers, subscribers: Vec::new() }));
        self.by_key.insert(key, id);
        id
    }

    /// Returns the mirror `id`.
    ///
    /// # Panics
    /// Panics if it was not published here, or is retired.
    pub(super) fn mirror(&self, id: MirrorId) -> &TcpMirror {
        self.mirrors.at(id.0).unwrap_or_else(|| panic!("{id:?} is not published by this node"))
    }

    /// Retires a mirror; returns its key.
    ///
    /// # Panics
    /// Panics as [`TcpMirrors::mirror`] does.
    pub(super) fn retire(&mut self, id: MirrorId) -> MirrorKey {
        let mirror = self.mirrors.remove(id.0);
        let mirror = mirror.unwrap_or_else(|| panic!("{id:?} is not published by this node"));
        self.by_key.remove(&mirror.key);
        mirror.key
    }

    /// Grants the request of `node`, the peer at `peer`, if the mirror is published for it; returns `None` if
    /// not yet.
    pub(super) fn subscribe(
        &mut self,
        key: MirrorKey,
        request: TcpAttachRequest,
        peer: usize,
        node: NodeId,
    ) -> Result<Option<FabricEvent>, TcpViolation> {
        let Some(id) = self.by_key.get(&key) else { return Ok(None) };
        let mirror = self.mirrors.at_mut(id.0).expect("keys name mirrors");
        if !mirror.readers.contains(&node) {
            return Ok(None);
        }
        if mirror.region.words() as u64 != request.words {
            return Err(TcpViolation("a mirror attached with a size that differs from the published one"));
        }
        if mirror.subscribers.iter().any(|subscriber| subscriber.peer == peer) {
            return Err(TcpViolation("a second attachment of one mirror"));
        }
        mirror.subscribers.push(MirrorSubscriber { peer, attachment: request.attachment });
        Ok(Some(FabricEvent::Attached { key: mirror.key, reader: node }))
    }

    /// Removes a lost peer: nothing more is pushed to it.
    pub(super) fn unsubscribe(&mut self, peer: usize) {
        for mirror in self.mirrors.iter_mut() {
            mirror.subscribers.retain(|subscriber| subscriber.peer != peer);
        }
    }

    /// Handles a reader's drop of its attachment.
    pub(super) fn on_detach(&mut self, key: MirrorKey, peer: usize, attachment: u32) {
        let Some(mirror) = self.by_key.get(&key).and_then(|id| self.mirrors.at_mut(id.0)) else { return };
        mirror
            .subscribers
            .retain(|subscriber| (subscriber.peer, subscriber.attachment) != (peer, attachment));
    }
}
