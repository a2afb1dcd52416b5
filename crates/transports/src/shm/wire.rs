//! The control messages of a link: rare, small, parsed with bounds. Data are never sent here.
//!
//! A message is its kind in one byte and a body of fixed length, little-endian. Some kinds come with one file
//! descriptor (SCM_RIGHTS), attached to their first byte.

use std::fmt;

use squall_fabric::BreakReason;

/// What a peer sent in violation of the protocol; it is disconnected, and the log contains this text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShmViolation(pub(super) &'static str);

impl fmt::Display for ShmViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A message from one end of a link to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShmMessage {
    /// The receiver is parked, and there is something for it.
    Doorbell,
    /// The first message: the sender's number, and the file of its link page for the receiver.
    Hello {
        node: u32,
        /// Where the receiver can probe whether it may read the sender's memory.
        witness: ProbeWord,
    },
    /// The sender has opened `channel` for the `index`-th time (from 1); with the file of its ring.
    Open { channel: u32, index: u64 },
    /// The sender's `index`-th opening of `channel` has ended.
    Close { channel: u32, index: u64, reason: BreakReason },
    /// The receiver may read this mirror of the sender; with its file.
    Mirror { key: u64, words: u64 },
    /// The sender has attached the receiver's mirror.
    Attached { key: u64 },
    /// The receiver may write this range of the sender; with the file of the region. Sent again, with `moves`
    /// one higher, when the region has moved to other pages.
    Granted { key: u64, region: u64, first: u64, words: u64, moves: u16 },
    /// That grant is revoked; the receiver unmaps it.
    Withdrawn { key: u64 },
    /// The sender has retired the mirror, before it knew that the receiver has attached it.
    Retire { key: u64 },
    /// The sender had not attached it, and never will.
    Retired { key: u64 },
    /// A write of the receiver, on the sender's `index`-th opening of `channel`, which the sender should have
    /// copied, is refused. That opening has ended.
    Refused { channel: u32, index: u64 },
}

/// A word in a process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeWord {
    pub(super) pid: u32,
    pub(super) address: u64,
    /// Its value, which is unpredictable.
    pub(super) word: u64,
}

impl ShmMessage {
    /// Returns whether a file comes with it.
    pub(super) const fn has_file(&self) -> bool {
        matches!(self, Self::Hello { .. } | Self::Open { .. } | Self::Mirror { .. } | Self::Granted { .. })
    }

    /// Returns the encoded message.
    pub(super) fn encode(&self) -> ShmFrame {
        let frame = ShmFrame::new(self.kind());
        match *self {
            Self::Doorbell => frame,
            Self::Hello { node, witness: ProbeWord { pid, address, word } } => {
                let frame = frame.u64(MAGIC).u16(VERSION).u32(node);
                frame.u32(pid).u64(address).u64(word)
            }
            Self::Open { channel, index } | Self::Refused { channel, index } => frame.u32(channel).u64(index),
            Self::Close { channel, index, reason } => frame.u32(channel).u64(index).u8(reason_code(reason)),
            Self::Mirror { key, words } => frame.u64(key).u64(words),
            Self::Attached { key }
            | Self::Withdrawn { key }
            | Self::Retire { key }
            | Self::Retired { key } => frame.u64(key),
            Self::Granted { key, region, first, words, moves } => {
                frame.u64(key).u64(region).u64(first).u64(words).u16(moves)
            }
        }
    }

    /// Parses one message at the beginning of `bytes`: returns the message and its length, or `None` if it is
    /// not complete yet. Fuzzed as `shm`.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, ShmViolation> {
        let Some((&kind, body)) = bytes.split_first() else { return Ok(None) };
        let length =
            *BODY_BYTES.get(usize::from(kind)).ok_or(ShmViolation("a message of an unknown kind"))?;
        if body.len() < length {
            return Ok(None);
        }
        let mut body = Body(body);
        let message = match kind {
            0 => Self::Doorbell,
            1 => Self::decode_hello(&mut body)?,
            2 => Self::Open { channel: body.u32(), index: body.u64() },
            3 => Self::Close { channel: body.u32(), index: body.u64(), reason: reason_of(body.u8())? },
            4 => Self::Mirror { key: body.u64(), words: body.u64() },
            5 => Self::Attached { key: body.u64() },
            6 => Self::Granted {
                key: body.u64(),
                region: body.u64(),
                first: body.u64(),
                words: body.u64(),
                moves: body.u16(),
            },
            7 => Self::Withdrawn { key: body.u64() },
            8 => Self::Retire { key: body.u64() },
            9 => Self::Retired { key: body.u64() },
            _ => Self::Refused { channel: body.u32(), index: body.u64() },
        };
        Ok(Some((message, 1 + length)))
    }

    fn decode_hello(body: &mut Body<'_>) -> Result<Self, ShmViolation> {
        if body.u64() != MAGIC {
            return Err(ShmViolation("a greeting of another protocol"));
        }
        if body.u16() != VERSION {
            return Err(ShmViolation("a greeting of another version of this transport"));
        }
        let node = body.u32();
        let witness = ProbeWord { pid: body.u32(), address: body.u64(), word: body.u64() };
        Ok(Self::Hello { node, witness })
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Doorbell => 0,
            Self::Hello { .. } => 1,
            Self::Open { .. } => 2,
            Self::Close { .. } => 3,
            Self::Mirror { .. } => 4,
            Self::Attached { .. } => 5,
            Self::Granted { .. } => 6,
            Self::Withdrawn { .. } => 7,
            Self::Retire { .. } => 8,
            Self::Retired { .. } => 9,
            Self::Refused { .. } => 10,
        }
    }
}

