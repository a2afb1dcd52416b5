//! Mirrors: readers map the owner's pages, so that one store serves all of them and a push moves nothing
//! [M1–M6].
//!
//! The owner seals the file of the region, so that no process can map it for writing any more, and sends it
//! to each reader. An attachment exists from `attach` on: zero pages at first, the owner's pages over them
//! when the file has arrived. Neither end needs the file after that: the owner's region and each reader's
//! attachment keep the pages independently, so a retired mirror takes no memory of its own [M6]. Readers see
//! words as soon as they are stored [M2]; a push only notes which readers to ring if they are parked.

use std::sync::{Arc, Mutex, Weak};

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use squall_fabric::mutex::lock;
use squall_fabric::region::Access;
use squall_fabric::{FabricEvent, MirrorId, MirrorKey, NodeId, Region, RegionId};

use super::ShmFabric;
use super::link::{MirrorOffer, PublicationState};
use super::memory::{FileMapping, ShmSegment, check_peer_file};
use super::peers::PeerSet;
use super::wire::{ShmMessage, ShmViolation};
use crate::shortage;

/// A mirror of this node.
#[derive(Debug)]
pub(super) struct ShmMirror {
    key: MirrorKey,
    words: usize,
    readers: PeerSet,
    /// Readers that are not peers yet, and the memory to publish for them; without any, only the owner holds
    /// it.
    awaited: Vec<NodeId>,
    segment: Option<Arc<ShmSegment>>,
}

impl ShmMirror {
    /// Removes a reader whose link has ended.
    pub(super) fn forget_reader(&mut self, link: usize) {
        self.readers.remove(link);
    }

    /// Stops waiting for `node`; returns whether the mirror waited for it.
    fn stop_waiting_for(&mut self, node: NodeId) -> bool {
        let before = self.awaited.len();
        self.awaited.retain(|awaited| *awaited != node);
        before > self.awaited.len()
    }

    /// Releases the owner's memory unless a reader is awaited.
    fn let_go(&mut self) {
        if self.awaited.is_empty() {
            self.segment = None;
        }
    }
}

/// A mirror of another node, as this node has attached it. Lives as long as a region over it.
#[derive(Debug)]
pub(super) struct ShmAttachment {
    id: RegionId,
    words: usize,
    pub(super) mapping: FileMapping,
    /// Locked only by the fabric; reading an attachment takes no lock.
    pub(super) state: Mutex<AttachmentState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachmentState {
    /// Zero pages.
    Reserved,
    /// The owner's pages.
    Attached,
    /// Pages of this process, which are no longer written.
    Frozen,
    /// Pages of this process, which another of its fabrics writes.
    Lent,
}

impl ShmAttachment {
    fn new(id: RegionId, words: usize) -> std::io::Result<Arc<Self>> {
        let bytes = words.checked_mul(8).ok_or(Errno::NOMEM)?;
        let mapping = FileMapping::reserve(bytes, 0)?;
        Ok(Arc::new(Self { id, words, mapping, state: Mutex::new(AttachmentState::Reserved) }))
    }

    fn region(self: &Arc<Self>) -> Region {
        let base = self.mapping.first_word();
        // SAFETY: mapped for reading for as long as the attachment lives, whatever is mapped over it.
        unsafe { Region::from_raw(self.id, base, self.words, Access::ReadOnly, self.clone()) }
    }

    /// Maps the owner's pages, unless the attachment is frozen.
    fn map(&self, offer: &MirrorOffer) -> Result<(), ShmViolation> {
        if offer.words != self.words as u64 {
            return Err(ShmViolation("a mirror whose size its reader does not expect"));
        }
        check_peer_file(&offer.file, 0, offer.words)?;
        let mut state = lock(&self.state);
        match *state {
            AttachmentState::Frozen | AttachmentState::Lent => return Ok(()),
            AttachmentState::Attached => return Err(ShmViolation("a mirror that is published twice")),
            AttachmentState::Reserved => {}
        }
        self.mapping.place(offer.file.as_fd(), 0, Access::ReadOnly).map_err(|error| {
            match shortage::is_shortage(&error) {
                // The shortage is not the peer's fault.
                true => shortage::of_memory(self.words, &error).unwind(),
                false => ShmViolation("a mirror that cannot be mapped"),
            }
        })?;
        *state = AttachmentState::Attached;
        Ok(())
    }
}

impl ShmFabric {
    pub(super) fn publish_mirror(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        let segment = self.own_segment(region);
        segment.seal_for_readers().expect("files can be sealed");
        let words = region.words();
        let mut mirror =
            ShmMirror { key, words, readers: PeerSet::default(), awaited: Vec::new(), segment: None };
        for reader in readers {
            match self.links.find(*reader) {
                Some(link) => {
                    mirror.readers.insert(link);
                    self.offer(link, key, words, &segment);
                }
                None => mirror.awaited.push(*reader),
            }
        }
        mirror.segment = Some(segment).filter(|_| !mirror.awaited.is_empty());
        self.pace.enliven();
        MirrorId(self.mirrors.insert(mirror))
    }

