//! Asynchronous sockets: buffers are posted, and come back with events (EXS §II.B).

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use squall_fabric::{Backoff, trusted};
use squall_transports::bootstrap::pair::{
    PairCall, PairCallError, PairListener, PairService, PairServices, PairedStream,
};

use super::endpoint::EndpointSide;
use super::{
    Address, Buffer, Completion, Endpoint, PostRefused, ReceiveId, ReceiveOutcome, SendId, SendOutcome,
    SocketFailure, Statistics, StreamError, StreamOptions,
};

/// One end of a connection that transfers buffers. See [`super`] for how it makes progress and how it ends.
///
/// ```
/// use squall::stream::{Listener, Socket, SocketEvent, StreamOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = StreamOptions::local("doc-socket");
/// let listener = Listener::bind(&"127.0.0.1:0".parse()?, &options)?;
/// let address = listener.address().clone();
/// let server = std::thread::spawn(move || {
///     let mut socket = listener.accept().unwrap();
///     let buffer = socket.buffer(64);
///     socket.post_receive(buffer, false).map_err(|(_, refused)| refused).unwrap();
///     loop {
///         match socket.wait(None) {
///             Some(SocketEvent::Received { buffer, bytes, .. }) => break buffer[..bytes].to_vec(),
///             Some(SocketEvent::Closed { failure }) => panic!("{failure:?}"),
///             _ => {}
///         }
///     }
/// });
/// let mut socket = Socket::connect(&address, &options)?;
/// let mut buffer = socket.buffer(8);
/// buffer.fill(7);
/// socket.post_send(buffer).map_err(|(_, refused)| refused)?;
/// while !matches!(socket.wait(None), Some(SocketEvent::Sent { .. })) {}
/// assert_eq!(server.join().unwrap(), [7; 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Socket {
    // Declared before the buffers so that it is dropped first: until then the peer may write to their memory.
    endpoint: Endpoint,
    options: StreamOptions,
    /// The outstanding sends, in the order in which they were posted.
    sends: VecDeque<(SendId, Buffer)>,
    receives: VecDeque<(ReceiveId, Buffer)>,
}

/// An event of a socket; a completed operation returns its buffer.
///
/// ```
/// use squall::stream::{Listener, Socket, SocketEvent, StreamOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = StreamOptions::local("doc-socket-event");
/// let listener = Listener::bind(&"127.0.0.1:0".parse()?, &options)?;
/// let address = listener.address().clone();
///
/// let server = std::thread::spawn(move || drop(listener.accept().unwrap()));
/// let mut socket = Socket::connect(&address, &options)?;
/// socket.shut_down();
/// loop {
///     match socket.wait(None) {
///         Some(SocketEvent::Closed { failure: None }) => break, // in order
///         Some(SocketEvent::Closed { failure: Some(failure) }) => return Err(failure.into()),
///         Some(event) => println!("{event:?}"),
///         None => {}
///     }
/// }
/// server.join().unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum SocketEvent {
    /// Both ends are connected.
    Connected,
    /// A send has completed.
    Sent {
        /// The number that posting it returned.
        id: SendId,
        /// Its buffer.
        buffer: Buffer,
        /// How it completed.
        outcome: SendOutcome,
    },
    /// A receive has completed.
    Received {
        /// The number that posting it returned.
        id: ReceiveId,
        /// Its buffer.
        buffer: Buffer,
        /// The number of bytes that were filled, from its beginning.
        bytes: usize,
        /// How it completed.
        outcome: ReceiveOutcome,
    },
    /// The connection has ended, and all buffers have been returned.
    Closed {
        /// Why, if it did not end in order.
        failure: Option<SocketFailure>,
    },
}

