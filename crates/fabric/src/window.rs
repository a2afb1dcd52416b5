//! The window: a sender's ring of messages inside its mirror (Spindle §2.3, SMC).
//!
//! A sender writes messages in place, its polling thread announces them with one word, and every reader walks
//! them in place. Three handles share one ring:
//!
//! * [`WindowWriter`], for the application thread: reserve, fill, commit (one release store, no lock).
//! * [`WindowPublisher`], for the polling thread: gives committed messages their indexes, announces, frees.
//! * [`WindowReader`], one per reader of the mirror, in any process: walks announced messages in index order.
//!
//! **Records.** A message is a record of whole words: its index, its length in bytes, its payload. Records lie
//! one behind the other; one that begins below the ring's capacity is never split, because as many words as the
//! longest record needs are kept behind the capacity. The next one then begins at the start again. So memory
//! and traffic follow the bytes used, and a batch is one contiguous write, or two if it wraps.
//! `Deviation:` Spindle has slots of one fixed size and pushes them whole.
//!
//! **Indexes.** A sender's messages and nulls share one count; message or null `i` takes place in round `i` of
//! the total order. Nulls have no record: the announcement is raised past them. A message gets its index when it
//! is committed, by the nulls that the writer knows of, and the publisher corrects it if there have been more: so
//! a message that is reserved but not committed never holds back a null [N1], and without nulls the publisher does
//! not touch the records.
//!
//! **Announcement.** One word per sender, the only one that readers poll: how many indexes are sent (48 bits) and
//! the low 16 bits of how many records there are. So a reader knows for sure whether a record is there, and a
//! record that is there must carry the expected index or a later one: anything else is corruption [O6].
//!
//! **Large messages.** A window may have a second ring, of *bodies*, in the same region or another one. A message longer than
//! `message_max` has its bytes in a record of that ring, numbered from 0, and here a record without payload, whose length
//! is marked. Bodies are taken in the order of their records, so nothing says where a body lies: readers follow both
//! rings. How bodies reach the readers is up to the caller ([`WindowPublisher::publish_bodies`]).
//!
//! **Express.** A short message that is alone in its window reaches the readers by one write instead of two: see
//! `express`.
//!
//! **Invariants.** `freed <= published <= ready <= freed + records_max`. The words of a record are written only
//! between reservation and publication, and again only when it has been freed, which is when all members of
//! the view have delivered it [O5]. That is what makes handing out `&[u8]` of these words sound: in this process
//! the [`WindowWriter`] keeps off until [`WindowPublisher::free`]; other processes are trusted to keep the same rule, as
//! members that have proved the cluster's secret.

mod backlog;
mod express;
mod payload;
mod publisher;
mod reader;
mod reserve_error;
mod writer;

use std::sync::Arc;

use crate::Region;
use crate::atomics::{AtomicBool, AtomicU64, Ordering};
use crate::layout::Word;
use crate::region::Access;

pub use backlog::WindowBacklog;
pub use express::ExpressSlot;
pub use payload::Payload;
pub use publisher::{MessageBody, WindowPublisher};
pub use reader::{CorruptRecord, WindowReader, WindowRecord};
pub use reserve_error::ReserveError;
pub use writer::{Reservation, WindowWriter};

/// Words of a record before its payload: index, length.
pub const HEADER_WORDS: usize = 2;

/// The most records that a window may hold: the announcement's count has 16 bits, and half of its range keeps
/// "ahead" and "behind" apart.
pub const RECORDS_MAX: usize = 1 << 15;

/// The indexes that one view can hold; at ten million messages a second, 162 days. An announcement has space for
/// twice as many, so that a peer that claims more can be told from one that is right.
pub const INDEXES_MAX: u64 = 1 << 47;

/// The size and place of a window within its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowGeometry {
    /// First word of the ring.
    pub first: usize,
    /// Records begin below this word, counted from `first`.
    pub capacity: usize,
    /// The longest message in bytes.
    pub message_max: usize,
    /// The most records at a time; `1 <= records_max <= RECORDS_MAX`.
    pub records_max: usize,
    /// The slot in the same region for messages that are alone, if there is one.
    pub express: Option<ExpressSlot>,
}

impl WindowGeometry {
    /// A window of `records_max` messages of up to `message_max` bytes each, but of at most `bytes_max` bytes
    /// (and always of space for two of the longest).
    ///
    /// # Panics
    /// If `records_max` is 0 or above [`RECORDS_MAX`], or `message_max` is 4 GiB or more.
    #[must_use]
    pub fn new(first: usize, records_max: usize, message_max: usize, bytes_max: usize) -> Self {
        assert!((1..=RECORDS_MAX).contains(&records_max), "a window of {records_max} records");
        assert!(u32::try_from(message_max).is_ok(), "messages of {message_max} bytes");
        let longest = record_words(message_max);
        let capacity = (records_max * longest).min((bytes_max / 8).max(2 * longest));
        Self { first, capacity, message_max, records_max, express: None }
    }

