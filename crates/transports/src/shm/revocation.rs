//! Revocation: after `Revoked` nothing more lands, whatever state the writer is in [F9].
//!
//! A writer sets its mark, checks the validity word, stores, and checks it again; the owner clears that word
//! and looks for the mark of a write under that grant. One must see the other (Dekker's pattern), but a write
//! should not cost a fence. So the owner looks [`DRAIN_NS`] after it has cleared the word: stores wait in a
//! processor for microseconds at most, so by then every earlier store is visible, and every load returns what
//! was stored at that time. Without a mark, every later write sees the cleared word: the grant is revoked.
//! With a mark, a write is in progress; the owner waits for its end for [`PATIENCE_NS`]. If its writer was
//! stopped in the middle, the owner *moves* the region to other pages, at the same addresses: what the writer
//! still stores lands in pages that are no longer read, and its second check fails.
//!
//! Other grants of the same region follow the move: their validity words change first, so that no new write
//! begins in the old pages; when their writes in progress have ended, the words are copied and the new pages
//! sent. A peer that is also stopped in the middle of a write, for longer than the patience, is refused as
//! well. While a revocation is in progress, only the fabric's thread may store into a granted region.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use squall_fabric::atomics::{AtomicU64, Ordering, fence};
use squall_fabric::{FabricEvent, Grant};

use super::ShmFabric;
use super::grants::{IssuedState, validity};
use super::memory::ShmSegment;
use super::remote_copy::is_adopted;
use super::wire::ShmMessage;

/// A revocation that waits for the end of a write.
#[derive(Debug)]
pub(super) struct Revocation {
    grant: Grant,
    link: usize,
    slot: usize,
    /// The mark of the write, if one was found.
    mark: Option<u64>,
    since_ns: u64,
    segment: Arc<ShmSegment>,
}

/// A region that is being moved to other pages.
#[derive(Debug)]
pub(super) struct RegionMove {
    segment: Arc<ShmSegment>,
    /// Other grants of the region whose writes have not been searched for yet: link, slot.
    others: Vec<(usize, usize)>,
    /// Other writes that were in progress: link, slot, mark.
    under_way: Vec<(usize, usize, u64)>,
    since_ns: u64,
    /// Whether only [`ShmFabric::release_moves`] is awaited.
    held: bool,
}

impl RegionMove {
    /// Notes that a link has ended: none of its writes is in progress.
    pub(super) fn forget(&mut self, link: usize) {
        self.others.retain(|(other, _)| *other != link);
        self.under_way.retain(|(other, _, _)| *other != link);
    }
}

impl ShmFabric {
    /// Revokes a grant.
    pub(super) fn take_back(&mut self, grant: &Grant) {
        if is_adopted(grant) {
            return self.take_back_adopted(grant);
        }
        let Some(link) = self.links.find(grant.peer) else { return self.take_back_from_removed(grant) };
        let slot = self.links[link].issued.find(grant);
        let slot = slot.unwrap_or_else(|| panic!("{grant:?} was not issued, or was revoked before"));
        let issued = self.links[link].issued.at(slot).expect("found");
        assert!(issued.state != IssuedState::Revoking, "{grant:?} was revoked before");
        self.begin_revocation(link, slot);
    }

    /// Revokes a grant of a removed peer, without an event.
    pub(super) fn take_back_silently(&mut self, link: usize, slot: usize) {
        let issued = self.links[link].issued.at(slot).expect("a slot with a grant");
        if issued.state != IssuedState::Revoking {
            issued.silent = true;
            self.begin_revocation(link, slot);
        }
    }

    /// Reports the revocation of a grant that the removal of the peer has revoked, or is revoking.
    fn take_back_from_removed(&mut self, grant: &Grant) {
        let link = self.links.find_removed(grant.peer);
        let found = link.and_then(|link| Some((link, self.links[link].issued.find(grant)?)));
        match found {
            Some((link, slot)) => self.links[link].issued.at(slot).expect("found").silent = false,
            None => self.events.push(FabricEvent::Revoked { grant: *grant }),
        }
    }

    fn begin_revocation(&mut self, link: usize, slot: usize) {
        let issued = self.links[link].issued.at(slot).expect("a slot with a grant");
        issued.state = IssuedState::Revoking;
        let (grant, segment) = (issued.grant, issued.segment.clone());
        self.links[link].set_validity(slot, 0);
        // SYNC: the cleared word is visible from now on.
        fence(Ordering::SeqCst);
        let since_ns = self.now_ns();
        self.revocations.push(Revocation { grant, link, slot, mark: None, since_ns, segment });
    }

    /// Continues the pending revocations.
    pub(super) fn poll_revocations(&mut self) {
        let now_ns = self.now_ns();
        for revocation in std::mem::take(&mut self.revocations) {
            let Revocation { grant, link, slot, mark, since_ns, .. } = revocation;
            let is_drained = now_ns - since_ns >= DRAIN_NS;
            let under_way = self.links[link].write_under_way(slot);
            let waits = !is_drained || under_way.is_some() && mark.is_none_or(|mark| under_way == Some(mark));
            if waits {
                let mark = mark.or(under_way.filter(|_| is_drained));
                self.revocations.push(Revocation { mark, ..revocation });
            } else {
                self.finish_revocation(link, slot, grant);
            }
        }
        let impatient =
            |waits: &&Revocation| now_ns - waits.since_ns > PATIENCE_NS && !self.is_moving(&waits.segment);
        let impatient = self.revocations.iter().find(impatient);
        if let Some(segment) = impatient.map(|revocation| revocation.segment.clone()) {
            self.begin_move(segment);
        }
        for under_way in std::mem::take(&mut self.moves) {
            self.poll_move(under_way);
        }
    }

