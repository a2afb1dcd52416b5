//! What members and clients say to each other over streams: a request, then an answer, each a length and its bytes.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use squall_protocols::replica::{Position, SessionAnswer};

use super::ObjectError;

/// What can be asked of a member about one shard of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) object: String,
    pub(super) shard: u32,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum What {
    /// Open a session.
    Open,
    /// Apply an update, once.
    Update { session: u64, number: u64, update: Vec<u8> },
    /// Answer a query, from a state of this view or later.
    Query { view: u64, query: Vec<u8> },
    /// Send the state, if it reaches to the start of view `since`.
    State { since: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Opened(u64),
    Reply(Vec<u8>),
    /// It is applied, but the reply has so many bytes.
    ReplyTooLong(u64),
    Overtaken,
    Forgotten,
    /// The state follows in chunks.
    State {
        view: u64,
        sequence: u64,
        sessions: Vec<u8>,
        bytes: Option<u64>,
    },
    /// Ask again, or another: nothing was done.
    NotYet,
    /// This member is not in the shard.
    Elsewhere,
    /// The shard's state is lost, which these nodes held last.
    Lost(Vec<u32>),
    /// It cannot be done, and why.
    Failed(String),
}

/// An answer as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answered {
    /// The view that the member is in, by which a client learns of the next one.
    pub(super) view: u64,
    pub(super) answer: Answer,
}

impl From<SessionAnswer> for Answer {
    fn from(answer: SessionAnswer) -> Self {
        match answer {
            SessionAnswer::Opened(id) => Self::Opened(id),
            SessionAnswer::Reply(bytes) => Self::Reply(bytes),
            SessionAnswer::ReplyTooLong(bytes) => Self::ReplyTooLong(bytes),
            SessionAnswer::Overtaken => Self::Overtaken,
            SessionAnswer::Forgotten => Self::Forgotten,
        }
    }
}

pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>, ObjectError> {
    Ok(postcard::to_stdvec(value)?)
}

/// The reply of a machine, as [`super::machine::Typed`] encodes it.
pub(super) fn decode_reply<R: DeserializeOwned>(bytes: &[u8]) -> Result<R, ObjectError> {
    match bytes.split_first() {
        Some((1, reply)) => Ok(postcard::from_bytes(reply)?),
        _ => Err(ObjectError::Form("the members cannot read the update or query".into())),
    }
}

/// Writes a message.
pub(super) fn send(sink: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= FRAME_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "longer than 1 GiB"))?;
    sink.write_all(&[&length.to_le_bytes(), &bytes[..]].concat())
}

/// Reads a message. `None` if the other end has closed the stream instead.
pub(super) fn receive<T: DeserializeOwned>(source: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match source.read(&mut length)? {
        0 => return Ok(None),
        read => source.read_exact(&mut length[read..])?,
    }
    let length = u32::from_le_bytes(length);
    if length > FRAME_BYTES_MAX {
        return Err(invalid("a message longer than 1 GiB"));
    }
    // Memory grows with what really comes.
    let mut bytes = Vec::new();
    source.take(length.into()).read_to_end(&mut bytes)?;
    if bytes.len() != length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map(Some).map_err(|_| invalid("a message that cannot be read"))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The longest message: a reply of that size is no longer an answer but a transfer.
const FRAME_BYTES_MAX: u32 = 1 << 30;

/// Writes a state in chunks, each with its length; [`Chunks::end`] ends it, and without it the reader fails.
pub(super) struct Chunks<'a, W>(pub(super) &'a mut W);

impl<W: Write> Write for Chunks<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(CHUNK_BYTES_MAX)];
        if !bytes.is_empty() {
            self.0.write_all(&u32::try_from(bytes.len()).expect("a chunk is short").to_le_bytes())?;
            self.0.write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<W: Write> Chunks<'_, W> {
    pub(super) fn end(self) -> io::Result<()> {
        self.0.write_all(&0u32.to_le_bytes())
    }
}

const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Reads a state that comes in chunks, and counts its bytes.
pub(super) struct Dechunk<'a, R> {
    source: &'a mut R,
    /// Bytes left of the present chunk; none at the end.
    left: Option<usize>,
    pub(super) on_bytes: &'a mut dyn FnMut(u64),
    bytes: u64,
}

