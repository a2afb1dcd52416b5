//! Regions: memory of this node, and the keys under which the device knows it.
//!
//! A region is registered with a peer's domain when the first post to that peer or receive from it needs the
//! region. Memory that is no longer referenced is released when other memory is registered.

use std::any::Any;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use squall_fabric::atomics::AtomicU64;
use squall_fabric::region::Access as RegionAccess;
use squall_fabric::{Region, RegionId, Shortage};

use super::VerbsError;
use super::device::VerbsDevice;
use super::domain::{KeyAccess, MemoryKey, ProtectionDomain};
use super::post::{PostRelease, VerbsPost};
use crate::adopted::AdoptedMemory;
use crate::shortage;

/// Whole pages of zeroed memory, which child processes do not inherit.
pub(super) struct PageMapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: only an address range; each access has its own justification.
unsafe impl Send for PageMapping {}
// SAFETY: as above.
unsafe impl Sync for PageMapping {}

impl PageMapping {
    pub(super) fn new(bytes: usize) -> std::io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: no address is asked for, so nothing else is replaced.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, kind) }?;
        let mapping = Self { base: NonNull::new(base).expect("not at address 0").cast(), bytes };
        // Otherwise the fork of a child process could leave the device with a page that is no longer this
        // process's (copy on write). SAFETY: affects this mapping alone, and this process does not lose it.
        unsafe { madvise(base, bytes, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PageMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and every user of the mapping held it.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        unmapped.expect("a whole mapping can be unmapped");
    }
}

// SAFETY: as above: the addresses are of atomics, and `memory` keeps them alive.
unsafe impl Send for Entry {}

/// The regions of a node, by id.
pub(super) struct VerbsRegions {
    places: Vec<Place>,
    /// Places without a region.
    free: Vec<usize>,
    /// The places of regions that another fabric of this node has created, by address.
    adopted: BTreeMap<usize, usize>,
    live: usize,
    /// Unreferenced memory is searched for when this many regions are live.
    sweep_at: usize,
    /// Whether regions of other fabrics are adopted when they are first used.
    adopts: bool,
}

/// A place in the table. A region's id consists of its place in the low half, and of the number of earlier
/// uses of the place in the high half.
struct Place {
    uses: u32,
    entry: Option<Entry>,
}

struct Entry {
    memory: Arc<dyn Any + Send + Sync>,
    base: NonNull<u8>,
    bytes: usize,
    /// Indexed by the places of the peers whose posts have used it.
    keys: Vec<Option<MemoryKey>>,
    /// Keys of pages that the memory has left, for posts that were in flight then.
    left: Vec<MemoryKey>,
    /// The number of posts in flight that read it.
    posts: usize,
}

impl Entry {
    /// Returns whether this is the entry of the region, which begins at `base`.
    fn is(&self, region: &Region, base: NonNull<u8>) -> bool {
        self.base == base && std::ptr::addr_eq(Arc::as_ptr(&self.memory), Arc::as_ptr(region.memory()))
    }
}

impl VerbsRegions {
    pub(super) fn new() -> Self {
        let (places, free, adopted) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { places, free, adopted, live: 0, sweep_at: SWEEP_MIN, adopts: false }
    }

    /// Adopts regions that another fabric of this node has created, from now on, when they are first used.
    pub(super) fn adopt_others(&mut self) {
        self.adopts = true;
    }

    /// Allocates a region for callers that cannot continue without it, like
    /// [`squall_fabric::Fabric::register`].
    pub(super) fn allocate(&mut self, words: usize) -> Region {
        self.try_allocate(words).unwrap_or_else(|shortage| shortage.unwind())
    }

    /// Allocates a region.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory, or the region is larger than grants can address.
    pub(super) fn try_allocate(&mut self, words: usize) -> Result<Region, Shortage> {
        let is_named = words <= REGION_WORDS_MAX;
        let mapping = if is_named { PageMapping::new(8 * words) } else { Err(Errno::NOMEM.into()) };
        let mapping = Arc::new(mapping.map_err(|error| shortage::of_memory(words, &error))?);
        let memory: Arc<dyn Any + Send + Sync> = mapping.clone();
        let (base, bytes) = (mapping.base(), mapping.bytes());
        let place = self.insert(mapping, base, bytes);
        let id = RegionId(u64::from(self.places[place].uses) << 32 | place as u64);
        // SAFETY: the mapping is page-aligned, large enough, zeroed and kept alive; it is accessed only
        // through regions and by the device.
        Ok(unsafe { Region::from_raw(id, base.cast::<AtomicU64>(), words, RegionAccess::ReadWrite, memory) })
    }

