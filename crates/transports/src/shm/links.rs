//! The links of a node, by number. Numbers are small and reused, so that sets of links remain small however
//! many peers join and are removed; node numbers are never reused.

use std::ops::{Index, IndexMut};

use squall_fabric::NodeId;

use super::link::ShmLink;
use super::peers::{PEERS_MAX, PeerSet};

/// All links; a number without a link is free.
#[derive(Debug, Default)]
pub(super) struct ShmLinks {
    /// At most [`PEERS_MAX`].
    slots: Vec<Option<ShmLink>>,
    taken: PeerSet,
}

impl ShmLinks {
    /// Assigns a link the lowest free number; returns `None` if all are in use.
    pub(super) fn insert(&mut self, link: ShmLink) -> Option<usize> {
        let number = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if number == PEERS_MAX {
            return None;
        }
        if number == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[number] = Some(link);
        self.taken.insert(number);
        Some(number)
    }

    /// Removes a link.
    pub(super) fn remove(&mut self, number: usize) -> Option<ShmLink> {
        self.taken.remove(number);
        self.slots[number].take()
    }

    /// Returns the link to a current peer.
    pub(super) fn find(&self, peer: NodeId) -> Option<usize> {
        self.position(|link| link.peer == peer && !link.removed)
    }

    /// Returns the link to a peer that was removed and may still be storing.
    pub(super) fn find_removed(&self, peer: NodeId) -> Option<usize> {
        self.position(|link| link.peer == peer && link.removed)
    }

    fn position(&self, matches: impl Fn(&ShmLink) -> bool) -> Option<usize> {
        self.slots.iter().position(|link| link.as_ref().is_some_and(&matches))
    }

    /// Returns the numbers of all links.
    pub(super) fn numbers(&self) -> PeerSet {
        self.taken
    }

    /// Returns a bound: numbers at or beyond it are free.
    #[inline]
    pub(super) fn bound(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether there is such a link and its peer has posted something since the last call.
    #[inline]
    pub(super) fn take_posts(&mut self, number: usize) -> bool {
        self.slots[number].as_mut().is_some_and(ShmLink::take_posts)
    }

    /// Returns whether there is such a link and its peer is dying.
    #[inline]
    pub(super) fn is_dying(&self, number: usize) -> bool {
        self.slots[number].as_ref().is_some_and(ShmLink::is_dying)
    }

    /// Returns the only connection of a link, if it has just one: posts are for that one.
    #[inline]
    pub(super) fn only_connection(&self, number: usize) -> Option<usize> {
        match self.slots[number].as_ref()?.connections[..] {
            [slot] => Some(slot),
            _ => None,
        }
    }

    /// Returns the mark of a write in progress; a link that has ended has none.
    pub(super) fn write_under_way(&self, number: usize, slot: usize) -> Option<u64> {
        self.slots[number].as_ref()?.write_under_way(slot)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ShmLink> {
        self.slots.iter().flatten()
    }
}

impl Index<usize> for ShmLinks {
    type Output = ShmLink;

    #[inline]
    fn index(&self, number: usize) -> &ShmLink {
        self.slots[number].as_ref().expect("numbers are dropped when their link is removed")
    }
}

impl IndexMut<usize> for ShmLinks {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut ShmLink {
        self.slots[number].as_mut().expect("numbers are dropped when their link is removed")
    }
}
