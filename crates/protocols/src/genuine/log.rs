//! The log of timestamps: what the leader of a shard writes to each destination shard, in its order (RamCast §3.3, §3.4)
//! \[G3\].
//!
//! `Deviation:` (§3.3) RamCast has one word of timestamp for each slot of each client's buffer. Here the timestamps of a leader
//! for one shard are a ring of entries, message and clock, that one count announces: readers take them in the order in which
//! they were given and never miss one, a batch is one write, and nothing is ever cleared.
//!
//! An entry may also say that a message was delivered in an earlier view ([`DELIVERED`]).
//!
//! **Why the ring needs no acknowledgement.** It has an entry for each message that all senders together can have under way to the
//! reader's shard, and one more for each: a member that is done with a message because it knows, or one leader has announced, that it is
//! delivered may not have read the entry of another one. A sender has at most a window of such messages in a view. A leader
//! gives a timestamp to a message only when the sender has a place for it in its window, so of any
//! `entries + 1` entries in a row one is of a message that all members of the reader's shard have delivered, for which they have
//! read its entry, and all before it.

use std::ops::Range;

use squall_fabric::Region;

use super::mutation;
use super::pending::MessageKey;

/// The clock of an entry that gives no timestamp: the message was delivered in an earlier view \[G17\].
pub(super) const DELIVERED: u64 = 0;

/// Words of an entry: sender and number, clock.
const ENTRY_WORDS: usize = 2;

/// Bits of an entry's first word for the number; the sender's rank has the rest.
const NUMBER_BITS: u32 = 48;

/// Where the entries are.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogGeometry {
    /// The first word.
    pub(super) first: usize,
    /// How many entries there are.
    pub(super) entries: usize,
}

/// An entry that no leader writes: the memory or the transport is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptTimestamp {
    /// The shard whose leader wrote it.
    pub shard: usize,
    /// Which of its entries, from 0.
    pub entry: u64,
}

impl LogGeometry {
    pub(super) const fn words(self) -> usize {
        self.entries * ENTRY_WORDS
    }

    /// The words of entry `entry`.
    fn place(self, entry: u64) -> Range<usize> {
        let entry = usize::try_from(entry % self.entries as u64).expect("below the number of entries");
        let first = self.first + entry * ENTRY_WORDS;
        first..first + ENTRY_WORDS
    }
}

/// The leader's end, for one destination shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogWriter {
    geometry: LogGeometry,
    /// Entries written; `published <= written <= published + entries`.
    written: u64,
    published: u64,
}

impl LogWriter {
    pub(super) const fn new(geometry: LogGeometry) -> Self {
        Self { geometry, written: 0, published: 0 }
    }

    /// Writes the next entry.
    pub(super) fn write(&mut self, row: &Region, key: MessageKey, clock: u64) {
        let place = self.geometry.place(self.written);
        row.store(place.start, name_of(key));
        row.store(place.start + 1, clock);
        self.written += 1;
    }

    /// Calls `pushed` for the words of what was written since the last call, at most twice, and returns how many entries there are
    /// now; `None` if nothing was written.
    pub(super) fn publish(&mut self, mut pushed: impl FnMut(Range<usize>)) -> Option<u64> {
        if self.written == self.published {
            return None;
        }
        let (first, last) = (self.geometry.place(self.published), self.geometry.place(self.written - 1));
        if first.start <= last.start {
            pushed(first.start..last.end);
        } else {
            pushed(first.start..self.geometry.first + self.geometry.words());
            pushed(self.geometry.first..last.end);
        }
        self.published = self.written;
        Some(self.written)
    }
}

/// A reader's end.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogReader {
    shard: usize,
    geometry: LogGeometry,
    read: u64,
    /// The latest clock.
    clock: u64,
}

impl LogReader {
    pub(super) const fn new(shard: usize, geometry: LogGeometry) -> Self {
        Self { shard, geometry, read: 0, clock: 0 }
    }

    /// The shard whose leader writes the log.
    pub(super) const fn shard(&self) -> usize {
        self.shard
    }

    /// The next entry of `row`, of which the first `announced` are there; its clock is [`DELIVERED`] if it gives no timestamp.
    pub(super) fn next(
        &mut self,
        row: &Region,
        announced: u64,
    ) -> Result<Option<(MessageKey, u64)>, CorruptTimestamp> {
        if announced <= self.read {
            return Ok(None);
        }
        let place = self.geometry.place(self.read);
        let (name, clock) = (row.load(place.start), row.load(place.start + 1));
        if clock == DELIVERED {
            self.read += 1;
            return Ok(Some((key_of(name), DELIVERED)));
        }
        if clock <= self.clock && !mutant!(RepeatTimestamp) {
            return Err(CorruptTimestamp { shard: self.shard, entry: self.read });
        }
        (self.read, self.clock) = (self.read + 1, clock);
        Ok(Some((key_of(name), clock)))
    }
}

/// The word that names a message.
///
/// # Panics
/// If the number has more bits than an entry has for it: a sender would have to send for 300 years.
pub(super) fn name_of((rank, number): MessageKey) -> u64 {
    assert!(number < 1 << NUMBER_BITS, "message {number} of a sender");
    (rank as u64) << NUMBER_BITS | number
}

/// The message that a word names.
pub(super) fn key_of(name: u64) -> MessageKey {
    (usize::try_from(name >> NUMBER_BITS).expect("16 bits"), name & ((1 << NUMBER_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::RegionId;

    #[test]
    fn entries_are_read_in_their_order_across_the_end_of_the_ring() {
        let geometry = LogGeometry { first: 3, entries: 4 };
        let row = Region::heap(RegionId(1), 3 + geometry.words());
        let (mut writer, mut reader) = (LogWriter::new(geometry), LogReader::new(0, geometry));
        assert_eq!(writer.publish(|_| ()), None);
        for round in 0..4_u64 {
            for i in 0..3 {
                writer.write(&row, (5, 3 * round + i), 10 * round + i + 1);
            }
            let mut ranges: Vec<Range<usize>> = Vec::new();
            let count = writer.publish(|words| ranges.push(words)).unwrap();
            assert!(ranges.len() <= 2 && ranges.iter().map(ExactSizeIterator::len).sum::<usize>() == 6);
            assert!(ranges.iter().all(|words| 3 <= words.start && words.end <= 3 + geometry.words()));
            for i in 0..3 {
                assert_eq!(reader.next(&row, count), Ok(Some(((5, 3 * round + i), 10 * round + i + 1))));
            }
            assert_eq!(reader.next(&row, count), Ok(None));
        }
        writer.write(&row, (5, 3), DELIVERED);
        assert_eq!(reader.next(&row, 13), Ok(Some(((5, 3), DELIVERED))), "between two timestamps");
        assert_eq!(reader.next(&row, 14), Err(CorruptTimestamp { shard: 0, entry: 13 }), "an earlier clock");
    }
}
