//! Frames: the units of the stream between two nodes. The module [`super`] defines them.
//!
//! Encoding and parsing are pure functions over words, because every frame is a whole number of them.

use squall_fabric::{BreakReason, SEND_BYTES_MAX};

/// The words that every header has.
pub(super) const HEADER_WORDS: usize = 2;
/// The words of the longest header, that of a write.
pub(super) const HEADER_WORDS_MAX: usize = 5;

/// One frame without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpFrame {
    /// Words of a mirror for the receiver's attachment `attachment`; the payload follows.
    Mirror { attachment: u32, first: u32, words: u32 },
    /// A one-sided write; the payload follows.
    Write(WriteFrame),
    /// A two-sided send; the payload follows, padded to whole words.
    Send { connection: u32, length: u32, signal: bool },
    /// This many signalled posts of the receiver's connection have landed since it was connected.
    Ack { connection: u32, count: u64 },
    /// The sender has opened `channel` as its connection `number`.
    Open { number: u32, channel: u32 },
    /// The sender pairs its connection `number` with the receiver's `partner`.
    Accept { partner: u32, number: u32 },
    /// The sender's connection `number` is dead.
    Close { number: u32, reason: TcpCloseReason },
    /// The sender requests the mirror `key` of `words` words as its attachment `attachment`.
    Attach { attachment: u32, key: u64, words: u64 },
    /// The sender disconnects, because the receiver has violated the format; nothing follows.
    Goodbye,
    /// The sender has dropped its attachment `attachment` of the mirror `key`.
    Detach { attachment: u32, key: u64 },
    /// The sender will push nothing more to the receiver's attachment `attachment`, which was dropped.
    Detached { attachment: u32 },
    /// The sender has handled all words before this position of the receiver's stream.
    Handled { position: u64 },
    /// The sender ends deliberately; nothing follows.
    Farewell,
}

/// The header of a one-sided write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteFrame {
    pub(super) connection: u32,
    pub(super) key: u64,
    pub(super) region: u64,
    /// First word, counted from the beginning of the region.
    pub(super) first: u64,
    pub(super) words: u32,
    pub(super) immediate: Option<u32>,
    pub(super) signal: bool,
}

/// Why a connection is dead, as the end that ended it reports to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpCloseReason {
    Closed = 1,
    Refused = 2,
    ReceiverNotReady = 3,
    Protocol = 4,
}

impl From<TcpCloseReason> for BreakReason {
    fn from(reason: TcpCloseReason) -> Self {
        match reason {
            TcpCloseReason::Closed => Self::PeerClosed,
            TcpCloseReason::Refused => Self::Refused,
            TcpCloseReason::ReceiverNotReady => Self::ReceiverNotReady,
            TcpCloseReason::Protocol => Self::Protocol,
        }
    }
}

/// How a peer violated the transport protocol, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcpViolation(pub(super) &'static str);

/// Returns the header of a mirror frame, the kind that matters for speed.
#[inline]
pub(super) fn mirror_header(attachment: u32, first: u32, words: u32) -> [u64; HEADER_WORDS] {
    [head(MIRROR, 0, attachment), pair(first, words)]
}

