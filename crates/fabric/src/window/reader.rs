//! A reader's end of a window (Spindle §2.3).

use std::fmt;

use super::{
    Announcement, ExpressSlot, HEADER_WORDS, WindowGeometry, WindowHeader, low_bits, mutation, record_words,
};
use crate::copy::LINE_WORDS;
use crate::{Region, mutant};

/// A record that contradicts its place or its announcement: the memory or the transport is faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptRecord {
    /// The word where the record begins.
    pub word: usize,
    /// The index that was expected.
    pub expected: u64,
    /// The index found.
    pub found: u64,
    /// The length found, in bytes.
    pub length: u64,
}

impl fmt::Display for CorruptRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the record at word {} has index {} and {} bytes where index {} or a later one was announced",
            self.word, self.found, self.length, self.expected
        )
    }
}

impl std::error::Error for CorruptRecord {}

/// The number of records ahead that a reader prefetches, if more than these are announced. Prefetching a line that its sender
/// still writes slows both down; at the end of a long batch that costs less than a check for each record.
const PREFETCH_RECORDS: usize = 12;

/// The most lines of a sender's new records that are prefetched when their announcement is seen.
const FORESEEN_LINES: usize = 8;

/// A reader's end of a window.
///
/// **Where the next record begins** is known only when the header of the one before has been read: a chain of loads, each of
/// which waits for a line of another core. Most records are as long as the one before. So a reader compares a header with the one that
/// this length predicts, by one comparison of index, kind and length, and continues with the predicted place: the processor, which
/// predicts that comparison, works on several records while their lines arrive.
///
/// **Invariant.** All records below `sure` are announced. So the words of record `records < sure` are final: its header is not one that
/// the publisher still corrects, and if it has the expected index, the record is that message \[O6\]. A record that came by the express
/// slot is not in the ring of another member: an earlier lap may have left any bytes there, also some that look like its header. So with
/// such a slot nothing is sure, and the slot is looked at first.
#[derive(Clone, Debug)]
pub struct WindowReader {
    region: Region,
    geometry: WindowGeometry,
    /// Where the next record begins.
    pub(super) head: usize,
    /// Records taken; at most `records_max` behind what is announced.
    records: u64,
    /// All records below this number are known to be announced, and in the ring: 0 with an express slot.
    sure: u64,
    /// More than [`PREFETCH_RECORDS`] of them were not taken when that was noted.
    reads_ahead: bool,
    /// The last record taken: its length in bytes and in words. It was not large.
    length: usize,
    words: usize,
    /// The ring of the bodies of large messages; it has none itself.
    bodies: Option<Box<WindowReader>>,
}

impl WindowReader {
    /// Creates a reader at the beginning of the window at `geometry` of `region`.
    ///
    /// # Panics
    /// Panics if the window ends beyond the region.
    #[must_use]
    pub fn new(region: &Region, geometry: WindowGeometry) -> Self {
        region.check(&(geometry.first..geometry.first + geometry.words()));
        geometry.express.iter().for_each(|express| region.check(&express.words()));
        Self {
            region: region.clone(),
            geometry,
            head: 0,
            records: 0,
            sure: 0,
            reads_ahead: false,
            length: 0,
            words: HEADER_WORDS,
            bodies: None,
        }
    }

    /// Lets the reader also follow the ring of bodies at `geometry` of `region`.
    ///
    /// # Panics
    /// Panics if the ring ends beyond the region.
    #[must_use]
    pub fn with_bodies(self, region: &Region, geometry: WindowGeometry) -> Self {
        Self { bodies: Some(Box::new(Self::new(region, geometry))), ..self }
    }

    /// Notes what the sender has announced, which is not less than before: see [`WindowReader::take_sure`].
    #[inline]
    pub fn note_announced(&mut self, announced: Announcement) {
        if self.geometry.express.is_some() {
            return;
        }
        let waiting = self.waiting(announced);
        self.sure = self.records + u64::from(waiting);
        self.reads_ahead = usize::from(waiting) > PREFETCH_RECORDS;
        mutant!(SureTooSoon => self.sure += 1);
        mutant!(SureForEver => self.sure = u64::MAX);
    }

    /// Prefetches the first lines of the records that wait to be taken. None beyond them: the sender still writes there, and a line
    /// that both want slows both down.
    #[inline]
    pub fn foresee(&self) {
        let waiting = self.sure.saturating_sub(self.records);
        let lines =
            (waiting.saturating_mul(self.words as u64) / LINE_WORDS as u64).min(FORESEEN_LINES as u64);
        for line in 0..lines as usize {
            self.region.prefetch_near(self.geometry.first + self.head + line * LINE_WORDS);
        }
    }

    /// Returns whether all records of `announced`, which is not less than what was seen before, are taken: then indexes that it covers
    /// are nulls.
    #[inline(always)]
    #[must_use]
    pub const fn has_taken(&self, announced: Announcement) -> bool {
        self.waiting(announced) == 0
    }

    #[inline(always)]
    const fn waiting(&self, announced: Announcement) -> u16 {
        announced.records.wrapping_sub(low_bits(self.records))
    }

    /// Takes the record of index `index`, if that is a short message in a record that was noted as announced. Else nothing
    /// changes, and [`WindowReader::take`] decides.
    #[inline(always)]
    #[must_use]
    pub fn take_sure(&mut self, index: u64) -> Option<WindowRecord> {
        if self.records >= self.sure { None } else { self.take_here(index) }
    }

