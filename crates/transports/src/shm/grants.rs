//! Grants: who may write where, and how a writer knows that it still may [F8, F10].
//!
//! A grant hands the peer the file of the whole region; that it writes only its range, and only while the grant
//! is valid, its library checks before and after each write. Pages of its own for each grant would let the processor
//! check, but the model lets any words of one region be granted to different peers, even one range to several, and
//! processors protect pages. What the page range of a link says about a grant is its *validity word*: serial and
//! number of moves of the region; 0 when it is revoked. How a revocation stops a writer: see `revocation`.

use std::ops::Range;
use std::sync::Arc;

use rustix::fd::{AsFd, OwnedFd};
use squall_fabric::region::Access;
use squall_fabric::{Grant, NodeId, Region};

use super::ShmFabric;
use super::link::GRANTS_MAX;
use super::memory::{Segment, map_peer_file};
use super::placing::GivenAdopted;
use super::wire::{Message, Violation};
use crate::adopted::Adopted;

/// The grants that this node gave to one peer, by slot.
#[derive(Debug, Default)]
pub(super) struct Given {
    grants: Vec<Option<GivenGrant>>,
    /// Over memory that the peer cannot map.
    pub(super) adopted: GivenAdopted,
}

/// A grant that this node gave.
#[derive(Debug)]
pub(super) struct GivenGrant {
    pub(super) grant: Grant,
    pub(super) segment: Arc<Segment>,
    /// How often the region has moved since.
    pub(super) moves: u16,
    pub(super) state: GivenState,
    /// It is taken back because the peer was removed; nobody has asked to be told.
    pub(super) silent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivenState {
    /// The peer may write.
    Valid,
    /// The owner has revoked it, but a write may be under way.
    Revoking,
    /// The fabric has taken it back, because a stopped writer stood in the way of another revocation. The owner
    /// does not know; the peer will find itself refused.
    Withdrawn,
}

/// The grants that one peer gave to this node, by slot.
#[derive(Debug, Default)]
pub(super) struct Taken {
    grants: Vec<Option<TakenGrant>>,
}

/// A grant that this node may use.
#[derive(Debug)]
pub(super) struct TakenGrant {
    pub(super) grant: Grant,
    /// The granted range, mapped here.
    pub(super) target: Region,
    /// The validity word as long as the grant is valid and `target` is where the region is.
    pub(super) validity: u64,
}

impl Given {
    /// A slot that holds no grant.
    fn vacancy(&mut self) -> usize {
        if let Some(slot) = self.grants.iter().position(Option::is_none) {
            return slot;
        }
        assert!(self.grants.len() < GRANTS_MAX, "at most {GRANTS_MAX} grants to one peer: revoke some");
        self.grants.push(None);
        self.grants.len() - 1
    }

    pub(super) fn insert(&mut self, slot: usize, given: GivenGrant) {
        self.grants[slot] = Some(given);
    }

    pub(super) fn remove(&mut self, slot: usize) {
        self.grants[slot] = None;
    }

    /// The slot of exactly this grant.
    pub(super) fn find(&self, grant: &Grant) -> Option<usize> {
        let slot = slot_of(grant.key);
        let given = self.grants.get(slot)?.as_ref()?;
        (given.grant == *grant).then_some(slot)
    }

    pub(super) fn at(&mut self, slot: usize) -> Option<&mut GivenGrant> {
        self.grants.get_mut(slot)?.as_mut()
    }

    /// The slots that hold grants.
    pub(super) fn slots(&self) -> Vec<usize> {
        let slots = self.grants.iter().enumerate();
        slots.filter(|(_, given)| given.is_some()).map(|(slot, _)| slot).collect()
    }

    /// The slots whose grants are over `segment` and valid.
    pub(super) fn valid_over(&self, segment: &Arc<Segment>) -> Vec<usize> {
        let over =
            |given: &GivenGrant| given.state == GivenState::Valid && Arc::ptr_eq(&given.segment, segment);
        let slots = self.grants.iter().enumerate();
        slots.filter(|(_, given)| given.as_ref().is_some_and(over)).map(|(slot, _)| slot).collect()
    }
}

impl Taken {
    /// The grant, if the peer has given exactly it.
    #[inline]
    pub(super) fn find(&self, grant: &Grant) -> Option<&TakenGrant> {
        self.at(slot_of(grant.key)).filter(|taken| taken.grant == *grant)
    }

