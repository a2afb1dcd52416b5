//! Memory that other processes write or read while this one does.
//!
//! The unit of concurrent access is one `AtomicU64` [F3]. `Region` is one concrete type for every kind of
//! memory (heap, shared mapping, registered memory), so that reading is the same inlined code everywhere.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::atomics::{AtomicU64, Ordering};

/// Names a region within its fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u64);

/// Whether this process may store into a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads and stores.
    ReadWrite,
    /// Loads only: an attachment of another node's mirror.
    ReadOnly,
}

/// A range of 8-byte words, shared by reference: clones refer to the same memory.
#[derive(Clone)]
pub struct Region {
    base: NonNull<AtomicU64>,
    words: usize,
    access: Access,
    id: RegionId,
    /// Keeps the memory alive.
    memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the words are atomics, which any thread may access, and `memory` keeps them alive.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {} words, {:?})", self.id.0, self.words, self.access)
    }
}

impl Region {
    /// Allocates zeroed memory of this process.
    #[must_use]
    pub fn heap(id: RegionId, words: usize) -> Self {
        let memory = Arc::<[AtomicU64]>::new_zeroed_slice(words);
        // SAFETY: an atomic of zeros is one with the value 0. The system gives zeroed pages when they are used first.
        let memory = unsafe { memory.assume_init() };
        let base = NonNull::from(&memory[..]).cast();
        Self { base, words, access: Access::ReadWrite, id, memory: Arc::new(memory) }
    }

    /// Creates a region over memory that `memory` keeps alive.
    ///
    /// # Safety
    /// `base` is 8-byte aligned and valid for loads (and stores, if `access` says so) of `words` words for as
    /// long as `memory` lives; all access to it in this process goes through regions.
    #[must_use]
    pub unsafe fn from_raw(
        id: RegionId,
        base: NonNull<AtomicU64>,
        words: usize,
        access: Access,
        memory: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { base, words, access, id, memory }
    }

    /// Returns the same memory, for loads only.
    #[must_use]
    pub fn read_only(&self) -> Self {
        Self { access: Access::ReadOnly, ..self.clone() }
    }

    /// Returns the same memory under another id: for memory that a fabric takes over.
    #[must_use]
    pub fn renamed(self, id: RegionId) -> Self {
        Self { id, ..self }
    }

    /// Returns the region's id within its fabric.
    #[must_use]
    #[inline]
    pub const fn id(&self) -> RegionId {
        self.id
    }

    /// Returns the number of words.
    #[inline]
    #[must_use]
    pub const fn words(&self) -> usize {
        self.words
    }

