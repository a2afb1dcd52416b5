//! Streams that read and write like a TCP connection.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use squall_protocols::stream::{PostRefused, ReceiveOutcome, SocketFailure};
use squall_transports::bootstrap::pair::PairService;
use squall_transports::{wait_readable, wakeups};

use super::{Address, Buffer, Socket, SocketEvent, StreamError, StreamOptions};

/// A stream with [`Read`] and [`Write`] over a [`Socket`]; both block.
///
/// Bytes are copied into and out of registered buffers. [`StreamOptions::buffers`] receives are always posted, so the
/// peer's data arrives in them without passing through the ring. A write returns when its data has left this process.
///
/// ```
/// use squall::stream::{Listener, Stream, StreamOptions};
/// use std::io::{Read, Write};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = StreamOptions::local("doc-stream-type");
/// let listener = Listener::bind(&"127.0.0.1:0".parse()?, &options)?;
/// let address = listener.address().clone();
///
/// let server = std::thread::spawn(move || {
///     let mut stream = Stream::new(listener.accept().unwrap()).unwrap();
///     let mut line = [0; 5];
///     stream.read_exact(&mut line).unwrap();
///     stream.write_all(&line).unwrap();
///     stream.shut_down().unwrap();
///     stream.read_to_end(&mut Vec::new()).unwrap(); // until the other end has finished, too
/// });
/// let mut stream = Stream::connect(&address, &options)?;
/// stream.write_all(b"hello")?;
/// stream.shut_down()?;
/// let mut echo = String::new();
/// stream.read_to_string(&mut echo)?;
/// assert_eq!(echo, "hello");
/// server.join().unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Stream {
    pub(super) flow: StreamFlow,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
}

/// The part that does not wait, which both kinds of streams share.
#[derive(Debug)]
pub(super) struct StreamFlow {
    pub(super) socket: Socket,
    /// The free buffers for sending.
    free: Vec<Buffer>,
    /// Data that has arrived and is not yet read: the buffer, the next byte, and the number of bytes.
    arrived: VecDeque<(Buffer, usize, usize)>,
    /// Nothing more will arrive; why, if the stream did not end in order.
    end: Option<Option<SocketFailure>>,
    /// The connection has ended, and why; what has arrived can still be received.
    closed: Option<Option<SocketFailure>>,
    /// Why a part of what was written may not have reached the peer.
    unsent: Option<SocketFailure>,
    /// See [`Stream::set_driven`].
    is_driven: bool,
}

impl StreamFlow {
    pub(super) fn new(mut socket: Socket) -> Result<Self, StreamError> {
        let StreamOptions { buffer_bytes, buffers, .. } = *socket.options();
        let (bytes, count) = (buffer_bytes.next_multiple_of(8).max(8), buffers.max(1));
        let cut = |mut all: Buffer| -> Vec<Buffer> {
            let parts = (1..count).map(|_| {
                let rest = all.split_off(bytes);
                std::mem::replace(&mut all, rest)
            });
            let mut parts: Vec<_> = parts.collect();
            parts.push(all);
            parts
        };
        let (outgoing, incoming) = (socket.try_buffer(bytes * count)?, socket.try_buffer(bytes * count)?);
        let mut flow = Self {
            socket,
            free: cut(outgoing),
            arrived: VecDeque::new(),
            end: None,
            closed: None,
            unsent: None,
            is_driven: false,
        };
        for buffer in cut(incoming) {
            flow.post(buffer)?;
        }
        flow.socket.flush();
        Ok(flow)
    }

    /// Posts a buffer to be filled; when nothing more can arrive, it is not needed.
    fn post(&mut self, mut buffer: Buffer) -> Result<(), StreamError> {
        buffer.resize(buffer.capacity());
        match self.socket.post_receive(buffer, false) {
            Ok(_) => Ok(()),
            Err((_, PostRefused::Closed)) => {
                self.end = self.end.or(self.closed);
                Ok(())
            }
            Err((_, refused)) => Err(refused.into()),
        }
    }

