//! The log of timestamps: what the leader of a shard writes to each destination shard, in its order (RamCast §3.3, §3.4)
//! \[G3\].
//!
//! `Deviation:` (§3.3) RamCast has one word of timestamp for each slot of each client's buffer. Here the timestamps of a leader
//! for one shard are a ring of entries, message and clock: readers take them in the order in which
//! they were given and never miss one, a batch is one write, and nothing is ever cleared.
//!
//! **Entries announce themselves.** There is no order within a write \[F2\], so of an entry either word may come first. Each has one
//! bit that changes with every lap of the ring (*parity*): a reader that has read the entry of the lap before at this place sees by the
//! parities of both words that both are of this lap. A place has never the words of two laps ago, since the writer is less than a lap
//! ahead, as the next paragraph says. So a timestamp is one write to each member, and no count has to follow.
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
use crate::membership::MEMBERS_MAX;

/// The clock of an entry that gives no timestamp: the message was delivered in an earlier view \[G17\].
pub(super) const DELIVERED: u64 = 0;

/// Words of an entry: sender and number, clock.
const ENTRY_WORDS: usize = 2;

/// Bits of an entry's first word for the number; the parity and the sender's rank have the rest.
const NUMBER_BITS: u32 = 48;

/// The bit of a word that says of which laps it is.
const PARITY: u64 = 1 << 63;

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

    /// The place of entry 0.
    const fn start(self) -> LogPlace {
        // Memory that was never written has the other parity.
        LogPlace { word: self.first, parity: PARITY }
    }

    /// The place after another one.
    const fn after(self, LogPlace { word, parity }: LogPlace) -> LogPlace {
        if word + ENTRY_WORDS < self.first + self.words() {
            LogPlace { word: word + ENTRY_WORDS, parity }
        } else {
            LogPlace { word: self.first, parity: parity ^ PARITY }
        }
    }
}

/// The place of an entry, in one lap of the ring. It is kept, since to compute it from the entry's number takes a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogPlace {
    word: usize,
    parity: u64,
}

/// The leader's end, for one destination shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogWriter {
    geometry: LogGeometry,
    /// Where the next entry is written, and the first one that is not published: at most a lap behind.
    next: LogPlace,
    unpublished: LogPlace,
}

impl LogWriter {
    pub(super) const fn new(geometry: LogGeometry) -> Self {
        Self { geometry, next: geometry.start(), unpublished: geometry.start() }
    }

    /// Writes the next entry.
    pub(super) fn write(&mut self, row: &Region, key: MessageKey, clock: u64) {
        let LogPlace { word, parity } = self.next;
        assert!(clock & PARITY == 0, "clock {clock}");
        row.store(word, name_of(key) | parity);
        row.store(word + 1, clock | parity);
        self.next = self.geometry.after(self.next);
    }

    /// Calls `pushed` for the words of what was written since the last call, at most twice.
    pub(super) fn publish(&mut self, mut pushed: impl FnMut(Range<usize>)) {
        let (from, to) = (self.unpublished, self.next);
        if from == to {
            return;
        }
        if from.parity == to.parity {
            pushed(from.word..to.word);
        } else {
            pushed(from.word..self.geometry.first + self.geometry.words());
            if to.word > self.geometry.first {
                pushed(self.geometry.first..to.word);
            }
        }
        self.unpublished = to;
    }
}

/// A reader's end.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogReader {
    shard: usize,
    geometry: LogGeometry,
    /// Entries read, and where the next one is.
    read: u64,
    next: LogPlace,
    /// The latest clock.
    clock: u64,
}

impl LogReader {
    pub(super) const fn new(shard: usize, geometry: LogGeometry) -> Self {
        Self { shard, geometry, read: 0, next: geometry.start(), clock: 0 }
    }

    /// The shard whose leader writes the log.
    pub(super) const fn shard(&self) -> usize {
        self.shard
    }