    /// Sends the file of a mirror to a reader.
    fn offer(&mut self, link: usize, key: MirrorKey, words: usize, segment: &ShmSegment) {
        if self.links[link].is_up() {
            let before = self.links[link].published.insert(key, PublicationState::Offered);
            assert!(before.is_none(), "{key:?} is published for {} already", self.links[link].peer);
            let message = ShmMessage::Mirror { key: key.0, words: words as u64 };
            self.send_message(link, message, Some(segment.file().as_fd()));
        }
    }

    /// Publishes for a new peer what was published before it joined.
    pub(super) fn publish_awaited(&mut self, link: usize) {
        let node = self.links[link].peer;
        let mut offers = Vec::new();
        for mirror in self.mirrors.iter_mut() {
            if mirror.stop_waiting_for(node) {
                mirror.readers.insert(link);
                let segment = mirror.segment.clone().expect("held while a reader is awaited");
                offers.push((mirror.key, mirror.words, segment));
                mirror.let_go();
            }
        }
        for (key, words, segment) in offers {
            self.offer(link, key, words, &segment);
        }
    }

    /// Handles a node that will not join.
    pub(super) fn forget_awaited(&mut self, node: NodeId) {
        for mirror in self.mirrors.iter_mut() {
            if mirror.stop_waiting_for(node) {
                mirror.let_go();
            }
        }
    }

    pub(super) fn retire_mirror(&mut self, id: MirrorId) {
        let mirror = self.mirrors.remove(id.0);
        let ShmMirror { key, readers, .. } =
            mirror.expect("a mirror that this node has published and not retired");
        self.events
            .retain(|event| !matches!(event, FabricEvent::Attached { key: other, .. } if *other == key));
        for link in readers {
            // A reader that has attached keeps its pages, and need not know.
            if let Some(publication) = self.links[link].published.get_mut(&key) {
                *publication = PublicationState::Retired;
                self.send_message(link, ShmMessage::Retire { key: key.0 }, None);
            }
        }
    }

    /// Handles a mirror that the peer has retired and that this node had not attached, as far as the peer
    /// knew.
    pub(super) fn on_retire(&mut self, link: usize, key: MirrorKey) {
        if self.links[link].offers.remove(&key).is_some() {
            self.send_message(link, ShmMessage::Retired { key: key.0 }, None);
        }
    }

    /// Handles the peer's confirmation that it has not attached a mirror that this node has retired.
    pub(super) fn on_retired(&mut self, link: usize, key: MirrorKey) -> Result<(), ShmViolation> {
        match self.links[link].published.remove(&key) {
            Some(PublicationState::Retired) => Ok(()),
            _ => Err(ShmViolation("a confirmation for a mirror that is not retired")),
        }
    }

    pub(super) fn attach_mirror(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        let link = self.links.find(owner);
        let id = self.next_region_id();
        let attachments = match link {
            Some(link) => &mut self.links[link].attachments,
            None => {
                self.awaited_attachments.retain(|_, attachments| {
                    attachments.values().any(|attachment| attachment.strong_count() > 0)
                });
                self.awaited_attachments.entry(owner).or_default()
            }
        };
        if let Some(attachment) = attachments.get(&key).and_then(Weak::upgrade) {
            assert_eq!(attachment.words, words, "{key:?} of {owner} is attached with another size");
            return attachment.region();
        }
        self.pace.enliven();
        let attachment =
            ShmAttachment::new(id, words).unwrap_or_else(|error| shortage::of_memory(words, &error).unwind());
        attachments.retain(|_, attachment| attachment.strong_count() > 0);
        attachments.insert(key, Arc::downgrade(&attachment));
        let region = attachment.region();
        if let Some(link) = link
            && let Some(offer) = self.links[link].offers.remove(&key)
            && let Err(violation) = self.map_attachment(link, key, &attachment, &offer)
        {
            self.disconnect(link, violation);
        }
        region
    }

