//! Control messages between the two ends: adverts, acknowledgements, credits and others, all in one format (EXS
//! §II.B, §III).
//!
//! One message carries everything that is due. The receiver handles its parts in this order: credits, freed words,
//! withdrawal, adverts, too long, withdrawn, awaits advert, end, end seen.
//!
//! `Deviation:` (EXS §II.B, §III) ADVERT, ACK and credits are separate messages there, with an ACK after each copy.

use squall_fabric::{GRANT_BYTES, Grant};

use super::{Advert, Phase, StreamViolation};

/// A control message from one end to the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct StreamMessage {
    /// The number of receives that have been posted again.
    pub credits: u32,
    /// The number of ring words that are free again (the paper's `ACK`).
    pub freed: u64,
    /// The peer is to forget all adverts, and to answer `withdrawn`.
    pub withdraw: bool,
    /// Adverts of memory for data, in order; at most [`ADVERTS_PER_MESSAGE`].
    pub adverts: Vec<Advert>,
    /// The length of the head packet in bytes, if it is longer than the head receive, whose advert is used up \[E9\].
    pub too_long: Option<u64>,
    /// All adverts are forgotten. Everything written under them precedes this message.
    pub withdrawn: bool,
    /// For a limited time the sender sends nothing until an advert comes: the peer is to advertise as soon as its
    /// ring is empty.
    pub awaits_advert: bool,
    /// No data will follow.
    pub end: bool,
    /// The peer's `end` has been received, and so has all its data.
    pub end_seen: bool,
}

/// The maximum number of adverts in one message.
pub const ADVERTS_PER_MESSAGE: usize = 16;
/// The maximum length of a message in bytes.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + ADVERTS_PER_MESSAGE * ADVERT_BYTES;

const HEADER_BYTES: usize = 24;
const ADVERT_BYTES: usize = GRANT_BYTES + 40;
/// The first byte of each message, which detects stray data.
const MARK: u8 = 0xe5;

const WITHDRAW: u8 = 1;
const WITHDRAWN: u8 = 2;
const END: u8 = 4;
const END_SEEN: u8 = 8;
const TOO_LONG: u8 = 16;
const AWAITS_ADVERT: u8 = 32;
const FLAGS: u8 = 63;

impl StreamMessage {
    /// Clears the message and keeps its memory.
    pub fn clear(&mut self) {
        let mut adverts = std::mem::take(&mut self.adverts);
        adverts.clear();
        *self = Self { adverts, ..Self::default() };
    }

    /// Writes the message to the beginning of `bytes`, and returns its length.
    ///
    /// # Panics
    /// If the message has too many adverts, or `bytes` is shorter than [`MESSAGE_BYTES_MAX`].
    pub fn encode(&self, bytes: &mut [u8]) -> usize {
        let count = u8::try_from(self.adverts.len()).expect("few adverts");
        assert!(self.adverts.len() <= ADVERTS_PER_MESSAGE, "{count} adverts in one message");
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.withdraw, WITHDRAW)
            | flag(self.withdrawn, WITHDRAWN)
            | flag(self.awaits_advert, AWAITS_ADVERT)
            | flag(self.end, END)
            | flag(self.end_seen, END_SEEN)
            | flag(self.too_long.is_some(), TOO_LONG);
        bytes[..4].copy_from_slice(&[MARK, flags, count, 0]);
        bytes[4..8].copy_from_slice(&self.credits.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.freed.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.too_long.unwrap_or(0).to_le_bytes());
        let mut end = HEADER_BYTES;
        for advert in &self.adverts {
            encode_advert(advert, &mut bytes[end..end + ADVERT_BYTES]);
            end += ADVERT_BYTES;
        }
        end
    }

    /// Decodes a message. Fuzzed as `stream`.
    ///
    /// # Errors
    /// [`StreamViolation::Garbled`] if the bytes are not exactly one message.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<(), StreamViolation> {
        self.clear();
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(StreamViolation::Garbled)?;
        let [mark, flags, count, zero] = [header[0], header[1], header[2], header[3]];
        let count = usize::from(count);
        if mark != MARK || zero != 0 || flags & !FLAGS != 0 || count > ADVERTS_PER_MESSAGE {
            return Err(StreamViolation::Garbled);
        }
        if rest.len() != count * ADVERT_BYTES {
            return Err(StreamViolation::Garbled);
        }
        self.credits = u32::from_le_bytes(header[4..8].try_into().expect("4 bytes"));
        self.freed = word(header, 1);
        self.too_long = (flags & TOO_LONG != 0).then(|| word(header, 2));
        self.withdraw = flags & WITHDRAW != 0;
        self.withdrawn = flags & WITHDRAWN != 0;
        self.awaits_advert = flags & AWAITS_ADVERT != 0;
        self.end = flags & END != 0;
        self.end_seen = flags & END_SEEN != 0;
        for bytes in rest.chunks_exact(ADVERT_BYTES) {
            self.adverts.push(decode_advert(bytes)?);
        }
        Ok(())
    }
}