impl Socket {
    /// Connects to the listener at `address`; tries until it succeeds or [`StreamOptions::timeout`] expires. As with
    /// TCP, the listener need not have accepted yet: [`SocketEvent::Connected`] reports that it has.
    ///
    /// # Errors
    /// [`StreamError`], with what to do next.
    pub fn connect(address: &Address, options: &StreamOptions) -> Result<Self, StreamError> {
        options.check()?;
        let terms = options.terms();
        let meeting = call(PairCall::new(address, &terms)?, options)?;
        Ok(Self::over(Endpoint::new(meeting, EndpointSide::Calling, options)?, options))
    }

    /// Same as [`Socket::connect`], for a service of the member that listens at `address`.
    pub(crate) fn connect_service(
        address: &Address,
        service: PairService,
        options: &StreamOptions,
    ) -> Result<Self, StreamError> {
        options.check()?;
        let terms = options.terms();
        let meeting = call(PairCall::of_service(address, service, &terms)?, options)?;
        Ok(Self::over(Endpoint::new(meeting, EndpointSide::Calling, options)?, options))
    }

    fn over(endpoint: Endpoint, options: &StreamOptions) -> Self {
        Self { endpoint, options: options.clone(), sends: VecDeque::new(), receives: VecDeque::new() }
    }

    /// Returns the options that it was created with.
    #[must_use]
    pub const fn options(&self) -> &StreamOptions {
        &self.options
    }

    /// Returns the underlying endpoint, to wait for it together with other events.
    pub const fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// Returns the underlying endpoint, to post ranges of memory instead of buffers. It is only possible before
    /// anything was posted.
    ///
    /// # Panics
    /// If buffers are outstanding.
    #[must_use]
    pub fn into_endpoint(self) -> Endpoint {
        assert!(self.sends.is_empty() && self.receives.is_empty(), "buffers are outstanding");
        self.endpoint
    }

    /// Returns whether both ends share memory.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.endpoint.is_shared()
    }

    /// Returns whether data is transferred by RDMA.
    #[must_use]
    pub const fn is_by_rdma(&self) -> bool {
        self.endpoint.is_by_rdma()
    }

    /// Allocates a buffer of `bytes` bytes for this socket. Parts of one buffer ([`Buffer::split_off`]) are cheaper
    /// than many buffers.
    ///
    /// # Panics
    /// If the allocation fails; see [`Socket::try_buffer`].
    pub fn buffer(&mut self, bytes: usize) -> Buffer {
        self.endpoint.buffer(bytes)
    }

    /// Allocates a buffer like [`Socket::buffer`], for sizes that may be too large.
    ///
    /// # Errors
    /// [`StreamError::Shortage`], with the limit that was reached.
    pub fn try_buffer(&mut self, bytes: usize) -> Result<Buffer, StreamError> {
        self.endpoint.try_buffer(bytes)
    }

    /// Sends the bytes of `buffer` with the next poll. The buffer is returned by an event when all bytes are in the
    /// peer's memory.
    ///
    /// # Errors
    /// The buffer, and why it was refused.
    pub fn post_send(&mut self, buffer: Buffer) -> Result<SendId, (Buffer, PostRefused)> {
        match self.endpoint.post_send(trusted::memory(&buffer), buffer.range()) {
            Ok(id) => {
                self.sends.push_back((id, buffer));
                Ok(id)
            }
            Err(refused) => Err((buffer, refused)),
        }
    }

    /// Lets the peer fill `buffer`: with any number of bytes that have arrived, with exactly its length if
    /// `wait_all`, or with one packet.
    ///
    /// # Errors
    /// The buffer, and why it was refused.
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

    /// Cancels a send of which nothing has been sent; returns false if it is too late. An event follows.
    pub fn cancel_send(&mut self, id: SendId) -> bool {
        self.endpoint.cancel_send(id)
    }

    /// Cancels a receive. An event follows when the peer can no longer write to it, and it may have data. Returns
    /// false if there is no receive of that number.
    pub fn cancel_receive(&mut self, id: ReceiveId) -> bool {
        self.endpoint.cancel_receive(id)
    }

    /// Returns the next event, without waiting. It also makes progress with what was posted.
    #[inline]
    pub fn poll(&mut self) -> Option<SocketEvent> {
        let completion = self.endpoint.poll()?;
        Some(self.event(completion))
    }

    /// Waits for the next event for up to `timeout` (`None`: forever). Returns `None` if there is none: the timeout
    /// has expired, or the connection has ended and no event will ever follow.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Option<SocketEvent> {
        let completion = self.endpoint.wait(timeout)?;
        Some(self.event(completion))
    }

    /// Makes all the progress that is possible now.
    pub fn flush(&mut self) {
        self.endpoint.flush();
    }

    /// Ends the stream after what has been posted (half-close).
    pub fn shut_down(&mut self) {
        self.endpoint.shut_down();
    }

    /// Closes the connection at once; the peer sees it break. Events for all buffers follow.
    pub fn abort(&mut self) {
        self.endpoint.abort();
    }

    /// Returns whether the connection has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.endpoint.is_closed()
    }

    /// Returns counters of what has been done so far.
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

