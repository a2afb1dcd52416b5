//! Copies of words, as methods of [`Region`].

use std::ops::Range;

use super::instructions;
use crate::atomics::{AtomicU64, Ordering};
use crate::region::{Access, Region};

impl Region {
    /// Copies words out of the region, each whole, but with no order among them [F2].
    ///
    /// # Panics
    /// Panics if the range ends beyond the region.
    #[inline]
    pub fn copy_out(&self, first: usize, target: &mut [u64]) {
        self.check(&(first..first + target.len()));
        let source = &self.atomics()[first..first + target.len()];
        let ((lines, rest), (own_lines, own_rest)) =
            (target.as_chunks_mut::<LINE_WORDS>(), source.as_chunks::<LINE_WORDS>());
        for (line, own) in lines.iter_mut().zip(own_lines) {
            (0..LINE_WORDS).for_each(|word| line[word] = own[word].load(Ordering::Relaxed));
        }
        for (word, own) in rest.iter_mut().zip(own_rest) {
            *word = own.load(Ordering::Relaxed);
        }
    }

    /// Copies words into the region, each whole, but with no order among them [F2].
    ///
    /// # Panics
    /// Panics if the range ends beyond the region or the region is read-only.
    #[inline]
    pub fn copy_in(&self, first: usize, source: &[u64]) {
        assert!(self.access() == Access::ReadWrite, "an attachment of another node's mirror is read-only");
        self.check(&(first..first + source.len()));
        let target = &self.atomics()[first..first + source.len()];
        let ((own_lines, own_rest), (lines, rest)) =
            (target.as_chunks::<LINE_WORDS>(), source.as_chunks::<LINE_WORDS>());
        for (own, line) in own_lines.iter().zip(lines) {
            (0..LINE_WORDS).for_each(|word| own[word].store(line[word], Ordering::Relaxed));
        }
        for (own, word) in own_rest.iter().zip(rest) {
            own.store(*word, Ordering::Relaxed);
        }
    }

    /// Copies the words of `range` of another region into this one, each whole, but with no order among them
    /// [F2].
    ///
    /// # Panics
    /// Panics if a range ends beyond its region or this region is read-only.
    #[inline]
    pub fn copy_words(&self, first: usize, source: &Self, range: Range<usize>) {
        assert!(self.access() == Access::ReadWrite, "an attachment of another node's mirror is read-only");
        source.check(&range);
        self.check(&(first..first + range.len()));
        if instructions::EXIST && range.len() >= STRING_WORDS_MIN {
            let (to, from) = (self.pointer(first), source.pointer(range.start));
            // SAFETY: both ranges are inside their regions, checked above, and this one may be written.
            return unsafe { instructions::string_words(to, from, range.len()) };
        }
        let (to, from) = (&self.atomics()[first..first + range.len()], &source.atomics()[range]);
        let ((to_lines, to_rest), (from_lines, from_rest)) =
            (to.as_chunks::<LINE_WORDS>(), from.as_chunks::<LINE_WORDS>());
        let copy =
            |to: &AtomicU64, from: &AtomicU64| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        for (to, from) in to_lines.iter().zip(from_lines) {
            (0..LINE_WORDS).for_each(|word| copy(&to[word], &from[word]));
        }
        to_rest.iter().zip(from_rest).for_each(|(to, from)| copy(to, from));
    }

    /// Same as [`Region::copy_words`], but copies a few lines by 16-byte moves, which is faster for words in
    /// a cache.
    ///
    /// # Panics
    /// Panics if a range ends beyond its region or this region is read-only.
    #[inline]
    pub fn copy_words_wide(&self, first: usize, source: &Self, range: Range<usize>) {
        if range.len() >= WIDE_WORDS_END {
            return self.copy_words(first, source, range);
        }
        assert!(self.access() == Access::ReadWrite, "an attachment of another node's mirror is read-only");
        source.check(&range);
        self.check(&(first..first + range.len()));
        let mut done = 0;
        if instructions::EXIST && range.len() >= WIDE_WORDS_MIN {
            let lines = range.len() / LINE_WORDS;
            let (to, from) = (byte_pointer(self, first), byte_pointer(source, range.start));
            // SAFETY: both ranges are inside their regions, checked above, this one may be written, and there is a line.
            unsafe { instructions::wide_lines(to, from, lines) };
            done = lines * LINE_WORDS;
        }
        for word in done..range.len() {
            self.store_relaxed(first + word, source.load_relaxed(range.start + word));
        }
    }

