//! The peers of a node, by place. Places are used again, so that they stay small however many peers come and go; names of
//! nodes are never used again.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use squall_fabric::NodeId;

use super::peer::VerbsPeer;

/// All peers; a place without a peer is free.
#[derive(Default)]
pub(super) struct VerbsPeers {
    slots: Vec<Option<VerbsPeer>>,
    places: BTreeMap<NodeId, usize>,
}

impl VerbsPeers {
    /// The place of `node`, if it is a peer.
    pub(super) fn find(&self, node: NodeId) -> Option<usize> {
        self.places.get(&node).copied()
    }

    /// The place that the next peer will have.
    pub(super) fn free_place(&self) -> usize {
        self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len())
    }

    /// Puts a peer at a free place.
    ///
    /// # Panics
    /// If it is not [`VerbsPeers::free_place`].
    pub(super) fn insert(&mut self, place: usize, peer: VerbsPeer) {
        assert!(place == self.free_place(), "place {place} is not the next");
        self.places.insert(peer.node, place);
        if place == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[place] = Some(peer);
    }

    /// Takes a peer out.
    pub(super) fn remove(&mut self, node: NodeId) -> Option<VerbsPeer> {
        let place = self.places.remove(&node)?;
        self.slots[place].take()
    }

    /// Places at or beyond this are free.
    #[inline]
    pub(super) fn bound(&self) -> usize {
        self.slots.len()
    }

    /// The places of all peers.
    pub(super) fn all(&self) -> Vec<usize> {
        self.places.values().copied().collect()
    }

    #[inline]
    pub(super) fn at_mut(&mut self, place: usize) -> Option<&mut VerbsPeer> {
        self.slots.get_mut(place)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &VerbsPeer> {
        self.slots.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut VerbsPeer> {
        self.slots.iter_mut().flatten()
    }
}

impl Index<usize> for VerbsPeers {
    type Output = VerbsPeer;

    #[inline]
    fn index(&self, place: usize) -> &VerbsPeer {
        self.slots[place].as_ref().expect("whoever keeps a place forgets it when the peer is removed")
    }
}

impl IndexMut<usize> for VerbsPeers {
    #[inline]
    fn index_mut(&mut self, place: usize) -> &mut VerbsPeer {
        self.slots[place].as_mut().expect("whoever keeps a place forgets it when the peer is removed")
    }
}
