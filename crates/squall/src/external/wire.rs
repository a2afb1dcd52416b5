//! What members and external clients send to each other: frames of a length, a head, and the bytes of messages.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What a client sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ExternalRequest {
    /// First request: send what is delivered, with a queue of this many bytes for this client.
    Observe { subgroup: String, queue_bytes: u64 },
    /// First request: accept messages from this client; it has this number, if it was connected before.
    Publish { subgroup: String, client: Option<u64> },
    /// Send these messages, which have consecutive numbers; their bytes follow, one message after the other.
    Messages { first: u64, lengths: Vec<u32> },
    /// First request: send what is delivered in this durable subgroup from this position on, earlier messages first.
    Replay { subgroup: String, view: u64, sequence: u64 },
    /// First request: connect to the application of a member of this subgroup.
    Connect { subgroup: String },
    /// A message for the application, whose bytes follow.
    Application,
}

/// What a member sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ExternalNotice {
    /// This member cannot serve the client; the members at these addresses may.
    Elsewhere { why: String, members: Vec<String> },
    /// This member has ended or is about to: try another one. Nothing further was sent.
    Ended(String),
    /// There is nothing to report, but the member is alive.
    Alive,
    /// To an observer: what is delivered from now on follows. The number identifies the start of the group.
    Observing { group: u64 },
    /// To an observer: a view, and the subgroup's members in it as numbers and ranks.
    View { id: u64, members: Vec<(u32, u64)> },
    /// To an observer: a message, whose bytes follow.
    Message { view: u64, node: u32, sequence: u64 },
    /// To an observer: this number of messages was dropped here.
    Lost { messages: u64 },
    /// To a publisher: its number at this member. Its first message there has number 0.
    Open { client: u64, message_max: u64 },
    /// To a publisher: all members have delivered the messages with numbers below this one.
    Delivered { through: u64 },
    /// To a publisher: the outcome of the messages below this number that are not delivered will not be known; no
    /// others were sent.
    Unknown { through: u64 },
    /// To a reader of a durable subgroup: the messages follow. The number is that of the group, whatever restarts it.
    Replaying { group: u64 },
    /// To a reader of a durable subgroup: a message, whose bytes follow; its sender's rank in the subgroup; and when it was received, in
    /// nanoseconds since 1970.
    Stored { view: u64, sequence: u64, sender: u32, received: u64 },
    /// To a reader of a durable subgroup: what is before this position is not kept.
    Compacted { view: u64, sequence: u64 },
    /// To a reader: the subgroup keeps no log.
    NoLog,
    /// The application has taken the connection.
    Serving,
    /// A message of the application, whose bytes follow.
    Application,
}

/// Appends a frame to `sink`.
///
/// # Panics
/// If it is longer than 4 GiB.
pub(super) fn write(head: &impl Serialize, payload: &[&[u8]], sink: &mut Vec<u8>) {
    let head = postcard::to_stdvec(head).expect("plain values serialise");
    let length = head.len() + payload.iter().map(|part| part.len()).sum::<usize>();
    sink.extend(u32::try_from(length).expect("frames are bounded").to_le_bytes());
    sink.extend(head);
    payload.iter().for_each(|part| sink.extend_from_slice(part));
}

/// Splits bytes into frames as they arrive. It holds no more than has arrived, and fails before it stores a frame
/// that is too long.
#[derive(Debug)]
pub(super) struct FrameReader {
    bytes: Vec<u8>,
    /// Where the next frame begins: `begin <= bytes.len()`.
    begin: usize,
    frame_bytes_max: usize,
}

impl FrameReader {
    pub(super) const fn new(frame_bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), begin: 0, frame_bytes_max }
    }

    /// Sets the length limit for frames from now on.
    pub(super) const fn set_max(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.begin));
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next head and the bytes that follow it, if all of it has arrived.
    ///
    /// # Errors
    /// If it is too long or cannot be read.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<(T, Vec<u8>)>> {
        let rest = &self.bytes[self.begin..];
        let Some((length, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.frame_bytes_max {
            return Err(invalid("a frame that is too long"));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let read = postcard::take_from_bytes(frame);
        let (head, payload) = read.map_err(|_| invalid("a frame that cannot be read"))?;
        let payload = payload.to_vec();
        self.begin += 4 + length;
        Ok(Some((head, payload)))
    }
}

/// Splits the bytes of [`ExternalRequest::Messages`] into messages.
///
/// # Errors
/// If the lengths do not add up to the bytes, or if there are too many or none.
pub(super) fn split<'a>(lengths: &[u32], mut payload: &'a [u8]) -> io::Result<Vec<&'a [u8]>> {
    if lengths.is_empty() || lengths.len() > BATCH_MESSAGES_MAX {
        return Err(invalid("a batch of too many messages, or of none"));
    }
    let mut parts = Vec::with_capacity(lengths.len());
    for length in lengths {
        let cut = payload.split_at_checked(*length as usize);
        let (part, rest) = cut.ok_or_else(|| invalid("a batch that is shorter than its lengths"))?;
        parts.push(part);
        payload = rest;
    }
    if payload.is_empty() { Ok(parts) } else { Err(invalid("a batch that is longer than its lengths")) }
}