/// Removes and returns the buffer of a completed operation, which is usually the oldest.
fn take<I: Ord + Copy>(posted: &mut VecDeque<(I, Buffer)>, id: I) -> Buffer {
    let at = posted.binary_search_by_key(&id, |(id, _)| *id).expect("the operation is outstanding");
    posted.remove(at).expect("found").1
}

/// Accepts sockets that connect.
///
/// ```
/// use squall::stream::{Listener, StreamOptions};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = Listener::bind(&"127.0.0.1:0".parse()?, &StreamOptions::local("doc-listener"))?;
/// println!("connect to {}", listener.address());
/// assert!(listener.accept_within(Some(Duration::from_millis(10)))?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    door: PairListener,
    options: StreamOptions,
}

impl Listener {
    /// Listens at `address`: `host:port` (port 0: any free port), or `unix:@name` for this host only.
    ///
    /// # Errors
    /// [`StreamError::Connect`] if the address is not available.
    pub fn bind(address: &Address, options: &StreamOptions) -> Result<Self, StreamError> {
        options.check()?;
        Ok(Self { door: PairListener::open(address, &options.terms())?, options: options.clone() })
    }

    /// Serves callers of a service of the member that listens at `address`.
    pub(crate) fn serve(
        address: &Address,
        service: (&PairServices, PairService),
        options: &StreamOptions,
    ) -> Result<Self, StreamError> {
        options.check()?;
        Ok(Self { door: PairListener::serve(address, service, &options.terms())?, options: options.clone() })
    }

    /// Returns the address at which it listens, with the port that the kernel has chosen.
    #[must_use]
    pub const fn address(&self) -> &Address {
        self.door.address()
    }

    /// Returns the next socket, as soon as a process that knows the secret connects.
    ///
    /// # Errors
    /// [`StreamError`] if the system fails to accept connections.
    pub fn accept(&self) -> Result<Socket, StreamError> {
        loop {
            if let Some(socket) = self.accept_within(None)? {
                return Ok(socket);
            }
        }
    }

    /// Returns the next socket, or `None` if no process has connected within `timeout` (`None`: forever).
    ///
    /// # Errors
    /// [`StreamError`] if the system fails to accept connections.
    pub fn accept_within(&self, timeout: Option<Duration>) -> Result<Option<Socket>, StreamError> {
        let Some(meeting) = self.door.accept(timeout)? else { return Ok(None) };
        let endpoint = Endpoint::new(meeting, EndpointSide::Listening, &self.options)?;
        Ok(Some(Socket::over(endpoint, &self.options)))
    }
}

/// The descriptor of [`AsFd`].
impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// A descriptor that is readable while a connection waits to be accepted.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.as_fd()
    }
}

/// Calls a listener until it answers or the options' time is over.
fn call(mut call: PairCall<'_>, options: &StreamOptions) -> Result<PairedStream, StreamError> {
    let deadline = Instant::now() + options.timeout;
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