impl TcpFrame {
    /// Returns the header, and the number of its words that are used.
    pub(super) fn encode(self) -> ([u64; HEADER_WORDS_MAX], usize) {
        let short = |first, second| ([first, second, 0, 0, 0], HEADER_WORDS);
        match self {
            Self::Mirror { attachment, first, words } => {
                let [head, tail] = mirror_header(attachment, first, words);
                short(head, tail)
            }
            Self::Write(write) => {
                let flags = flag(write.signal, SIGNAL) | flag(write.immediate.is_some(), IMMEDIATE);
                let first = head(WRITE, flags, write.connection);
                let second = pair(write.immediate.unwrap_or(0), write.words);
                ([first, second, write.key, write.region, write.first], HEADER_WORDS_MAX)
            }
            Self::Send { connection, length, signal } => {
                short(head(SEND, flag(signal, SIGNAL), connection), pair(length, 0))
            }
            Self::Ack { connection, count } => short(head(ACK, 0, connection), count),
            Self::Open { number, channel } => short(head(OPEN, 0, number), pair(channel, 0)),
            Self::Accept { partner, number } => short(head(ACCEPT, 0, partner), pair(number, 0)),
            Self::Close { number, reason } => short(head(CLOSE, 0, number), pair(reason as u32, 0)),
            Self::Attach { attachment, key, words } => ([head(ATTACH, 0, attachment), 0, key, words, 0], 4),
            Self::Goodbye => short(head(GOODBYE, 0, 0), 0),
            Self::Detach { attachment, key } => short(head(DETACH, 0, attachment), key),
            Self::Detached { attachment } => short(head(DETACHED, 0, attachment), 0),
            Self::Handled { position } => short(head(HANDLED, 0, 0), position),
            Self::Farewell => short(head(FAREWELL, 0, 0), 0),
        }
    }

    /// Parses the frame that begins at the first of `words`: returns the frame and the length of its header
    /// in words, or `None` if the header is not complete yet. Fuzzed as `tcp`.
    #[inline]
    pub(super) fn parse(words: &[u64]) -> Result<Option<(Self, usize)>, TcpViolation> {
        let &[head, tail, ref more @ ..] = words else { return Ok(None) };
        let [kind, flags, reserved @ ..] = low(head).to_le_bytes();
        let id = high(head);
        if reserved != [0, 0] {
            return Err(TcpViolation("a header with reserved bytes that are not zero"));
        }
        if kind == MIRROR && flags == 0 {
            return Ok(Some((
                Self::Mirror { attachment: id, first: low(tail), words: high(tail) },
                HEADER_WORDS,
            )));
        }
        Self::parse_other(kind, flags, id, tail, more)
    }

    fn parse_other(
        kind: u8,
        flags: u8,
        id: u32,
        tail: u64,
        more: &[u64],
    ) -> Result<Option<(Self, usize)>, TcpViolation> {
        let allowed = match kind {
            WRITE => SIGNAL | IMMEDIATE,
            SEND => SIGNAL,
            _ => 0,
        };
        if flags & !allowed != 0 {
            return Err(TcpViolation("a header with flags that its kind does not have"));
        }
        let signal = flags & SIGNAL != 0;
        let frame = match (kind, high(tail)) {
            (WRITE, words) => {
                let &[key, region, first, ..] = more else { return Ok(None) };
                let immediate = (flags & IMMEDIATE != 0).then_some(low(tail));
                let write = WriteFrame { connection: id, key, region, first, words, immediate, signal };
                return Ok(Some((Self::Write(write), HEADER_WORDS_MAX)));
            }
            (ATTACH, _) => {
                let &[key, words, ..] = more else { return Ok(None) };
                return Ok(Some((Self::Attach { attachment: id, key, words }, 4)));
            }
            (ACK, _) => Self::Ack { connection: id, count: tail },
            (SEND, 0) if low(tail) as usize > SEND_BYTES_MAX => {
                return Err(TcpViolation("a send that is longer than allowed"));
            }
            (SEND, 0) => Self::Send { connection: id, length: low(tail), signal },
            (OPEN, 0) => Self::Open { number: id, channel: low(tail) },
            (ACCEPT, 0) => Self::Accept { partner: id, number: low(tail) },
            (CLOSE, 0) => Self::Close { number: id, reason: close_reason(low(tail))? },
            (GOODBYE, 0) => Self::Goodbye,
            (DETACH, _) => Self::Detach { attachment: id, key: tail },
            (DETACHED, 0) => Self::Detached { attachment: id },
            (HANDLED, _) if id == 0 => Self::Handled { position: tail },
            (FAREWELL, 0) => Self::Farewell,
            _ => return Err(TcpViolation("a header of unknown kind")),
        };
        Ok(Some((frame, HEADER_WORDS)))
    }
}