    /// Takes the record of index `index`, if it is a short message and the next one in the ring, which is announced and here.
    #[inline(always)]
    fn take_here(&mut self, index: u64) -> Option<WindowRecord> {
        let place = self.geometry.first + self.head;
        // SAFETY: `head` is below the capacity, after which there is space for a whole record; `new` checked
        // the region.
        let header = WindowHeader::from_word(unsafe { self.region.load_unchecked(place) });
        let mut length = header.length_if(index);
        mutant!(AnyIndex => length = header.length() as u64);
        mutant!(AnyKind => length &= u64::MAX >> 1);
        if length != self.length as u64 {
            if length > self.geometry.message_max as u64 {
                return None;
            }
            self.length = header.length();
            if !mutant!(LengthBefore) {
                self.words = record_words(self.length);
            }
        }
        if self.reads_ahead {
            let ahead = place + PREFETCH_RECORDS * self.words;
            self.region.prefetch_near(ahead);
            if self.words > LINE_WORDS {
                // The payload may begin in the next cache line, in which no record begins then.
                self.region.prefetch_near(ahead + HEADER_WORDS);
            }
        }
        self.head = self.geometry.behind(self.head, self.words);
        self.records += 1;
        Some(WindowRecord { first: place + HEADER_WORDS, length: self.length })
    }

    /// Takes index `index`: its record, or `None` for a null. Indexes are taken in order, each once, and only
    /// after an announcement that covers them was loaded from the sender's row.
    ///
    /// # Errors
    /// Returns [`CorruptRecord`]; the caller must then stop delivering [O6].
    pub fn take(
        &mut self,
        index: u64,
        announced: Announcement,
    ) -> Result<Option<WindowRecord>, CorruptRecord> {
        self.note_announced(announced);
        if self.has_taken(announced) {
            return Ok(None);
        }
        if let Some(express) = self.geometry.express {
            let last = express.announcement(&self.region);
            if last.indexes > index {
                // A record in the slot that is not delivered everywhere and not beyond the next record is the
                // next record.
                return self.take_express(express, index, last.indexes - 1);
            }
        }
        if let Some(record) = self.take_here(index) {
            return Ok(Some(record));
        }
        let place = self.geometry.first + self.head;
        // SAFETY: as in `take_here`.
        let header = WindowHeader::from_word(unsafe { self.region.load_unchecked(place) });
        let (found, bytes) = (header.index(index), header.length());
        if found != index {
            if found > index && found < announced.indexes {
                return Ok(None);
            }
            return Err(CorruptRecord { word: place, expected: index, found, length: bytes as u64 });
        }
        self.take_large(index, header).map(Some)
    }

    /// Takes index `index`, given that the next record is in the express slot and has index `there`.
    #[cold]
    fn take_express(
        &mut self,
        express: ExpressSlot,
        index: u64,
        there: u64,
    ) -> Result<Option<WindowRecord>, CorruptRecord> {
        if index < there {
            return Ok(None);
        }
        let length = express.length(&self.region);
        if !express.is_whole(&self.region) || length > self.geometry.message_max {
            let word = express.words().start;
            return Err(CorruptRecord { word, expected: index, found: there, length: length as u64 });
        }
        self.head = self.geometry.behind(self.head, record_words(length));
        self.records += 1;
        Ok(Some(WindowRecord { first: express.payload(), length }))
    }

    /// Takes the record of a large message, and its body, which is complete when a message counts as
    /// received.
    #[cold]
    fn take_large(&mut self, index: u64, header: WindowHeader) -> Result<WindowRecord, CorruptRecord> {
        let place = self.geometry.first + self.head;
        let length = header.length();
        let corrupt = CorruptRecord { word: place, expected: index, found: index, length: length as u64 };
        let bodies = self.bodies.as_mut().filter(|_| header.is_large()).ok_or(corrupt)?;
        let number = bodies.records;
        let announced = Announcement { indexes: number + 1, records: low_bits(number + 1) };
        let body = bodies.take(number, announced)?.ok_or(corrupt)?;
        if body.length <= self.geometry.message_max || body.length != length {
            return Err(corrupt);
        }
        self.head = self.geometry.behind(self.head, HEADER_WORDS);
        self.records += 1;
        Ok(body)
    }

    /// Returns the payload of a record that this reader has taken, in place. It must not be used once its
    /// index has been reported as delivered [O5].
    ///
    /// # Safety
    /// Nothing may store into the words of a record between its announcement and the report that it is
    /// delivered here, and the bytes must not be used after that report.
    #[inline(always)]
    #[must_use]
    pub unsafe fn bytes(&self, record: WindowRecord) -> &[u8] {
        if record.length > self.geometry.message_max {
            // SAFETY: as the caller promises.
            return unsafe { self.body(record) };
        }
        // SAFETY: as the caller promises: the record is announced and not yet reported as delivered, so
        // nothing writes it; and it is one of this reader, so its place is below the capacity, after which there is space for it.
        unsafe { self.region.bytes_unchecked(record.first, record.length) }
    }

    /// Returns the body of a large message.
    ///
    /// # Safety
    /// Same as for [`WindowReader::bytes`].
    #[cold]
    unsafe fn body(&self, record: WindowRecord) -> &[u8] {
        let region = self.bodies.as_ref().map_or(&self.region, |bodies| &bodies.region);
        // SAFETY: as the caller promises.
        unsafe { region.bytes(record.first, record.length) }
    }
}

/// The place of a message, returned by [`WindowReader::take`] for the same reader's [`WindowReader::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRecord {
    first: usize,
    pub(super) length: usize,
}
