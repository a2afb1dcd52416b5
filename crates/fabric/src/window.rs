//! The window: a sender's ring of messages inside its mirror (Spindle §2.3, SMC).
//!
//! A sender writes messages in place, its polling thread announces them with one word, and every reader reads
//! them in place. Three handles share one ring:
//!
//! * [`WindowWriter`], for the application thread: reserves, fills, commits (one release store for a message or a
//!   burst, no lock).
//! * [`WindowPublisher`], for the polling thread: assigns indexes to committed messages, announces, frees.
//! * [`WindowReader`], one per reader of the mirror, in any process: reads announced messages in index order.
//!
//! **Records.** A message is a record of whole words: one with its index and its length in bytes (`header`),
//! and its payload. Records are contiguous; one that begins below the ring's capacity is never split, because as many words as the
//! longest record needs are kept after the capacity. The next one then begins at the start again. So memory
//! and traffic follow the bytes used, and a batch is one contiguous write, or two if it wraps. `Deviation:`
//! Spindle has slots of one fixed size and pushes them whole.
//!
//! **Indexes.** A sender's messages and nulls share one count; message or null `i` belongs to round `i` of
//! the total order. Nulls have no record: the announcement is raised past them. A message gets its index when
//! it is committed, computed from the nulls that the writer knows of, and the publisher corrects it if there
//! have been more. So a message that is reserved but not committed never delays a null [N1], and without
//! nulls the publisher does not touch the records.
//!
//! **Announcement.** One word per sender, the only one that readers poll: the number of indexes sent (48
//! bits) and the low 16 bits of the number of records. So a reader knows for certain whether a record is
//! present, and a record that is present must carry the expected index or a later one: anything else is
//! corruption [O6].
//!
//! **Large messages.** A window may have a second ring, of *bodies*, in the same region or another one. A
//! message longer than `message_max` has its bytes in a record of that ring, numbered from 0, and in the
//! first ring a record without payload, whose header says so. Bodies are used in the order of their
//! records, so no offset is stored: readers follow both rings. The caller decides how bodies reach the
//! readers ([`WindowPublisher::publish_bodies`]).
//!
//! **Express.** A short message that is alone in its window reaches the readers by one write instead of two:
//! see `express`.
//!
//! **Invariants.** `freed <= published <= ready <= freed + records_max`. The words of a record are written
//! only between reservation and publication, and again only when it has been freed, which is when all members
//! of the view have delivered it [O5]. This makes it sound to return `&[u8]` of these words: in this process
//! the [`WindowWriter`] does not touch them until [`WindowPublisher::free`]; other processes are trusted to
//! keep the same rule, as members that have proved that they know the cluster's secret.

mod backlog;
mod express;
mod fullness;
mod header;
mod mutation;
mod payload;
mod probe;
mod publisher;
mod reader;
mod reserve_error;
mod writer;

use std::sync::Arc;

use crate::Region;
use crate::atomics::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::layout::Word;
use crate::region::Access;

pub use backlog::WindowBacklog;
pub use express::ExpressSlot;
use header::WindowHeader;
pub use payload::Payload;
use probe::ProbeLine;
pub use publisher::{MessageBody, WindowPublisher};
pub use reader::{CorruptRecord, WindowReader, WindowRecord};
pub use reserve_error::ReserveError;
pub use writer::{Reservation, WindowWriter};

/// The words of a record before its payload.
pub const HEADER_WORDS: usize = 1;

/// The most records that a window may hold: the announcement's count has 16 bits, and half of its range
/// distinguishes "ahead" from "behind".
pub const RECORDS_MAX: usize = 1 << 15;

/// The most indexes of one view; at ten million messages a second, they last 162 days. An announcement can
/// hold twice as many, so that an excessive claim of a peer can be recognised.
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
    /// The slot in the same region for messages that are alone in their window, if there is one.
    pub express: Option<ExpressSlot>,
}

impl WindowGeometry {
    /// Describes a window of `records_max` messages of up to `message_max` bytes each, but of at most
    /// `bytes_max` bytes (and always with space for two of the longest).
    ///
    /// # Panics
    /// Panics if `records_max` is 0 or above [`RECORDS_MAX`], or `message_max` is 4 GiB or more.
    #[must_use]
    pub fn new(first: usize, records_max: usize, message_max: usize, bytes_max: usize) -> Self {
        assert!((1..=RECORDS_MAX).contains(&records_max), "a window of {records_max} records");
        assert!(u32::try_from(message_max).is_ok(), "messages of {message_max} bytes");
        let longest = record_words(message_max);
        let capacity = (records_max * longest).min((bytes_max / 8).max(2 * longest));
        Self { first, capacity, message_max, records_max, express: None }
    }