    /// Copies bytes out of the region, beginning at the first byte of word `first`.
    ///
    /// # Panics
    /// Panics if the bytes end beyond the region.
    pub fn copy_bytes_out(&self, first: usize, target: &mut [u8]) {
        for (i, chunk) in target.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&self.load_relaxed(first + i).to_le_bytes()[..chunk.len()]);
        }
    }

    /// Copies bytes into the region, beginning at the first byte of word `first`; the last word is padded
    /// with zeros. Not fuzzed: any bytes are valid.
    ///
    /// # Panics
    /// Panics if the bytes end beyond the region or the region is read-only.
    pub fn copy_bytes_in(&self, first: usize, source: &[u8]) {
        for (i, chunk) in source.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.store_relaxed(first + i, u64::from_le_bytes(word));
        }
    }
}

/// Returns the address of a word, for loops over lines.
pub(super) fn byte_pointer(region: &Region, word: usize) -> *mut u8 {
    region.pointer(word).as_ptr().cast()
}

/// The words of a cache line: one iteration of a loop over words that may change meanwhile, which compilers
/// do not unroll.
pub(crate) const LINE_WORDS: usize = 8;
/// From this size on, the string instruction saves more than its start-up costs.
const STRING_WORDS_MIN: usize = 256;
/// Below this size, a loop over words is as fast as one over lines.
const WIDE_WORDS_MIN: usize = 16;
/// From this size on, the string instruction is as fast as 16-byte moves, and faster for words that are in no
/// cache.
const WIDE_WORDS_END: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionId;

    #[test]
    fn bytes_and_words_are_the_same_memory() {
        let region = Region::heap(RegionId(1), 4);
        region.copy_bytes_in(1, b"memory speed");
        let mut out = [0; 12];
        region.copy_bytes_out(1, &mut out);
        assert_eq!(&out, b"memory speed");
        assert_eq!(region.load(1), u64::from_le_bytes(*b"memory s"));
        // SAFETY: this thread alone holds the region.
        assert_eq!(unsafe { region.bytes(1, 12) }, b"memory speed");
    }

    /// Exactly the given words are copied, for sizes below and above those at which the loop changes.
    #[test]
    fn exactly_the_words_are_copied() {
        let source = Region::heap(RegionId(1), 1000);
        (0..1000).for_each(|word| source.store(word, 1000 + word as u64));
        for copy in [Region::copy_words, Region::copy_words_wide] {
            for words in (0..80).chain([255, 256, 257, 511, 512, 600, 900]) {
                for (first, from) in [(0, 0), (1, 0), (0, 1), (3, 7)] {
                    let target = Region::heap(RegionId(2), 1000);
                    copy(&target, first, &source, from..from + words);
                    for word in 0..1000 {
                        let inside = (first..first + words).contains(&word);
                        let expected = if inside { 1000 + (word - first + from) as u64 } else { 0 };
                        assert_eq!(
                            target.load(word),
                            expected,
                            "word {word} of {words} from {from} to {first}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "words 1..17 are out of range for a region of 16 words")]
    fn a_copy_beyond_the_end_panics() {
        let region = Region::heap(RegionId(1), 16);
        region.copy_words_wide(1, &region, 0..16);
    }

    #[test]
    #[should_panic(expected = "read-only")]
    fn nothing_is_copied_into_a_read_only_region() {
        let region = Region::heap(RegionId(1), 16);
        region.read_only().copy_words_wide(0, &region, 0..16);
    }
}
