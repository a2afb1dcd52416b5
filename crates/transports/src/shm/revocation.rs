//! Revocation: after `Revoked` nothing lands any more, whatever state the writer is in [F9].
//!
//! The owner clears the validity word, fences, and looks for the mark of a write under that grant; a writer sets its mark,
//! fences, and looks for the validity word. Without a mark, every later write sees the cleared word: the grant is
//! revoked, some microseconds after the call. With a mark, a write is under way; the owner waits for its end for
//! [`PATIENCE`]. If its writer was stopped in the middle, the owner *moves* the region to other pages, at the
//! same addresses: what the writer still stores lands in pages that nobody reads, and its second look tells it.
//!
//! Grants of others over the same region follow the move: their validity words change first, so that no new
//! write begins in the old pages; when their writes under way have ended, the words are copied and the new pages
//! handed over. Who is stopped in the middle of a write too, longer than the patience, is refused as well.
//! While a revocation is under way, only the fabric's thread may store into a granted region.

use std::ptr::NonNull;
use std::sync::Arc;

use squall_fabric::atomics::{AtomicU64, Ordering, fence};
use squall_fabric::{Event, Grant};

use super::ShmFabric;
use super::grants::{GivenState, validity};
use super::memory::Segment;
use super::placing::is_adopted;
use super::wire::Message;

/// A revocation that waits for the end of a write.
#[derive(Debug)]
pub(super) struct Revocation {
    grant: Grant,
    link: usize,
    slot: usize,
    /// The mark of the write.
    mark: u64,
    since_ns: u64,
    segment: Arc<Segment>,
}

/// A region on its way to other pages.
#[derive(Debug)]
pub(super) struct Move {
    segment: Arc<Segment>,
    /// Writes of others that were under way: link, slot, mark.
    under_way: Vec<(usize, usize, u64)>,
    since_ns: u64,
    /// Nothing but [`ShmFabric::release_moves`] is waited for.
    held: bool,
}

impl Move {
    /// A link is over: none of its writes is under way.
    pub(super) fn forget(&mut self, link: usize) {
        self.under_way.retain(|(other, _, _)| *other != link);
    }
}

impl ShmFabric {
    /// Takes a grant back.
    pub(super) fn take_back(&mut self, grant: &Grant) {
        if is_adopted(grant) {
            return self.take_back_adopted(grant);
        }
        let Some(link) = self.links.find(grant.peer) else { return self.take_back_from_removed(grant) };
        let slot = self.links[link].given.find(grant);
        let slot = slot.unwrap_or_else(|| panic!("{grant:?} was not given, or was revoked before"));
        let given = self.links[link].given.at(slot).expect("found");
        assert!(given.state != GivenState::Revoking, "{grant:?} was revoked before");
        self.begin_revocation(link, slot);
    }

    /// Takes a grant of a removed peer back.
    pub(super) fn take_back_silently(&mut self, link: usize, slot: usize) {
        let given = self.links[link].given.at(slot).expect("a slot with a grant");
        if given.state != GivenState::Revoking {
            given.silent = true;
            self.begin_revocation(link, slot);
        }
    }

    /// The removal of the peer has taken the grant back, or is about to.
    fn take_back_from_removed(&mut self, grant: &Grant) {
        let link = self.links.find_removed(grant.peer);
        let found = link.and_then(|link| Some((link, self.links[link].given.find(grant)?)));
        match found {
            Some((link, slot)) => self.links[link].given.at(slot).expect("found").silent = false,
            None => self.events.push(Event::Revoked { grant: *grant }),
        }
    }

    fn begin_revocation(&mut self, link: usize, slot: usize) {
        let given = self.links[link].given.at(slot).expect("a slot with a grant");
        given.state = GivenState::Revoking;
        let (grant, segment) = (given.grant, given.segment.clone());
        self.links[link].set_validity(slot, 0);
        // SYNC: the cleared word before the look at the mark: either the writer sees it, or we see the writer.
        fence(Ordering::SeqCst);
        match self.links[link].write_under_way(slot) {
            None => self.finish_revocation(link, slot, grant),
            Some(mark) => {
                let since_ns = self.now_ns();
                self.revocations.push(Revocation { grant, link, slot, mark, since_ns, segment });
            }
        }
    }

