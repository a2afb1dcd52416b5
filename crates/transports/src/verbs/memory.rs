//! Regions: memory of this node, and the keys under which the device knows it.
//!
//! A region is registered with a peer's domain when the first post or receive of that peer needs it. Memory that
//! nobody holds any more is given back when other memory is registered.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use squall_fabric::atomics::AtomicU64;
use squall_fabric::region::Access as RegionAccess;
use squall_fabric::{Region, RegionId};

use super::domain::{Access, Domain, MemoryKey};
use super::post::{Post, Release};

/// Whole pages of zeroed memory, which child processes do not share.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: only an address range; who accesses it says how.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(bytes: usize) -> std::io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: no address is asked for, so nothing else is replaced.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, kind) }?;
        let mapping = Self { base: NonNull::new(base).expect("not at address 0").cast(), bytes };
        // Else a page could be copied away from the device when a child process is made.
        // SAFETY: this mapping alone, and this process does not lose it.
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

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and whoever used it held it.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        unmapped.expect("a mapping can be unmapped");
    }
}

/// The regions of a node, by their names.
pub(super) struct Regions {
    entries: Vec<Option<Entry>>,
    live: usize,
    /// Memory that nobody holds is looked for when there are so many.
    sweep_at: usize,
    peers: usize,
}

struct Entry {
    mapping: Arc<Mapping>,
    /// One for each peer whose posts have used it.
    keys: Box<[Option<MemoryKey>]>,
    /// Posts under way that read it.
    posts: usize,
}

impl Regions {
    pub(super) fn new(peers: usize) -> Self {
        Self { entries: Vec::new(), live: 0, sweep_at: SWEEP_MIN, peers }
    }

    /// A new region.
    ///
    /// # Panics
    /// If there is no memory, or it is larger than grants can name.
    pub(super) fn allocate(&mut self, words: usize) -> Region {
        assert!(words <= REGION_WORDS_MAX, "a region of {words} words");
        if self.live >= self.sweep_at {
            self.sweep();
        }
        let mapping = Mapping::new(8 * words).unwrap_or_else(|error| panic!("{words} words: {error}"));
        let mapping = Arc::new(mapping);
        let id = RegionId(self.entries.len() as u64);
        let memory: Arc<dyn Any + Send + Sync> = mapping.clone();
        let base = mapping.base().cast::<AtomicU64>();
        // SAFETY: the mapping is page-aligned, large enough, zeroed and kept alive; it is accessed by regions and by
        // the device only.
        let region = unsafe { Region::from_raw(id, base, words, RegionAccess::ReadWrite, memory) };
        let keys = (0..self.peers).map(|_| None).collect();
        self.entries.push(Some(Entry { mapping, keys, posts: 0 }));
        self.live += 1;
        region
    }

    /// The place of a region of this node.
    ///
    /// # Panics
    /// If it is not of this node.
    pub(super) fn place(&self, region: &Region) -> usize {
        let place = usize::try_from(region.id().0).unwrap_or(usize::MAX);
        let entry = self.entries.get(place).and_then(Option::as_ref);
        let known = entry.is_some_and(|entry| entry.mapping.base() == region.pointer(0).cast());
        assert!(known, "{region:?} was not registered with this fabric");
        place
    }

    /// The key by which posts to the peer `peer`, or receives from it, name the region at `place`.
    ///
    /// # Panics
    /// If the memory cannot be registered.
    pub(super) fn local_key(&mut self, place: usize, peer: usize, domain: &Arc<Domain>) -> u32 {
        let entry = self.entries[place].as_mut().expect("whoever names a region holds it");
        let mapping = &entry.mapping;
        let key = entry.keys[peer].get_or_insert_with(|| register(mapping, domain));
        key.local()
    }

    /// A post reads the region from now on.
    pub(super) fn hold(&mut self, place: usize) {
        self.entries[place].as_mut().expect("whoever names a region holds it").posts += 1;
    }

    /// A post is over: it reads nothing any more.
    pub(super) fn end_post(&mut self, post: &Post) {
        if let Release::Region(place) = post.release {
            self.release(place);
        }
    }

    fn release(&mut self, place: usize) {
        self.entries[place].as_mut().expect("held").posts -= 1;
    }

    /// Gives back what only this table holds.
    fn sweep(&mut self) {
        for entry in &mut self.entries {
            if entry.as_ref().is_some_and(|entry| entry.posts == 0 && Arc::strong_count(&entry.mapping) == 1)
            {
                *entry = None;
                self.live -= 1;
            }
        }
        self.sweep_at = (2 * self.live).max(SWEEP_MIN);
    }
}

/// Registers a mapping for posts and receives.
fn register(mapping: &Mapping, domain: &Arc<Domain>) -> MemoryKey {
    let (base, bytes) = (mapping.base(), mapping.bytes());
    let address = base.as_ptr().addr() as u64;
    // SAFETY: all of the mapping. Posts hold it, receives hold their regions, and it is accessed by atomics.
    let key = unsafe { domain.register(base, bytes, address, Access::Local) };
    key.unwrap_or_else(|error| memory_lock(bytes, error))
}

/// Memory that cannot be registered.
///
/// # Panics
/// That is its purpose: protocols cannot go on without their memory.
pub(super) fn memory_lock(bytes: usize, source: std::io::Error) -> ! {
    panic!("{}", super::VerbsError::MemoryLock { bytes, source })
}

/// x86-64's.
const PAGE_BYTES: usize = 4096;

/// 1 TiB: offsets in the addresses of grants have 40 bits.
pub(super) const REGION_WORDS_MAX: usize = 1 << 37;

const SWEEP_MIN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_zeroed_and_apart() {
        let mut regions = Regions::new(1);
        let [a, b] = [1, 513].map(|words| regions.allocate(words));
        assert_eq!((a.words(), b.words()), (1, 513));
        assert!((0..513).all(|word| b.load(word) == 0));
        a.store(0, 1);
        b.store(512, 2);
        assert_eq!((a.load(0), b.load(512), regions.place(&b)), (1, 2, 1));
    }

    #[test]
    fn memory_that_nobody_holds_is_given_back() {
        let mut regions = Regions::new(1);
        let kept = regions.allocate(1);
        let read = regions.allocate(1);
        let place = regions.place(&read);
        regions.hold(place);
        drop(read);
        for _ in 0..10 * SWEEP_MIN {
            regions.allocate(1);
        }
        assert!(regions.live <= 2 * SWEEP_MIN, "{} regions live", regions.live);
        assert!(regions.entries[place].is_some(), "a post reads it");
        assert_eq!(regions.place(&kept), 0);
        regions.release(place);
        regions.sweep();
        assert!(regions.entries[place].is_none());
    }

    #[test]
    #[should_panic(expected = "was not registered")]
    fn memory_of_another_fabric_is_misuse() {
        let mut regions = Regions::new(1);
        regions.allocate(1);
        regions.place(&Region::heap(RegionId(0), 1));
    }
}