    /// Registers memory of the user under an id of this fabric [F13]. A child process that is forked
    /// meanwhile gets pages of its own: since Linux 5.12, kernels copy the pages that a device uses.
    ///
    /// # Panics
    /// Panics if it is read-only, or larger than grants can address.
    pub(super) fn take_in(&mut self, memory: &Region) -> Region {
        let words = memory.words();
        assert!(words <= REGION_WORDS_MAX / 2, "a region of {words} words");
        let base = memory.pointer(0).cast();
        let place = self.insert(memory.memory().clone(), base, 8 * words.max(1));
        let uses = self.places[place].uses & ADOPTED_USES_MAX;
        let region = AdoptedMemory::region(memory, u64::from(uses) << 32 | place as u64);
        self.entry(place).memory = region.memory().clone();
        region
    }

    /// Releases memory that nothing refers to any more [F14].
    ///
    /// # Panics
    /// Panics if a post reads it.
    pub(super) fn forget(&mut self, region: &Region) {
        let base = region.pointer(0).cast();
        let is_it = |place: &Place| place.entry.as_ref().is_some_and(|entry| entry.is(region, base));
        let Some(place) = self.places.iter().position(is_it) else { return };
        assert!(self.entry(place).posts == 0, "{region:?} is the source of a post: wait for `Done`");
        self.empty(place);
    }

    fn empty(&mut self, place: usize) {
        let Place { uses, entry } = &mut self.places[place];
        let Some(entry) = entry.take() else { return };
        let base = entry.base.as_ptr().addr();
        if self.adopted.get(&base) == Some(&place) {
            self.adopted.remove(&base);
        }
        self.free.push(place);
        *uses = uses.wrapping_add(1);
        self.live -= 1;
    }

    /// Adopts a region that another fabric of this node has created.
    pub(super) fn adopt(&mut self, region: &Region) -> usize {
        let (base, bytes) = (region.pointer(0).cast::<u8>(), 8 * region.words().max(1));
        let place = self.insert(region.memory().clone(), base, bytes);
        self.adopted.insert(base.as_ptr().addr(), place);
        place
    }

    fn insert(&mut self, memory: Arc<dyn Any + Send + Sync>, base: NonNull<u8>, bytes: usize) -> usize {
        if self.live >= self.sweep_at {
            self.sweep();
        }
        let entry = Entry { memory, base, bytes, keys: Vec::new(), left: Vec::new(), posts: 0 };
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { uses: 0, entry: None });
            self.places.len() - 1
        });
        self.places[place].entry = Some(entry);
        self.live += 1;
        place
    }

    /// Returns the place of a region of this node.
    ///
    /// # Panics
    /// Panics if it is not of this node.
    pub(super) fn place(&mut self, region: &Region) -> usize {
        let base = region.pointer(0).cast();
        let own = usize::try_from(region.id().0 & u64::from(u32::MAX)).unwrap_or(usize::MAX);
        let is_there = |place: &usize| {
            let entry = self.places.get(*place).and_then(|place| place.entry.as_ref());
            entry.is_some_and(|entry| entry.is(region, base))
        };
        // Other memory may have been at this address before.
        let adopted = || self.adopted_at(base).filter(is_there);
        match Some(own).filter(is_there).or_else(adopted) {
            Some(place) => place,
            None if self.adopts => self.adopt(region),
            None => panic!("{region:?} was not registered with this fabric"),
        }
    }

    /// Returns the place of the adopted region that begins at `base`.
    pub(super) fn adopted_at(&self, base: NonNull<u8>) -> Option<usize> {
        self.adopted.get(&base.as_ptr().addr()).copied()
    }

    /// Prepares for a move of the memory at `place` to other pages: later posts use keys of the new ones.
    /// Posts in flight read the old ones, which hold what was posted [F5].
    pub(super) fn leave_pages(&mut self, place: usize) {
        let Some(entry) = &mut self.places[place].entry else { return };
        entry.left.extend(entry.keys.iter_mut().filter_map(Option::take));
    }

    /// Revokes the keys of the peer at the place `peer`, which has been removed with all its queue pairs.
    pub(super) fn forget_peer(&mut self, peer: usize) {
        for entry in self.places.iter_mut().filter_map(|place| place.entry.as_mut()) {
            entry.keys.get_mut(peer).and_then(Option::take);
        }
    }

    /// Returns the key by which posts to the peer at `peer`, or receives from it, refer to the region at
    /// `place`.
    ///
    /// # Errors
    /// Returns an error if the memory cannot be registered.
    pub(super) fn local_key(
        &mut self,
        place: usize,
        peer: usize,
        domain: &Arc<ProtectionDomain>,
    ) -> Result<u32, VerbsError> {
        let entry = self.entry(place);
        if peer >= entry.keys.len() {
            entry.keys.resize_with(peer + 1, || None);
        }
        if let Some(key) = &entry.keys[peer] {
            return Ok(key.local());
        }
        let (base, bytes) = (entry.base, entry.bytes);
        let address = base.as_ptr().addr() as u64;
        // SAFETY: all of the mapping. Posts hold it, receives hold their regions, and it is accessed by
        // atomics.
        let key = unsafe { domain.register(base, bytes, address, KeyAccess::Local) };
        let key = key.map_err(|cause| VerbsError::MemoryLock { bytes, cause })?;
        Ok(entry.keys[peer].insert(key).local())
    }

    /// Notes that a post reads the region from now on.
    pub(super) fn hold(&mut self, place: usize) {
        self.entry(place).posts += 1;
    }

    fn entry(&mut self, place: usize) -> &mut Entry {
        self.places[place].entry.as_mut().expect("a place is used only while its region is held")
    }

    /// Notes that a post has completed and no longer reads anything.
    pub(super) fn end_post(&mut self, post: &VerbsPost) {
        if let PostRelease::Region(place) = post.release {
            self.release(place);
        }
    }

    fn release(&mut self, place: usize) {
        let entry = self.entry(place);
        entry.posts -= 1;
        if entry.posts == 0 {
            entry.left.clear();
        }
    }

    /// Releases what only this table holds.
    fn sweep(&mut self) {
        for place in 0..self.places.len() {
            let unused = |entry: &Entry| entry.posts == 0 && Arc::strong_count(&entry.memory) == 1;
            if self.places[place].entry.as_ref().is_some_and(unused) {
                self.empty(place);
            }
        }
        self.sweep_at = (2 * self.live).max(SWEEP_MIN);
    }
}

