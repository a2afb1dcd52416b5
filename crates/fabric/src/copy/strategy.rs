//! The copy loops for blocks of large objects (RDMC §2, fig. 1).

use std::ops::Range;

use super::instructions::{self, LINE_BYTES, VECTOR_BYTES};
use super::words::{LINE_WORDS, byte_pointer};
use crate::Region;

/// How a block is copied. The fastest depends on the processor and on the contents of its cache, by a factor
/// of up to three in either direction (docs/results/rdmc.md). On other architectures than x86-64 all are the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyStrategy {
    /// With the processor's own string copy, through the cache.
    String,
    /// With non-temporal stores: the target's lines are not read first and evict nothing, so a source that
    /// several processes copy stays in the cache, and memory transfers half of the bytes.
    Streamed,
    /// Through the cache, with the lines of source and target prefetched well ahead, more at once than a
    /// processor prefetches by itself.
    Fetched,
}

impl CopyStrategy {
    pub(super) const ALL: [Self; 3] = [Self::String, Self::Streamed, Self::Fetched];

    /// Copies words; all stores are ordered before any later one.
    pub(super) fn copy_words(self, target: &Region, first: usize, source: &Region, range: Range<usize>) {
        let head = usize::from(!byte_pointer(target, first).addr().is_multiple_of(VECTOR_BYTES));
        let lines = range.len().saturating_sub(head) / LINE_WORDS;
        if self == Self::String || lines == 0 || !instructions::EXIST {
            return target.copy_words(first, source, range);
        }
        source.check(&range);
        target.check(&(first..first + range.len()));
        let (begin, end) = (range.start + head, range.start + head + lines * LINE_WORDS);
        target.copy_words(first, source, range.start..begin);
        // SAFETY: both ranges are inside their regions, checked above; the target is aligned after `head`,
        // and writable, or the copy of the head would have panicked.
        unsafe { self.copy_lines(byte_pointer(target, first + head), byte_pointer(source, begin), lines) };
        target.copy_words(first + (end - range.start), source, end..range.end);
    }

    /// Copies bytes, beginning at byte `first`, that nothing may write meanwhile.
    pub(super) fn copy_bytes_out(self, source: &Region, first: usize, target: &mut [u8]) {
        let (skip, word) = (first % 8, first / 8);
        source.check(&(word..(first + target.len()).div_ceil(8).max(word)));
        if !instructions::EXIST {
            // Word by word, as in every access: then a thread that writes the source nevertheless causes no
            // data race.
            for (i, byte) in target.iter_mut().enumerate() {
                *byte = source.load_relaxed((first + i) / 8).to_le_bytes()[(first + i) % 8];
            }
            return;
        }
        let (to, from) = (target.as_mut_ptr(), byte_pointer(source, word).cast_const().wrapping_add(skip));
        let head = target.as_ptr().align_offset(VECTOR_BYTES).min(target.len());
        let lines = if self == Self::String { 0 } else { (target.len() - head) / LINE_BYTES };
        let middle = head + lines * LINE_BYTES;
        // SAFETY: `head`, the lines and the rest make up the target, and the same number of bytes of the
        // source was checked.
        unsafe { instructions::string_bytes(to, from, head) };
        if lines > 0 {
            // SAFETY: as above; the target is aligned after `head`.
            unsafe { self.copy_lines(to.wrapping_add(head), from.wrapping_add(head), lines) };
        }
        let rest = target.len() - middle;
        // SAFETY: as above.
        unsafe { instructions::string_bytes(to.wrapping_add(middle), from.wrapping_add(middle), rest) };
    }

    /// Copies lines with this strategy.
    ///
    /// # Safety
    /// Same as for [`instructions::streamed_lines`]; `self` must not be [`CopyStrategy::String`].
    unsafe fn copy_lines(self, target: *mut u8, source: *const u8, lines: usize) {
        let copy = match self {
            Self::String => unreachable!("the string instruction does not copy by lines"),
            Self::Streamed => instructions::streamed_lines,
            Self::Fetched => instructions::fetched_lines,
        };
        // SAFETY: as the caller promises.
        unsafe { copy(target, source, lines) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionId;

    /// All alignments of both ends, with lengths around the sizes of the vector and the line.
    #[test]
    fn exactly_the_bytes_are_copied() {
        let source = Region::heap(RegionId(1), 64);
        let bytes: Vec<u8> = (0..512).map(|i| (i % 251) as u8 + 1).collect();
        source.copy_bytes_in(0, &bytes);
        for strategy in CopyStrategy::ALL {
            for length in (0..40).chain([63, 64, 65, 127, 128, 200, 300]) {
                for (first, at) in [(0, 0), (1, 0), (0, 1), (7, 5), (8, 15), (13, 16)] {
                    let mut target = vec![0; 400];
                    strategy.copy_bytes_out(&source, first, &mut target[at..at + length]);
                    let mut right = vec![0; 400];
                    right[at..at + length].copy_from_slice(&bytes[first..first + length]);
                    assert_eq!(target, right, "{length} bytes from {first} to {at}, {strategy:?}");
                }
            }
        }
    }

    #[test]
    fn exactly_the_words_are_copied() {
        let source = Region::heap(RegionId(1), 100);
        (0..100).for_each(|word| source.store(word, 1000 + word as u64));
        for strategy in CopyStrategy::ALL {
            for words in (0..40).chain([63, 64, 65, 80]) {
                for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 7), (9, 2)] {
                    let target = Region::heap(RegionId(2), 100);
                    strategy.copy_words(&target, to, &source, from..from + words);
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
    #[should_panic(expected = "words 1..17 are out of range for a region of 16 words")]
    fn words_beyond_the_end_panic() {
        let region = Region::heap(RegionId(1), 16);
        CopyStrategy::Streamed.copy_words(&Region::heap(RegionId(2), 16), 1, &region, 0..16);
    }

    #[test]
    #[should_panic(expected = "of 2")]
    fn a_copy_beyond_the_end_panics() {
        CopyStrategy::Streamed.copy_bytes_out(&Region::heap(RegionId(1), 2), 8, &mut [0; 9]);
    }
}