    /// Handles one event.
    pub(super) fn on_event(&mut self, event: SocketEvent) {
        match event {
            SocketEvent::Connected => {}
            SocketEvent::Sent { buffer, outcome, .. } => {
                if let super::SendOutcome::Failed(failure) = outcome {
                    self.unsent.get_or_insert(failure);
                }
                self.free.push(buffer);
            }
            SocketEvent::Received { buffer, bytes, outcome, .. } => {
                if bytes > 0 {
                    self.arrived.push_back((buffer, 0, bytes));
                }
                match outcome {
                    ReceiveOutcome::End => self.end = self.end.or(Some(None)),
                    ReceiveOutcome::Failed(failure) => self.end = self.end.or(Some(Some(failure))),
                    _ => {}
                }
            }
            SocketEvent::Closed { failure } => {
                self.closed = Some(failure);
            }
        }
    }

    /// Handles all available events; returns whether there were any.
    pub(super) fn step(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.socket.poll() {
            self.on_event(event);
            any = true;
        }
        any
    }

    /// Returns whether there is something to read, or nothing more will arrive.
    fn has_news(&self) -> bool {
        !self.arrived.is_empty() || self.end.is_some() || self.closed.is_some()
    }

    /// Reads what has arrived; returns `None` if nothing has.
    pub(super) fn read_now(&mut self, target: &mut [u8]) -> io::Result<Option<usize>> {
        let mut read = 0;
        let mut reposted = false;
        while let Some((buffer, next, bytes)) = self.arrived.front_mut() {
            let count = (*bytes - *next).min(target.len() - read);
            target[read..read + count].copy_from_slice(&buffer[*next..*next + count]);
            (*next, read) = (*next + count, read + count);
            if next < bytes {
                break;
            }
            let (buffer, ..) = self.arrived.pop_front().expect("it was the front");
            self.post(buffer)?;
            reposted = true;
        }
        if reposted && !self.is_driven {
            self.socket.flush();
        }
        match self.end {
            _ if read > 0 || target.is_empty() => Ok(Some(read)),
            Some(None) => Ok(Some(0)),
            Some(Some(failure)) => Err(StreamError::from(failure).into()),
            None => Ok(None),
        }
    }

    /// Sends as much as fits into one buffer; returns `None` if no buffer is free.
    pub(super) fn write_now(&mut self, source: &[u8]) -> io::Result<Option<usize>> {
        if let Some(failure) = self.unsent.or(self.closed.flatten()) {
            return Err(StreamError::from(failure).into());
        }
        if source.is_empty() {
            return Ok(Some(0));
        }
        let Some(mut buffer) = self.free.pop() else { return Ok(None) };
        let count = source.len().min(buffer.capacity());
        buffer.resize(count);
        buffer.copy_from_slice(&source[..count]);
        match self.socket.post_send(buffer) {
            Ok(_) => {
                self.socket.flush();
                Ok(Some(count))
            }
            Err((buffer, refused)) => {
                self.free.push(buffer);
                // The connection may have failed just now, before the event that reports it.
                let failure = self.socket.endpoint().failure().map(StreamError::from);
                Err(failure.unwrap_or(refused.into()).into())
            }
        }
    }

    /// Returns whether all that was written has left this process.
    ///
    /// # Errors
    /// If a part of it never will.
    pub(super) fn has_left(&mut self) -> io::Result<bool> {
        match self.unsent {
            Some(failure) => Err(StreamError::from(failure).into()),
            None => Ok(self.socket.endpoint().has_left()),
        }
    }
}

impl Stream {
    /// Connects to the listener at `address`.
    ///
    /// # Errors
    /// [`StreamError`], with what to do next.
    pub fn connect(address: &Address, options: &StreamOptions) -> Result<Self, StreamError> {
        Self::new(Socket::connect(address, options)?)
    }

    /// Connects to a service of the member that listens at `address`.
    ///
    /// # Errors
    /// [`StreamError`], with what to do next.
    #[doc(hidden)]
    pub fn connect_service(
        address: &Address,
        service: PairService,
        options: &StreamOptions,
    ) -> Result<Self, StreamError> {
        Self::new(Socket::connect_service(address, service, options)?)
    }

    /// Creates a stream over a socket with nothing posted.
    ///
    /// # Errors
    /// [`StreamError::Refused`] if the socket takes fewer posts than there are buffers.
    pub fn new(socket: Socket) -> Result<Self, StreamError> {
        Ok(Self { flow: StreamFlow::new(socket)?, read_timeout: None, write_timeout: None })
    }

