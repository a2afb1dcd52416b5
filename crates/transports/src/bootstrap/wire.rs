//! Bounded frames over a socket, never reading a byte beyond the frame: the bytes after the bootstrap on a
//! connection belong to the fabric.
//!
//! A frame is its length (4 bytes, little endian) and a message in postcard, in records of its own. It has at most
//! [`FRAME_BYTES_MAX`] bytes, or [`STATUS_BYTES_MAX`] and a few if it answers a question. The socket is non-blocking; `poll_*` takes
//! what has arrived, `read_*` and `write_*` wait until a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::admission::{QUESTION_BYTES_MAX, STATUS_BYTES_MAX};
use super::link::LinkSocket;
use super::{Proof, ProofError};
use crate::session::{CallerKind, SessionKeys};

/// The longest frame: a roster of [`super::MEMBERS_MAX`] members with the longest addresses fits.
pub(super) const FRAME_BYTES_MAX: usize = 1 << 19;

/// The longest frame that answers a question.
const ANSWER_BYTES_MAX: usize = STATUS_BYTES_MAX + 16;

const _: () = assert!(super::MEMBERS_MAX * (super::ADDRESS_BYTES_MAX + 16) < FRAME_BYTES_MAX);
const _: () = assert!(QUESTION_BYTES_MAX + 16 < FRAME_BYTES_MAX);

/// Why a connection is not usable any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum FramingError {
    #[error("the other end closed the connection")]
    Closed,
    #[error("the other end did not answer in time")]
    Late,
    #[error("the call was abandoned")]
    Abandoned,
    #[error("the other end sent {0}")]
    Malformed(&'static str),
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for FramingError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Self::Closed,
            ErrorKind::TimedOut => Self::Late,
            _ => Self::Io(error),
        }
    }
}

impl From<FramingError> for io::Error {
    fn from(error: FramingError) -> Self {
        match error {
            FramingError::Closed => Self::new(ErrorKind::UnexpectedEof, FramingError::Closed.to_string()),
            FramingError::Late => Self::new(ErrorKind::TimedOut, FramingError::Late.to_string()),
            FramingError::Abandoned => Self::other(FramingError::Abandoned.to_string()),
            FramingError::Malformed(what) => Self::new(ErrorKind::InvalidData, what),
            FramingError::Io(error) => error,
        }
    }
}

/// The limit of a wait for the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitLimit<'w> {
    pub(super) deadline: Instant,
    /// When this is readable, waiting has become pointless.
    pub(super) abandon: Option<BorrowedFd<'w>>,
}

impl From<Instant> for WaitLimit<'_> {
    fn from(deadline: Instant) -> Self {
        Self { deadline, abandon: None }
    }
}

/// A socket and the part of a message that has arrived so far.
///
/// Until [`FramedSocket::begin`] it carries the messages of the handshake as they are, then frames in the
/// records of the session.
#[derive(Debug)]
pub(super) struct FramedSocket<S> {
    stream: S,
    session: Option<SessionKeys>,
    /// Never longer than the message that is being read.
    inbound: Vec<u8>,
    /// The longest frame that is read.
    frame_bytes_max: usize,
}

