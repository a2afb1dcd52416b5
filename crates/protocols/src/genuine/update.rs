//! An update of an object in several shards, as it is multicast to them (RamCast §2.2; the object is Derecho's, app. A).
//!
//! All of its shards get the whole message, and each applies its own parts, in their order.

use super::SHARDS_MAX;
use crate::words::{put_bytes, put_words, take_byte, take_bytes, take_word};

/// What a part does in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// It changes the shard's state.
    Update,
    /// It reads the shard's state.
    Query,
}

/// A part for one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdatePart<'a> {
    /// The shard.
    pub shard: usize,
    /// What it does there.
    pub kind: PartKind,
    /// Its bytes, whose form is the application's.
    pub bytes: &'a [u8],
}

/// An update with parts for one or more shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardedUpdate<'a> {
    /// Its number among those of its caller, the same if it is sent again.
    pub number: u64,
    /// The caller has all replies to its updates with lower numbers: `known <= number`.
    pub known: u64,
    parts: &'a [u8],
}

/// The bytes of an update without parts.
pub const UPDATE_HEADER_BYTES: usize = 16;

/// The bytes of a part without its own.
pub const PART_HEADER_BYTES: usize = 6;

// A part has a byte for its shard.
const _: () = assert!(SHARDS_MAX <= 1 << 8);

impl<'a> ShardedUpdate<'a> {
    /// Returns the update as bytes.
    ///
    /// # Panics
    /// If a shard's number is above 255.
    #[must_use]
    pub fn encode<'p>(number: u64, known: u64, parts: impl IntoIterator<Item = UpdatePart<'p>>) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_words(&[number, known], &mut bytes);
        for UpdatePart { shard, kind, bytes: part } in parts {
            bytes.push(u8::try_from(shard).expect("few shards"));
            bytes.push(u8::from(kind == PartKind::Query));
            put_bytes(part, &mut bytes);
        }
        bytes
    }

    /// Reads an update; `None` if the bytes are none. Fuzzed as `sharded_object`.
    #[must_use]
    pub fn decode(mut bytes: &'a [u8]) -> Option<Self> {
        let (number, known) = (take_word(&mut bytes)?, take_word(&mut bytes)?);
        let update = Self { number, known, parts: bytes };
        while !bytes.is_empty() {
            take_part(&mut bytes)?;
        }
        (known <= number).then_some(update)
    }

    /// Returns the parts for `shard`, in their order.
    pub fn parts(&self, shard: usize) -> impl Iterator<Item = UpdatePart<'a>> {
        let mut rest = self.parts;
        let parts = std::iter::from_fn(move || take_part(&mut rest));
        parts.filter(move |part| part.shard == shard)
    }
}

fn take_part<'a>(from: &mut &'a [u8]) -> Option<UpdatePart<'a>> {
    let shard = usize::from(take_byte(from)?);
    let kind = match take_byte(from)? {
        0 => PartKind::Update,
        1 => PartKind::Query,
        _ => return None,
    };
    Some(UpdatePart { shard, kind, bytes: take_bytes(from)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let part = |shard, kind, bytes| UpdatePart { shard, kind, bytes };
        let parts = [
            part(2, PartKind::Update, &b"ab"[..]),
            part(0, PartKind::Query, b""),
            part(2, PartKind::Query, b"c"),
        ];
        let bytes = ShardedUpdate::encode(7, 5, parts);
        assert_eq!(bytes.len(), UPDATE_HEADER_BYTES + 3 * PART_HEADER_BYTES + 3);
        let update = ShardedUpdate::decode(&bytes).unwrap();
        assert_eq!((update.number, update.known), (7, 5));
        assert_eq!(update.parts(2).collect::<Vec<_>>(), [parts[0], parts[2]]);
        assert_eq!(update.parts(1).count(), 0);
        assert_eq!(ShardedUpdate::decode(&bytes[..bytes.len() - 1]), None, "cut short");
        assert_eq!(ShardedUpdate::decode(&ShardedUpdate::encode(4, 5, [])), None, "it knows too much");
        let mut other = bytes;
        other[UPDATE_HEADER_BYTES + 1] = 2;
        assert_eq!(ShardedUpdate::decode(&other), None, "an unknown kind");
    }
}
