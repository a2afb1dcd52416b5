//! Asynchronous sockets: buffers are posted, and come back with events (EXS §II.B).

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use squall_fabric::{Backoff, trusted};
use squall_transports::bootstrap::pair::{PairCall, PairCallError, PairListener, PairedStream};

use super::endpoint::EndpointSide;
use super::{
    Address, Buffer, Completion, Endpoint, PostRefused, ReceiveId, ReceiveOutcome, SendId, SendOutcome,
    SocketFailure, Statistics, StreamError, StreamOptions,
};

/// One end of a connection that moves buffers. See [`super`] for who drives it and how it ends.
#[derive(Debug)]
pub struct Socket {
    // Above the buffers: their memory is the peer's to write until it is dropped.
    endpoint: Endpoint,
    options: StreamOptions,
    /// In the order in which they were posted.
    sends: VecDeque<(SendId, Buffer)>,
    receives: VecDeque<(ReceiveId, Buffer)>,
}

/// Something is done; its buffer comes back.
#[derive(Debug)]
pub enum SocketEvent {
    /// Both ends are there.
    Connected,
    /// A send is done.
    Sent {
        /// Which.
        id: SendId,
        /// Its buffer.
        buffer: Buffer,
        /// How.
        outcome: SendOutcome,
    },
    /// A receive is done.
    Received {
        /// Which.
        id: ReceiveId,
        /// Its buffer.
        buffer: Buffer,
        /// How many bytes of it were filled, from its beginning.
        bytes: usize,
        /// How.
        outcome: ReceiveOutcome,
    },
    /// The connection is over; all buffers have come back.
    Closed {
        /// Why, if not in order.
        failure: Option<SocketFailure>,
    },
}

impl Socket {
    /// Connects to the listener at `address`; tries until it is there or [`StreamOptions::timeout`] is over. As with TCP, the
    /// listener need not have accepted yet: [`SocketEvent::Connected`] tells when it has.
    ///
    /// # Errors
    /// [`StreamError`], with what to do next.
    pub fn connect(address: &Address, options: &StreamOptions) -> Result<Self, StreamError> {
        options.check()?;
        let meeting = call(address, options)?;
        Ok(Self::over(Endpoint::new(meeting, EndpointSide::Calling, options)?, options))
    }

    fn over(endpoint: Endpoint, options: &StreamOptions) -> Self {
        Self { endpoint, options: options.clone(), sends: VecDeque::new(), receives: VecDeque::new() }
    }

    /// How it was made.
    #[must_use]
    pub const fn options(&self) -> &StreamOptions {
        &self.options
    }

    /// The endpoint below, for waiting beside other things.
    pub const fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// The endpoint alone, for who posts ranges of memory. Only before anything was posted.
    ///
    /// # Panics
    /// If buffers are outstanding.
    #[must_use]
    pub fn into_endpoint(self) -> Endpoint {
        assert!(self.sends.is_empty() && self.receives.is_empty(), "buffers are outstanding");
        self.endpoint
    }

