//! The header of a record, in one word: a part of its index, its length, and where its bytes are (Spindle §2.3).
//!
//! | bits | what |
//! |---|---|
//! | 63 | whether the bytes are a body, in the ring of large messages |
//! | 32 to 62 | the low 31 bits of the index plus one, so that memory that was never written does not read as index 0 |
//! | 0 to 31 | the length in bytes |
//!
//! A second word for the whole index would be a third of what a message of 8 bytes takes, and the cost of small messages
//! is that of the cache lines that move between the cores.
//!
//! **A part of the index is enough.** Each side knows an index that is near: a reader the one that it takes
//! next, the publisher the one that it has announced. *Near* is less than 2^30 away. Each round that is announced and not
//! delivered everywhere, but the last one, has a message of at least one sender, since nulls only fill rounds that a message has begun and
//! the one after them [N4];
//! so there are at most as many such rounds as messages in flight, that is [`RECORDS_MAX`](super::RECORDS_MAX) for each
//! sender, and one: 2^25 for 1,024 members. What an earlier lap has left at the same place is as near, and has another index.

use super::{HEADER_WORDS, record_words};

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowHeader(u64);

const LARGE: u64 = 1 << 63;
const INDEX_SHIFT: u32 = 32;
const INDEX_MASK: u64 = (1 << 31) - 1;
const LENGTH_MASK: u64 = (1 << 32) - 1;

impl WindowHeader {
    /// Describes the message `index` of `length` bytes, which are a body if `is_large`.
    #[inline]
    pub(super) const fn new(index: u64, length: usize, is_large: bool) -> Self {
        let large = if is_large { LARGE } else { 0 };
        Self(large | (length as u64 & LENGTH_MASK)).with_index(index)
    }

    #[inline]
    pub(super) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    #[inline]
    pub(super) const fn to_word(self) -> u64 {
        self.0
    }

    /// Returns the header of the same message with another index.
    #[inline]
    pub(super) const fn with_index(self, index: u64) -> Self {
        Self(self.0 & (LARGE | LENGTH_MASK) | ((index + 1) & INDEX_MASK) << INDEX_SHIFT)
    }

    /// Returns the index: the one nearest to `near` that has the bits which are stored.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low 31 bits are compared")]
    pub(super) const fn index(self, near: u64) -> u64 {
        let ahead = ((self.0 >> INDEX_SHIFT) as u32).wrapping_sub((near + 1) as u32);
        // Without the bit above, as a number with a sign.
        let ahead = (ahead << 1).cast_signed() >> 1;
        near.wrapping_add_signed(ahead as i64)
    }

    /// Returns the length in bytes if this is the header of the message `index`, and its bytes are no body; else a number that no
    /// length reaches, above 2^32.
    #[inline]
    pub(super) const fn length_if(self, index: u64) -> u64 {
        self.0.wrapping_sub(Self::new(index, 0, false).0)
    }

    /// Returns whether the bytes are a body, in the ring of large messages.
    #[inline]
    pub(super) const fn is_large(self) -> bool {
        self.0 & LARGE != 0
    }

    /// Returns the length of the message in bytes.
    #[inline]
    pub(super) const fn length(self) -> usize {
        (self.0 & LENGTH_MASK) as usize
    }

    /// Returns the number of words of the record in its ring.
    #[inline]
    pub(super) const fn words(self) -> usize {
        if self.is_large() { HEADER_WORDS } else { record_words(self.length()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::INDEXES_MAX;
    use super::*;

    /// Whatever the index, it is found from each index that is near, as are length and kind.
    #[test]
    fn an_index_is_found_from_one_that_is_near() {
        const NEAR: u64 = 1 << 30;
        let around = |index: u64| index.saturating_sub(3)..index + 3;
        for index in [3, NEAR, 2 * NEAR, 4 * NEAR, INDEXES_MAX - 3].into_iter().flat_map(around) {
            for (length, is_large) in [(0, false), (8, false), (8, true), (u32::MAX as usize, true)] {
                let header = WindowHeader::new(index, length, is_large);
                assert_eq!((header.length(), header.is_large()), (length, is_large));
                let nears =
                    [index.saturating_sub(NEAR - 1), index.saturating_sub(1), index, index + 1, index + NEAR];
                for near in nears {
                    assert_eq!(header.index(near), index, "from {near}");
                    let other = WindowHeader::new(near, length, is_large);
                    assert_eq!(other.with_index(index), header);
                }
            }
        }
    }

    /// Words that were never written are behind every index, as a record that has not arrived.
    #[test]
    fn memory_that_was_never_written_is_no_record() {
        for index in [0, 1, 1000, (1 << 30) - 2] {
            assert_eq!(WindowHeader::from_word(0).index(index), u64::MAX);
        }
        assert_ne!(WindowHeader::new(0, 0, false).to_word(), 0);
    }
}
