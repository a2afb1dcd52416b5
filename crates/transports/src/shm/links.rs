//! The links of a node, by number. Numbers are small and used again, so that sets of links stay small however many
//! peers come and go; names of nodes are never used again.

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
    /// Gives a link the lowest free number, unless there are as many as can be.
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

    /// Takes a link out.
    pub(super) fn remove(&mut self, number: usize) -> Option<ShmLink> {
        self.taken.remove(number);
        self.slots[number].take()
    }

    /// The link to a present peer.
    pub(super) fn find(&self, peer: NodeId) -> Option<usize> {
        self.position(|link| link.peer == peer && !link.removed)
    }

    /// The link to a peer that was removed and may still be storing.
    pub(super) fn find_removed(&self, peer: NodeId) -> Option<usize> {
        self.position(|link| link.peer == peer && link.removed)
    }

    fn position(&self, matches: impl Fn(&ShmLink) -> bool) -> Option<usize> {
        self.slots.iter().position(|link| link.as_ref().is_some_and(&matches))
    }

    /// The numbers of all links.
    pub(super) fn numbers(&self) -> PeerSet {
        self.taken
    }

    /// Numbers at or beyond this are free.
    #[inline]
    pub(super) fn bound(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is such a link and its peer has posted something since the last call.
    #[inline]
    pub(super) fn take_posts(&mut self, number: usize) -> bool {
        self.slots[number].as_mut().is_some_and(ShmLink::take_posts)
    }

    /// The only connection of a link, if it has just one: what comes is for that.
    #[inline]
    pub(super) fn only_connection(&self, number: usize) -> Option<usize> {
        match self.slots[number].as_ref()?.connections[..] {
            [slot] => Some(slot),
            _ => None,
        }
    }

    /// The mark of a write that is under way; a link that is over has none.
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
        self.slots[number].as_ref().expect("whoever keeps a number forgets it when the link is removed")
    }
}

impl IndexMut<usize> for ShmLinks {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut ShmLink {
        self.slots[number].as_mut().expect("whoever keeps a number forgets it when the link is removed")
    }
}