fn close_reason(code: u32) -> Result<TcpCloseReason, TcpViolation> {
    Ok(match code {
        1 => TcpCloseReason::Closed,
        2 => TcpCloseReason::Refused,
        3 => TcpCloseReason::ReceiverNotReady,
        4 => TcpCloseReason::Protocol,
        _ => return Err(TcpViolation("an unknown close reason")),
    })
}

const fn head(kind: u8, flags: u8, id: u32) -> u64 {
    kind as u64 | (flags as u64) << 8 | (id as u64) << 32
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
const fn low(word: u64) -> u32 {
    word as u32
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn flag(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

const MIRROR: u8 = 1;
const WRITE: u8 = 2;
const SEND: u8 = 3;
const ACK: u8 = 4;
const OPEN: u8 = 5;
const ACCEPT: u8 = 6;
const CLOSE: u8 = 7;
const ATTACH: u8 = 8;
const GOODBYE: u8 = 9;
const DETACH: u8 = 10;
const DETACHED: u8 = 11;
const HANDLED: u8 = 12;
const FAREWELL: u8 = 13;

/// The post requests an acknowledgement [F6].
const SIGNAL: u8 = 1;
/// The write consumes a posted receive [F7].
const IMMEDIATE: u8 = 2;

// Payloads have the same byte order as memory.
const _: () = assert!(cfg!(target_endian = "little"), "the wire format is little-endian");

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<TcpFrame> {
        let write = WriteFrame {
            connection: 7,
            key: u64::MAX,
            region: 3,
            first: 1 << 40,
            words: 9,
            immediate: Some(u32::MAX),
            signal: true,
        };
        vec![
            TcpFrame::Mirror { attachment: 1, first: 2, words: u32::MAX },
            TcpFrame::Write(write),
            TcpFrame::Write(WriteFrame { immediate: None, signal: false, ..write }),
            TcpFrame::Send { connection: 1, length: 9, signal: true },
            TcpFrame::Ack { connection: 1, count: u64::MAX - 1 },
            TcpFrame::Open { number: u32::MAX, channel: 5 },
            TcpFrame::Accept { partner: 4, number: 3 },
            TcpFrame::Close { number: 2, reason: TcpCloseReason::Protocol },
            TcpFrame::Attach { attachment: 1, key: 2, words: 3 },
            TcpFrame::Goodbye,
            TcpFrame::Detach { attachment: 1, key: u64::MAX },
            TcpFrame::Detached { attachment: 2 },
            TcpFrame::Handled { position: u64::MAX },
            TcpFrame::Farewell,
        ]
    }

    #[test]
    fn frames_survive_a_round_trip() {
        for frame in frames() {
            let (words, count) = frame.encode();
            assert_eq!(TcpFrame::parse(&words[..count]), Ok(Some((frame, count))));
            // Words after it belong to the payload or to the next frame.
            assert_eq!(
                TcpFrame::parse(&[&words[..count], &[u64::MAX; 3]].concat()),
                Ok(Some((frame, count)))
            );
            for less in 0..count {
                assert_eq!(TcpFrame::parse(&words[..less]), Ok(None), "{less} words of {frame:?}");
            }
        }
    }

    #[test]
    fn invalid_headers_are_violations() {
        for (kind, flags, tail) in [
            (0, 0, 0),
            (14, 0, 0),
            (FAREWELL, 0, 1 << 32),
            (DETACHED, 0, 1 << 32),
            (MIRROR, 1, 0),
            (SEND, 2, 0),
            (SEND, 0, SEND_BYTES_MAX as u64 + 1),
            (OPEN, 0, 1 << 32),
            (CLOSE, 0, 5),
        ] {
            let parsed = TcpFrame::parse(&[head(kind, flags, 0), tail, 0, 0, 0]);
            assert!(parsed.is_err(), "kind {kind}, flags {flags}, tail {tail}: {parsed:?}");
        }
        assert!(TcpFrame::parse(&[head(MIRROR, 0, 0) | 1 << 16, 0]).is_err());
        assert!(TcpFrame::parse(&[head(HANDLED, 0, 1), 0]).is_err());
    }
}