    /// Goes on with the revocations that wait.
    pub(super) fn poll_revocations(&mut self) {
        for revocation in std::mem::take(&mut self.revocations) {
            let Revocation { link, slot, mark, .. } = revocation;
            if self.links[link].write_under_way(slot) == Some(mark) {
                self.revocations.push(revocation);
            } else {
                self.finish_revocation(link, slot, revocation.grant);
            }
        }
        let now_ns = self.now_ns();
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

    /// Whether a region is on its way to other pages.
    pub(super) fn is_moving(&self, segment: &Arc<Segment>) -> bool {
        self.moves.iter().any(|under_way| Arc::ptr_eq(&under_way.segment, segment))
    }

    /// Keeps new writes out of a region.
    fn begin_move(&mut self, segment: Arc<Segment>) {
        let mut others = Vec::new();
        for link in self.links.numbers() {
            for slot in self.links[link].given.valid_over(&segment) {
                let given = self.links[link].given.at(slot).expect("it is valid");
                given.moves = given.moves.wrapping_add(1);
                let word = validity(given.grant.key, given.moves);
                self.links[link].set_validity(slot, word);
                others.push((link, slot));
            }
        }
        // SYNC: the new words before the look at the marks, as in `take_back`.
        fence(Ordering::SeqCst);
        let marked =
            |&(link, slot): &(usize, usize)| Some((link, slot, self.links[link].write_under_way(slot)?));
        let under_way = others.iter().filter_map(marked).collect();
        self.moves.push(Move { segment, under_way, since_ns: self.now_ns(), held: false });
    }

    /// From now on regions move only by [`ShmFabric::release_moves`].
    pub(crate) fn hold_moves(&mut self) {
        self.holds_moves = true;
    }

    /// Where the regions begin that wait to be moved.
    pub(crate) fn held_moves(&self) -> Vec<NonNull<AtomicU64>> {
        self.moves
            .iter()
            .filter(|under_way| under_way.held)
            .map(|under_way| under_way.segment.base())
            .collect()
    }

    /// Moves them: nobody but peers on shared memory writes them any more.
    pub(crate) fn release_moves(&mut self) {
        self.holds_moves = false;
        for under_way in std::mem::take(&mut self.moves) {
            if under_way.held { self.poll_move(under_way) } else { self.moves.push(under_way) }
        }
        self.holds_moves = true;
    }

    fn poll_move(&mut self, mut under_way: Move) {
        if under_way.held && self.holds_moves {
            self.moves.push(under_way);
            return;
        }
        let links = &self.links;
        under_way.under_way.retain(|(link, slot, mark)| links.write_under_way(*link, *slot) == Some(*mark));
        let patient = self.now_ns() - under_way.since_ns <= PATIENCE_NS;
        if patient && !under_way.under_way.is_empty() {
            self.moves.push(under_way);
            return;
        }
        if self.holds_moves {
            self.moves.push(Move { held: true, ..under_way });
            return;
        }
        for (link, slot, _) in under_way.under_way.drain(..) {
            self.links[link].set_validity(slot, 0);
            if let Some(given) = self.links[link].given.at(slot) {
                given.state = GivenState::Withdrawn;
            }
        }
        // SYNC: the last words that writers placed are in the old pages by now: those of a writer that does not see
        // the cleared words are visible after this.
        fence(Ordering::SeqCst);
        if let Err(error) = under_way.segment.move_to_new_pages() {
            tracing::warn!(%error, "no memory to move a granted region; its revocation waits");
            self.moves.push(under_way);
            return;
        }
        self.finish_move(&under_way.segment);
    }

    /// The region has moved: its revocations are done, the other grants follow.
    fn finish_move(&mut self, segment: &Arc<Segment>) {
        for link in self.links.numbers() {
            for slot in self.links[link].given.valid_over(segment) {
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
        let silent = self.links[link].given.at(slot).is_some_and(|given| given.silent);
        self.links[link].given.remove(slot);
        self.tell(link, Message::Withdrawn { key: grant.key }, None);
        if !silent {
            self.events.push(Event::Revoked { grant });
        }
        self.end_removed(link);
    }
}

/// How long a revocation waits for a write under way: longer than most writes and most losses of the processor,
/// shorter than a leader change should take.
const PATIENCE_NS: u64 = 10_000_000;