    /// Describes a ring of up to `records_max` bodies of large messages of up to `message_max` bytes each,
    /// but of at most `bytes_max` bytes (and always with space for the longest), plus space for one of the
    /// longest.
    ///
    /// # Panics
    /// Same as [`WindowGeometry::new`].
    #[must_use]
    pub fn of_bodies(first: usize, records_max: usize, message_max: usize, bytes_max: usize) -> Self {
        let longest = record_words(message_max);
        let usual = Self::new(first, records_max, message_max, bytes_max);
        Self { capacity: usual.capacity.min((bytes_max / 8).max(longest)), ..usual }
    }

    /// Returns the number of words that the ring takes.
    #[must_use]
    pub fn words(&self) -> usize {
        self.capacity + record_words(self.message_max)
    }

    /// Returns whether a whole record can have `bytes` bytes.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        let words = HEADER_WORDS as u64..=record_words(self.message_max) as u64;
        bytes.is_multiple_of(8) && words.contains(&(bytes / 8))
    }

    /// Returns where the record after one of `words` words at `position` begins, both counted from `first`.
    #[inline]
    #[must_use]
    pub fn behind(&self, position: usize, words: usize) -> usize {
        let next = position + words;
        if next < self.capacity { next } else { 0 }
    }
}

/// Returns the number of words of a record with `length` bytes of payload.
#[inline]
#[must_use]
pub const fn record_words(length: usize) -> usize {
    HEADER_WORDS + length.div_ceil(8)
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
    /// Returns the later of the two.
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

/// State shared by the writer and the publisher of one window.
#[derive(Debug)]
struct Shared {
    /// Records committed and shown to the publisher; stored by the writer.
    ready: Line,
    /// Records freed; stored by the publisher.
    freed: Line,
    /// Nulls sent; stored by the publisher. Rarely changes while messages flow.
    nulls: Line,
    /// Where each outstanding record begins, by record number modulo the length (a power of two); stored by the
    /// writer, covered by `ready`.
    starts: Box<[AtomicU64]>,
    /// Whether the writer has found no space since anything was last freed.
    starved: AtomicBool,
    /// Bits of [`CLOSED`] and [`ASKED`], stored by the publisher: one load shows the writer whether there is nothing but the next message.
    attention: AtomicU32,
    probe: ProbeLine,
    /// Whether the writer has been dropped: nothing more is committed.
    retired: AtomicBool,
}

/// The window is closed.
const CLOSED: u32 = 1;
/// The writer soon comes to the record whose time is wanted.
const ASKED: u32 = 2;

impl Shared {
    fn is_closed(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Sets or clears a bit. Only the publisher does that.
    fn set_attention(&self, bit: u32, is_set: bool) {
        let others = self.attention.load(Ordering::Relaxed) & !bit;
        self.attention.store(others | if is_set { bit } else { 0 }, Ordering::Relaxed);
    }

    /// Returns where record `number` begins.
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

/// Creates the two local handles of the window at `geometry` of `region`.
///
/// # Safety
/// While a handle lives, nothing else in this process may store into the words of the ring: messages are
/// shown and filled in place there.
///
/// # Panics
/// Panics if the window ends beyond the region, or the region is read-only.
#[must_use]
pub unsafe fn window(region: &Region, geometry: WindowGeometry) -> (WindowWriter, WindowPublisher) {
    // SAFETY: as the caller promises.
    unsafe { window_with_bodies(region, geometry, None) }
}

/// Same as [`window`], for messages that may also be large: their bodies are stored in the ring that `bodies`
/// names.
///
/// # Safety
/// Same as for [`window`], for both rings.
///
/// # Panics
/// Same as [`window`], also for the bodies.
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
    assert!(region.access() == Access::ReadWrite, "a window must be in a region of its owner");
    region.check(&(geometry.first..geometry.first + geometry.words()));
    let shared = Arc::new(Shared {
        ready: Line::default(),
        freed: Line::default(),
        nulls: Line::default(),
        starts: (0..geometry.records_max.next_power_of_two()).map(|_| AtomicU64::new(0)).collect(),
        starved: AtomicBool::new(false),
        attention: AtomicU32::new(0),
        probe: ProbeLine::default(),
        retired: AtomicBool::new(false),
    });
    let writer = WindowWriter::new(region, geometry, Arc::clone(&shared));
    let publisher = WindowPublisher::new(region, geometry, shared);
    (writer, publisher)
}

/// Returns the index of record `number` in a table of `length` (a power of two) entries.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "masked to the table's length")]
fn mask(number: u64, length: usize) -> usize {
    number as usize & (length - 1)
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low 16 bits are what is wanted")]
const fn low_bits(records: u64) -> u16 {
    records as u16
}

#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(test)]
mod tests;
