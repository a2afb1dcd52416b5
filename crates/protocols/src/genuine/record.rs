//! A message's record in its sender's window: destinations, number and payload (RamCast §3.3) \[G2\].

use squall_fabric::NodeId;
use squall_fabric::window::Payload;

/// Bytes before the payload: the set of destination shards and the number, a word each.
pub(super) const HEADER_BYTES: usize = 16;

/// What a record says beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    /// The destination shards, as a set of bits.
    pub(super) destinations: u64,
    /// The message's place among all messages of its sender, in all views.
    pub(super) number: u64,
}

impl RecordHeader {
    /// Writes a record: the header, then the payload.
    pub(super) fn write(self, payload: &[u8], record: &mut Payload<'_>) {
        record.put(&self.destinations.to_le_bytes());
        record.put(&self.number.to_le_bytes());
        record.put(payload);
    }

    /// The header of a record and its payload; `None` if it is too short. Not fuzzed: two words of a fixed place, each of
    /// which may have any value.
    pub(super) fn split(record: &[u8]) -> Option<(Self, &[u8])> {
        let (destinations, rest) = record.split_first_chunk()?;
        let (number, payload) = rest.split_first_chunk()?;
        let header =
            Self { destinations: u64::from_le_bytes(*destinations), number: u64::from_le_bytes(*number) };
        Some((header, payload))
    }
}

/// The place of a message in the order of all messages \[G15\].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GenuinePosition {
    /// The view in which it is delivered.
    pub view: u64,
    /// Its final timestamp.
    pub timestamp: Timestamp,
}

/// A timestamp: the clock of a shard, and which shard, which breaks ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// The clock of the shard's leader.
    pub clock: u64,
    /// The shard.
    pub shard: usize,
}

/// A message, as it is delivered.
#[derive(Clone, Copy, Debug)]
pub struct GenuineMessage<'a> {
    /// Its sender.
    pub sender: NodeId,
    /// Its number among the sender's messages; messages of a sender are not delivered in the order of their numbers unless the
    /// sender waits for each delivery.
    pub number: u64,
    /// The destination shards, as a set of bits.
    pub destinations: u64,
    /// Its place in the order.
    pub position: GenuinePosition,
    /// The payload.
    pub bytes: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let header = RecordHeader { destinations: 0b101, number: 7 };
        let mut record = [0; HEADER_BYTES + 3];
        header.write(b"abc", &mut Payload::over(&mut record));
        assert_eq!(RecordHeader::split(&record), Some((header, &b"abc"[..])));
        assert_eq!(RecordHeader::split(&record[..15]), None);
    }
}
