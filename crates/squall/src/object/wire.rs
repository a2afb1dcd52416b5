//! What members and clients send to each other over a connection: a request, and some time later an answer with the
//! request's number.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use squall_protocols::replica::{ShardAnswer, ShardRequest};

use super::ObjectError;
use super::frame_stream::{first_frame, invalid};

/// A request as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ObjectRequest<'a> {
    /// The number by which its answer is recognised on this connection.
    pub(super) call: u64,
    pub(super) object: &'a str,
    pub(super) shard: u32,
    pub(super) request: ShardRequest,
}

impl<'a> ObjectRequest<'a> {
    /// Appends the frame.
    pub(super) fn write(&self, frame: &mut Vec<u8>) {
        frame.extend(self.call.to_le_bytes());
        frame.extend(self.shard.to_le_bytes());
        frame.extend(u32::try_from(self.object.len()).expect("names are short").to_le_bytes());
        frame.extend(self.object.as_bytes());
        self.request.encode(frame);
    }

    /// Reads a frame.
    pub(super) fn read(frame: &'a [u8]) -> io::Result<Self> {
        let read = || {
            let (call, rest) = frame.split_first_chunk()?;
            let (shard, rest) = rest.split_first_chunk()?;
            let (length, rest) = rest.split_first_chunk()?;
            let (object, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            Some(Self {
                call: u64::from_le_bytes(*call),
                object: std::str::from_utf8(object).ok()?,
                shard: u32::from_le_bytes(*shard),
                request: ShardRequest::decode(rest)?,
            })
        };
        read().ok_or_else(|| invalid("a request that cannot be read"))
    }
}

/// An answer as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ObjectReply {
    pub(super) call: u64,
    /// The view that the member is in, by which a client learns of the next one.
    pub(super) view: u64,
    pub(super) answer: ShardAnswer,
}

impl ObjectReply {
    /// Appends the frame.
    pub(super) fn write(&self, frame: &mut Vec<u8>) {
        frame.extend(self.call.to_le_bytes());
        frame.extend(self.view.to_le_bytes());
        self.answer.encode(frame);
    }

    /// Reads a frame.
    pub(super) fn read(frame: &[u8]) -> io::Result<Self> {
        let read = || {
            let (call, rest) = frame.split_first_chunk()?;
            let (view, rest) = rest.split_first_chunk()?;
            let answer = ShardAnswer::decode(rest)?;
            Some(Self { call: u64::from_le_bytes(*call), view: u64::from_le_bytes(*view), answer })
        };
        read().ok_or_else(|| invalid("an answer that cannot be read"))
    }
}

/// Serialises an update for `send`, in memory that this thread uses again.
pub(super) fn with_encoded<R>(
    value: &impl Serialize,
    send: impl FnOnce(&[u8]) -> R,
) -> Result<R, ObjectError> {
    thread_local!(static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) });
    let mut scratch = SCRATCH.take();
    scratch.clear();
    let bytes = postcard::to_extend(value, scratch)?;
    let result = send(&bytes);
    if bytes.capacity() <= SCRATCH_MAX {
        SCRATCH.set(bytes);
    }
    Ok(result)
}

pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>, ObjectError> {
    Ok(postcard::to_stdvec(value)?)
}

/// How much memory a thread keeps for its next update.
const SCRATCH_MAX: usize = 256 << 10;

/// Reads the reply of a machine, as [`super::machine::TypedMachine`] encodes it. Not fuzzed: its type is the application's.
pub(super) fn decode_reply<R: DeserializeOwned>(bytes: &[u8]) -> Result<R, ObjectError> {
    match bytes.split_first() {
        Some((1, reply)) => Ok(postcard::from_bytes(reply)?),
        _ => Err(ObjectError::Form("the members cannot read the update or the query".into())),
    }
}

/// Writes a state in chunks, each with its length. [`ChunkWriter::end`] ends the state; without that the reader
/// fails.
///
/// Small pieces are gathered, since each write to the sink may wake the reader; but a piece that comes [`GATHER_MAX`] or
/// more after the last write to the sink is sent at once: a reader must not take a provider for dead that writes little.
pub(super) struct ChunkWriter<'a, W> {
    sink: &'a mut W,
    /// The chunk that is being gathered, after space for its length.
    chunk: Vec<u8>,
    /// When something was last written to the sink.
    written: Instant,
}

impl<'a, W: Write> ChunkWriter<'a, W> {
    pub(super) fn new(sink: &'a mut W) -> Self {
        Self { sink, chunk: vec![0; LENGTH_BYTES], written: Instant::now() }
    }

    /// Writes the chunk that has been gathered.
    fn write_chunk(&mut self) -> io::Result<()> {
        let bytes = self.chunk.len() - LENGTH_BYTES;
        if bytes > 0 {
            self.chunk[..LENGTH_BYTES].copy_from_slice(&length(bytes));
            self.sink.write_all(&self.chunk)?;
            self.chunk.truncate(LENGTH_BYTES);
            self.written = Instant::now();
        }
        Ok(())
    }

    pub(super) fn end(mut self) -> io::Result<()> {
        self.write_chunk()?;
        self.sink.write_all(&length(0))
    }
}

impl<W: Write> Write for ChunkWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() >= GATHER_BYTES {
            let bytes = &bytes[..bytes.len().min(CHUNK_BYTES_MAX)];
            self.write_chunk()?;
            self.sink.write_all(&length(bytes.len()))?;
            self.sink.write_all(bytes)?;
            self.written = Instant::now();
            return Ok(bytes.len());
        }
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= GATHER_BYTES || self.written.elapsed() >= GATHER_MAX {
            self.write_chunk()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_chunk()?;
        self.sink.flush()
    }
}