impl<S: LinkSocket> FramedSocket<S> {
    pub(super) fn new(stream: S) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, session: None, inbound: Vec::new(), frame_bytes_max: FRAME_BYTES_MAX })
    }

    /// Begins a session: everything that follows is under its keys.
    pub(super) fn begin(&mut self, session: SessionKeys) {
        assert!(
            self.inbound.is_empty() && self.session.is_none(),
            "a session must begin right after the handshake"
        );
        self.session = Some(session);
    }

    /// Proves the secret to the peer as a caller of this kind and demands its proof; everything that follows is
    /// under the keys of their session.
    pub(super) fn prove(
        &mut self,
        proof: &Proof,
        kind: CallerKind,
        until: WaitLimit<'_>,
    ) -> Result<(), ProofError> {
        let ends = self.stream.ends()?;
        let session = proof.prove(&mut self.waiting(until), ends, kind)?;
        self.begin(session);
        Ok(())
    }

    /// Returns the socket, blocking and without timeouts, at the first byte after the last frame.
    ///
    /// # Errors
    /// Returns an error if a part of another frame has arrived, or the system refuses.
    ///
    /// # Panics
    /// Panics if there was no proof.
    pub(super) fn into_stream(self) -> io::Result<S::Secured> {
        if self.is_within_frame() {
            return Err(io::Error::new(ErrorKind::InvalidData, "a message was read or written only in part"));
        }
        self.into_secured()
    }

    /// Returns the socket as [`FramedSocket::into_stream`] does, but shuts it down if a frame was read or written only in
    /// part: then the process that uses it finds that the other end is lost.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    ///
    /// # Panics
    /// Panics if there was no proof.
    pub(super) fn into_usable_or_ended(self) -> io::Result<S::Secured> {
        if self.is_within_frame() {
            // A connection that has ended by itself cannot be shut down, and need not be.
            let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
        }
        self.into_secured()
    }

    fn is_within_frame(&self) -> bool {
        let records = self.session.as_ref().map(|session| &session.records);
        !self.inbound.is_empty()
            || records.is_some_and(|records| records.holds_input() || !records.is_flushed())
    }

    fn into_secured(self) -> io::Result<S::Secured> {
        let session = self.session.expect("both ends have proved the secret");
        self.stream.set_nonblocking(false)?;
        Ok(self.stream.secure(session))
    }

    pub(super) fn stream(&self) -> &S {
        &self.stream
    }

    /// Returns a message of exactly `N` bytes, if all of it has arrived.
    pub(super) fn poll_exact<const N: usize>(&mut self) -> Result<Option<[u8; N]>, FramingError> {
        if !self.fill(N)? {
            return Ok(None);
        }
        let message = self.inbound[..].try_into().expect("filled to N bytes");
        self.inbound.clear();
        Ok(Some(message))
    }

    /// Reads and discards what has arrived: closing a socket with unread bytes would also discard what was
    /// written to it.
    pub(super) fn discard(&mut self) {
        let _ = self.stream.read(&mut [0; 1 << 10]);
    }

    /// Reads a frame, if all of it has arrived. Its message is fuzzed as one of the bootstrap.
    /// Fuzzed as `bootstrap`.
    pub(super) fn poll_frame<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FramingError> {
        if self.inbound.len() < 4 && !self.fill(4)? {
            return Ok(None);
        }
        let length = *self.inbound.first_chunk().expect("filled to 4 bytes");
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > self.frame_bytes_max {
            return Err(FramingError::Malformed("a frame that is too long"));
        }
        if !self.fill(4 + length)? {
            return Ok(None);
        }
        let message = postcard::take_from_bytes(&self.inbound[4..]);
        let (message, rest) =
            message.map_err(|_| FramingError::Malformed("a message that cannot be parsed"))?;
        if !rest.is_empty() || self.session.as_ref().is_some_and(|session| session.records.holds_input()) {
            return Err(FramingError::Malformed("a message with trailing bytes"));
        }
        self.inbound.clear();
        Ok(Some(message))
    }

    /// Takes long frames from now on: the answer of a process that has been asked a question.
    pub(super) const fn expect_answer(&mut self) {
        self.frame_bytes_max = ANSWER_BYTES_MAX;
    }

    /// Waits for a frame.
    pub(super) fn read_frame<'w, T: DeserializeOwned>(
        &mut self,
        until: impl Into<WaitLimit<'w>>,
    ) -> Result<T, FramingError> {
        let until = until.into();
        loop {
            if let Some(message) = self.poll_frame()? {
                return Ok(message);
            }
            wait(self.stream.as_fd(), PollFlags::IN, until)?;
        }
    }

    pub(super) fn write_frame<'w>(
        &mut self,
        message: &impl Serialize,
        until: impl Into<WaitLimit<'w>>,
    ) -> Result<(), FramingError> {
        let body = postcard::to_stdvec(message).expect("messages serialise");
        assert!(body.len() <= ANSWER_BYTES_MAX, "a frame of {} bytes", body.len());
        let length = u32::try_from(body.len()).expect("checked above");
        let frame = [&length.to_le_bytes(), &body[..]].concat();
        let Self { stream, session, .. } = self;
        let mut waiting = DeadlineSocket { stream, until: until.into() };
        match session {
            Some(SessionKeys { records, .. }) => {
                records.seal(&frame);
                Ok(records.flush(&mut waiting)?)
            }
            None => Ok(waiting.write_all(&frame)?),
        }
    }

    /// Returns a `Read` and `Write` that blocks.
    pub(super) fn waiting<'w>(&'w mut self, until: WaitLimit<'w>) -> DeadlineSocket<'w, S> {
        DeadlineSocket { stream: &mut self.stream, until }
    }

    /// Reads until `inbound` has `bytes` bytes, and not one more; returns whether it does.
    fn fill(&mut self, bytes: usize) -> Result<bool, FramingError> {
        let mut chunk = [0; 4096];
        while self.inbound.len() < bytes {
            let most = (bytes - self.inbound.len()).min(chunk.len());
            match self.read(&mut chunk[..most]) {
                Ok(0) => return Err(FramingError::Closed),
                Ok(read) => self.inbound.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Reads the next bytes of the messages, none of which is returned before it is verified.
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match &mut self.session {
            Some(SessionKeys { records, .. }) => records.read(&mut self.stream, target),
            None => self.stream.read(target),
        }
    }
}

impl<S: AsFd> AsFd for FramedSocket<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A non-blocking socket as a blocking one, with one deadline for the whole transfer, however slowly single
/// bytes arrive.
pub(super) struct DeadlineSocket<'w, S> {
    stream: &'w mut S,
    until: WaitLimit<'w>,
}

