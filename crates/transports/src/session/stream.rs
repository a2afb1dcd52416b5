//! A connected TCP stream whose other end has proved the secret, with the keys of its session if its data are encrypted.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::fd::{AsFd, BorrowedFd};

use super::{Records, SessionKeys};

/// A TCP stream to a peer. Written bytes travel in records if the session requires it, and unchanged
/// otherwise.
///
/// Reading returns nothing of a record before all of it has arrived and been verified. A non-blocking stream
/// may buffer what it has accepted: [`Write::flush`] sends it.
#[derive(Debug)]
pub struct PeerStream {
    stream: TcpStream,
    records: Option<Box<Records>>,
    pair: Option<[u8; 32]>,
}

impl From<TcpStream> for PeerStream {
    /// Creates a stream without a session: nothing is encrypted.
    fn from(stream: TcpStream) -> Self {
        Self { stream, records: None, pair: None }
    }
}

impl PeerStream {
    /// Creates a stream with the session of both its ends.
    #[must_use]
    pub fn new(stream: TcpStream, session: SessionKeys) -> Self {
        let pair = Some(session.handshake);
        let records = session.is_sealed().then_some(session.records);
        Self { stream, records, pair }
    }

    /// Returns the hash of its handshake, which names this connection at both ends and nothing else; `None` without a session.
    #[must_use]
    pub const fn pair(&self) -> Option<[u8; 32]> {
        self.pair
    }

    /// Returns whether its data are encrypted.
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        self.records.is_some()
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Same as [`TcpStream::set_nonblocking`].
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.stream.set_nonblocking(nonblocking)
    }

    /// Same as [`TcpStream::set_nodelay`].
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.stream.set_nodelay(nodelay)
    }

    /// Same as [`TcpStream::set_read_timeout`].
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(timeout)
    }

    /// Same as [`TcpStream::shutdown`].
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.stream.shutdown(how)
    }

    /// Returns whether written bytes are still buffered here.
    pub(crate) fn has_output(&self) -> bool {
        self.records.as_ref().is_some_and(|records| !records.is_flushed())
    }

    /// Returns the socket, and the keys if its data are encrypted.
    pub(crate) fn into_parts(self) -> (TcpStream, Option<Box<Records>>) {
        (self.stream, self.records)
    }
}

impl Read for PeerStream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match &mut self.records {
            Some(records) => records.read(&mut self.stream, target),
            None => self.stream.read(target),
        }
    }
}

impl Write for PeerStream {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        match &mut self.records {
            Some(records) => records.write(&mut self.stream, source),
            None => self.stream.write(source),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.records {
            Some(records) => records.flush(&mut self.stream),
            None => Ok(()),
        }
    }
}

impl AsFd for PeerStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A stream whose bytes all travel in records, before the ends use the connection otherwise; see [`SessionKeys::preface`].
#[derive(Debug)]
pub struct PrefaceStream<'k, S> {
    stream: S,
    records: &'k mut Records,
}

impl<'k, S> PrefaceStream<'k, S> {
    pub(super) const fn new(stream: S, records: &'k mut Records) -> Self {
        Self { stream, records }
    }
}

impl<S: Read> Read for PrefaceStream<'_, S> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.records.read(&mut self.stream, target)
    }
}

impl<S: Write> Write for PrefaceStream<'_, S> {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        self.records.write(&mut self.stream, source)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.records.flush(&mut self.stream)
    }
}

/// One direction of a stream whose bytes all travel in records; see [`SessionKeys::halves`].
#[derive(Debug)]
pub struct SealedHalf<S> {
    stream: S,
    records: Records,
}

impl<S> SealedHalf<S> {
    pub(super) const fn new(stream: S, records: Records) -> Self {
        Self { stream, records }
    }

    /// Returns the stream that carries the records.
    pub const fn stream(&self) -> &S {
        &self.stream
    }

    /// Same as [`SealedHalf::stream`], mutably, for its timeouts; reading or writing there directly breaks
    /// the session.
    pub const fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }
}

impl<S: Read> Read for SealedHalf<S> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.records.read(&mut self.stream, target)
    }
}

impl<S: Write> Write for SealedHalf<S> {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        self.records.write(&mut self.stream, source)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.records.flush(&mut self.stream)?;
        self.stream.flush()
    }
}