    /// Returns the memory of an attachment whose owner will be a peer of another fabric of this node, which
    /// will fill it; `None` if the attachment is no longer held, or is frozen.
    ///
    /// # Panics
    /// Panics if allocation fails.
    pub(crate) fn lend_attachment(&mut self, owner: NodeId, key: MirrorKey) -> Option<Region> {
        let attachment = self.awaited_attachments.get_mut(&owner)?.remove(&key)?.upgrade()?;
        let mut state = lock(&attachment.state);
        if *state != AttachmentState::Reserved {
            return None;
        }
        let made = attachment.mapping.make_private();
        made.unwrap_or_else(|error| shortage::of_memory(attachment.words, &error).unwind());
        *state = AttachmentState::Lent;
        drop(state);
        let base = attachment.mapping.first_word();
        // SAFETY: mapped for reading and writing for as long as the attachment lives.
        Some(unsafe {
            Region::from_raw(attachment.id, base, attachment.words, Access::ReadWrite, attachment.clone())
        })
    }

    /// Handles a mirror that the peer has published for this node.
    pub(super) fn on_mirror(
        &mut self,
        link: usize,
        key: MirrorKey,
        words: u64,
        file: OwnedFd,
    ) -> Result<(), ShmViolation> {
        let offer = MirrorOffer { words, file };
        self.pace.enliven();
        if let Some(attachment) = self.live_attachment(link, key) {
            return self.map_attachment(link, key, &attachment, &offer);
        }
        let offers = &mut self.links[link].offers;
        if offers.len() == OFFERS_MAX {
            return Err(ShmViolation("more mirrors than allowed before they are attached"));
        }
        if offers.insert(key, offer).is_some() {
            return Err(ShmViolation("a mirror that is published twice"));
        }
        Ok(())
    }

    /// Handles the peer's attachment of a mirror of this node.
    pub(super) fn on_attached(&mut self, link: usize, key: MirrorKey) -> Result<(), ShmViolation> {
        match self.links[link].published.remove(&key) {
            Some(PublicationState::Offered) => {
                self.pace.enliven();
                let reader = self.links[link].peer;
                self.events.push(FabricEvent::Attached { key, reader });
            }
            // It attached the mirror before it knew.
            Some(PublicationState::Retired) => {}
            None => return Err(ShmViolation("an attachment of a mirror that was not published for it")),
        }
        Ok(())
    }

    /// Notes which readers to ring about words of a mirror.
    #[inline]
    pub(super) fn push_words(&mut self, mirror: MirrorId, end: usize) {
        let mirror = self.mirrors.at(mirror.0);
        let mirror = mirror.expect("a mirror that this node has published and not retired");
        assert!(end <= mirror.words, "a push up to word {end} of {}", mirror.words);
        self.to_ring.union(&mirror.readers);
    }

    fn map_attachment(
        &mut self,
        link: usize,
        key: MirrorKey,
        attachment: &ShmAttachment,
        offer: &MirrorOffer,
    ) -> Result<(), ShmViolation> {
        attachment.map(offer)?;
        self.send_message(link, ShmMessage::Attached { key: key.0 }, None);
        Ok(())
    }

    fn live_attachment(&self, link: usize, key: MirrorKey) -> Option<Arc<ShmAttachment>> {
        self.links[link].attachments.get(&key)?.upgrade()
    }
}

/// The most mirrors that are published for a node before it attaches them; each holds a file open.
const OFFERS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::memory::ShmSegment;

    /// A process that has the file of a mirror can map it for reading only, and cannot write it by other
    /// means.
    #[test]
    fn a_reader_cannot_write_a_mirror() {
        let segment = ShmSegment::new(1000).expect("memory");
        let region = segment.region(RegionId(1), 1000);
        segment.seal_for_readers().expect("sealed");
        let file = segment.file().try_clone().expect("a file as a reader gets it");
        let intruder = FileMapping::reserve(8000, 0).expect("addresses");
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
        let segment = ShmSegment::new(1).expect("memory");
        segment.seal_for_writers().expect("sealed");
        let _ = segment.seal_for_readers();
    }
}
