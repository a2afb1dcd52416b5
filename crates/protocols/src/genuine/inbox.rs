//! The records of one sender for the own shard, until they are delivered (RamCast §3.3, §3.7) \[G8\].

use std::collections::VecDeque;

use squall_fabric::trusted;
use squall_fabric::window::{Announcement, CorruptRecord, WindowReader, WindowRecord};

use super::record::RecordHeader;

/// A walk over the records of one sender. The window rule holds: a record is reported as done when it is delivered, and not
/// read after that.
#[derive(Debug)]
pub(super) struct ShardInbox {
    reader: WindowReader,
    /// Records taken; `done <= taken <= done + window`.
    taken: u64,
    /// Records taken before which all are done.
    done: u64,
    /// Those from `done` on, in the order of their numbers.
    records: VecDeque<TakenRecord>,
}

#[derive(Debug)]
struct TakenRecord {
    number: u64,
    place: WindowRecord,
    is_done: bool,
}

impl ShardInbox {
    pub(super) const fn new(reader: WindowReader) -> Self {
        Self { reader, taken: 0, done: 0, records: VecDeque::new() }
    }

    /// Takes the next record, if it is announced.
    pub(super) fn take(&mut self, announced: Announcement) -> Result<Option<RecordHeader>, CorruptRecord> {
        if announced.indexes <= self.taken {
            return Ok(None);
        }
        let corrupt = CorruptRecord { word: 0, expected: self.taken, found: self.taken, length: 0 };
        let place = self.reader.take(self.taken, announced)?.ok_or(corrupt)?;
        let (header, _) = RecordHeader::split(trusted::payload(&self.reader, place)).ok_or(corrupt)?;
        if self.records.back().is_some_and(|last| last.number >= header.number) {
            return Err(corrupt);
        }
        self.taken += 1;
        self.records.push_back(TakenRecord { number: header.number, place, is_done: false });
        Ok(Some(header))
    }

    /// The header and the payload of message `number`, which is taken and not done.
    ///
    /// # Panics
    /// If it is not.
    pub(super) fn message(&self, number: u64) -> (RecordHeader, &[u8]) {
        let place = self.undone_place(number).expect("[G8] the record is not done, so it is not reused");
        let record = trusted::payload(&self.reader, self.records[place].place);
        RecordHeader::split(record).expect("it was split when it was taken")
    }

    /// Where the record of message `number` is, unless it is done.
    pub(super) fn place(&self, number: u64) -> Option<WindowRecord> {
        self.undone_place(number).map(|place| self.records[place].place)
    }

    /// The record at a place that [`ShardInbox::place`] has returned: of a message that a member of the shard has not delivered
    /// \[G8\].
    pub(super) fn bytes(&self, place: WindowRecord) -> &[u8] {
        trusted::payload(&self.reader, place)
    }

    /// Message `number` is delivered, or was so before. Returns the greatest number up to which all records are done, if that
    /// has risen.
    pub(super) fn finish(&mut self, number: u64) -> Option<u64> {
        let place = self.undone_place(number)?;
        self.records[place].is_done = true;
        let mut settled = None;
        while self.records.front().is_some_and(|record| record.is_done) {
            settled = self.records.pop_front().map(|record| record.number);
            self.done += 1;
        }
        settled
    }

    /// Whether message `number`, which was taken, is done.
    pub(super) fn is_done(&self, number: u64) -> bool {
        self.undone_place(number).is_none()
    }

    /// The messages that are taken and not done, by their numbers.
    pub(super) fn undone(&self) -> impl Iterator<Item = u64> {
        self.records.iter().filter(|record| !record.is_done).map(|record| record.number)
    }

    /// How many records of the sender are done here, without a gap.
    pub(super) const fn done(&self) -> u64 {
        self.done
    }

    /// Where the record of message `number` is, unless it is done. Usually the sender's numbers have no gaps.
    fn undone_place(&self, number: u64) -> Option<usize> {
        let guess = usize::try_from(number.wrapping_sub(self.records.front()?.number)).unwrap_or(usize::MAX);
        let place = match self.records.get(guess) {
            Some(record) if record.number == number => guess,
            _ => self.records.binary_search_by_key(&number, |record| record.number).ok()?,
        };
        (!self.records[place].is_done).then_some(place)
    }
}