/// Returns what precedes a chunk of this many bytes; 0 ends the state.
fn length(bytes: usize) -> [u8; LENGTH_BYTES] {
    u32::try_from(bytes).expect("a chunk is short").to_le_bytes()
}

const LENGTH_BYTES: usize = 4;
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Longer pieces are chunks of their own, without a copy.
const GATHER_BYTES: usize = 64 << 10;
const GATHER_MAX: Duration = Duration::from_millis(20);

/// Reads a state that arrives in chunks, and counts its bytes.
pub(super) struct ChunkReader<'a, R> {
    source: &'a mut R,
    /// The bytes left of the current chunk; `None` at the end.
    left: Option<usize>,
    pub(super) on_bytes: &'a mut dyn FnMut(u64),
    bytes: u64,
}

impl<'a, R: Read> ChunkReader<'a, R> {
    pub(super) fn new(source: &'a mut R, on_bytes: &'a mut dyn FnMut(u64)) -> Self {
        Self { source, left: Some(0), on_bytes, bytes: 0 }
    }

    /// Reads and discards the rest, so that the stream is positioned after it.
    pub(super) fn finish(mut self) -> io::Result<()> {
        io::copy(&mut self, &mut io::sink()).map(drop)
    }
}

impl<R: Read> Read for ChunkReader<'_, R> {
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

/// Reads bytes as a request and as a reply, and returns how many of the two succeed.
/// Fuzzed as `objects`.
///
/// # Panics
/// If a decoded value differs after it was written and read again.
#[doc(hidden)]
#[must_use]
pub fn read_foreign(bytes: &[u8]) -> usize {
    let mut kinds = 0;
    if let Ok(asked) = ObjectRequest::read(bytes) {
        let mut frame = Vec::new();
        asked.write(&mut frame);
        assert_eq!(ObjectRequest::read(&frame).ok(), Some(asked));
        kinds += 1;
    }
    if let Ok(answered) = ObjectReply::read(bytes) {
        let mut frame = Vec::new();
        answered.write(&mut frame);
        assert_eq!(ObjectReply::read(&frame).ok(), Some(answered));
        kinds += 1;
    }
    if let Ok(Some(frame)) = first_frame(bytes) {
        assert_eq!(frame, &bytes[4..4 + frame.len()]);
    }
    // An answer may be followed by a state, or by arbitrary bytes.
    let _ = ChunkReader::new(&mut &*bytes, &mut |_| ()).finish();
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages are read as they were written; a truncated message is an error; with any byte changed, a message is
    /// read or refused.
    #[test]
    fn messages_are_read_as_they_were_written() {
        let request = ShardRequest::Query { view: 1, query: [7; 9].into() };
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        ObjectRequest { call: 5, object: "kv", shard: 3, request }.write(&mut asked);
        ObjectReply { call: 5, view: 2, answer: ShardAnswer::Reply(vec![1, 2]) }.write(&mut answered);
        for frame in [asked, answered] {
            assert!(read_foreign(&frame) > 0, "{frame:?}");
            assert!((0..frame.len()).all(|length| read_foreign(&frame[..length]) == 0));
            for (at, byte) in (0..frame.len()).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
                let mut changed = frame.clone();
                changed[at] = byte;
                assert!(read_foreign(&changed) <= 2);
            }
        }
    }

    /// A state is read as it was written; a state that its provider did not end is an error.
    #[test]
    fn states_are_read_as_they_were_written() {
        let state: Vec<u8> = (0..3_000_000u32).map(|byte| byte as u8).collect();
        let mut bytes = Vec::new();
        let mut chunks = ChunkWriter::new(&mut bytes);
        chunks.write_all(&state).unwrap();
        chunks.flush().unwrap();
        let unfinished = chunks.sink.clone();
        chunks.end().unwrap();
        let (mut read, mut counted) = (Vec::new(), 0);
        let mut count = |bytes| counted = bytes;
        ChunkReader::new(&mut &bytes[..], &mut count).read_to_end(&mut read).unwrap();
        assert!(read == state && counted == state.len() as u64);
        assert!(ChunkReader::new(&mut &unfinished[..], &mut |_| ()).finish().is_err());
    }
    /// A sink that counts the writes to it.
    #[derive(Default)]
    struct Counted {
        bytes: Vec<u8>,
        writes: usize,
    }

    impl Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            self.bytes.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A state that is written in small pieces is sent in few, between which long pieces are sent in their place; and
    /// a provider that writes little for a long time is not silent.
    #[test]
    fn small_pieces_are_gathered() {
        let piece = |number: u32| vec![number as u8; if number % 50_000 == 49_999 { 100_000 } else { 8 }];
        let mut sink = Counted::default();
        let mut chunks = ChunkWriter::new(&mut sink);
        (0..200_000).for_each(|number| chunks.write_all(&piece(number)).unwrap());
        chunks.end().unwrap();
        assert!(sink.writes < 1000, "{} writes", sink.writes);
        let (mut read, mut on_bytes) = (Vec::new(), |_| ());
        ChunkReader::new(&mut &sink.bytes[..], &mut on_bytes).read_to_end(&mut read).unwrap();
        assert!(read == (0..200_000).flat_map(piece).collect::<Vec<_>>());

        let mut sink = Counted::default();
        let mut chunks = ChunkWriter::new(&mut sink);
        let long_ago = Instant::now().checked_sub(GATHER_MAX).expect("the clock has run for longer");
        for piece in [1, 2] {
            chunks.written = long_ago;
            chunks.write_all(&[piece]).unwrap();
        }
        assert_eq!(chunks.sink.bytes, [1, 0, 0, 0, 1, 1, 0, 0, 0, 2]);
    }
}
