//! The hidden ring: the receiver's intermediate buffer, as both ends account for it (EXS §III, fig. 2, fig. 5).
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
    /// Words written since the beginning; `freed <= written <= freed + words`.
    written: u64,
    /// Where the next word goes: `written % words`, without dividing for each transfer.
    next: u64,
    /// Words that the receiver has given back.
    freed: u64,
}

impl RingWriter {
    pub(super) fn new(words: u64) -> Self {
        Self { words, written: 0, next: 0, freed: 0 }
    }

    /// Words that are free.
    pub(super) fn free(&self) -> u64 {
        self.words - self.in_use()
    }

    /// Words that are written and not yet given back.
    pub(super) fn in_use(&self) -> u64 {
        self.written - self.freed
    }

    /// Words that one transfer may take: free and without wrap \[E5\].
    pub(super) fn free_space(&self) -> u64 {
        self.free().min(self.words - self.next)
    }

    /// Takes `words` of the space; returns the first.
    #[inline]
    pub(super) fn take(&mut self, words: u64) -> u64 {
        assert!(
            words <= self.free_space(),
            "[E5] {words} words where {} are free in a row",
            self.free_space()
        );
        let first = self.next;
        (self.written, self.next) = (self.written + words, advanced(first, words, self.words));
        first
    }

    /// The receiver has given words back.
    pub(super) fn on_freed(&mut self, words: u64) -> Result<(), StreamViolation> {
        if words > self.in_use() {
            return Err(StreamViolation::FreedTooMuch);
        }
        self.freed += words;
        Ok(())
    }
}

/// The place behind `words` words at `place` of a ring; none of them lies beyond its end \[E5\].
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
    /// `b_r`: bytes in the ring that no receive has got yet.
    stored: u64,
    /// Words that arrived; `returned <= freed <= written <= returned + words`.
    written: u64,
    /// Where the next word arrives: `written % words`.
    next: u64,
    /// Words whose bytes are copied out.
    freed: u64,
    /// Words that the sender knows to be free.
    returned: u64,
}

/// One indirect transfer, as far as it is not copied out.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
struct Parcel {
    /// The next byte to copy, within the ring.
    next: u64,
    /// Bytes to copy; at least 1.
    length: u64,
    /// The word behind the parcel, since the beginning.
    end: u64,
}

impl RingReader {
    pub(super) fn new(words: u64) -> Self {
        Self { words, parcels: VecDeque::new(), stored: 0, written: 0, next: 0, freed: 0, returned: 0 }
    }

    /// The word where the next transfer lands.
    pub(super) fn next_arrival(&self) -> usize {
        usize::try_from(self.next).expect("the ring lies in memory")
    }

    pub(super) fn stored(&self) -> u64 {
        self.stored
    }

    /// Words that are copied out and that the sender does not know of.
    pub(super) fn unreturned(&self) -> u64 {
        self.freed - self.returned
    }

    /// Tells the sender of all free words; returns how many are new to it.
    pub(super) fn give_back(&mut self) -> u64 {
        let words = self.unreturned();
        self.returned = self.freed;
        words
    }

    /// A transfer has landed.
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

    /// The next bytes in a row: the first within the ring, and how many; `None` if the ring is empty.
    pub(super) fn next(&self) -> Option<(u64, u64)> {
        self.parcels.front().map(|parcel| (parcel.next, parcel.length))
    }

    /// The first `length` of the next bytes are copied out.
    #[inline]
    pub(super) fn consume(&mut self, length: u64) {
        let parcel = self.parcels.front_mut().expect("bytes were there to copy");
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