    /// The next entry of `row`, if it is there; its clock is [`DELIVERED`] if it gives no timestamp.
    #[inline]
    pub(super) fn next(&mut self, row: &Region) -> Result<Option<(MessageKey, u64)>, CorruptTimestamp> {
        let LogPlace { word, parity } = self.next;
        let (name, clock) = (row.load(word) ^ parity, row.load(word + 1) ^ parity);
        let is_here = (name | clock) & PARITY == 0 || mutant!(HalfTimestamp) && clock & PARITY == 0;
        if !is_here {
            return Ok(None);
        }
        let name = name & !PARITY;
        if clock == DELIVERED {
            self.advance();
            return Ok(Some((key_of(name), DELIVERED)));
        }
        if clock <= self.clock && !mutant!(RepeatTimestamp) {
            return Err(CorruptTimestamp { shard: self.shard, entry: self.read });
        }
        self.advance();
        self.clock = clock;
        Ok(Some((key_of(name), clock)))
    }

    const fn advance(&mut self) {
        (self.read, self.next) = (self.read + 1, self.geometry.after(self.next));
    }
}

/// The word that names a message, without a parity.
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

// A rank has 15 bits.
const _: () = assert!(MEMBERS_MAX <= 1 << 15);

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use squall_fabric::RegionId;

    use super::super::mutation::{GenuineMutation, with};
    use super::*;

    #[test]
    fn entries_are_read_in_their_order_across_the_end_of_the_ring() {
        let geometry = LogGeometry { first: 3, entries: 4 };
        let row = Region::heap(RegionId(1), 3 + geometry.words());
        let (mut writer, mut reader) = (LogWriter::new(geometry), LogReader::new(0, geometry));
        writer.publish(|_| panic!("nothing was written"));
        for round in 0..4_u64 {
            for i in 0..3 {
                assert_eq!(reader.next(&row), Ok(None));
                writer.write(&row, (5, 3 * round + i), 10 * round + i + 1);
                assert_eq!(reader.next(&row), Ok(Some(((5, 3 * round + i), 10 * round + i + 1))));
            }
            let mut ranges: Vec<Range<usize>> = Vec::new();
            writer.publish(|words| ranges.push(words));
            assert!(ranges.len() <= 2 && ranges.iter().map(ExactSizeIterator::len).sum::<usize>() == 6);
            assert!(ranges.iter().all(|words| 3 <= words.start && words.end <= 3 + geometry.words()));
        }
        writer.write(&row, (5, 3), DELIVERED);
        assert_eq!(reader.next(&row), Ok(Some(((5, 3), DELIVERED))), "between two timestamps");
        writer.write(&row, (5, 4), 1);
        assert_eq!(reader.next(&row), Err(CorruptTimestamp { shard: 0, entry: 13 }), "an earlier clock");
    }

    /// Of each write any words may have come, over several laps, in batches of all lengths: only whole entries count.
    fn parts_of_writes_do_not_count() {
        let geometry = LogGeometry { first: 0, entries: 3 };
        for lap in 0..7 {
            for count in 1..=3 {
                for arrived in 0..1_u32 << (2 * count) {
                    let (row, copy) = (Region::heap(RegionId(1), 6), Region::heap(RegionId(2), 6));
                    let (mut writer, mut reader) = (LogWriter::new(geometry), LogReader::new(0, geometry));
                    let mut clock = 0;
                    let mut write = |writer: &mut LogWriter| {
                        clock += 1;
                        writer.write(&row, (2, 100 + clock), clock);
                    };
                    for _ in 0..3 * lap {
                        write(&mut writer);
                        writer.publish(|words| words.for_each(|word| copy.store(word, row.load(word))));
                        assert!(matches!(reader.next(&copy), Ok(Some(_))));
                    }
                    (0..count).for_each(|_| write(&mut writer));
                    let mut words = Vec::new();
                    writer.publish(|pushed| words.extend(pushed));
                    for (bit, word) in words.into_iter().enumerate() {
                        if arrived >> bit & 1 == 1 {
                            copy.store(word, row.load(word));
                        }
                    }
                    let whole = (0..count).take_while(|entry| arrived >> (2 * entry) & 3 == 3).count() as u64;
                    for entry in 0..whole {
                        let clock = 3 * lap + 1 + entry;
                        assert_eq!(reader.next(&copy), Ok(Some(((2, 100 + clock), clock))));
                    }
                    assert_eq!(reader.next(&copy), Ok(None), "lap {lap}: {arrived:b} of {count}");
                }
            }
        }
    }

    #[test]
    fn an_entry_counts_when_all_of_it_is_here() {
        parts_of_writes_do_not_count();
        let half = || with(GenuineMutation::HalfTimestamp, || catch_unwind(parts_of_writes_do_not_count));
        assert!(half().is_err(), "half of an entry counts");
    }
}
