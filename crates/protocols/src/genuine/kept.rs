//! The part of a shard's log that another member of the shard may lack when the view ends (beside RamCast §3.5) \[G11\].
//!
//! With a majority for quorum a message may be delivered before all members of its shard have it. So each member keeps what it
//! has acknowledged until all of the shard have. That is bounded by the windows: a member that has not acknowledged a message
//! has not delivered it, so its sender does not use the record's place again \[G8\], and the record can be read where it is.

use std::collections::VecDeque;

use squall_fabric::window::WindowRecord;

use super::Timestamp;
use super::inbox::ShardInbox;
use super::log::{key_of, name_of};
use super::pending::MessageKey;
use super::placement::shards_of;

/// What a member has acknowledged of its shard's log, and another one has not, in the order of the log.
#[derive(Debug, Default)]
pub(super) struct KeptLog {
    /// The clocks ascend.
    entries: VecDeque<KeptEntry>,
    /// The timestamps of all entries, one after the other, of each by shard.
    clocks: VecDeque<u64>,
    /// How many timestamps were forgotten: `entries[i].first` counts from there.
    forgotten: u64,
    /// How many entries at the end have no place yet.
    unplaced: usize,
}

#[derive(Clone, Copy, Debug)]
struct KeptEntry {
    clock: u64,
    key: MessageKey,
    /// The shards whose timestamps the message has, as a set of bits; none if it was delivered in an earlier view.
    stamped: u64,
    /// Where its timestamps begin.
    first: u64,
    /// Where its record is, in its sender's window.
    place: Option<WindowRecord>,
}

impl KeptLog {
    /// Adds the next entry of the log; `clocks` are the timestamps of the shards in `stamped`, ascending by shard.
    pub(super) fn push(
        &mut self,
        clock: u64,
        key: MessageKey,
        stamped: u64,
        clocks: impl Iterator<Item = u64>,
    ) {
        let first = self.forgotten + self.clocks.len() as u64;
        self.clocks.extend(clocks);
        self.entries.push_back(KeptEntry { clock, key, stamped, first, place: None });
        self.unplaced += 1;
    }

    /// Notes where the records of the entries are that were added since the last call.
    pub(super) fn place(&mut self, inboxes: &[ShardInbox]) {
        let placed = self.entries.len() - std::mem::take(&mut self.unplaced);
        for entry in self.entries.range_mut(placed..).filter(|entry| entry.stamped != 0) {
            entry.place = inboxes[entry.key.0].place(entry.key.1);
        }
    }

    /// Forgets what all members of the shard have acknowledged.
    pub(super) fn forget(&mut self, acknowledged: u64) {
        while let Some(entry) = self.entries.pop_front_if(|entry| entry.clock <= acknowledged) {
            let count = entry.stamped.count_ones();
            self.forgotten += u64::from(count);
            self.clocks.drain(..count as usize);
        }
    }

    /// Returns the entries after this timestamp, in their order, as words; `inboxes` has the records.
    pub(super) fn after(&self, clock: u64, inboxes: &[ShardInbox]) -> impl Iterator<Item = (u64, Vec<u64>)> {
        let first = self.entries.partition_point(|entry| entry.clock <= clock);
        self.entries.range(first..).map(|entry| (entry.clock, self.words(entry, inboxes)))
    }

    fn words(&self, entry: &KeptEntry, inboxes: &[ShardInbox]) -> Vec<u64> {
        let mut words = vec![name_of(entry.key), entry.clock, entry.stamped];
        if entry.stamped == 0 {
            return words;
        }
        let first = usize::try_from(entry.first - self.forgotten).expect("a part of what is kept");
        words.extend(self.clocks.range(first..first + entry.stamped.count_ones() as usize));
        let place = entry.place.expect("[G5] the record of what is acknowledged is here");
        let record = inboxes[entry.key.0].bytes(place);
        words.push(record.len() as u64);
        words.extend(record.chunks(8).map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        }));
        words
    }
}

/// An entry of the log, as it comes from another member.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FetchedEntry {
    pub(super) key: MessageKey,
    /// Its timestamp of the own shard.
    pub(super) clock: u64,
    /// All timestamps of its message; none if that was delivered in an earlier view.
    pub(super) timestamps: Vec<Timestamp>,
    /// Header and payload.
    pub(super) record: Vec<u8>,
}

impl FetchedEntry {
    /// Returns the most words of an entry with a record of `record_max` bytes, in a group with this many shards.
    pub(super) const fn words_max(shards: usize, record_max: usize) -> usize {
        4 + shards + record_max.div_ceil(8)
    }

    /// Takes an entry from the front of `words`, in a group with this many shards; `None` if it is none. Not fuzzed: a list of words, of which only the two counts
    /// decide what is read.
    pub(super) fn take(words: &mut &[u64], shards: usize) -> Option<Self> {
        let ([name, clock, stamped], rest) = words.split_first_chunk()?;
        *words = rest;
        let mut entry =
            Self { key: key_of(*name), clock: *clock, timestamps: Vec::new(), record: Vec::new() };
        if *stamped == 0 {
            return Some(entry);
        }
        if shards_of(*stamped).any(|shard| shard >= shards) {
            return None;
        }
        let (clocks, rest) = words.split_at_checked(stamped.count_ones() as usize)?;
        let timestamps =
            shards_of(*stamped).zip(clocks).map(|(shard, clock)| Timestamp { clock: *clock, shard });
        entry.timestamps = timestamps.collect();
        let (length, rest) = rest.split_first()?;
        let length = usize::try_from(*length).ok()?;
        let (record, rest) = rest.split_at_checked(length.div_ceil(8))?;
        *words = rest;
        entry.record = record.iter().flat_map(|word| word.to_le_bytes()).take(length).collect();
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(kept: &KeptLog, after: u64) -> Vec<(u64, Vec<u64>)> {
        kept.after(after, &[]).collect()
    }

    #[test]
    fn what_all_have_acknowledged_is_forgotten() {
        let mut kept = KeptLog::default();
        for clock in 1..=4 {
            kept.push(clock, (0, clock), 0, std::iter::empty());
        }
        kept.push(9, (1, 7), 0, std::iter::empty());
        assert_eq!(clocks(&kept, 3), [(4, vec![4, 4, 0]), (9, vec![1 << 48 | 7, 9, 0])]);
        kept.forget(4);
        assert_eq!(clocks(&kept, 0), [(9, vec![1 << 48 | 7, 9, 0])]);
    }

    #[test]
    fn an_entry_is_taken_as_it_was_written() {
        let words = [2 << 48 | 5, 7, 0b101, 7, 3, 11, u64::from_le_bytes(*b"abcdefgh"), 0x6b6a69];
        let stamps = vec![Timestamp { clock: 7, shard: 0 }, Timestamp { clock: 3, shard: 2 }];
        let record = b"abcdefghijk".to_vec();
        let mut rest = &words[..];
        let expected = FetchedEntry { key: (2, 5), clock: 7, timestamps: stamps, record };
        assert_eq!(FetchedEntry::take(&mut rest, 3), Some(expected));
        assert!(rest.is_empty());
        assert!((1..words.len()).all(|length| FetchedEntry::take(&mut &words[..length], 3).is_none()));
    }
}
