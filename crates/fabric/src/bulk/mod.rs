//! Large objects in memory: filled in place by their owner, read in place or copied by others (RDMC §2, fig. 1).
//!
//! A [`Buffer`] is registered memory that its holder alone reads and writes. Who transfers it (a session) takes it,
//! keeps it while the fabric or peers may touch its words, and gives it back afterwards. A [`Lease`] is a reader's view
//! of an object that lies in another member's buffer, which its owner does not touch before the lease is given back.
//! As everywhere, the other members are trusted to keep this rule: they have proved the cluster's secret.

mod way;

use std::ops::{Deref, DerefMut};

pub use self::way::Ways;

use crate::{Fabric, Region, Shortage};

/// Registered memory that belongs to one holder.
#[derive(Debug)]
pub struct Buffer {
    region: Region,
    bytes: usize,
}

impl Buffer {
    /// `bytes` zeroed bytes. If memory is short, it unwinds as [`Fabric::register`] does.
    pub fn register(fabric: &mut impl Fabric, bytes: usize) -> Self {
        Self::try_register(fabric, bytes).unwrap_or_else(|shortage| shortage.unwind())
    }

    /// `bytes` zeroed bytes.
    ///
    /// # Errors
    /// [`Shortage`].
    pub fn try_register(fabric: &mut impl Fabric, bytes: usize) -> Result<Self, Shortage> {
        let region = fabric.try_register(bytes.div_ceil(8).max(1))?;
        Ok(Self { region, bytes })
    }

    /// The memory, for posts.
    ///
    /// # Safety
    /// Whoever posts it keeps the buffer until no peer and no post touches it, and nobody loads or stores it while the
    /// buffer's holder can use the bytes.
    #[must_use]
    pub const unsafe fn region(&self) -> &Region {
        &self.region
    }

