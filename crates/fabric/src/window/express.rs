//! Express records: a short message and its announcement in one write (Spindle §2.3).
//!
//! `Deviation:` Spindle pushes every message and its counter by separate writes.
//!
//! A record in the ring costs two writes, since there is no order within one \[F2\]: the record, and the word
//! that announces it. A short message that is alone in its window goes through the *express slot* instead, a
//! few words next to the announcement: the announcement as it would be pushed, a check word, and the payload.
//! The check covers all of them, so a reader that sees only a part of the write treats it as not arrived, and
//! reads it again.
//!
//! **The slot.** Word 0 is the announcement after the record, word 1 the check (56 bits) and the length in
//! bytes (8 bits); the payload follows. A mixture of one write and the previous one passes the check with
//! probability 2^-56. A *wide* slot is a cache line longer: it is for records of messages to shards, which have a header of their own.
//!
//! **Invariant.** The slot is written only when all members have delivered everything that was published
//! before (\[O5\], `freed == published`): so it holds the last record or one that is delivered everywhere.
//! The record is also in its owner's ring, and its words there are skipped by the other members, whose copies
//! do not hold it.

use std::ops::Range;

use super::{Announcement, record_words};
use crate::Region;
use crate::copy::LINE_WORDS;
use crate::layout::Word;

/// The words of the slot before the payload: announcement, and check with length.
const HEADER_WORDS: usize = 2;
const PAYLOAD_WORDS: usize = 5;

/// The express slot of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpressSlot {
    first: usize,
    payload_words: usize,
}

impl ExpressSlot {
    /// The words of a usual slot. Together with the announcement's own word they fill a cache line.
    pub const WORDS: usize = HEADER_WORDS + PAYLOAD_WORDS;
    /// The words of a wide slot: with the announcement's own word two cache lines.
    pub const WIDE_WORDS: usize = Self::WORDS + LINE_WORDS;
    /// The longest message that fits into a usual slot, in bytes.
    pub const BYTES_MAX: usize = 8 * PAYLOAD_WORDS;

    /// Returns the usual slot that begins at word `first` of its sender's region.
    #[must_use]
    pub const fn at(first: usize) -> Self {
        Self { first, payload_words: PAYLOAD_WORDS }
    }

    /// Returns the wide slot that begins at word `first` of its sender's region.
    ///
    /// ```
    /// use squall_fabric::window::ExpressSlot;
    ///
    /// let slot = ExpressSlot::wide(1);
    /// assert_eq!(slot.words(), 1..1 + ExpressSlot::WIDE_WORDS);
    /// assert_eq!(slot.bytes_max(), 104);
    /// ```
    #[must_use]
    pub const fn wide(first: usize) -> Self {
        Self { first, payload_words: PAYLOAD_WORDS + LINE_WORDS }
    }

    /// Returns the words of the slot.
    #[must_use]
    pub const fn words(self) -> Range<usize> {
        self.first..self.payload() + self.payload_words
    }

    /// Returns the longest message that fits, in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes_max(self) -> usize {
        8 * self.payload_words
    }

    /// Returns what the slot announces, if it is whole ([`ExpressSlot::is_whole`]).
    #[inline]
    #[must_use]
    pub fn announcement(self, row: &Region) -> Announcement {
        Announcement::from_word(row.load(self.first))
    }

    /// Returns whether the last write to the slot has arrived completely.
    #[must_use]
    pub fn is_whole(self, row: &Region) -> bool {
        let stored = row.load(self.first + 1);
        length(stored) <= self.bytes_max() && stored == self.check(row, length(stored))
    }

    /// Returns the length in bytes of the message in a slot that is whole.
    #[inline]
    pub(super) fn length(self, row: &Region) -> usize {
        length(row.load_relaxed(self.first + 1))
    }

    /// Returns the first word of the payload.
    #[inline]
    pub(super) const fn payload(self) -> usize {
        self.first + HEADER_WORDS
    }

    /// Stores the message of `length` bytes whose words begin at `payload` of the same region; returns the
    /// words that must reach the readers.
    pub(super) fn store(
        self,
        row: &Region,
        announcement: Announcement,
        payload: usize,
        length: usize,
    ) -> Range<usize> {
        for word in 0..length.div_ceil(8) {
            row.store_relaxed(self.payload() + word, row.load_relaxed(payload + word));
        }
        row.store_relaxed(self.first, announcement.to_word());
        // SYNC: pairs with the acquire in `is_whole`: in shared memory, a reader that sees this check sees
        // all that it covers.
        row.store(self.first + 1, self.check(row, length));
        self.first..self.payload() + length.div_ceil(8)
    }

    /// Computes the check word of a slot that holds `length` bytes.
    fn check(self, row: &Region, length: usize) -> u64 {
        let payload = (0..length.div_ceil(8)).map(|word| row.load(self.payload() + word));
        let sum = payload.fold(mix(row.load(self.first)), |sum, word| mix(sum ^ word));
        mix(sum ^ length as u64) & !LENGTH_MASK | length as u64
    }
}

const LENGTH_MASK: u64 = 0xff;

const fn length(check: u64) -> usize {
    (check & LENGTH_MASK) as usize
}