impl<S: LinkSocket> Read for DeadlineSocket<'_, S> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(target) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(self.stream.as_fd(), PollFlags::IN, self.until)?;
                }
                outcome => return outcome,
            }
        }
    }
}

impl<S: LinkSocket> Write for DeadlineSocket<'_, S> {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        loop {
            match self.stream.write(source) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(self.stream.as_fd(), PollFlags::OUT, self.until)?;
                }
                outcome => return outcome,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

pub(super) fn wait(fd: BorrowedFd<'_>, flags: PollFlags, until: WaitLimit<'_>) -> Result<(), FramingError> {
    let left = until.deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(FramingError::Late);
    }
    let fds = [
        Some(PollFd::from_borrowed_fd(fd, flags)),
        until.abandon.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
    ];
    let mut fds: Vec<_> = fds.into_iter().flatten().collect();
    poll_for(&mut fds, left)?;
    let abandoned = fds.get(1).is_some_and(|abandon| !abandon.revents().is_empty());
    if abandoned { Err(FramingError::Abandoned) } else { Ok(()) }
}

/// Waits until one of `fds` is ready, a signal arrives, or `timeout` has passed.
pub(super) fn poll_for(fds: &mut [PollFd<'_>], timeout: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::bootstrap::Secret;
    use crate::session::HELLO_BYTES;

    /// Returns a socket that has proved the secret, and the other end, which has too.
    fn proved_pair() -> (FramedSocket<UnixStream>, UnixStream) {
        let secret = Secret::new("a secret of more than sixteen bytes").expect("long enough");
        let proof = Proof::new(&secret, "wire-test");
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let mut wire = FramedSocket::new(ours).expect("a socket");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut hello = [0; HELLO_BYTES];
                theirs.read_exact(&mut hello).expect("a hello");
                let served = [CallerKind::Question];
                let Ok((_, answer)) = proof.respond(None, &hello, &served) else {
                    panic!("the proof is right")
                };
                theirs.write_all(&answer).expect("connected");
            });
            wire.prove(&proof, CallerKind::Question, (Instant::now() + Duration::from_secs(20)).into())
                .expect("the proof is right");
        });
        (wire, theirs)
    }

    /// A leader may be killed in the middle of an answer; a joiner that has reported begins all the same \[J9\].
    #[test]
    fn a_connection_that_ended_within_a_frame_is_a_lost_one() {
        let (mut wire, mut theirs) = proved_pair();
        theirs.write_all(&[1, 2, 3]).expect("connected");
        drop(theirs);
        assert!(wire.read_frame::<u8>(Instant::now() + Duration::from_secs(20)).is_err());
        let mut stream = wire.into_usable_or_ended().expect("a socket");
        assert_eq!(stream.read(&mut [0; 8]).expect("an end"), 0);
    }

    #[test]
    fn a_connection_that_lives_is_ended_within_a_frame() {
        let (mut wire, mut theirs) = proved_pair();
        theirs.write_all(&[1, 2, 3]).expect("connected");
        let soon = Instant::now() + Duration::from_millis(50);
        assert!(matches!(wire.read_frame::<u8>(soon), Err(FramingError::Late)));
        let mut stream = wire.into_usable_or_ended().expect("a socket");
        assert_eq!(stream.read(&mut [0; 8]).expect("an end"), 0);
        // After the rest of the handshake.
        theirs.read_to_end(&mut Vec::new()).expect("an end");
    }

    #[test]
    fn a_connection_between_frames_is_usable() {
        let (wire, mut theirs) = proved_pair();
        let mut stream = wire.into_usable_or_ended().expect("a socket");
        theirs.write_all(b"more").expect("connected");
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).expect("connected");
        assert_eq!(&bytes, b"more");
    }
}
