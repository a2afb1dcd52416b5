//! Mirrors: readers map the owner's pages, so that one store serves all of them and a push moves nothing [M1–M5].
//!
//! The owner seals the file of the region, so that nobody can map it for writing any more, and hands it to each
//! reader. A view exists from `attach` on: zero pages at first, the owner's pages over them when the file has
//! come. Readers see words as soon as they are stored [M2]; a push only remembers whom to ring if it is parked.

use std::sync::{Arc, Mutex, PoisonError};

use rustix::fd::{AsFd, OwnedFd};
use squall_fabric::region::Access;
use squall_fabric::{Event, MirrorId, MirrorKey, NodeId, Region, RegionId};

use super::ShmFabric;
use super::link::Offer;
use super::memory::{Mapping, check_peer_file};
use super::peers::PeerSet;
use super::wire::{Message, Violation};

/// A mirror of this node.
#[derive(Debug)]
pub(super) struct Mirror {
    words: usize,
    readers: PeerSet,
}

/// A mirror of another node, as it is seen here. Lives as long as a region over it.
#[derive(Debug)]
pub(super) struct View {
    id: RegionId,
    words: usize,
    pub(super) mapping: Mapping,
    /// Locked by the fabric only; reading a view takes no lock.
    pub(super) state: Mutex<ViewState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewState {
    /// Zero pages.
    Reserved,
    /// The owner's pages.
    Attached,
    /// Pages of this process, which nobody writes.
    Frozen,
}

impl View {
    fn new(id: RegionId, words: usize) -> std::io::Result<Arc<Self>> {
        let mapping = Mapping::reserve(words * 8, 0)?;
        Ok(Arc::new(Self { id, words, mapping, state: Mutex::new(ViewState::Reserved) }))
    }

    fn region(self: &Arc<Self>) -> Region {
        let base = self.mapping.first_word();
        // SAFETY: mapped for reading for as long as the view lives, whatever is mapped over it.
        unsafe { Region::from_raw(self.id, base, self.words, Access::ReadOnly, self.clone()) }
    }

    /// Maps the owner's pages, unless the view is frozen.
    fn map(&self, offer: &Offer) -> Result<(), Violation> {
        if offer.words != self.words as u64 {
            return Err(Violation("a mirror of another size than its reader expects"));
        }
        check_peer_file(&offer.file, 0, offer.words)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match *state {
            ViewState::Frozen => return Ok(()),
            ViewState::Attached => return Err(Violation("a mirror that is published twice")),
            ViewState::Reserved => {}
        }
        self.mapping
            .place(offer.file.as_fd(), 0, Access::ReadOnly)
            .map_err(|_| Violation("a mirror that cannot be mapped"))?;
        *state = ViewState::Attached;
        Ok(())
    }
}

impl ShmFabric {
    pub(super) fn publish_mirror(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        let segment = self.own_segment(region);
        segment.seal_for_readers().expect("files can be sealed");
        let message = Message::Mirror { key: key.0, words: region.words() as u64 };
        let mut set = PeerSet::default();
        for reader in readers {
            let link = self.link_to(*reader);
            set.insert(link);
            let new = self.links[link].published.insert(key);
            assert!(new, "{key:?} is published for {reader} already");
            self.tell(link, message, Some(segment.file().as_fd()));
        }
        self.mirrors.push(Mirror { words: region.words(), readers: set });
        MirrorId(u32::try_from(self.mirrors.len() - 1).expect("fewer mirrors than 2^32"))
    }

    pub(super) fn attach_mirror(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        let link = self.link_to(owner);
        if let Some(view) = self.live_view(link, key) {
            assert_eq!(view.words, words, "{key:?} of {owner} is attached with another size");
            return view.region();
        }
        let id = self.next_region_id();
        let view = View::new(id, words).unwrap_or_else(|error| panic!("no room for a view: {error}"));
        self.links[link].views.retain(|_, view| view.strong_count() > 0);
        self.links[link].views.insert(key, Arc::downgrade(&view));
        let region = view.region();
        if let Some(offer) = self.links[link].offers.remove(&key)
            && let Err(violation) = self.map_view(link, key, &view, &offer)
        {
            self.disconnect(link, violation);
        }
        region
    }

    /// The peer has published a mirror for this node.
    pub(super) fn on_mirror(
        &mut self,
        link: usize,
        key: MirrorKey,
        words: u64,
        file: OwnedFd,
    ) -> Result<(), Violation> {
        let offer = Offer { words, file };
        if let Some(view) = self.live_view(link, key) {
            return self.map_view(link, key, &view, &offer);
        }
        let offers = &mut self.links[link].offers;
        if offers.len() == OFFERS_MAX {
            return Err(Violation("more mirrors than anybody attaches"));
        }
        if offers.insert(key, offer).is_some() {
            return Err(Violation("a mirror that is published twice"));
        }
        Ok(())
    }

    /// The peer has attached a mirror of this node.
    pub(super) fn on_attached(&mut self, link: usize, key: MirrorKey) -> Result<(), Violation> {
        if !self.links[link].published.remove(&key) {
            return Err(Violation("it attached what was not published for it"));
        }
        let reader = self.links[link].peer;
        self.events.push_back(Event::Attached { key, reader });
        Ok(())
    }

    /// Remembers whom to ring about words of a mirror.
    #[inline]
    pub(super) fn push_words(&mut self, mirror: MirrorId, end: usize) {
        let mirror = self.mirrors.get(mirror.0 as usize);
        let mirror = mirror.expect("a mirror that this node has published");
        assert!(end <= mirror.words, "a push up to word {end} of {}", mirror.words);
        self.to_ring.union(&mirror.readers);
    }

    fn map_view(&mut self, link: usize, key: MirrorKey, view: &View, offer: &Offer) -> Result<(), Violation> {
        view.map(offer)?;
        self.tell(link, Message::Attached { key: key.0 }, None);
        Ok(())
    }

    fn live_view(&self, link: usize, key: MirrorKey) -> Option<Arc<View>> {
        self.links[link].views.get(&key)?.upgrade()
    }
}

/// Mirrors that are published for a node before it attaches them; each holds a file open.
const OFFERS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::memory::Segment;

    /// Whoever has the file of a mirror can map it for reading only, and cannot write it otherwise.
    #[test]
    fn a_reader_cannot_write_a_mirror() {
        let segment = Segment::new(1000).expect("memory");
        let region = segment.region(RegionId(1), 1000);
        segment.seal_for_readers().expect("sealed");
        let file = segment.file().try_clone().expect("a file as a reader gets it");
        let intruder = Mapping::reserve(8000, 0).expect("addresses");
        assert!(intruder.place(file.as_fd(), 0, Access::ReadWrite).is_err(), "mapped for writing");
        assert!(rustix::io::pwrite(&file, &[1; 8], 0).is_err(), "written by system call");
        assert!(rustix::fs::ftruncate(&file, 0).is_err(), "shrunk");
        intruder.place(file.as_fd(), 0, Access::ReadOnly).expect("mapped for reading");
        region.store(7, 77);
        let seen = intruder.words()[7].load(squall_fabric::atomics::Ordering::Relaxed);
        assert_eq!(seen, 77, "the owner's mapping is still writable, and shared");
    }

    /// The file of a region that peers may write is not sealed for readers, so it cannot become a mirror.
    #[test]
    #[should_panic(expected = "cannot be a mirror too")]
    fn a_granted_region_is_no_mirror() {
        let segment = Segment::new(1).expect("memory");
        segment.seal_for_writers().expect("sealed");
        let _ = segment.seal_for_readers();
    }
}