/// Mixes the bits of a word: exclusive-or of the halves of a product.
#[expect(clippy::cast_possible_truncation, reason = "the halves of the product")]
const fn mix(word: u64) -> u64 {
    let product = (word ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xd6e8_feb8_6659_fd93_u128;
    product as u64 ^ (product >> 64) as u64
}

// A record of the ring that goes through a slot must not have more words than the slot, and the check word has the length.
const _: () = assert!(record_words(ExpressSlot::BYTES_MAX) <= ExpressSlot::WORDS);
const _: () = assert!(record_words(ExpressSlot::wide(0).bytes_max()) <= ExpressSlot::WIDE_WORDS);
const _: () = assert!(ExpressSlot::wide(0).bytes_max() as u64 <= LENGTH_MASK);

#[cfg(test)]
mod tests {
    use super::super::{WindowGeometry, WindowReader};
    use super::*;
    use crate::{RegionId, trusted};

    /// For each pair of messages, all combinations of words that may have arrived: only the complete write is
    /// whole.
    #[test]
    fn a_part_of_a_write_is_not_whole() {
        let (sender, reader) = (Region::heap(RegionId(1), 16), Region::heap(RegionId(2), 16));
        let slot = ExpressSlot::at(3);
        let mut parts = 0;
        for (index, length) in
            (1..).zip((0..=ExpressSlot::BYTES_MAX).chain((0..=ExpressSlot::BYTES_MAX).rev()))
        {
            let before: Vec<u64> = slot.words().map(|word| reader.load(word)).collect();
            (0..5).for_each(|word| sender.store(11 + word, (index << 8) + word as u64 % 2));
            let announcement = Announcement { indexes: index, records: 7 };
            let words = slot.store(&sender, announcement, 11, length);
            let changed: Vec<usize> =
                words.clone().filter(|word| sender.load(*word) != reader.load(*word)).collect();
            for arrived in 0..1u32 << changed.len() {
                slot.words().zip(&before).for_each(|(word, value)| reader.store(word, *value));
                for (bit, word) in changed.iter().enumerate() {
                    if arrived >> bit & 1 == 1 {
                        reader.store(*word, sender.load(*word));
                    }
                }
                let whole = slot.is_whole(&reader) && slot.announcement(&reader) == announcement;
                assert_eq!(whole, arrived + 1 == 1 << changed.len(), "{length} bytes, {arrived:b}");
                parts += 1;
            }
            assert_eq!(slot.length(&reader), length);
        }
        assert!(parts > 1000, "{parts}");
    }

    #[test]
    fn memory_that_was_never_written_announces_nothing() {
        let row = Region::heap(RegionId(1), 8);
        assert_eq!(ExpressSlot::at(1).announcement(&row), Announcement::default());
    }

    /// A reader with memory of its own, which receives only what is pushed: messages of all lengths, alone
    /// and in batches, nulls among them, over many laps.
    #[test]
    fn readers_follow_ring_and_express_slot() {
        [(ExpressSlot::at(1), 60, 300), (ExpressSlot::wide(1), 130, 600)]
            .into_iter()
            .for_each(follow_ring_and_slot);
    }

    fn follow_ring_and_slot((slot, message_max, bytes): (ExpressSlot, usize, usize)) {
        let first = slot.words().end;
        let geometry =
            WindowGeometry { express: Some(slot), ..WindowGeometry::new(first, 5, message_max, bytes) };
        let words = first + geometry.words();
        let (sender, copy) = (Region::heap(RegionId(1), words), Region::heap(RegionId(2), words));
        let (mut writer, mut publisher) = trusted::window(&sender, geometry, None);
        let (mut reader, mut own) =
            (WindowReader::new(&copy, geometry), WindowReader::new(&sender, geometry));
        let push = |words: Range<usize>| words.for_each(|word| copy.store(word, sender.load(word)));
        let (mut draw, mut express, mut index, mut taken) = (1_u64, 0, 0, 0_u8);
        for round in 0..20_000_u64 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round | 1);
            let pick = usize::try_from(draw >> 33).expect("31 bits");
            for message in 0..pick % 3 {
                let length = (pick / 8 + 7 * message) % (message_max + 1);
                let _full_or_sent = writer.send(length, |bytes| bytes.fill(taken));
            }
            let nulls = publisher.announcement().indexes + u64::from(pick % 32 == 7);
            publisher.raise(nulls);
            if let Some(words) = publisher.publish_express() {
                express += 1;
                push(words);
                assert!(slot.is_whole(&copy), "round {round}");
                assert_eq!(slot.announcement(&copy), publisher.announcement());
            } else {
                publisher.publish(u64::MAX, push);
            }
            while index < publisher.announcement().indexes {
                let record = reader.take(index, publisher.announcement()).expect("in order");
                let here = own.take(index, publisher.announcement()).expect("in order");
                assert_eq!(
                    record.map(|record| trusted::payload(&reader, record).to_vec()),
                    here.map(|record| trusted::payload(&own, record).to_vec()),
                );
                if let Some(record) = record {
                    assert!(
                        trusted::payload(&reader, record).iter().all(|byte| *byte == taken),
                        "round {round}"
                    );
                }
                index += 1;
            }
            taken = taken.wrapping_add(1);
            if pick % 5 > 0 {
                publisher.free(index);
            }
        }
        assert!(express > 1000, "{express}");
    }
}