impl<'a, R: Read> Dechunk<'a, R> {
    pub(super) fn new(source: &'a mut R, on_bytes: &'a mut dyn FnMut(u64)) -> Self {
        Self { source, left: Some(0), on_bytes, bytes: 0 }
    }

    /// Reads the rest, which nobody has wanted; the stream is behind it then.
    pub(super) fn finish(mut self) -> io::Result<()> {
        io::copy(&mut self, &mut io::sink()).map(drop)
    }
}

impl<R: Read> Read for Dechunk<'_, R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if self.left == Some(0) {
            let mut length = [0; 4];
            self.source.read_exact(&mut length)?;
            self.left = Some(u32::from_le_bytes(length) as usize).filter(|length| *length > 0);
        }
        let Some(left) = self.left.filter(|_| !target.is_empty()) else { return Ok(0) };
        let count = left.min(target.len());
        let read = self.source.read(&mut target[..count])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left = Some(left - read);
        self.bytes += read as u64;
        (self.on_bytes)(self.bytes);
        Ok(read)
    }
}

/// Reads bytes as what comes to a member or from one, for fuzzing; returns how many kinds of messages they are. What is read
/// is read again from what is written of it.
#[doc(hidden)]
#[must_use]
pub fn read_foreign(bytes: &[u8]) -> usize {
    let (mut rest, mut kinds) = (bytes, 0);
    if let Ok(Some(request)) = receive::<Request>(&mut &*bytes) {
        check_written(&request);
        kinds += 1;
    }
    if let Ok(Some(answer)) = receive::<Answered>(&mut rest) {
        check_written(&answer);
        kinds += 1;
        // What follows may be a state, or nothing that makes sense.
        let _ = Dechunk::new(&mut rest, &mut |_| ()).finish();
    }
    kinds
}

fn check_written<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(message: &T) {
    let mut bytes = Vec::new();
    send(&mut bytes, message).expect("what was read is short enough");
    let again = receive(&mut &bytes[..]).expect("what was written can be read");
    assert_eq!(again.as_ref(), Some(message));
}

/// The position from which a joiner can use a state.
pub(super) const fn since(view: u64) -> Position {
    Position::start_of(view)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages come out as they went in; cut, they are errors, and the end of the stream is none.
    #[test]
    fn messages_survive_the_way() {
        let request =
            Request { object: "kv".into(), shard: 3, what: What::Query { view: 1, query: vec![7; 9] } };
        let mut bytes = Vec::new();
        send(&mut bytes, &request).unwrap();
        assert_eq!(receive::<Request>(&mut &bytes[..]).unwrap(), Some(request));
        assert_eq!(receive::<Request>(&mut &[][..]).unwrap(), None);
        for length in 1..bytes.len() {
            assert!(receive::<Request>(&mut &bytes[..length]).is_err(), "{length} bytes of {}", bytes.len());
        }
        assert!(receive::<Request>(&mut &[255; 9][..]).is_err());
    }

    /// A request, an answer, and a state that follows one; with any byte changed they are read or refused.
    #[test]
    fn foreign_bytes_do_no_harm() {
        let messages: [&[u8]; 3] = [
            &[8, 0, 0, 0, 2, b'k', b'v', 3, 2, 1, 1, 7],
            &[3, 0, 0, 0, 4, 2, 9],
            &[7, 0, 0, 0, 0, 5, 1, 0, 0, 1, 3, 3, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0],
        ];
        for message in messages {
            assert!(read_foreign(message) > 0, "{message:?}");
            for (at, byte) in (0..message.len()).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
                let mut changed = message.to_vec();
                changed[at] = byte;
                assert!(read_foreign(&changed) <= 2);
            }
        }
    }

    /// A state comes out as it went in; one that its giver did not end is an error.
    #[test]
    fn states_survive_the_way() {
        let state: Vec<u8> = (0..3_000_000u32).map(|byte| byte as u8).collect();
        let mut bytes = Vec::new();
        let mut chunks = Chunks(&mut bytes);
        chunks.write_all(&state).unwrap();
        let unfinished = chunks.0.clone();
        chunks.end().unwrap();
        let (mut read, mut counted) = (Vec::new(), 0);
        let mut count = |bytes| counted = bytes;
        Dechunk::new(&mut &bytes[..], &mut count).read_to_end(&mut read).unwrap();
        assert!(read == state && counted == state.len() as u64);
        assert!(Dechunk::new(&mut &unfinished[..], &mut |_| ()).finish().is_err());
    }
}