    /// A ring of up to `records_max` bodies of large messages of up to `message_max` bytes each, but of at most
    /// `bytes_max` bytes (and always of space for the longest, once more than that in all).
    ///
    /// # Panics
    /// As [`WindowGeometry::new`].
    #[must_use]
    pub fn of_bodies(first: usize, records_max: usize, message_max: usize, bytes_max: usize) -> Self {
        let longest = record_words(message_max);
        let usual = Self::new(first, records_max, message_max, bytes_max);
        Self { capacity: usual.capacity.min((bytes_max / 8).max(longest)), ..usual }
    }

    /// The words that the ring takes.
    #[must_use]
    pub fn words(&self) -> usize {
        self.capacity + record_words(self.message_max)
    }

    /// Whether `bytes` bytes are a whole record.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        let words = HEADER_WORDS as u64..=record_words(self.message_max) as u64;
        bytes.is_multiple_of(8) && words.contains(&(bytes / 8))
    }

    /// Where the record behind one of `words` words at `position` begins, both counted from `first`.
    #[inline]
    #[must_use]
    pub fn behind(&self, position: usize, words: usize) -> usize {
        let next = position + words;
        if next < self.capacity { next } else { 0 }
    }
}

/// The words of a record with `length` bytes of payload.
#[inline]
#[must_use]
pub const fn record_words(length: usize) -> usize {
    HEADER_WORDS + length.div_ceil(8)
}

/// Marks the length of a record whose bytes are a body.
const LARGE: u64 = 1 << 63;

/// The words of a record whose length word is `length`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "our own record's length, at most message_max")]
const fn words_of_record(length: u64) -> usize {
    if length & LARGE == 0 { record_words(length as usize) } else { HEADER_WORDS }
}

/// What a sender has sent, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// Messages and nulls sent; below [`INDEXES_MAX`].
    pub indexes: u64,
    /// The low bits of the number of records sent.
    pub records: u16,
}

impl Announcement {
    /// The later one.
    #[inline]
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        if other.indexes > self.indexes { other } else { self }
    }
}

impl Word for Announcement {
    #[inline]
    fn to_word(self) -> u64 {
        self.indexes << 16 | u64::from(self.records)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low 16 bits are what is wanted")]
    fn from_word(word: u64) -> Self {
        Self { indexes: word >> 16, records: word as u16 }
    }
}

/// What the writer and the publisher of one window share.
#[derive(Debug)]
struct Shared {
    /// Records committed; stored by the writer.
    ready: Line,
    /// Records freed; stored by the publisher.
    freed: Line,
    /// Nulls sent; stored by the publisher. Rarely changes while messages flow.
    nulls: Line,
    /// Where each outstanding record begins, by record number modulo the length (a power of two); stored by the
    /// writer, covered by `ready`.
    starts: Box<[AtomicU64]>,
    /// The writer found no space since the last time that anything was freed.
    starved: AtomicBool,
    closed: AtomicBool,
    /// The writer is gone: nothing more is committed.
    retired: AtomicBool,
}

impl Shared {
    /// Where record `number` begins.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a place within the ring")]
    fn start(&self, number: u64) -> usize {
        self.starts[mask(number, self.starts.len())].load(Ordering::Relaxed) as usize
    }
}

/// A counter in cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Makes the two local handles of the window at `geometry` of `region`.
///
/// # Safety
/// As long as a handle lives, nothing else in this process stores into the words of the ring: messages are shown and
/// filled in place there.
///
/// # Panics
/// If the window ends beyond the region, or the region is read-only.
#[must_use]
pub unsafe fn window(region: &Region, geometry: WindowGeometry) -> (WindowWriter, WindowPublisher) {
    // SAFETY: as the caller promises.
    unsafe { window_with_bodies(region, geometry, None) }
}

/// As [`window`], for messages that may also be large: their bodies lie in the ring that `bodies` names.
///
/// # Safety
/// As for [`window`], for both rings.
///
/// # Panics
/// As [`window`], also for the bodies.
#[must_use]
pub unsafe fn window_with_bodies(
    region: &Region,
    geometry: WindowGeometry,
    bodies: Option<(&Region, WindowGeometry)>,
) -> (WindowWriter, WindowPublisher) {
    let (mut writer, mut publisher) = ring(region, geometry);
    if let Some((region, geometry)) = bodies {
        let (bodies, published) = ring(region, geometry);
        writer.take_bodies(bodies);
        publisher.take_bodies(published);
    }
    (writer, publisher)
}

fn ring(region: &Region, geometry: WindowGeometry) -> (WindowWriter, WindowPublisher) {
    assert!(region.access() == Access::ReadWrite, "a window lies in its owner's own region");
    region.check(&(geometry.first..geometry.first + geometry.words()));
    let shared = Arc::new(Shared {
        ready: Line::default(),
        freed: Line::default(),
        nulls: Line::default(),
        starts: (0..geometry.records_max.next_power_of_two()).map(|_| AtomicU64::new(0)).collect(),
        starved: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        retired: AtomicBool::new(false),
    });
    let writer = WindowWriter::new(region, geometry, Arc::clone(&shared));
    let publisher = WindowPublisher::new(region, geometry, shared);
    (writer, publisher)
}

/// The place of record `number` in a table of `length` (a power of two) entries.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "masked to the table's length")]
fn mask(number: u64, length: usize) -> usize {
    number as usize & (length - 1)
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low 16 bits are what is wanted")]
fn low_bits(records: u64) -> u16 {
    records as u16
}

#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(test)]
mod tests;
