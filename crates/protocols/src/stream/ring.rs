//! The hidden ring: both ends' accounts of the receiver's intermediate buffer (EXS §III, fig. 2, fig. 5).
//!
//! `Deviation:` the ring counts words, not bytes: each transfer begins at a word and never wraps \[E5\], and its first
//! word may begin with bytes that do not belong to it (`skip`), so that a piece keeps the alignment of its source.

use std::collections::VecDeque;

use super::StreamViolation;

/// The sender's account of the peer's ring (the paper's `b_s` is [`RingWriter::free`]).
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct RingWriter {
    words: u64,
    /// The words written since the beginning; `freed <= written <= freed + words`.
    written: u64,
    /// The position of the next word: `written % words`, kept to avoid a division for each transfer.
    next: u64,
    /// The words that the receiver has returned.
    freed: u64,
}

impl RingWriter {
    pub(super) fn new(words: u64) -> Self {
        Self { words, written: 0, next: 0, freed: 0 }
    }

    /// Returns the number of free words.
    pub(super) fn free(&self) -> u64 {
        self.words - self.in_use()
    }

    /// Returns the number of words that are written and not returned yet.
    pub(super) fn in_use(&self) -> u64 {
        self.written - self.freed
    }

    /// Returns the number of words that one transfer may take: free words up to the end of the ring \[E5\].
    pub(super) fn free_space(&self) -> u64 {
        self.free().min(self.words - self.next)
    }

    /// Takes `words` words, and returns the first.
    #[inline]
    pub(super) fn take(&mut self, words: u64) -> u64 {
        assert!(
            words <= self.free_space(),
            "[E5] {words} words where {} contiguous words are free",
            self.free_space()
        );
        let first = self.next;
        (self.written, self.next) = (self.written + words, advanced(first, words, self.words));
        first
    }

    /// Records that the receiver has returned words.
    pub(super) fn on_freed(&mut self, words: u64) -> Result<(), StreamViolation> {
        if words > self.in_use() {
            return Err(StreamViolation::FreedTooMuch);
        }
        self.freed += words;
        Ok(())
    }
}

/// Returns the position after `words` words at `place` of a ring, none of which is beyond its end \[E5\].
const fn advanced(place: u64, words: u64, ring_words: u64) -> u64 {
    let behind = place + words;
    if behind == ring_words { 0 } else { behind }
}

/// The receiver's account of its own ring.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct RingReader {
    words: u64,
    parcels: VecDeque<Parcel>,
    /// `b_r`: the bytes in the ring that have not been copied to a receive.
    stored: u64,
    /// The words that arrived; `returned <= freed <= written <= returned + words`.
    written: u64,
    /// The position of the next word to arrive: `written % words`.
    next: u64,
    /// The words whose bytes have been copied out.
    freed: u64,
    /// The words that the sender knows to be free.
    returned: u64,
}

/// The part of one indirect transfer that has not been copied out.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
struct Parcel {
    /// The next byte to copy, within the ring.
    next: u64,
    /// The bytes to copy; at least 1.
    length: u64,
    /// The word after the parcel, counted from the beginning.
    end: u64,
}

impl RingReader {
    pub(super) fn new(words: u64) -> Self {
        Self { words, parcels: VecDeque::new(), stored: 0, written: 0, next: 0, freed: 0, returned: 0 }
    }

    /// Returns the word where the next transfer lands.
    pub(super) fn next_arrival(&self) -> usize {
        usize::try_from(self.next).expect("the ring is in memory")
    }

    pub(super) fn stored(&self) -> u64 {
        self.stored
    }

    /// Returns the number of words that are copied out and not returned to the sender.
    pub(super) fn unreturned(&self) -> u64 {
        self.freed - self.returned
    }

    /// Returns all free words to the sender, and their number.
    pub(super) fn give_back(&mut self) -> u64 {
        let words = self.unreturned();
        self.returned = self.freed;
        words
    }

    /// Records that a transfer has landed.
    #[inline]
    pub(super) fn store(&mut self, skip: u64, length: u64) -> Result<(), StreamViolation> {
        if length == 0 {
            return Err(StreamViolation::EmptyTransfer);
        }
        let words = (skip + length).div_ceil(8);
        let free = self.words - (self.written - self.returned);
        if self.words == 0 || words > free.min(self.words - self.next) {
            return Err(StreamViolation::RingOverrun);
        }
        let next = self.next * 8 + skip;
        (self.written, self.next) = (self.written + words, advanced(self.next, words, self.words));
        self.stored += length;
        self.parcels.push_back(Parcel { next, length, end: self.written });
        Ok(())
    }

    /// Returns the next contiguous bytes: the first byte's position within the ring, and their number; `None` if the
    /// ring is empty.
    pub(super) fn next(&self) -> Option<(u64, u64)> {
        self.parcels.front().map(|parcel| (parcel.next, parcel.length))
    }

    /// Records that the first `length` of the next bytes have been copied out.
    #[inline]
    pub(super) fn consume(&mut self, length: u64) {
        let parcel = self.parcels.front_mut().expect("there were bytes to copy");
        assert!(length <= parcel.length, "{length} bytes of {}", parcel.length);
        parcel.next += length;
        parcel.length -= length;
        self.stored -= length;
        let left = if parcel.length == 0 { 0 } else { (parcel.next % 8 + parcel.length).div_ceil(8) };
        self.freed = parcel.end - left;
        if parcel.length == 0 {
            self.parcels.pop_front();
        }
    }
}