fn encode_advert(advert: &Advert, bytes: &mut [u8]) {
    bytes[..GRANT_BYTES].copy_from_slice(&advert.grant.to_bytes());
    let words = [advert.start, advert.length, advert.phase.0, advert.sequence, u64::from(advert.wait_all)];
    for (chunk, word) in bytes[GRANT_BYTES..].chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

fn decode_advert(bytes: &[u8]) -> Result<Advert, StreamViolation> {
    let (grant, rest) = bytes.split_at(GRANT_BYTES);
    let grant = Grant::from_bytes(grant).map_err(|_| StreamViolation::Garbled)?;
    let wait_all = match word(rest, 4) {
        0 => false,
        1 => true,
        _ => return Err(StreamViolation::Garbled),
    };
    let [start, length, phase, sequence] = [0, 1, 2, 3].map(|i| word(rest, i));
    Ok(Advert { grant, start, length, wait_all, phase: Phase(phase), sequence })
}

fn word(bytes: &[u8], i: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::{NodeId, RegionId};

    fn full_message() -> StreamMessage {
        let grant =
            Grant { owner: NodeId(1), peer: NodeId(2), region: RegionId(3), first: 4, words: 5, key: 6 };
        let advert = |i: u64| {
            let (length, phase, sequence) = (i + 1, Phase(2 * i), u64::MAX - i);
            Advert { grant, start: i, length, wait_all: i % 2 == 1, phase, sequence }
        };
        let adverts = (0..ADVERTS_PER_MESSAGE as u64).map(advert).collect();
        StreamMessage {
            credits: 7,
            freed: 1 << 40,
            withdraw: true,
            adverts,
            too_long: Some(9),
            withdrawn: false,
            awaits_advert: true,
            end: true,
            end_seen: false,
        }
    }

    #[test]
    fn a_decoded_message_equals_the_encoded_one() {
        for message in [StreamMessage::default(), full_message()] {
            let mut bytes = [0xaa; MESSAGE_BYTES_MAX];
            let length = message.encode(&mut bytes);
            let mut read = full_message();
            assert_eq!(read.decode(&bytes[..length]), Ok(()));
            assert_eq!(read, message);
        }
    }

    /// The decoder reads no bytes beyond the input, and checks every length.
    #[test]
    fn bad_bytes_are_refused() {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = full_message().encode(&mut bytes);
        let mut message = StreamMessage::default();
        for cut in 0..length {
            assert_eq!(message.decode(&bytes[..cut]), Err(StreamViolation::Garbled), "{cut} bytes");
        }
        for (at, value) in [(0, 0), (1, 0xff), (2, 17), (2, 15), (3, 1), (HEADER_BYTES + 72, 2)] {
            let mut bad = bytes;
            bad[at] = value;
            assert_eq!(message.decode(&bad[..length]), Err(StreamViolation::Garbled), "byte {at} is {value}");
        }
    }
}
