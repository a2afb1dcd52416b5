//! Views: this node's copies of one peer's mirrors, and the peer's requests for mirrors of this node.
//!
//! A view lives as long as somebody holds its region [M6]. Then the next poll tells its owner (`Detach`), and what the
//! owner has pushed meanwhile is dropped until its answer comes (`Detached`): only then is the number used again.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::region::Access;
use squall_fabric::{MirrorKey, Region};

use super::frame::Violation;
use super::mirror::Request;

/// What keeps a view: its holders have it, the fabric only watches it.
#[derive(Debug)]
pub(super) struct Lease {
    _memory: Arc<dyn Any + Send + Sync>,
    ended: Ended,
}

/// How many views of a fabric nobody holds any more, ever.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended(Arc<AtomicU64>);

impl Ended {
    #[inline]
    pub(super) fn count(&self) -> u64 {
        // SYNC: pairs with the release in `Lease::drop`: who sees the count sees that the lease has no holder.
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SYNC: pairs with the acquire in `Ended::count`.
        self.ended.0.fetch_add(1, Ordering::Release);
    }
}

#[derive(Debug, Default)]
pub(super) struct Views {
    /// By number.
    places: Vec<Place>,
    by_key: BTreeMap<MirrorKey, u32>,
    /// What the peer asks for and has not got, whether it is published for it or not.
    requests: BTreeMap<MirrorKey, Request>,
}

#[derive(Debug)]
enum Place {
    Free,
    Live(View),
    /// Dropped; its owner has not answered.
    Ended,
}

/// A copy of a peer's mirror, filled by its pushes.
#[derive(Debug)]
pub(super) struct View {
    key: MirrorKey,
    pub(super) region: Region,
    lease: Weak<Lease>,
    /// Nothing is stored into it any more [M3].
    pub(super) frozen: bool,
}

impl View {
    /// The view as its holders have it.
    fn leased(&self, lease: Arc<Lease>) -> Region {
        let (id, base, words) = (self.region.id(), self.region.pointer(0), self.region.words());
        // SAFETY: the region's own memory, which the lease keeps alive.
        unsafe { Region::from_raw(id, base, words, Access::ReadOnly, lease) }
    }
}

/// Whether a region is a view, of whatever peer.
pub(super) fn is_view(region: &Region) -> bool {
    region.memory().is::<Lease>()
}

impl Views {
    /// The view of `key`, and its number if it is new.
    ///
    /// # Panics
    /// If the key was attached with another size, or the mirror is larger than a frame can address.
    pub(super) fn attach(
        &mut self,
        key: MirrorKey,
        words: usize,
        ended: &Ended,
        allocate: impl FnOnce(usize) -> Region,
    ) -> (Region, Option<u32>) {
        assert!(u32::try_from(words).is_ok(), "a mirror of 32 GiB or more");
        if let Some((view, lease)) = self.held(key) {
            let attached = view.region.words();
            assert!(attached == words, "mirror {key:?} is attached with {attached} words");
            return (view.leased(lease), None);
        }
        let region = allocate(words);
        let lease = Arc::new(Lease { _memory: region.memory().clone(), ended: ended.clone() });
        let view = View { key, region, lease: Arc::downgrade(&lease), frozen: false };
        let region = view.leased(lease);
        let place = self.places.iter().position(|place| matches!(place, Place::Free));
        let place = place.unwrap_or_else(|| {
            self.places.push(Place::Free);
            self.places.len() - 1
        });
        self.places[place] = Place::Live(view);
        let number = u32::try_from(place).expect("fewer than 2^32 views");
        self.by_key.insert(key, number);
        (region, Some(number))
    }

    /// The view of `key`, if somebody holds it.
    fn held(&self, key: MirrorKey) -> Option<(&View, Arc<Lease>)> {
        let view = self.live(*self.by_key.get(&key)?)?;
        Some((view, view.lease.upgrade()?))
    }

    fn live(&self, number: u32) -> Option<&View> {
        match self.places.get(number as usize)? {
            Place::Live(view) => Some(view),
            Place::Free | Place::Ended => None,
        }
    }

    /// The views that are held: number, key and words.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, MirrorKey, usize)> {
        let live = |number| self.live(number).map(|view| (number, view.key, view.region.words()));
        (0..u32::try_from(self.places.len()).expect("as many as numbers")).filter_map(live)
    }

    /// Lets go what nobody holds; `tell` is called for each such view and says whether its owner will answer.
    pub(super) fn sweep(&mut self, mut tell: impl FnMut(u32, MirrorKey) -> bool) {
        for (number, place) in (0..).zip(&mut self.places) {
            let Place::Live(view) = place else { continue };
            if view.lease.strong_count() == 0 {
                let key = view.key;
                if self.by_key.get(&key) == Some(&number) {
                    self.by_key.remove(&key);
                }
                *place = if tell(number, key) { Place::Ended } else { Place::Free };
            }
        }
    }

    /// The view `number`, if a push of `words` words from `first` on fits into it; none if it was dropped.
    #[inline]
    pub(super) fn target(&self, number: u32, first: u32, words: u32) -> Result<Option<&View>, Violation> {
        let view = match self.places.get(number as usize) {
            Some(Place::Live(view)) => view,
            Some(Place::Ended) => return Ok(None),
            Some(Place::Free) | None => return Err(Violation("a push to a view that does not exist")),
        };
        if u64::from(first) + u64::from(words) > view.region.words() as u64 {
            return Err(Violation("a push beyond the end of its mirror"));
        }
        Ok(Some(view))
    }

    /// The owner pushes nothing more to a view that was dropped.
    pub(super) fn on_detached(&mut self, number: u32) -> Result<(), Violation> {
        match self.places.get_mut(number as usize) {
            Some(place @ Place::Ended) => *place = Place::Free,
            _ => return Err(Violation("an answer about a view that was not dropped")),
        }
        Ok(())
    }

    /// Stops the view that `region` shows; returns whether it is one of these.
    pub(super) fn freeze(&mut self, region: &Region) -> bool {
        let live = self.places.iter_mut().filter_map(|place| match place {
            Place::Live(view) => Some(view),
            Place::Free | Place::Ended => None,
        });
        let mut named = live.filter(|view| view.region.id() == region.id());
        named.next().map(|view| view.frozen = true).is_some()
    }

    /// Keeps a request: the mirror may be published later.
    pub(super) fn on_request(&mut self, key: MirrorKey, request: Request) -> Result<(), Violation> {
        if self.requests.len() >= REQUESTS_MAX {
            return Err(Violation("too many mirrors attached"));
        }
        if self.requests.insert(key, request).is_some() {
            return Err(Violation("a mirror attached twice"));
        }
        Ok(())
    }

    /// The peer's request for `key`, if it came and was not granted.
    pub(super) fn request(&self, key: MirrorKey) -> Option<Request> {
        self.requests.get(&key).copied()
    }

    /// A request is granted, or was for the view `view` that the peer has dropped.
    pub(super) fn end_request(&mut self, key: MirrorKey, view: u32) {
        if self.requests.get(&key).is_some_and(|request| request.view == view) {
            self.requests.remove(&key);
        }
    }
}

/// The most mirrors of this node that one peer may ask for.
const REQUESTS_MAX: usize = 1 << 20;