/// An encoded message.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShmFrame {
    bytes: [u8; FRAME_BYTES_MAX],
    length: usize,
}

impl ShmFrame {
    const fn new(kind: u8) -> Self {
        let mut bytes = [0; FRAME_BYTES_MAX];
        bytes[0] = kind;
        Self { bytes, length: 1 }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn push(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        self
    }

    fn u8(self, value: u8) -> Self {
        self.push(&[value])
    }
    fn u16(self, value: u16) -> Self {
        self.push(&value.to_le_bytes())
    }
    fn u32(self, value: u32) -> Self {
        self.push(&value.to_le_bytes())
    }
    fn u64(self, value: u64) -> Self {
        self.push(&value.to_le_bytes())
    }
}

/// The body of a complete message.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().expect("the length of the body was checked");
        self.0 = rest;
        *taken
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

const fn reason_code(reason: BreakReason) -> u8 {
    match reason {
        BreakReason::PeerClosed => 0,
        BreakReason::Unreachable => 1,
        BreakReason::ReceiverNotReady => 2,
        BreakReason::Refused => 3,
        BreakReason::Protocol => 4,
        BreakReason::Shortage => 5,
        BreakReason::Removed => 6,
    }
}

fn reason_of(code: u8) -> Result<BreakReason, ShmViolation> {
    Ok(match code {
        0 => BreakReason::PeerClosed,
        1 => BreakReason::Unreachable,
        2 => BreakReason::ReceiverNotReady,
        3 => BreakReason::Refused,
        4 => BreakReason::Protocol,
        5 => BreakReason::Shortage,
        6 => BreakReason::Removed,
        _ => return Err(ShmViolation("an unknown close reason")),
    })
}

/// The bytes after the kind, by kind.
const BODY_BYTES: [usize; 11] = [0, 34, 12, 13, 16, 8, 34, 8, 8, 8, 12];
const FRAME_BYTES_MAX: usize = 35;
/// "squall-m" and a version: both ends of a link are of one build of one group; this detects errors.
const MAGIC: u64 = u64::from_le_bytes(*b"squall-m");
const VERSION: u16 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ShmMessage; 11] = [
        ShmMessage::Doorbell,
        ShmMessage::Hello { node: 7, witness: ProbeWord { pid: 1, address: 2, word: 3 } },
        ShmMessage::Open { channel: 1, index: u64::MAX },
        ShmMessage::Close { channel: u32::MAX, index: 2, reason: BreakReason::Refused },
        ShmMessage::Mirror { key: 3, words: 4 },
        ShmMessage::Attached { key: 5 },
        ShmMessage::Granted { key: 6, region: 7, first: 8, words: 9, moves: 10 },
        ShmMessage::Withdrawn { key: 11 },
        ShmMessage::Retire { key: 12 },
        ShmMessage::Retired { key: 13 },
        ShmMessage::Refused { channel: 14, index: 15 },
    ];

    #[test]
    fn messages_survive_a_round_trip_however_they_are_cut() {
        let stream: Vec<u8> = ALL.iter().flat_map(|message| message.encode().bytes().to_vec()).collect();
        let mut at = 0;
        for message in ALL {
            let length = message.encode().bytes().len();
            for cut in 0..length {
                assert_eq!(ShmMessage::decode(&stream[at..at + cut]), Ok(None), "{message:?} cut at {cut}");
            }
            assert_eq!(ShmMessage::decode(&stream[at..]), Ok(Some((message, length))));
            at += length;
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_a_violation() {
        // All kinds and pseudo-random bodies: no panic, and never more than the given bytes.
        let mut state = 1u64;
        for kind in 0..=255u8 {
            for _ in 0..100 {
                let mut bytes = vec![kind];
                for _ in 0..state % 50 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    bytes.push((state >> 33) as u8);
                }
                state = state.wrapping_add(1);
                if let Ok(Some((_, length))) = ShmMessage::decode(&bytes) {
                    assert!(length <= bytes.len());
                }
            }
        }
        assert_eq!(ShmMessage::decode(&[11]), Err(ShmViolation("a message of an unknown kind")));
        assert_eq!(
            ShmMessage::decode(b"\x01GET / HTTP/1.1\r\nHost: squall.invalid\r\n\r\n"),
            Err(ShmViolation("a greeting of another protocol"))
        );
    }
}
