//! The peers of a node, by place. Places are reused, so that they remain small however many peers are added
//! and removed; node numbers are never reused.

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
    /// Returns the place of `node`, if it is a peer.
    pub(super) fn find(&self, node: NodeId) -> Option<usize> {
        self.places.get(&node).copied()
    }

    /// Returns the place that the next peer will have.
    pub(super) fn free_place(&self) -> usize {
        self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len())
    }

    /// Adds a peer at a free place.
    ///
    /// # Panics
    /// Panics if the place is not [`VerbsPeers::free_place`].
    pub(super) fn insert(&mut self, place: usize, peer: VerbsPeer) {
        assert!(place == self.free_place(), "place {place} is not the next");
        self.places.insert(peer.node, place);
        if place == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[place] = Some(peer);
    }

    /// Removes a peer and returns it.
    pub(super) fn remove(&mut self, node: NodeId) -> Option<VerbsPeer> {
        let place = self.places.remove(&node)?;
        self.slots[place].take()
    }

    /// Returns the upper bound of the places: those at or beyond it are free.
    #[inline]
    pub(super) fn bound(&self) -> usize {
        self.slots.len()
    }

    /// Returns the places of all peers.
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
        self.slots[place].as_ref().expect("all copies of a place are dropped when its peer is removed")
    }
}

impl IndexMut<usize> for VerbsPeers {
    #[inline]
    fn index_mut(&mut self, place: usize) -> &mut VerbsPeer {
        self.slots[place].as_mut().expect("all copies of a place are dropped when its peer is removed")
    }
}