    /// The most bytes that it can hold.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        8 * self.region.words()
    }

    /// From now on it shows so many of its bytes.
    ///
    /// # Panics
    /// If they are more than [`Buffer::capacity`].
    pub fn set_len(&mut self, bytes: usize) {
        assert!(bytes <= self.capacity(), "{bytes} bytes in a buffer of {}", self.capacity());
        self.bytes = bytes;
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the region was registered for this buffer alone, and who has posted it keeps the buffer away from
        // everybody until the words are at rest.
        unsafe { self.region.bytes(0, self.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` excludes other slices of it.
        unsafe { self.region.bytes_mut(0, self.bytes) }
    }
}

/// An object in the memory of its source, to be read in place.
#[derive(Debug)]
pub struct Lease {
    view: Region,
    bytes: usize,
}

impl Lease {
    /// The first `bytes` bytes of `view`, a view of a mirror.
    ///
    /// # Safety
    /// The mirror's owner leaves them alone until it hears that the lease was given back, and nothing in this process
    /// stores into them.
    ///
    /// # Panics
    /// If the view is shorter.
    #[must_use]
    pub unsafe fn new(view: Region, bytes: usize) -> Self {
        assert!(bytes <= 8 * view.words(), "{bytes} bytes of {view:?}");
        Self { view, bytes }
    }
}

impl Deref for Lease {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the owner has filled the bytes before it announced them and leaves them alone until the lease is
        // back; it is a member that is trusted to do so.
        unsafe { self.view.bytes(0, self.bytes) }
    }
}

/// How a copy stores. Which is the fastest depends on the processor and on what lies in its cache, by a factor of up to
/// three either way (docs/results/rdmc.md). On other processors than x86-64 all are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// By the processor's own string copy, through the cache.
    Cached,
    /// Past the cache: the target's lines are not read first and push nothing out, so a source that several processes
    /// copy stays in the cache, and memory moves half of the bytes.
    Streaming,
    /// Through the cache, with the lines of source and target fetched well before their turn, more at once than a
    /// processor asks for by itself.
    Fetched,
}

impl Stores {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Cached, Self::Streaming, Self::Fetched];
}

/// Copies bytes out of a region, beginning at byte `first`, which nobody writes meanwhile.
///
/// # Panics
/// If the bytes end beyond the region.
pub fn copy_out(source: &Region, first: usize, target: &mut [u8], stores: Stores) {
    let (skip, word) = (first % 8, first / 8);
    source.check(&(word..(first + target.len()).div_ceil(8).max(word)));
    let from = source.pointer(word).as_ptr().cast::<u8>().wrapping_add(skip);
    if cfg!(target_arch = "x86_64") {
        let head = target.as_ptr().align_offset(VECTOR_BYTES).min(target.len());
        let lines = if stores == Stores::Cached { 0 } else { (target.len() - head) / LINE_BYTES };
        let middle = head + lines * LINE_BYTES;
        // SAFETY: `head`, the lines and the rest make up the target, and as many bytes of the source were checked.
        unsafe { move_bytes(from, target.as_mut_ptr(), head) };
        if lines > 0 {
            let copy_lines = if stores == Stores::Streaming { stream_lines } else { fetch_lines };
            // SAFETY: as above; the target is aligned behind `head`, and there is a line.
            unsafe { copy_lines(from.wrapping_add(head), target.as_mut_ptr().wrapping_add(head), lines) };
        }
        let rest = target.len() - middle;
        // SAFETY: as above.
        unsafe { move_bytes(from.wrapping_add(middle), target.as_mut_ptr().wrapping_add(middle), rest) };
    } else {
        // Word by word, as everybody else: then it is no race if somebody writes the source all the same.
        for (i, byte) in target.iter_mut().enumerate() {
            *byte = source.load_relaxed((first + i) / 8).to_le_bytes()[(first + i) % 8];
        }
    }
}

/// Copies words of one region into another, each whole but with no order among them [F2], [F3]. All stores come before any
/// later one.
///
/// # Panics
/// If a range ends beyond its region or the target is read-only.
pub fn copy_words(source: &Region, from: usize, target: &Region, to: usize, words: usize, stores: Stores) {
    let head = usize::from(!target.pointer(to).as_ptr().cast::<u8>().addr().is_multiple_of(VECTOR_BYTES));
    let lines = words.saturating_sub(head) / (LINE_BYTES / 8);
    if stores == Stores::Cached || lines == 0 || !cfg!(target_arch = "x86_64") {
        return target.copy_words(to, source, from..from + words);
    }
    let middle = head + lines * (LINE_BYTES / 8);
    source.check(&(from..from + words));
    target.check(&(to..to + words));
    target.copy_words(to, source, from..from + head);
    let copy_lines = if stores == Stores::Streaming { stream_lines } else { fetch_lines };
    let pointer = |region: &Region, word| region.pointer(word).as_ptr().cast::<u8>();
    // SAFETY: both ranges lie inside their regions, checked above, and the target is aligned behind `head`. Each move is of
    // two aligned words, which a processor splits, if at all, between them.
    unsafe { copy_lines(pointer(source, from + head), pointer(target, to + head), lines) };
    target.copy_words(to + middle, source, from + middle..from + words);
}

/// # Safety
/// Both ranges are valid for `bytes` bytes; they do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn move_bytes(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises. Processors of the last ten years move whole lines here.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") source => _,
            inout("rdi") target => _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// Both ranges are valid for `lines` lines, one at least, do not overlap, and the target is aligned to 16 bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_lines(source: *const u8, target: *mut u8, lines: usize) {
    // SAFETY: as the caller promises; the fence orders the stores before all later ones.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups xmm0, [{source}]",
            "movups xmm1, [{source} + 16]",
            "movups xmm2, [{source} + 32]",
            "movups xmm3, [{source} + 48]",
            "movntps [{target}], xmm0",
            "movntps [{target} + 16], xmm1",
            "movntps [{target} + 32], xmm2",
            "movntps [{target} + 48], xmm3",
            "add {source}, 64",
            "add {target}, 64",
            "dec {lines}",
            "jnz 2b",
            "sfence",
            source = inout(reg) source => _,
            target = inout(reg) target => _,
            lines = inout(reg) lines => _,
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
            options(nostack),
        );
    }
}

/// # Safety
/// Both ranges are valid for `lines` lines, one at least, do not overlap, and the target is aligned to 16 bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn fetch_lines(source: *const u8, target: *mut u8, lines: usize) {
    // SAFETY: as the caller promises; what is fetched beyond the ends is a hint that never faults.
    unsafe {
        std::arch::asm!(
            "2:",
            "prefetcht0 [{source} + {ahead}]",
            "prefetchw [{target} + {ahead}]",
            "movups xmm0, [{source}]",
            "movups xmm1, [{source} + 16]",
            "movups xmm2, [{source} + 32]",
            "movups xmm3, [{source} + 48]",
            "movaps [{target}], xmm0",
            "movaps [{target} + 16], xmm1",
            "movaps [{target} + 32], xmm2",
            "movaps [{target} + 48], xmm3",
            "add {source}, 64",
            "add {target}, 64",
            "dec {lines}",
            "jnz 2b",
            ahead = const FETCHED_AHEAD,
            source = inout(reg) source => _,
            target = inout(reg) target => _,
            lines = inout(reg) lines => _,
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
            options(nostack),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn move_bytes(_: *const u8, _: *mut u8, _: usize) {
    unreachable!("x86-64 only");
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream_lines(_: *const u8, _: *mut u8, _: usize) {
    unreachable!("x86-64 only");
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn fetch_lines(_: *const u8, _: *mut u8, _: usize) {
    unreachable!("x86-64 only");
}

const VECTOR_BYTES: usize = 16;
const LINE_BYTES: usize = 64;
/// Bytes between what is fetched and what is copied. From 1 to 4 KiB nothing changes.
#[cfg(target_arch = "x86_64")]
const FETCHED_AHEAD: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionId;

    /// All alignments of both ends, lengths around the vector and the line.
    #[test]
    fn exactly_the_bytes_are_copied() {
        let source = Region::heap(RegionId(1), 64);
        let bytes: Vec<u8> = (0..512).map(|i| (i % 251) as u8 + 1).collect();
        source.copy_bytes_in(0, &bytes);
        for stores in Stores::ALL {
            for length in (0..40).chain([63, 64, 65, 127, 128, 200, 300]) {
                for (first, at) in [(0, 0), (1, 0), (0, 1), (7, 5), (8, 15), (13, 16)] {
                    let mut target = vec![0; 400];
                    copy_out(&source, first, &mut target[at..at + length], stores);
                    let mut right = vec![0; 400];
                    right[at..at + length].copy_from_slice(&bytes[first..first + length]);
                    assert_eq!(target, right, "{length} bytes from {first} to {at}, {stores:?}");
                }
            }
        }
    }

    #[test]
    fn exactly_the_words_are_copied() {
        let source = Region::heap(RegionId(1), 100);
        (0..100).for_each(|word| source.store(word, 1000 + word as u64));
        for stores in Stores::ALL {
            for words in (0..40).chain([63, 64, 65, 80]) {
                for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 7), (9, 2)] {
                    let target = Region::heap(RegionId(2), 100);
                    copy_words(&source, from, &target, to, words, stores);
                    for word in 0..100 {
                        let is_inside = (to..to + words).contains(&word);
                        let right = if is_inside { 1000 + (word - to + from) as u64 } else { 0 };
                        assert_eq!(target.load(word), right, "word {word} of {words} from {from} to {to}");
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "words 1..17 of 16")]
    fn words_beyond_the_end_panic() {
        let region = Region::heap(RegionId(1), 16);
        copy_words(&region, 0, &Region::heap(RegionId(2), 16), 1, 16, Stores::Streaming);
    }

    #[test]
    #[should_panic(expected = "of 2")]
    fn a_copy_beyond_the_end_panics() {
        copy_out(&Region::heap(RegionId(1), 2), 8, &mut [0; 9], Stores::Streaming);
    }
}
