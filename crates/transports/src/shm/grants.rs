//! Grants: which peer may write where, and how a writer knows that it still may [F8, F10].
//!
//! A grant gives the peer the file of the whole region; the peer's library checks before and after each write
//! that it writes only its range, and only while the grant is valid. With separate pages for each grant the
//! processor could check that, but the model allows any words of one region to be granted to different peers,
//! even one range to several, and processors protect pages. The page range of a link holds the *validity
//! word* of each grant: its serial number and the number of moves of the region; 0 when it is revoked. How a
//! revocation stops a writer: see `revocation`.

use std::ops::Range;
use std::sync::Arc;

use rustix::fd::{AsFd, OwnedFd};
use squall_fabric::region::Access;
use squall_fabric::{Grant, NodeId, Region};

use super::ShmFabric;
use super::link::GRANTS_MAX;
use super::memory::{ShmSegment, map_peer_file};
use super::remote_copy::AdoptedGrants;
use super::wire::{ShmMessage, ShmViolation};
use crate::adopted::AdoptedMemory;

/// The grants that this node has issued to one peer, by slot.
#[derive(Debug, Default)]
pub(super) struct IssuedGrants {
    grants: Vec<Option<IssuedGrant>>,
    /// Grants of memory that the peer cannot map.
    pub(super) adopted: AdoptedGrants,
}

/// A grant that this node has issued.
#[derive(Debug)]
pub(super) struct IssuedGrant {
    pub(super) grant: Grant,
    pub(super) segment: Arc<ShmSegment>,
    /// How often the region has moved since.
    pub(super) moves: u16,
    pub(super) state: IssuedState,
    /// Whether it is revoked because the peer was removed; no `Revoked` is due.
    pub(super) silent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IssuedState {
    /// The peer may write.
    Valid,
    /// The owner has revoked it, but a write may be in progress.
    Revoking,
    /// The fabric has withdrawn it, because a stopped writer blocked another revocation. The owner does not
    /// know; the peer will be refused.
    Withdrawn,
}

/// The grants that one peer has issued to this node, by slot.
#[derive(Debug, Default)]
pub(super) struct ReceivedGrants {
    grants: Vec<Option<ReceivedGrant>>,
}

/// A grant that this node may use.
#[derive(Debug)]
pub(super) struct ReceivedGrant {
    pub(super) grant: Grant,
    /// The granted range, mapped here.
    pub(super) target: Region,
    /// The validity word for which the grant is valid and `target` is where the region is.
    pub(super) validity: u64,
}

impl IssuedGrants {
    /// Returns a slot without a grant.
    fn vacancy(&mut self) -> usize {
        if let Some(slot) = self.grants.iter().position(Option::is_none) {
            return slot;
        }
        assert!(self.grants.len() < GRANTS_MAX, "more than {GRANTS_MAX} grants to one peer (revoke some)");
        self.grants.push(None);
        self.grants.len() - 1
    }

    pub(super) fn insert(&mut self, slot: usize, issued: IssuedGrant) {
        self.grants[slot] = Some(issued);
    }

    pub(super) fn remove(&mut self, slot: usize) {
        self.grants[slot] = None;
    }

    /// Returns the slot of exactly this grant.
    pub(super) fn find(&self, grant: &Grant) -> Option<usize> {
        let slot = slot_of(grant.key);
        let issued = self.grants.get(slot)?.as_ref()?;
        (issued.grant == *grant).then_some(slot)
    }

    pub(super) fn at(&mut self, slot: usize) -> Option<&mut IssuedGrant> {
        self.grants.get_mut(slot)?.as_mut()
    }

    /// Returns the slots that hold grants.
    pub(super) fn slots(&self) -> Vec<usize> {
        let slots = self.grants.iter().enumerate();
        slots.filter(|(_, issued)| issued.is_some()).map(|(slot, _)| slot).collect()
    }

    /// Returns the slots whose grants are over `segment` and valid.
    pub(super) fn valid_over(&self, segment: &Arc<ShmSegment>) -> Vec<usize> {
        let over = |issued: &IssuedGrant| {
            issued.state == IssuedState::Valid && Arc::ptr_eq(&issued.segment, segment)
        };
        let slots = self.grants.iter().enumerate();
        slots.filter(|(_, issued)| issued.as_ref().is_some_and(over)).map(|(slot, _)| slot).collect()
    }
}

impl ReceivedGrants {
    /// Returns the grant, if the peer has issued exactly it.
    #[inline]
    pub(super) fn find(&self, grant: &Grant) -> Option<&ReceivedGrant> {
        self.at(slot_of(grant.key)).filter(|taken| taken.grant == *grant)
    }

