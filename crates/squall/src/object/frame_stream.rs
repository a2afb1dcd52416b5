//! A connection between a client and a member, or between a joiner and its state provider: frames, each a length and
//! its bytes.
//!
//! Neither end waits for the other to read: frames are kept here until they are sent, so that two ends that both
//! write much do not block each other.

use std::io::{self, Read, Write};
use std::time::Duration;

use crate::stream::Stream;

/// A stream of frames; see the module's documentation.
pub(super) struct FrameStream {
    stream: Stream,
    /// The bytes from `sent` on have not been sent yet.
    output: Vec<u8>,
    sent: usize,
    /// `input[taken..received]` has been received and not yet taken; what follows is space.
    input: Vec<u8>,
    taken: usize,
    received: usize,
    has_ended: bool,
}

impl FrameStream {
    pub(super) fn new(mut stream: Stream) -> Self {
        stream.set_driven();
        Self {
            stream,
            output: Vec::new(),
            sent: 0,
            input: Vec::new(),
            taken: 0,
            received: 0,
            has_ended: false,
        }
    }

    pub(super) fn waker(&mut self) -> squall_transports::Waker {
        self.stream.waker()
    }

    /// Queues a frame, which `write` appends; [`FrameStream::pump`] sends it.
    pub(super) fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let start = self.output.len();
        self.output.extend([0; 4]);
        write(&mut self.output);
        let length = self.output.len() - start - 4;
        let Some(length) = u32::try_from(length).ok().filter(|length| *length <= FRAME_BYTES_MAX) else {
            self.output.truncate(start);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a message longer than 1 GiB"));
        };
        self.output[start..start + 4].copy_from_slice(&length.to_le_bytes());
        Ok(())
    }

    /// Sends and reads everything that can be sent and read now.
    pub(super) fn pump(&mut self) -> io::Result<()> {
        while self.sent < self.output.len()
            && let Some(sent) = self.stream.try_write(&self.output[self.sent..])?
        {
            self.sent += sent;
        }
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
        self.input.copy_within(self.taken..self.received, 0);
        (self.taken, self.received) = (0, self.received - self.taken);
        // A longer frame is nevertheless read whole.
        while !self.has_ended && (self.received < READ_BYTES || !self.has_frame()) {
            // The space is cleared only when it is new.
            if self.input.len() < self.received + READ_BYTES {
                self.input.resize(self.received + READ_BYTES, 0);
            }
            match self.stream.try_read(&mut self.input[self.received..])? {
                Some(0) => self.has_ended = true,
                Some(read) => self.received += read,
                None => break,
            }
        }
        // The space that a long frame took is not kept for short ones.
        if self.received < READ_BYTES {
            self.input.truncate(2 * READ_BYTES);
            self.input.shrink_to(2 * READ_BYTES);
        }
        Ok(())
    }

    /// Returns the next frame that has arrived completely.
    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let Some(frame) = first_frame(&self.input[self.taken..self.received])? else { return Ok(None) };
        let start = self.taken + 4;
        self.taken = start + frame.len();
        Ok(Some(&self.input[start..self.taken]))
    }

    /// Returns the number of bytes that have not been sent yet.
    pub(super) const fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Returns whether [`FrameStream::next`] returns a frame or an error.
    pub(super) fn has_frame(&self) -> bool {
        !matches!(first_frame(&self.input[self.taken..self.received]), Ok(None))
    }

    /// Returns whether the other end sends nothing more.
    pub(super) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Waits until there may be something to do here, or `is_there` returns true; the thread that makes it true wakes
    /// this one.
    pub(super) fn wait(&mut self, timeout: Duration, is_there: impl Fn() -> bool) -> io::Result<()> {
        self.stream.wait_for(Some(timeout), is_there)
    }

    /// Waits for the next frame. It is an error if nothing arrives for `silence`, now or when the bytes after the
    /// frame are read.
    pub(super) fn receive(&mut self, silence: Duration) -> io::Result<Vec<u8>> {
        self.stream.set_read_timeout(Some(silence));
        self.stream.set_write_timeout(Some(silence));
        self.flush()?;
        let mut length = [0; 4];
        self.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length);
        if length > FRAME_BYTES_MAX {
            return Err(invalid("a message longer than 1 GiB"));
        }
        // Memory grows only with the bytes that arrive.
        let mut bytes = Vec::new();
        self.take(length.into()).read_to_end(&mut bytes)?;
        if bytes.len() == length as usize { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Waits until all frames are sent; what follows them is written to the stream itself.
    pub(super) fn flush(&mut self) -> io::Result<&mut Stream> {
        let output = std::mem::take(&mut self.output);
        self.stream.write_all(&output[std::mem::take(&mut self.sent)..])?;
        Ok(&mut self.stream)
    }

    /// Closes the connection at once.
    pub(super) fn abort(self) {
        self.stream.abort();
    }
}

/// Reads the bytes that follow the frames that were taken.
impl Read for FrameStream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let rest = &self.input[self.taken..self.received];
        if rest.is_empty() {
            return self.stream.read(target);
        }
        let count = rest.len().min(target.len());
        target[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Ok(count)
    }
}

/// Returns the frame with which `input` begins; `None` if it has not arrived completely. Fuzzed as `objects`.
pub(super) fn first_frame(input: &[u8]) -> io::Result<Option<&[u8]>> {
    let Some((length, rest)) = input.split_first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes(*length);
    if length > FRAME_BYTES_MAX {
        return Err(invalid("a message longer than 1 GiB"));
    }
    Ok(rest.get(..length as usize))
}

pub(super) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The length limit of a message: a longer reply would be a transfer rather than an answer.
const FRAME_BYTES_MAX: u32 = 1 << 30;
/// How much is read at once, and before frames are taken.
const READ_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame is taken when it has arrived completely; one that is too long is an error before any of its bytes
    /// arrive.
    #[test]
    fn frames_are_whole_and_bounded() {
        let input = [&[2, 0, 0, 0, 7, 8][..], &[9]].concat();
        assert!((0..6).all(|length| matches!(first_frame(&input[..length]), Ok(None))));
        assert_eq!(first_frame(&input).ok(), Some(Some(&[7, 8][..])));
        assert!(first_frame(&(FRAME_BYTES_MAX + 1).to_le_bytes()).is_err());
    }
}