    /// Whether both ends share memory.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.endpoint.is_shared()
    }

    /// Whether data travels by RDMA.
    #[must_use]
    pub const fn is_by_rdma(&self) -> bool {
        self.endpoint.is_by_rdma()
    }

    /// A buffer of so many bytes for this socket; parts of one ([`Buffer::split_off`]) are cheaper than many.
    ///
    /// # Panics
    /// If the system does not give the memory; see [`Socket::try_buffer`].
    pub fn buffer(&mut self, bytes: usize) -> Buffer {
        self.endpoint.buffer(bytes)
    }

    /// As [`Socket::buffer`], for sizes that may be too large.
    ///
    /// # Errors
    /// [`StreamError::Shortage`], with the limit that was met.
    pub fn try_buffer(&mut self, bytes: usize) -> Result<Buffer, StreamError> {
        self.endpoint.try_buffer(bytes)
    }

    /// Sends the bytes of `buffer`, with the next poll. It comes back when all of them are in the peer's memory.
    ///
    /// # Errors
    /// The buffer, and why it was not taken.
    pub fn post_send(&mut self, buffer: Buffer) -> Result<SendId, (Buffer, PostRefused)> {
        match self.endpoint.post_send(trusted::memory(&buffer), buffer.range()) {
            Ok(id) => {
                self.sends.push_back((id, buffer));
                Ok(id)
            }
            Err(refused) => Err((buffer, refused)),
        }
    }

    /// Lets the peer fill `buffer`: with any number of bytes that have come, or with exactly its length if `wait_all`, or
    /// with one packet.
    ///
    /// # Errors
    /// The buffer, and why it was not taken.
    pub fn post_receive(
        &mut self,
        buffer: Buffer,
        wait_all: bool,
    ) -> Result<ReceiveId, (Buffer, PostRefused)> {
        match self.endpoint.post_receive(trusted::memory(&buffer), buffer.range(), wait_all) {
            Ok(id) => {
                self.receives.push_back((id, buffer));
                Ok(id)
            }
            Err(refused) => Err((buffer, refused)),
        }
    }

    /// Takes back a send of which nothing has been sent; false if it is too late. An event follows.
    pub fn cancel_send(&mut self, id: SendId) -> bool {
        self.endpoint.cancel_send(id)
    }

    /// Takes back a receive; an event follows when the peer can no longer write to it, perhaps with data. False if there
    /// is none of that number.
    pub fn cancel_receive(&mut self, id: ReceiveId) -> bool {
        self.endpoint.cancel_receive(id)
    }

    /// The next event, without waiting. Also moves what was posted.
    #[inline]
    pub fn poll(&mut self) -> Option<SocketEvent> {
        let completion = self.endpoint.poll()?;
        Some(self.event(completion))
    }

    /// The next event, waiting for up to `timeout` (`None`: for ever). `None` if there is none: the time is over, or the
    /// connection is and nothing will ever happen.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Option<SocketEvent> {
        let completion = self.endpoint.wait(timeout)?;
        Some(self.event(completion))
    }

    /// Moves all that can be moved now.
    pub fn flush(&mut self) {
        self.endpoint.flush();
    }

    /// Sends nothing more after what is posted (half-close).
    pub fn shut_down(&mut self) {
        self.endpoint.shut_down();
    }

    /// Gives the connection up at once; the peer sees it break. Events for all buffers follow.
    pub fn abort(&mut self) {
        self.endpoint.abort();
    }

    /// Whether the connection is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.endpoint.is_closed()
    }

    /// What has been done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.endpoint.statistics()
    }

    fn event(&mut self, completion: Completion) -> SocketEvent {
        match completion {
            Completion::Connected => SocketEvent::Connected,
            Completion::Send { id, outcome } => {
                SocketEvent::Sent { id, buffer: take(&mut self.sends, id), outcome }
            }
            Completion::Receive { id, bytes, outcome } => {
                let bytes = usize::try_from(bytes).expect("it fits the buffer");
                SocketEvent::Received { id, buffer: take(&mut self.receives, id), bytes, outcome }
            }
            Completion::Closed { failure } => SocketEvent::Closed { failure },
        }
    }
}

/// The buffer of a post that is done; mostly the oldest.
fn take<I: Ord + Copy>(posted: &mut VecDeque<(I, Buffer)>, id: I) -> Buffer {
    let at = posted.binary_search_by_key(&id, |(id, _)| *id).expect("it is outstanding");
    posted.remove(at).expect("found").1
}

/// Where sockets connect to.
#[derive(Debug)]
pub struct Listener {
    door: PairListener,
    options: StreamOptions,
}

impl Listener {
    /// Listens at `address`: `host:port` (0: a free one), or `unix:@name` for this host only.
    ///
    /// # Errors
    /// [`StreamError::Connect`] if the address cannot be had.
    pub fn bind(address: &Address, options: &StreamOptions) -> Result<Self, StreamError> {
        options.check()?;
        Ok(Self { door: PairListener::open(address, &options.terms())?, options: options.clone() })
    }

    /// Where it listens, with the port that the kernel has chosen.
    #[must_use]
    pub const fn address(&self) -> &Address {
        self.door.address()
    }

    /// The next socket, as soon as somebody who knows the secret connects.
    ///
    /// # Errors
    /// [`StreamError`] if the system lets nobody in.
    pub fn accept(&self) -> Result<Socket, StreamError> {
        loop {
            if let Some(socket) = self.accept_within(None)? {
                return Ok(socket);
            }
        }
    }

    /// The next socket, or `None` if nobody has connected within `timeout` (`None`: for ever).
    ///
    /// # Errors
    /// [`StreamError`] if the system lets nobody in.
    pub fn accept_within(&self, timeout: Option<Duration>) -> Result<Option<Socket>, StreamError> {
        let Some(meeting) = self.door.accept(timeout)? else { return Ok(None) };
        let endpoint = Endpoint::new(meeting, EndpointSide::Listening, &self.options)?;
        Ok(Some(Socket::over(endpoint, &self.options)))
    }
}

/// As [`AsFd`].
impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Readable while somebody waits to be accepted.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.as_fd()
    }
}

/// Calls the listener at `address` until it answers or the options' time is over.
fn call(address: &Address, options: &StreamOptions) -> Result<PairedStream, StreamError> {
    let deadline = Instant::now() + options.timeout;
    let terms = options.terms();
    let mut call = PairCall::new(address, &terms)?;
    let mut pauses = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    loop {
        match call.attempt() {
            Ok(stream) => return Ok(stream),
            Err(PairCallError::Again(_)) if Instant::now() + pauses.spacing() < deadline => {
                std::thread::sleep(pauses.grow());
            }
            Err(PairCallError::Again(error) | PairCallError::Final(error)) => return Err(error.into()),
        }
    }
}

/// Pauses between attempts to connect: a listener that starts is found soon, and one that is missing costs little.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);
