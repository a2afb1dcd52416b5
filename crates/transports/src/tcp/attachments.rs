//! Attachments: this node's copies of one peer's mirrors, and the peer's requests for mirrors of this node.
//!
//! An attachment lives while its region is held [M6]. After that the next poll notifies its owner (`Detach`),
//! and the owner's pushes are dropped until its confirmation arrives (`Detached`): only then is the number
//! reused.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::region::Access;
use squall_fabric::{MirrorKey, Region};

use super::frame::TcpViolation;
use super::mirror::TcpAttachRequest;

/// Keeps an attachment alive: its holders own the lease, and the fabric only observes it.
#[derive(Debug)]
pub(super) struct AttachmentLease {
    _memory: Arc<dyn Any + Send + Sync>,
    ended: EndedCount,
}

/// The number of attachments of a fabric whose last holder has dropped them, in total.
#[derive(Clone, Debug, Default)]
pub(super) struct EndedCount(Arc<AtomicU64>);

impl EndedCount {
    #[inline]
    pub(super) fn count(&self) -> u64 {
        // SYNC: pairs with the release in `AttachmentLease::drop`: a thread that sees the count sees that the
        // lease has no holder.
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for AttachmentLease {
    fn drop(&mut self) {
        // SYNC: pairs with the acquire in `EndedCount::count`.
        self.ended.0.fetch_add(1, Ordering::Release);
    }
}

#[derive(Debug, Default)]
pub(super) struct TcpAttachments {
    /// By number.
    places: Vec<Place>,
    by_key: BTreeMap<MirrorKey, u32>,
    /// The peer's requests that are not granted, whether the mirrors are published for it or not.
    requests: BTreeMap<MirrorKey, TcpAttachRequest>,
}

#[derive(Debug)]
enum Place {
    Free,
    Live(TcpAttachment),
    /// Dropped; its owner has not confirmed that yet.
    Ended,
}

/// A copy of a peer's mirror, filled by its pushes.
#[derive(Debug)]
pub(super) struct TcpAttachment {
    key: MirrorKey,
    pub(super) region: Region,
    lease: Weak<AttachmentLease>,
    /// Whether nothing is stored into it any more [M3].
    pub(super) frozen: bool,
}

impl TcpAttachment {
    /// Returns the attachment as its holders have it.
    fn leased(&self, lease: Arc<AttachmentLease>) -> Region {
        let (id, base, words) = (self.region.id(), self.region.pointer(0), self.region.words());
        // SAFETY: the region's own memory, which the lease keeps alive.
        unsafe { Region::from_raw(id, base, words, Access::ReadOnly, lease) }
    }
}

/// Returns whether a region is an attachment, of any peer.
pub(super) fn is_attachment(region: &Region) -> bool {
    region.memory().is::<AttachmentLease>()
}

impl TcpAttachments {
    /// Returns the attachment of `key`, and its number if it is new.
    ///
    /// # Panics
    /// Panics if the key was attached with another size, or the mirror is larger than a frame can address.
    pub(super) fn attach(
        &mut self,
        key: MirrorKey,
        words: usize,
        ended: &EndedCount,
        allocate: impl FnOnce(usize) -> Region,
    ) -> (Region, Option<u32>) {
        assert!(u32::try_from(words).is_ok(), "a mirror of 32 GiB or more");
        if let Some((attachment, lease)) = self.held(key) {
            let attached = attachment.region.words();
            assert!(attached == words, "mirror {key:?} is attached with {attached} words");
            return (attachment.leased(lease), None);
        }
        let region = allocate(words);
        let lease = Arc::new(AttachmentLease { _memory: region.memory().clone(), ended: ended.clone() });
        let attachment = TcpAttachment { key, region, lease: Arc::downgrade(&lease), frozen: false };
        let region = attachment.leased(lease);
        let place = self.places.iter().position(|place| matches!(place, Place::Free));
        let place = place.unwrap_or_else(|| {
            self.places.push(Place::Free);
            self.places.len() - 1
        });
        self.places[place] = Place::Live(attachment);
        let number = u32::try_from(place).expect("fewer than 2^32 attachments");
        self.by_key.insert(key, number);
        (region, Some(number))
    }

    /// Returns the attachment of `key`, if it is held.
    fn held(&self, key: MirrorKey) -> Option<(&TcpAttachment, Arc<AttachmentLease>)> {
        let attachment = self.live(*self.by_key.get(&key)?)?;
        Some((attachment, attachment.lease.upgrade()?))
    }

    fn live(&self, number: u32) -> Option<&TcpAttachment> {
        match self.places.get(number as usize)? {
            Place::Live(attachment) => Some(attachment),
            Place::Free | Place::Ended => None,
        }
    }

    /// Returns the attachments that are held: number, key and words.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, MirrorKey, usize)> {
        let live =
            |number| self.live(number).map(|attachment| (number, attachment.key, attachment.region.words()));
        (0..u32::try_from(self.places.len()).expect("as many as numbers")).filter_map(live)
    }

    /// Drops attachments that are not held; calls `announce` for each, which returns whether its owner will
    /// confirm.
    pub(super) fn sweep(&mut self, mut announce: impl FnMut(u32, MirrorKey) -> bool) {
        for (number, place) in (0..).zip(&mut self.places) {
            let Place::Live(attachment) = place else { continue };
            if attachment.lease.strong_count() == 0 {
                let key = attachment.key;
                if self.by_key.get(&key) == Some(&number) {
                    self.by_key.remove(&key);
                }
                *place = if announce(number, key) { Place::Ended } else { Place::Free };
            }
        }
    }

    /// Returns the attachment `number`, if a push of `words` words from `first` on fits into it; `None` if it
    /// was dropped.
    #[inline]
    pub(super) fn target(
        &self,
        number: u32,
        first: u32,
        words: u32,
    ) -> Result<Option<&TcpAttachment>, TcpViolation> {
        let attachment = match self.places.get(number as usize) {
            Some(Place::Live(attachment)) => attachment,
            Some(Place::Ended) => return Ok(None),
            Some(Place::Free) | None => {
                return Err(TcpViolation("a push to an attachment that does not exist"));
            }
        };
        if u64::from(first) + u64::from(words) > attachment.region.words() as u64 {
            return Err(TcpViolation("a push beyond the end of its mirror"));
        }
        Ok(Some(attachment))
    }

    /// Handles the owner's confirmation that it pushes nothing more to a dropped attachment.
    pub(super) fn on_detached(&mut self, number: u32) -> Result<(), TcpViolation> {
        match self.places.get_mut(number as usize) {
            Some(place @ Place::Ended) => *place = Place::Free,
            _ => return Err(TcpViolation("a confirmation for an attachment that was not dropped")),
        }
        Ok(())
    }

    /// Freezes the attachment behind `region`; returns whether it is one of these.
    pub(super) fn freeze(&mut self, region: &Region) -> bool {
        let live = self.places.iter_mut().filter_map(|place| match place {
            Place::Live(attachment) => Some(attachment),
            Place::Free | Place::Ended => None,
        });
        let mut named = live.filter(|attachment| attachment.region.id() == region.id());
        named.next().map(|attachment| attachment.frozen = true).is_some()
    }

    /// Keeps a request, since the mirror may be published later.
    pub(super) fn on_request(
        &mut self,
        key: MirrorKey,
        request: TcpAttachRequest,
    ) -> Result<(), TcpViolation> {
        if self.requests.len() >= REQUESTS_MAX {
            return Err(TcpViolation("too many attached mirrors"));
        }
        if self.requests.insert(key, request).is_some() {
            return Err(TcpViolation("a second attachment of one mirror"));
        }
        Ok(())
    }

    /// Returns the peer's request for `key`, if it has arrived and was not granted.
    pub(super) fn request(&self, key: MirrorKey) -> Option<TcpAttachRequest> {
        self.requests.get(&key).copied()
    }

    /// Removes a request that is granted, or was for an attachment that the peer has dropped.
    pub(super) fn end_request(&mut self, key: MirrorKey, attachment: u32) {
        if self.requests.get(&key).is_some_and(|request| request.attachment == attachment) {
            self.requests.remove(&key);
        }
    }
}

/// The most mirrors of this node that one peer may request.
const REQUESTS_MAX: usize = 1 << 20;