/// Locks this many bytes for the device, and releases them again.
///
/// # Errors
/// Returns an error if this process may not lock them.
pub(super) fn try_lock(device: &Arc<VerbsDevice>, bytes: usize) -> Result<(), VerbsError> {
    if bytes == 0 {
        return Ok(());
    }
    let domain = ProtectionDomain::new(device).map_err(VerbsError::system("ibv_alloc_pd"))?;
    let mapping = PageMapping::new(bytes).map_err(VerbsError::system("mmap"))?;
    let (base, bytes) = (mapping.base(), mapping.bytes());
    // SAFETY: all of the mapping, which outlives the key and is not accessed.
    let key = unsafe { domain.register(base, bytes, base.as_ptr().addr() as u64, KeyAccess::Local) };
    key.map(drop).map_err(|cause| VerbsError::MemoryLock { bytes, cause })
}

/// The page size of x86-64.
const PAGE_BYTES: usize = 4096;

/// 1 TiB: offsets in the addresses of grants have 40 bits.
pub(super) const REGION_WORDS_MAX: usize = 1 << 37;

/// Ids of adopted regions also hold other information, so they have fewer bits for the uses of a place.
const ADOPTED_USES_MAX: u32 = (1 << 23) - 1;

const SWEEP_MIN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_zeroed_and_disjoint() {
        let mut regions = VerbsRegions::new();
        let [a, b] = [1, 513].map(|words| regions.allocate(words));
        assert_eq!((a.words(), b.words()), (1, 513));
        assert!((0..513).all(|word| b.load(word) == 0));
        a.store(0, 1);
        b.store(512, 2);
        assert_eq!((a.load(0), b.load(512), regions.place(&b)), (1, 2, 1));
    }

    #[test]
    fn unreferenced_memory_is_released() {
        let mut regions = VerbsRegions::new();
        let kept = regions.allocate(1);
        let read = regions.allocate(1);
        let place = regions.place(&read);
        regions.hold(place);
        drop(read);
        for _ in 0..10 * SWEEP_MIN {
            regions.allocate(1);
        }
        assert!(regions.live <= 2 * SWEEP_MIN, "{} regions live", regions.live);
        assert!(regions.places[place].entry.is_some(), "a post reads it");
        assert_eq!(regions.place(&kept), 0);
        regions.release(place);
        regions.sweep();
        assert!(regions.places[place].entry.is_none());
    }

    #[test]
    fn memory_of_another_fabric_can_be_adopted() {
        let mut regions = VerbsRegions::new();
        let own = regions.allocate(4);
        let other = Region::heap(RegionId(0), 4);
        regions.adopt(&other);
        assert_eq!(
            (regions.place(&own), regions.place(&other)),
            (0, 1),
            "the ids are equal but the addresses differ"
        );
        let base = other.pointer(0).cast();
        assert_eq!(regions.adopted_at(base), Some(1));
        drop(other);
        regions.sweep();
        assert_eq!(regions.adopted_at(base), None, "released");
    }

    /// Memory of the user is not confused with other memory that was at the same address before.
    #[test]
    fn memory_of_the_user_is_released() {
        let mut regions = VerbsRegions::new();
        let memory = Region::heap(RegionId(0), 4);
        let first = regions.take_in(&memory);
        let place = regions.place(&first);
        regions.forget(&first);
        let second = regions.take_in(&memory);
        assert_eq!((place, regions.place(&second), regions.live), (0, 0, 1));
        assert_ne!(first.id(), second.id());
        assert_eq!(Arc::strong_count(first.memory()), 1, "only this test holds it");
        let lookup = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| regions.place(&first)));
        assert!(lookup.is_err(), "it was released");
    }

    #[test]
    #[should_panic(expected = "was not registered")]
    fn memory_of_another_fabric_is_misuse() {
        let mut regions = VerbsRegions::new();
        regions.allocate(1);
        regions.place(&Region::heap(RegionId(0), 1));
    }
}
