//! A reader's end of a window (Spindle §2.3).

use std::fmt;

use super::{Announcement, ExpressSlot, HEADER_WORDS, WindowGeometry, WindowHeader, low_bits, record_words};
use crate::Region;
use crate::copy::LINE_WORDS;

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

/// The number of records ahead that a reader prefetches; never beyond what is announced, since prefetching a
/// line that its sender still writes would slow both down.
const PREFETCH_RECORDS: u16 = 12;

/// A reader's end of a window.
#[derive(Clone, Debug)]
pub struct WindowReader {
    region: Region,
    geometry: WindowGeometry,
    /// Where the next record begins.
    head: usize,
    /// Records taken; at most `records_max` behind what is announced.
    records: u64,
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
        Self { region: region.clone(), geometry, head: 0, records: 0, bodies: None }
    }

    /// Lets the reader also follow the ring of bodies at `geometry` of `region`.
    ///
    /// # Panics
    /// Panics if the ring ends beyond the region.
    #[must_use]
    pub fn with_bodies(self, region: &Region, geometry: WindowGeometry) -> Self {
        Self { bodies: Some(Box::new(Self::new(region, geometry))), ..self }
    }

    /// Takes index `index`: its record, or `None` for a null. Indexes are taken in order, each once, and only
    /// after an announcement that covers them was loaded from the sender's row.
    ///
    /// # Errors
    /// Returns [`CorruptRecord`]; the caller must then stop delivering [O6].
    #[inline(always)]
    pub fn take(
        &mut self,
        index: u64,
        announced: Announcement,
    ) -> Result<Option<WindowRecord>, CorruptRecord> {
        let waiting = announced.records.wrapping_sub(low_bits(self.records));
        if waiting == 0 {
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
        let place = self.geometry.first + self.head;
        // SAFETY: `head` is below the capacity, after which there is space for a whole record; `new` checked
        // the region.
        let header = WindowHeader::from_word(unsafe { self.region.load_unchecked(place) });
        let (found, bytes) = (header.index(index), header.length());
        if found != index {
            if found > index && found < announced.indexes {
                return Ok(None);
            }
            return Err(CorruptRecord { word: place, expected: index, found, length: bytes as u64 });
        }
        if header.is_large() || bytes > self.geometry.message_max {
            return self.take_large(index, header).map(Some);
        }
        let words = record_words(bytes);
        if waiting > PREFETCH_RECORDS {
            // The place of a record is known only when the one before it has been read, so the processor
            // cannot prefetch it; most messages have the same length, so the place can be predicted here.
            let ahead = place + usize::from(PREFETCH_RECORDS) * words;
            self.region.prefetch(ahead);
            if words > LINE_WORDS {
                // The payload may begin in the next cache line, in which no record begins then.
                self.region.prefetch(ahead + HEADER_WORDS);
            }
        }
        self.head = self.geometry.behind(self.head, words);
        self.records += 1;
        Ok(Some(WindowRecord { first: place + HEADER_WORDS, length: bytes }))
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
    #[inline]
    #[must_use]
    pub unsafe fn bytes(&self, record: WindowRecord) -> &[u8] {
        let region = match &self.bodies {
            Some(bodies) if record.length > self.geometry.message_max => &bodies.region,
            _ => &self.region,
        };
        // SAFETY: as the caller promises: the record is announced and not yet reported as delivered, so
        // nothing writes it.
        unsafe { region.bytes(record.first, record.length) }
    }
}

/// The place of a message, returned by [`WindowReader::take`] for the same reader's [`WindowReader::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRecord {
    first: usize,
    length: usize,
}