    /// Returns whether the pages of the grant with this key have arrived, whatever its other fields.
    pub(super) fn has_key(&self, key: u64) -> bool {
        self.at(slot_of(key)).is_some_and(|taken| taken.grant.key == key)
    }

    #[inline]
    fn at(&self, slot: usize) -> Option<&ReceivedGrant> {
        self.grants.get(slot)?.as_ref()
    }

    /// Handles a grant that the peer has issued, or whose region it has moved.
    pub(super) fn on_granted(
        &mut self,
        grant: Grant,
        moves: u16,
        file: &OwnedFd,
    ) -> Result<(), ShmViolation> {
        let slot = slot_of(grant.key);
        if slot >= GRANTS_MAX {
            return Err(ShmViolation("more grants than allowed"));
        }
        let target = map_peer_file(file, grant.first, grant.words, Access::ReadWrite)?;
        if self.grants.len() <= slot {
            self.grants.resize_with(slot + 1, || None);
        }
        self.grants[slot] = Some(ReceivedGrant { grant, target, validity: validity(grant.key, moves) });
        Ok(())
    }

    /// Handles a grant that the peer has revoked.
    pub(super) fn on_withdrawn(&mut self, key: u64) {
        if self.has_key(key) {
            self.grants[slot_of(key)] = None;
        }
    }
}

impl ShmFabric {
    /// Issues a grant for `peer` to write `range` of `region`.
    pub(super) fn issue(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        if AdoptedMemory::is_behind(region) {
            return self.issue_adopted(region, range, peer);
        }
        region.check(&range);
        let segment = self.own_segment(region);
        segment.seal_for_writers().expect("files can be sealed");
        let link = self.link_to(peer);
        let slot = self.links[link].issued.vacancy();
        self.grants_issued += 1;
        let grant = Grant {
            owner: self.node,
            peer,
            region: region.id(),
            first: range.start as u64,
            words: range.len() as u64,
            key: self.grants_issued << SLOT_BITS | slot as u64,
        };
        let moving = self.is_moving(&segment);
        let issued = IssuedGrant { grant, segment, moves: 0, state: IssuedState::Valid, silent: false };
        self.links[link].issued.insert(slot, issued);
        self.links[link].set_validity(slot, validity(grant.key, 0));
        if !moving {
            // Otherwise the end of the move announces it, with the new pages.
            self.announce_grant(link, slot);
        }
        grant
    }

    /// Sends the file of a grant to its peer, for the first time or after a move.
    pub(super) fn announce_grant(&mut self, link: usize, slot: usize) {
        let Some(issued) = self.links[link].issued.at(slot) else { return };
        let Grant { key, region, first, words, .. } = issued.grant;
        let message = ShmMessage::Granted { key, region: region.0, first, words, moves: issued.moves };
        let segment = issued.segment.clone();
        let file = segment.file();
        self.send_message(link, message, Some(file.as_fd()));
    }

    /// Returns the segment behind a region of this node.
    pub(super) fn own_segment(&self, region: &Region) -> Arc<ShmSegment> {
        assert_own(region);
        ShmSegment::of(region).expect("checked above")
    }
}

/// Asserts that `region` is a region of this node.
#[inline]
pub(super) fn assert_own(region: &Region) {
    assert!(region.access() == Access::ReadWrite, "{region:?} is an attachment of another node's mirror");
    assert!(!AdoptedMemory::is_behind(region), "{region:?} is adopted: others cannot map it");
    assert!(ShmSegment::is_behind(region), "{region:?} was not registered with this fabric");
}

/// Returns the word which shows that a grant is valid and how often its region has moved.
pub(super) const fn validity(key: u64, moves: u16) -> u64 {
    serial(key) << 16 | moves as u64
}

/// Returns the part of a key, or of a validity word, that no other grant of the node has.
pub(super) const fn serial(word: u64) -> u64 {
    word >> SLOT_BITS
}

/// Returns the slot that a key names.
pub(super) const fn slot_of(key: u64) -> usize {
    (key & ((1 << SLOT_BITS) - 1)) as usize
}

const SLOT_BITS: u32 = 16;
