//! The relay: how a member gets a part of its shard's log from another one (beside RamCast §3.5) \[G11\].
//!
//! The member that asks raises one word in what it writes to its shard: which member it asks, and how many pieces it has taken. The
//! one that is asked publishes a mirror of a fixed size for it, and puts one piece of the log after the other there: each when
//! the one before is taken, so that the memory is bounded, whatever is missing.

use std::ops::Range;

use squall_fabric::{Column, Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region, RowLayout};

use super::GenuineSettings;
use super::kept::FetchedEntry;
use super::record::HEADER_BYTES;
use super::shard::ShardMember;
use crate::membership::MEMBERS_MAX;

/// Where things are in a relay's mirror.
#[derive(Clone, Copy, Debug)]
pub(super) struct RelayGeometry {
    /// How many pieces have been put here; announces the piece.
    pieces: Column<u64>,
    /// The first word of the piece: its length in words, and its entries.
    first: usize,
    length_max: usize,
    words: usize,
    shards: usize,
}

impl RelayGeometry {
    pub(super) fn new(settings: &GenuineSettings, shards: usize) -> Self {
        let mut layout = RowLayout::new();
        let pieces = layout.column();
        let length_max = ENTRIES * FetchedEntry::words_max(shards, HEADER_BYTES + settings.message_max);
        let first = layout.block(1 + length_max);
        Self { pieces, first, length_max, words: layout.words(), shards }
    }

    pub(super) const fn words(self) -> usize {
        self.words
    }

    /// Returns the entries of the piece after the first `taken` ones, if it is here; an error if it cannot be read.
    pub(super) fn piece(self, region: &Region, taken: u64) -> Option<Result<Vec<FetchedEntry>, ()>> {
        if self.pieces.load(region) <= taken {
            return None;
        }
        let length =
            usize::try_from(region.load(self.first)).ok().filter(|length| *length <= self.length_max);
        let Some(length) = length else { return Some(Err(())) };
        let words: Vec<u64> = (1..=length).map(|i| region.load(self.first + i)).collect();
        let (mut rest, mut entries) = (&words[..], Vec::new());
        while !rest.is_empty() {
            let Some(entry) = FetchedEntry::take(&mut rest, self.shards) else { return Some(Err(())) };
            entries.push(entry);
        }
        Some(Ok(entries))
    }

    /// Puts the next piece here, after the first `before` ones; returns its words.
    fn put(self, region: &Region, words: &[u64]) -> Range<usize> {
        region.store(self.first, words.len() as u64);
        for (i, word) in words.iter().enumerate() {
            region.store(self.first + 1 + i, *word);
        }
        self.first..self.first + 1 + words.len()
    }
}

/// A piece has space for this many of the longest entries.
const ENTRIES: usize = 8;

// A request has 16 bits for the rank, and for how many members were asked.
const _: () = assert!(MEMBERS_MAX <= 1 << 16);

/// Which member one asks for the log of its shard: one word, which only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogRequest {
    /// How many members it has asked, this one among them; not 0.
    pub(super) attempt: u64,
    /// The rank of the member that it asks.
    pub(super) provider: usize,
    /// How many of that one's pieces it has taken.
    pub(super) taken: u64,
}

impl LogRequest {
    pub(super) fn to_word(self) -> u64 {
        self.attempt << 48 | (self.provider as u64) << 32 | self.taken
    }

    /// Returns the request in a word; `None` if there is none.
    pub(super) fn from_word(word: u64) -> Option<Self> {
        let provider = usize::try_from(word >> 32 & 0xffff).expect("16 bits");
        let request = Self { attempt: word >> 48, provider, taken: word & 0xffff_ffff };
        (request.attempt > 0).then_some(request)
    }
}

/// What a member sends of its shard's log to another one.
#[derive(Debug)]
pub(super) struct LogRelay {
    /// The rank of the member that has asked.
    pub(super) reader: usize,
    node: NodeId,
    key: MirrorKey,
    mirror: MirrorId,
    region: Region,
    geometry: RelayGeometry,
    is_attached: bool,
    /// Pieces sent, and the timestamp up to which they are.
    sent: u64,
    clock: u64,
}

impl LogRelay {
    /// Publishes a relay for the member with rank `reader`, which is `node`, and has all of the log up to `clock`.
    pub(super) fn open<F: Fabric>(
        fabric: &mut F,
        (key, geometry): (MirrorKey, RelayGeometry),
        (reader, node): (usize, NodeId),
        clock: u64,
    ) -> Self {
        let region = fabric.register(geometry.words());
        let mirror = fabric.publish(key, &region, &[node]);
        Self { reader, node, key, mirror, region, geometry, is_attached: false, sent: 0, clock }
    }

    pub(super) fn handle_event(&mut self, event: &FabricEvent) {
        if let FabricEvent::Attached { key, reader } = event {
            self.is_attached |= *key == self.key && *reader == self.node;
        }
    }

    pub(super) const fn mirror(&self) -> MirrorId {
        self.mirror
    }

    /// Sends the next piece of what `shard` has kept, if there is one, and the reader has taken `taken` pieces; returns the amount of
    /// work done.
    pub(super) fn send<F: Fabric>(&mut self, fabric: &mut F, shard: &ShardMember, taken: u64) -> usize {
        if !self.is_attached || taken != self.sent {
            return 0;
        }
        let mut piece = Vec::new();
        for (clock, entry) in shard.kept_after(self.clock) {
            if piece.len() + entry.len() > self.geometry.length_max {
                break;
            }
            piece.extend(entry);
            self.clock = clock;
        }
        if piece.is_empty() {
            return 0;
        }
        let words = self.geometry.put(&self.region, &piece);
        fabric.push(self.mirror, words);
        self.sent += 1;
        self.geometry.pieces.store(&self.region, self.sent);
        fabric.push_word(self.mirror, self.geometry.pieces.word());
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::RegionId;

    #[test]
    fn requests_grow_from_piece_to_piece_and_from_member_to_member() {
        let request = |attempt, provider, taken| LogRequest { attempt, provider, taken };
        let last = MEMBERS_MAX - 1;
        let all = [request(1, last, 0), request(1, last, 9), request(last as u64, 0, 0)];
        let words = all.map(LogRequest::to_word);
        assert!(words.is_sorted());
        assert_eq!(words.map(LogRequest::from_word), all.map(Some));
        assert_eq!(LogRequest::from_word(0), None);
    }

    #[test]
    fn a_piece_that_cannot_be_read_is_refused() {
        let geometry = RelayGeometry::new(&GenuineSettings::new(2, 8), 2);
        let region = Region::heap(RegionId(1), geometry.words());
        assert_eq!(geometry.piece(&region, 0), None);
        let put = |words: &[u64]| {
            geometry.put(&region, words);
            geometry.pieces.store(&region, 1);
            geometry.piece(&region, 0).unwrap().map(|entries| entries.len())
        };
        assert_eq!(put(&[3, 7, 0, 4, 8, 0]), Ok(2));
        assert_eq!(put(&[3, 7, 0, 4, 8]), Err(()));
        assert_eq!(put(&[3, 7, 1, 7, u64::MAX]), Err(()));
        assert_eq!(put(&[3, 7, 0b10, 7, 0]), Ok(1));
        assert_eq!(put(&[3, 7, 0b100, 7, 0]), Err(()), "there is no such shard");
        region.store(geometry.first, u64::MAX);
        assert_eq!(geometry.piece(&region, 0), Some(Err(())));
    }
}
