//! Frames: what one group commit writes.

use crate::check::{crc32, crc64};
use crate::mutation;

/// The length of a header.
pub const FRAME_HEADER_BYTES: usize = 64;

/// The header of a frame. Its check covers all other bytes of it, and nothing of it is used before that check holds [W1].
///
/// | bytes | field | | bytes | field |
/// |---|---|---|---|---|
/// | 0..4 | `magic` | | 32..40 | `chain` |
/// | 4..8 | `length` | | 40..48 | `body_check` |
/// | 8..16 | `log` | | 48..52 | `segment` |
/// | 16..24 | `number` | | 52..56 | `records` |
/// | 24..32 | `known_durable` | | 56..60 | `place`, and `is_opening` as bit 31 |
/// | | | | 60..64 | CRC-32C of bytes 0..60 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The log's id, random: a frame of another log in this file is none.
    pub log: u64,
    /// The segment: a frame from before the file was recycled is none.
    pub segment: u32,
    /// The frame's block within the segment: a frame that the disk has put elsewhere is none. Below 2^31.
    pub place: u32,
    /// Whether the frame opens a life. It follows the frame that `known_durable` names; any other follows the one before by number.
    pub is_opening: bool,
    /// The number, which no other frame ever has: the life in the upper 24 bits, then a count [W4].
    pub number: u64,
    /// The last frame that was durable, with all before it, when this one was written: `known_durable < number`.
    pub known_durable: u64,
    /// [`Self::check_of_header`] of the frame before; 0 for the first one.
    pub chain: u64,
    /// Bytes of the body, without padding.
    pub length: u32,
    /// Records in the body.
    pub records: u32,
    /// CRC-64 of the body.
    pub body_check: u64,
}

/// Why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// No frame begins here.
    NoMagic,
    /// A frame begins here, and the header's check fails.
    BadCheck,
}

impl FrameHeader {
    /// Writes the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC.to_le_bytes());
        put(4, &self.length.to_le_bytes());
        put(8, &self.log.to_le_bytes());
        put(16, &self.number.to_le_bytes());
        put(24, &self.known_durable.to_le_bytes());
        put(32, &self.chain.to_le_bytes());
        put(40, &self.body_check.to_le_bytes());
        put(48, &self.segment.to_le_bytes());
        put(52, &self.records.to_le_bytes());
        put(56, &(self.place | u32::from(self.is_opening) << 31).to_le_bytes());
        let check = crc32(&bytes[..60]);
        bytes[60..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a header. Fuzzed as `frame`.
    ///
    /// # Errors
    /// If `bytes` are none.
    pub fn from_bytes(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, FrameError> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if half(0) != MAGIC {
            return Err(FrameError::NoMagic);
        }
        if half(60) != crc32(&bytes[..60]) && !mutant!(LengthBeforeCheck) {
            return Err(FrameError::BadCheck);
        }
        let place = half(56);
        Ok(Self {
            log: word(8),
            segment: half(48),
            place: place & !OPENING,
            is_opening: place & OPENING != 0,
            number: word(16),
            known_durable: word(24),
            chain: word(32),
            length: half(4),
            records: half(52),
            body_check: word(40),
        })
    }

    /// Returns whether `body` is the frame's.
    #[must_use]
    pub fn has_body(&self, body: &[u8]) -> bool {
        body.len() == self.length as usize && crc64(body) == self.body_check
    }

    /// Returns what the next frame has as `chain`.
    #[must_use]
    pub fn check_of_header(&self) -> u64 {
        crc64(&self.to_bytes())
    }

    /// Returns how many bytes the frame takes in blocks of `block` bytes.
    #[must_use]
    pub fn padded(&self, block: usize) -> u64 {
        padded_bytes(self.length as usize, block)
    }
}

/// Returns how many bytes a frame with a body of `length` takes in blocks of `block` bytes.
#[must_use]
pub(crate) const fn padded_bytes(length: usize, block: usize) -> u64 {
    (FRAME_HEADER_BYTES + length).next_multiple_of(block) as u64
}

/// Returns the number of the first frame of a life [W4].
#[must_use]
pub const fn opening_number(life: u64) -> u64 {
    assert!(life < 1 << 24, "a log has 2^24 lives");
    life << 40
}

/// `SQFR`
const MAGIC: u32 = u32::from_le_bytes(*b"SQFR");
/// The bit of an opening in the field `place`.
const OPENING: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FrameHeader {
        let (log, segment, place, number) = (0x1122_3344_5566_7788, 7, 0x1234, opening_number(3) + 5);
        let (known_durable, chain, body_check) = (number - 2, 0xabcd, crc64(b"body"));
        let (is_opening, length, records) = (true, 4, 1);
        FrameHeader {
            log,
            segment,
            place,
            is_opening,
            number,
            known_durable,
            chain,
            length,
            records,
            body_check,
        }
    }

    #[test]
    fn headers_are_read_as_written() {
        let header = header();
        assert_eq!(FrameHeader::from_bytes(&header.to_bytes()), Ok(header));
        assert!(header.has_body(b"body") && !header.has_body(b"bodx") && !header.has_body(b"body "));
        assert_eq!((header.padded(64), header.padded(4096), padded_bytes(64, 64)), (128, 4096, 128));
    }

    /// [W1] The check covers every bit, so that no field is used that was not written.
    #[test]
    fn every_bit_is_checked() {
        let bytes = header().to_bytes();
        for bit in 0..8 * FRAME_HEADER_BYTES {
            let mut wrong = bytes;
            wrong[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 32 { FrameError::NoMagic } else { FrameError::BadCheck };
            assert_eq!(FrameHeader::from_bytes(&wrong), Err(expected), "bit {bit}");
        }
    }
}