    /// Whether the pages of the grant with this key have come, whatever else it says.
    pub(super) fn has_key(&self, key: u64) -> bool {
        self.at(slot_of(key)).is_some_and(|taken| taken.grant.key == key)
    }

    #[inline]
    fn at(&self, slot: usize) -> Option<&TakenGrant> {
        self.grants.get(slot)?.as_ref()
    }

    /// The peer has given a grant, or moved its region.
    pub(super) fn on_granted(&mut self, grant: Grant, moves: u16, file: &OwnedFd) -> Result<(), Violation> {
        let slot = slot_of(grant.key);
        if slot >= GRANTS_MAX {
            return Err(Violation("more grants than there can be"));
        }
        let target = map_peer_file(file, grant.first, grant.words, Access::ReadWrite)?;
        if self.grants.len() <= slot {
            self.grants.resize_with(slot + 1, || None);
        }
        self.grants[slot] = Some(TakenGrant { grant, target, validity: validity(grant.key, moves) });
        Ok(())
    }

    /// The peer has revoked a grant.
    pub(super) fn on_withdrawn(&mut self, key: u64) {
        if self.has_key(key) {
            self.grants[slot_of(key)] = None;
        }
    }
}

impl ShmFabric {
    /// Gives `peer` the right to write `range` of `region`.
    pub(super) fn give(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        if Adopted::is_behind(region) {
            return self.give_adopted(region, range, peer);
        }
        region.check(&range);
        let segment = self.own_segment(region);
        segment.seal_for_writers().expect("files can be sealed");
        let link = self.link_to(peer);
        let slot = self.links[link].given.vacancy();
        self.grants_given += 1;
        let grant = Grant {
            owner: self.node,
            peer,
            region: region.id(),
            first: range.start as u64,
            words: range.len() as u64,
            key: self.grants_given << SLOT_BITS | slot as u64,
        };
        let moving = self.is_moving(&segment);
        let given = GivenGrant { grant, segment, moves: 0, state: GivenState::Valid, silent: false };
        self.links[link].given.insert(slot, given);
        self.links[link].set_validity(slot, validity(grant.key, 0));
        if !moving {
            // Else the end of the move announces it, with the new pages.
            self.announce_grant(link, slot);
        }
        grant
    }

    /// Hands the file of a grant to its peer, for the first time or after a move.
    pub(super) fn announce_grant(&mut self, link: usize, slot: usize) {
        let Some(given) = self.links[link].given.at(slot) else { return };
        let Grant { key, region, first, words, .. } = given.grant;
        let message = Message::Granted { key, region: region.0, first, words, moves: given.moves };
        let segment = given.segment.clone();
        let file = segment.file();
        self.tell(link, message, Some(file.as_fd()));
    }

    /// The segment behind a region of this node.
    pub(super) fn own_segment(&self, region: &Region) -> Arc<Segment> {
        assert_own(region);
        Segment::of(region).expect("it has one")
    }
}

/// A region of this node.
#[inline]
pub(super) fn assert_own(region: &Region) {
    assert!(region.access() == Access::ReadWrite, "{region:?} is a view of another node's mirror");
    assert!(!Adopted::is_behind(region), "{region:?} is adopted: others cannot map it");
    assert!(Segment::is_behind(region), "{region:?} was not registered with this fabric");
}

/// The word that says that a grant is valid and how often its region has moved.
pub(super) const fn validity(key: u64, moves: u16) -> u64 {
    serial(key) << 16 | moves as u64
}

/// The part of a key, or of a validity word, that no other grant of the node has.
pub(super) const fn serial(word: u64) -> u64 {
    word >> SLOT_BITS
}

/// The slot that a key names.
pub(super) const fn slot_of(key: u64) -> usize {
    (key & ((1 << SLOT_BITS) - 1)) as usize
}

const SLOT_BITS: u32 = 16;