pub(super) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The largest number of messages in a batch.
pub(super) const BATCH_MESSAGES_MAX: usize = 1024;
/// The largest number of bytes in a batch of several messages.
pub(super) const BATCH_BYTES_MAX: usize = 256 << 10;
/// More than any head takes: the lengths of a batch, or the addresses of a full group.
pub(super) const HEAD_BYTES_MAX: usize = 32 << 10;

/// Reads bytes as requests and as notices, for fuzzing; returns the number of frames. Fuzzed as `external`.
///
/// # Panics
/// If writing and reading again does not give back what was read.
#[doc(hidden)]
#[must_use]
pub fn read_foreign(bytes: &[u8]) -> usize {
    let requests = read_all::<ExternalRequest>(bytes, |request, payload| {
        if let ExternalRequest::Messages { lengths, .. } = request
            && let Ok(parts) = split(lengths, payload)
        {
            assert_eq!(parts.concat(), payload);
        }
    });
    requests + read_all::<ExternalNotice>(bytes, |_, _| ())
}

fn read_all<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    check: impl Fn(&T, &[u8]),
) -> usize {
    let mut frames = FrameReader::new(HEAD_BYTES_MAX);
    let mut count = 0;
    // In two parts, as streams bring them.
    let (first, second) = bytes.split_at(bytes.len() / 2);
    for part in [first, second] {
        frames.push(part);
        while let Ok(Some((head, payload))) = frames.next::<T>() {
            check(&head, &payload);
            let mut written = Vec::new();
            write(&head, &[&payload], &mut written);
            let mut again = FrameReader::new(2 * HEAD_BYTES_MAX);
            again.push(&written);
            assert_eq!(again.next().expect("what was written can be read"), Some((head, payload)));
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames are read as they were written, wherever the bytes are split; a part of a frame is not returned.
    #[test]
    fn frames_can_be_split_anywhere() {
        let notice = ExternalNotice::Message { view: 3, node: 8192, sequence: 1 << 40 };
        let mut bytes = Vec::new();
        write(&notice, &[b"two ", b"parts"], &mut bytes);
        write(&ExternalNotice::Alive, &[], &mut bytes);
        for cut in 0..=bytes.len() {
            let mut frames = FrameReader::new(64);
            let mut read = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                frames.push(part);
                read.extend(std::iter::from_fn(|| frames.next::<ExternalNotice>().unwrap()));
            }
            assert_eq!(read, [(notice.clone(), b"two parts".to_vec()), (ExternalNotice::Alive, vec![])]);
        }
    }

    /// A length above the limit is refused as soon as it is known, and memory is allocated only for bytes that
    /// arrive.
    #[test]
    fn long_frames_are_refused() {
        let mut frames = FrameReader::new(16);
        frames.push(&17_u32.to_le_bytes());
        assert!(frames.next::<ExternalRequest>().is_err());
        frames = FrameReader::new(16);
        frames.push(&16_u32.to_le_bytes());
        assert_eq!(frames.next::<ExternalRequest>().unwrap(), None);
    }

    /// Lengths that do not fit the bytes are refused.
    #[test]
    fn batches_have_the_length_that_they_claim() {
        assert_eq!(split(&[1, 0, 2], b"abc").unwrap(), [&b"a"[..], b"", b"bc"]);
        for lengths in [&[1, 3][..], &[1], &[], &[u32::MAX, 4], &[0; BATCH_MESSAGES_MAX + 1]] {
            assert!(split(lengths, b"abc").is_err(), "{} lengths", lengths.len());
        }
    }

    /// With any byte changed, frames are read or refused.
    #[test]
    fn foreign_bytes_do_no_harm() {
        let mut good = Vec::new();
        write(&ExternalRequest::Observe { subgroup: "log".into(), queue_bytes: 9 }, &[], &mut good);
        write(&ExternalRequest::Messages { first: 1, lengths: vec![1, 2] }, &[b"abc"], &mut good);
        assert!(read_foreign(&good) >= 2);
        for (at, byte) in (0..good.len()).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
            let mut changed = good.clone();
            changed[at] = byte;
            let _ = read_foreign(&changed);
        }
    }
}