    /// Returns whether `other` is this same region: the same id, words and access.
    #[inline]
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.base == other.base
            && self.words == other.words
            && self.id == other.id
            && self.access == other.access
    }

    /// Returns whether stores are allowed.
    #[inline]
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Returns the address of `word`, for a transport's system calls.
    ///
    /// # Panics
    /// Panics if `word` is beyond the end.
    #[must_use]
    pub fn pointer(&self, word: usize) -> NonNull<AtomicU64> {
        assert!(word <= self.words, "word {word} is out of range for a region of {} words", self.words);
        // SAFETY: `word` is inside the allocation or one past its end.
        unsafe { self.base.add(word) }
    }

    #[inline]
    fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < self.words, "word {word} is out of range for a region of {} words", self.words);
        // SAFETY: checked above; `from_raw` promises that the address is valid and aligned.
        let pointer = unsafe { self.base.add(word) };
        // SAFETY: as above, and `memory` keeps it alive as long as `self`.
        unsafe { pointer.as_ref() }
    }

    /// Loads a word; everything that its writer stored before is visible afterwards [F4].
    #[inline]
    #[must_use]
    pub fn load(&self, word: usize) -> u64 {
        // SYNC: pairs with the releasing `store` of the word's owner, in this process or another.
        self.word(word).load(Ordering::Acquire)
    }

    /// Loads a word that guards nothing, or that an acquired guard covers.
    #[inline]
    #[must_use]
    pub fn load_relaxed(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    /// Stores a word; a thread that loads it also sees everything stored before.
    ///
    /// # Panics
    /// Panics if the region is read-only or `word` is beyond its end.
    #[inline]
    pub fn store(&self, word: usize, value: u64) {
        assert!(self.access == Access::ReadWrite, "an attachment of another node's mirror is read-only");
        // SYNC: pairs with the acquiring `load` of readers, in this process or another.
        self.word(word).store(value, Ordering::Release);
    }

    /// Stores a word that a later release store announces.
    ///
    /// # Panics
    /// Same as [`Region::store`].
    #[inline]
    pub fn store_relaxed(&self, word: usize, value: u64) {
        assert!(self.access == Access::ReadWrite, "an attachment of another node's mirror is read-only");
        self.word(word).store(value, Ordering::Relaxed);
    }

    /// Copies a range that its writer brackets with a version word: odd, words, even. Returns the version if
    /// the copy is of one version, else `None`; then the caller tries again.
    ///
    /// # Panics
    /// Panics if a range ends beyond the region.
    #[must_use]
    pub fn read_versioned(&self, version: usize, first: usize, target: &mut [u64]) -> Option<u64> {
        let before = self.load(version);
        if !before.is_multiple_of(2) {
            return None;
        }
        for (i, word) in target.iter_mut().enumerate() {
            // Acquiring, so that the second load of the version cannot move before it.
            *word = self.load(first + i);
        }
        (self.load_relaxed(version) == before).then_some(before)
    }

    /// Returns all words, for iteration over many.
    #[inline]
    #[must_use]
    pub(crate) fn atomics(&self) -> &[AtomicU64] {
        // SAFETY: `base` points to `words` atomic words as `from_raw` promises, and `memory` keeps them
        // alive.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// Same as [`Region::load_relaxed`], without the bounds check.
    ///
    /// # Safety
    /// `word` must be inside the region.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn load_unchecked(&self, word: usize) -> u64 {
        debug_assert!(word < self.words, "word {word} is out of range for a region of {} words", self.words);
        // SAFETY: the caller promises that `word` is inside.
        let pointer = unsafe { self.base.add(word) };
        // SAFETY: valid and aligned as `from_raw` promises, and `memory` keeps it alive.
        unsafe { pointer.as_ref() }.load(Ordering::Relaxed)
    }

    /// Same as [`Region::store_relaxed`], without the checks.
    ///
    /// # Safety
    /// `word` must be inside the region, which must not be read-only.
    #[inline]
    pub(crate) unsafe fn store_unchecked(&self, word: usize, value: u64) {
        debug_assert!(
            word < self.words && self.access == Access::ReadWrite,
            "word {word} is out of range for a region of {} words",
            self.words
        );
        // SAFETY: the caller promises that `word` is inside.
        let pointer = unsafe { self.base.add(word) };
        // SAFETY: valid and aligned as `from_raw` promises, and `memory` keeps it alive.
        unsafe { pointer.as_ref() }.store(value, Ordering::Relaxed);
    }

    /// Prefetches the cache line of `word`; does nothing if `word` is out of range.
    #[inline]
    pub fn prefetch(&self, word: usize) {
        #[cfg(target_arch = "x86_64")]
        if word < self.words {
            // SAFETY: inside the allocation, checked above.
            let pointer = unsafe { self.base.add(word) };
            // SAFETY: a prefetch affects only the cache.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(pointer.as_ptr().cast())
            };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = word;
    }

    /// Same as [`Region::prefetch`], without the bounds check: `word` may be beyond the end.
    #[inline(always)]
    pub(crate) fn prefetch_near(&self, word: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            let pointer = self.base.as_ptr().wrapping_add(word);
            // SAFETY: a prefetch affects only the cache, at any address; it is no access.
            unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(pointer.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = word;
    }

    /// Prefetches the cache line of `word` for a store; does nothing if `word` is out of range.
    #[inline]
    pub fn prefetch_to_store(&self, word: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if word < self.words {
            // SAFETY: inside the allocation, checked above.
            let pointer = unsafe { self.base.add(word) };
            // Not by the intrinsic, which is a prefetch for loads unless the compiler may assume a newer processor.
            // SAFETY: a prefetch affects only the cache; processors without this one ignore it.
            unsafe {
                std::arch::asm!(
                    "prefetchw [{line}]",
                    line = in(reg) pointer.as_ptr(),
                    options(nostack, preserves_flags, readonly),
                );
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = word;
    }

    /// Returns bytes in place.
    ///
    /// # Safety
    /// No code may write the words that hold these bytes while the slice lives: the window rule [O5] keeps
    /// the slot from reuse until the lease is released.
    ///
    /// # Panics
    /// Panics if the bytes end beyond the region.
    #[inline]
    #[must_use]
    pub unsafe fn bytes(&self, first: usize, length: usize) -> &[u8] {
        self.check_bytes(first, length);
        // SAFETY: inside the allocation, checked above.
        let start = unsafe { self.base.add(first) }.cast::<u8>();
        // SAFETY: valid for `length` bytes, checked above; the caller promises that nothing writes them.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }
    }

    /// Same as [`Region::bytes`], without the bounds check.
    ///
    /// # Safety
    /// Same as for [`Region::bytes`], and the bytes must be inside the region.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn bytes_unchecked(&self, first: usize, length: usize) -> &[u8] {
        debug_assert!(
            first <= self.words && length.div_ceil(8) <= self.words - first,
            "{length} bytes from word {first} are out of range for a region of {} words",
            self.words
        );
        // SAFETY: the caller promises that the bytes are inside.
        let start = unsafe { self.base.add(first) }.cast::<u8>();
        // SAFETY: valid for `length` bytes, and nothing writes them, as the caller promises.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }
    }

    /// Returns bytes in place, to be filled.
    ///
    /// # Safety
    /// No other code may read or write the words that hold these bytes while the slice lives: they belong to
    /// a reservation that is not yet announced.
    ///
    /// # Panics
    /// Panics if the bytes end beyond the region or the region is read-only.
    #[inline]
    #[must_use]
    #[expect(clippy::mut_from_ref, reason = "regions are shared memory; the caller promises exclusiveness")]
    pub unsafe fn bytes_mut(&self, first: usize, length: usize) -> &mut [u8] {
        assert!(self.access == Access::ReadWrite, "an attachment of another node's mirror is read-only");
        self.check_bytes(first, length);
        // SAFETY: inside the allocation, checked above.
        let start = unsafe { self.base.add(first) }.cast::<u8>();
        // SAFETY: valid for `length` bytes, checked above; the caller promises exclusiveness.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), length) }
    }

    #[inline]
    fn check_bytes(&self, first: usize, length: usize) {
        if first > self.words || length.div_ceil(8) > self.words - first {
            self.refuse_bytes(first, length);
        }
    }

    /// Panics. Separate and given the numbers by value: formatting them in `check_bytes` would store them in
    /// memory at each check, on the path of each message.
    #[cold]
    #[inline(never)]
    fn refuse_bytes(&self, first: usize, length: usize) -> ! {
        panic!("{length} bytes from word {first} are out of range for a region of {} words", self.words)
    }

    /// Panics unless `range` is inside the region.
    ///
    /// # Panics
    /// Panics if the range ends beyond the region.
    #[inline]
    pub fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.words,
            "words {range:?} are out of range for a region of {} words",
            self.words
        );
    }

    /// Returns what keeps the memory alive, for a transport that must find its own memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_version_is_not_read() {
        let region = Region::heap(RegionId(1), 4);
        region.store(0, 1);
        assert_eq!(region.read_versioned(0, 1, &mut [0; 2]), None);
        region.store(0, 2);
        assert_eq!(region.read_versioned(0, 1, &mut [0; 2]), Some(2));
    }

    #[test]
    #[should_panic(expected = "read-only")]
    fn an_attachment_cannot_be_stored_into() {
        Region::heap(RegionId(1), 1).read_only().store(0, 1);
    }
}
