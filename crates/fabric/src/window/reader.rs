//! A reader's walk over a window (Spindle §2.3).

use std::fmt;

use super::{Announcement, ExpressSlot, HEADER_WORDS, LARGE, WindowGeometry, low_bits, record_words};
use crate::Region;
use crate::copy::LINE_WORDS;

/// A record that is not what its place and announcement require: the memory or the transport is at fault.
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

/// How many records ahead a reader fetches into its cache; never beyond what is announced, since fetching a line
/// that its sender still writes would slow both down.
const PREFETCH_RECORDS: u16 = 12;

/// A reader's walk over a window.
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
    /// A reader at the beginning of the window at `geometry` of `region`.
    ///
    /// # Panics
    /// If the window ends beyond the region.
    #[must_use]
    pub fn new(region: &Region, geometry: WindowGeometry) -> Self {
        region.check(&(geometry.first..geometry.first + geometry.words()));
        geometry.express.iter().for_each(|express| region.check(&express.words()));
        Self { region: region.clone(), geometry, head: 0, records: 0, bodies: None }
    }

    /// Makes it follow also the ring of bodies at `geometry` of `region`.
    ///
    /// # Panics
    /// If the ring ends beyond the region.
    #[must_use]
    pub fn with_bodies(self, region: &Region, geometry: WindowGeometry) -> Self {
        Self { bodies: Some(Box::new(Self::new(region, geometry))), ..self }
    }

    /// Takes index `index`: its record, or `None` for a null. Indexes are taken in order, each once, and only
    /// after an announcement that covers them was loaded from the sender's row.
    ///
    /// # Errors
    /// [`CorruptRecord`]: stop delivering [O6].
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
                // Neither delivered everywhere nor beyond the next record: it is the next record.
                return self.take_express(express, index, last.indexes - 1);
            }
        }
        let place = self.geometry.first + self.head;
        // SAFETY: `head` is below the capacity, behind which a whole record has space; `new` checked the region.
        // Stored plus one, so that memory that was never written is not index 0.
        let found = unsafe { self.region.load_unchecked(place) }.wrapping_sub(1);
        // SAFETY: as above.
        let length = unsafe { self.region.load_unchecked(place + 1) };
        if found != index {
            if found > index && found < announced.indexes {
                return Ok(None);
            }
            return Err(CorruptRecord { word: place, expected: index, found, length });
        }
        let bytes = match usize::try_from(length) {
            Ok(bytes) if bytes <= self.geometry.message_max => bytes,
            _ => return self.take_large(index, length).map(Some),
        };
        let words = record_words(bytes);
        if waiting > PREFETCH_RECORDS {
            // Where a record lies is only known when the one before it has been read, so the processor cannot
            // look ahead by itself; messages are mostly of one length, so we can.
            let ahead = place + usize::from(PREFETCH_RECORDS) * words;
            self.region.prefetch(ahead);
            if words > LINE_WORDS {
                // The payload may begin in the next cache line, in which then no record begins.
                self.region.prefetch(ahead + HEADER_WORDS);
            }
        }
        self.head = self.geometry.behind(self.head, words);
        self.records += 1;
        Ok(Some(WindowRecord { first: place + HEADER_WORDS, length: bytes }))
    }

    /// Takes index `index`, where the next record lies in the express slot and has index `there`.
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

    /// Takes the record of a large message, and its body, which is whole when a message counts as received.
    #[cold]
    fn take_large(&mut self, index: u64, length: u64) -> Result<WindowRecord, CorruptRecord> {
        let place = self.geometry.first + self.head;
        let corrupt = CorruptRecord { word: place, expected: index, found: index, length };
        let bodies = self.bodies.as_mut().filter(|_| length & LARGE != 0).ok_or(corrupt)?;
        let number = bodies.records;
        let announced = Announcement { indexes: number + 1, records: low_bits(number + 1) };
        let body = bodies.take(number, announced)?.ok_or(corrupt)?;
        if body.length <= self.geometry.message_max || body.length as u64 != length & !LARGE {
            return Err(corrupt);
        }
        self.head = self.geometry.behind(self.head, HEADER_WORDS);
        self.records += 1;
        Ok(body)
    }

    /// The payload of a record that this reader has taken, in place. It must not be used any more once its index
    /// has been reported as delivered [O5].
    ///
    /// # Safety
    /// Nobody stores into the words of a record between its announcement and the report that it is delivered here, and the
    /// bytes are not used after that report.
    #[inline]
    #[must_use]
    pub unsafe fn bytes(&self, record: WindowRecord) -> &[u8] {
        let region = match &self.bodies {
            Some(bodies) if record.length > self.geometry.message_max => &bodies.region,
            _ => &self.region,
        };
        // SAFETY: as the caller promises: it is announced and not yet reported as delivered, so nobody writes it.
        unsafe { region.bytes(record.first, record.length) }
    }
}

/// Where a message lies: made by [`WindowReader::take`] for the same reader's [`WindowReader::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRecord {
    first: usize,
    length: usize,
}