    /// Returns whether a region is being moved to other pages.
    pub(super) fn is_moving(&self, segment: &Arc<ShmSegment>) -> bool {
        self.moves.iter().any(|under_way| Arc::ptr_eq(&under_way.segment, segment))
    }

    /// Begins a move, which keeps new writes out of a region.
    fn begin_move(&mut self, segment: Arc<ShmSegment>) {
        let mut others = Vec::new();
        for link in self.links.numbers() {
            for slot in self.links[link].issued.valid_over(&segment) {
                let issued = self.links[link].issued.at(slot).expect("it is valid");
                issued.moves = issued.moves.wrapping_add(1);
                let word = validity(issued.grant.key, issued.moves);
                self.links[link].set_validity(slot, word);
                others.push((link, slot));
            }
        }
        // SYNC: the new words are visible from now on.
        fence(Ordering::SeqCst);
        let since_ns = self.now_ns();
        self.moves.push(RegionMove { segment, others, under_way: Vec::new(), since_ns, held: false });
    }

    /// Makes all moves wait for [`ShmFabric::release_moves`] from now on.
    pub(crate) fn hold_moves(&mut self) {
        self.holds_moves = true;
    }

    /// Returns the first words of the regions that wait to be moved.
    pub(crate) fn held_moves(&self) -> Vec<NonNull<AtomicU64>> {
        self.moves
            .iter()
            .filter(|under_way| under_way.held)
            .map(|under_way| under_way.segment.base())
            .collect()
    }

    /// Moves them: only peers on shared memory write them now.
    pub(crate) fn release_moves(&mut self) {
        self.holds_moves = false;
        for under_way in std::mem::take(&mut self.moves) {
            if under_way.held { self.poll_move(under_way) } else { self.moves.push(under_way) }
        }
        self.holds_moves = true;
    }

    fn poll_move(&mut self, mut under_way: RegionMove) {
        if under_way.held && self.holds_moves {
            self.moves.push(under_way);
            return;
        }
        let waited_ns = self.now_ns() - under_way.since_ns;
        if waited_ns < DRAIN_NS {
            self.moves.push(under_way);
            return;
        }
        let links = &self.links;
        let marked = |(link, slot): (usize, usize)| Some((link, slot, links[link].write_under_way(slot)?));
        under_way.under_way.extend(under_way.others.drain(..).filter_map(marked));
        under_way.under_way.retain(|(link, slot, mark)| links.write_under_way(*link, *slot) == Some(*mark));
        let patient = waited_ns <= PATIENCE_NS;
        if patient && !under_way.under_way.is_empty() {
            self.moves.push(under_way);
            return;
        }
        if self.holds_moves {
            self.moves.push(RegionMove { held: true, ..under_way });
            return;
        }
        let has_stopped_writers = !under_way.under_way.is_empty();
        for (link, slot, _) in under_way.under_way.drain(..) {
            self.links[link].set_validity(slot, 0);
            if let Some(issued) = self.links[link].issued.at(slot) {
                issued.state = IssuedState::Withdrawn;
            }
        }
        if has_stopped_writers {
            // SYNC: the last words of a writer that does not see the cleared words are in the old pages after
            // this.
            fence(Ordering::SeqCst);
            std::thread::sleep(Duration::from_nanos(DRAIN_NS));
        }
        if let Err(error) = under_way.segment.move_to_new_pages() {
            crate::log::warn!(%error, "no memory to move a granted region; its revocation must wait");
            self.moves.push(under_way);
            return;
        }
        self.finish_move(&under_way.segment);
    }

    /// Finishes a move: the region's revocations are done, and its other grants follow.
    fn finish_move(&mut self, segment: &Arc<ShmSegment>) {
        for link in self.links.numbers() {
            for slot in self.links[link].issued.valid_over(segment) {
                self.announce_grant(link, slot);
            }
        }
        for revocation in std::mem::take(&mut self.revocations) {
            if Arc::ptr_eq(&revocation.segment, segment) {
                self.finish_revocation(revocation.link, revocation.slot, revocation.grant);
            } else {
                self.revocations.push(revocation);
            }
        }
    }

    fn finish_revocation(&mut self, link: usize, slot: usize, grant: Grant) {
        let silent = self.links[link].issued.at(slot).is_some_and(|issued| issued.silent);
        self.links[link].issued.remove(slot);
        self.send_message(link, ShmMessage::Withdrawn { key: grant.key }, None);
        if !silent {
            self.events.push(FabricEvent::Revoked { grant });
        }
        self.end_removed(link);
    }
}

/// No store waits longer than this in a processor, and no load is executed this early.
const DRAIN_NS: u64 = 1_000_000;

/// How long a revocation waits for a write in progress: longer than most writes and most preemptions, shorter
/// than a leader change should take.
const PATIENCE_NS: u64 = 10_000_000;