    /// Sets how long a read waits for data; `None`: forever.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read_timeout = timeout;
    }

    /// Sets how long a write waits for space; `None`: forever.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.write_timeout = timeout;
    }

    /// Ends this end's stream after what was written; reading continues. Returns when the end has left this process.
    ///
    /// # Errors
    /// If the connection fails before.
    pub fn shut_down(&mut self) -> io::Result<()> {
        self.flow.socket.shut_down();
        self.leave()
    }

    /// Returns the underlying socket.
    pub const fn socket(&self) -> &Socket {
        &self.flow.socket
    }

    /// Makes all the progress that is possible now, without waiting. Call it while the application does other things
    /// for a long time.
    pub fn drive(&mut self) {
        self.flow.step();
    }

    /// Reads what has arrived, without waiting; returns `None` if nothing has, and `Some(0)` at the end of the peer's
    /// stream.
    ///
    /// # Errors
    /// If the connection has failed.
    pub(crate) fn try_read(&mut self, target: &mut [u8]) -> io::Result<Option<usize>> {
        self.flow.step();
        self.flow.read_now(target)
    }

    /// Writes as much as fits into one buffer, without waiting; returns `None` if no buffer is free. What was written
    /// leaves while this stream is driven: by reads, writes, [`Stream::drive`] and [`Stream::wait_for`].
    ///
    /// # Errors
    /// If the connection has failed.
    pub(crate) fn try_write(&mut self, source: &[u8]) -> io::Result<Option<usize>> {
        self.flow.step();
        self.flow.write_now(source)
    }

    /// From now on the owner soon writes after it has read, or waits: what the peer must know of what was read goes along with that.
    pub(crate) fn set_driven(&mut self) {
        self.flow.is_driven = true;
        self.flow.socket.endpoint().gather_answers();
    }

    /// Waits until something can be read, something has been sent, the connection has ended, or `is_there` returns
    /// true, for up to `timeout`. The thread that makes `is_there` true wakes this one by [`Stream::waker`]. It may
    /// return spuriously.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn wait_for(
        &mut self,
        timeout: Option<Duration>,
        is_there: impl Fn() -> bool,
    ) -> io::Result<()> {
        if self.flow.step() || self.flow.has_news() || is_there() {
            return Ok(());
        }
        let endpoint = self.flow.socket.endpoint();
        let mut waited = Ok(true);
        if endpoint.begin_wait() && !is_there() {
            let (fd, patience) = endpoint.readiness();
            let timeout = [patience, timeout].into_iter().flatten().min();
            waited = wait_readable(&[fd], timeout);
            if let Ok(false) = waited {
                let rings = |time| wait_readable(&[fd], Some(time)).unwrap_or(true);
                wakeups::check_fallback("a stream", is_there, rings);
            }
        }
        endpoint.end_wait();
        self.flow.step();
        waited.map(drop)
    }

    /// Returns a waker of the thread that is in [`Stream::wait_for`], for any other thread.
    pub(crate) fn waker(&mut self) -> squall_transports::Waker {
        self.flow.socket.endpoint().waker()
    }

    /// Closes the connection at once; the peer sees it break.
    pub fn abort(mut self) {
        self.flow.socket.abort();
    }

    /// Waits until what was written has left this process.
    fn leave(&mut self) -> io::Result<()> {
        let until = self.write_timeout.map(|timeout| Instant::now() + timeout);
        loop {
            self.flow.step();
            if self.flow.has_left()? {
                return Ok(());
            }
            self.flow.socket.endpoint().wait_left(time_left(until)?);
        }
    }
}

/// Returns what is left of a timeout, or an error if it has expired.
fn time_left(until: Option<Instant>) -> io::Result<Option<Duration>> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    if left == Some(Duration::ZERO) { Err(StreamError::TimedOut.into()) } else { Ok(left) }
}

impl Read for Stream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let until = self.read_timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if let Some(read) = self.flow.read_now(target)? {
                return Ok(read);
            }
            if let Some(event) = self.flow.socket.wait(time_left(until)?) {
                self.flow.on_event(event);
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        let until = self.write_timeout.map(|timeout| Instant::now() + timeout);
        self.flow.step();
        loop {
            if let Some(written) = self.flow.write_now(source)? {
                self.leave()?;
                return Ok(written);
            }
            if let Some(event) = self.flow.socket.wait(time_left(until)?) {
                self.flow.on_event(event);
            }
        }
    }

    /// Does nothing: a write returns when its data has left this process.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
