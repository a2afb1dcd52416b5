//! The endpoint: a transport and one socket that uses it, driven by the calling thread (EXS §II.B).

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use squall_fabric::{Channel, Core as _, Fabric as _, FabricEvent, Instant, NodeId, Region, Shortage};
use squall_protocols::stream as core;
use squall_transports::TransportFabric;
use squall_transports::bootstrap::pair::PairedStream;
use squall_transports::runner::{Driven, Runner};
use squall_transports::shm::{RemoteCopyCounters, ShmFabric};
use squall_transports::tcp::TcpFabric;
use squall_transports::verbs::VerbsFabric;

use super::{
    Buffer, Completion, PostRefused, ReceiveId, SendId, SocketFailure, Statistics, StreamError, StreamOptions,
};
use crate::transport::AnyFabric;

/// One end of a connection that posts ranges of registered memory.
///
/// **Law.** Post, then call [`Endpoint::poll`] or [`Endpoint::wait`], which transfers what was posted and returns
/// completions. On TCP the peer learns that its send has arrived with what this end posts or asks for next, or after
/// 0.2 s. The memory of a post must not be used before its completion, and the memory of a receive consists of whole
/// words.
///
/// ```
/// use squall::stream::{Completion, Listener, Socket, StreamOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = StreamOptions::local("doc-endpoint");
/// let listener = Listener::bind(&"127.0.0.1:0".parse()?, &options)?;
/// let address = listener.address().clone();
///
/// let server = std::thread::spawn(move || {
///     let mut endpoint = listener.accept().unwrap().into_endpoint();
///     let memory = endpoint.register(8); // words
///     endpoint.post_receive(&memory, 0..64, true).unwrap();
///     while !matches!(endpoint.wait(None), Some(Completion::Receive { .. })) {}
/// });
/// let mut endpoint = Socket::connect(&address, &options)?.into_endpoint();
/// let memory = endpoint.register(8);
/// endpoint.post_send(&memory, 0..64)?;
/// while !matches!(endpoint.wait(None), Some(Completion::Send { .. })) {}
/// server.join().unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Endpoint {
    stack: Stack,
    runner: Runner,
    linger: Duration,
}

/// What the runner drives.
#[derive(Debug)]
struct Stack {
    fabric: AnyFabric,
    socket: core::SocketCore,
    /// Reused; holds nothing between polls.
    events: Vec<FabricEvent>,
    /// The time at which the user's wait ends.
    until: Option<Instant>,
    /// The user has posted something since the last poll.
    has_posts: bool,
    /// See [`Endpoint::gather_answers`].
    gathers: bool,
}

/// Which of the two ends this is; each end is one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointSide {
    Listening,
    Calling,
}

impl EndpointSide {
    const fn nodes(self) -> (NodeId, NodeId) {
        match self {
            Self::Listening => (NodeId(0), NodeId(1)),
            Self::Calling => (NodeId(1), NodeId(0)),
        }
    }
}

impl Endpoint {
    pub(super) fn new(
        meeting: PairedStream,
        side: EndpointSide,
        options: &StreamOptions,
    ) -> Result<Self, StreamError> {
        options.settings.check()?;
        let (node, peer) = side.nodes();
        let transport = StreamError::Transport;
        let mut fabric = match meeting {
            PairedStream::Shm(stream) => {
                let mut fabric = ShmFabric::new(node, vec![(peer, stream)]).map_err(transport)?;
                fabric.set_fetching(options.fetching);
                AnyFabric::Shm(fabric)
            }
            PairedStream::Tcp(stream) => {
                AnyFabric::Tcp(TcpFabric::new(node, vec![(peer, stream)]).map_err(transport)?)
            }
            PairedStream::Verbs(stream) => {
                AnyFabric::Verbs(Box::new(VerbsFabric::new(node, vec![(peer, stream)], &options.verbs)?))
            }
        };
        let idle = fabric.idle_at_most(options.idle);
        let settings = options.settings.clone();
        let socket = Shortage::catch(|| core::SocketCore::new(&mut fabric, peer, CHANNEL, settings))??;
        let stack =
            Stack { fabric, socket, events: Vec::new(), until: None, has_posts: false, gathers: false };
        Ok(Self { stack, runner: Runner::new(idle), linger: options.linger })
    }

    /// Returns whether both ends share memory.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self.stack.fabric, AnyFabric::Shm(_))
    }

    /// Returns whether data is transferred by RDMA.
    #[must_use]
    pub const fn is_by_rdma(&self) -> bool {
        matches!(self.stack.fabric, AnyFabric::Verbs(_))
    }

    /// Allocates memory that this endpoint can transfer. One registration for many buffers is cheaper than many.
    ///
    /// # Panics
    /// If the allocation fails.
    pub fn register(&mut self, words: usize) -> Region {
        self.stack.fabric.register(words)
    }

    /// Lets this endpoint transfer the user's own memory: `memory` refers to it, and its creator
    /// ([`Region::from_raw`]) has promised that it stays valid as long as the region is held. Release it with
    /// [`Endpoint::release`].
    ///
    /// Nothing is copied that would not be copied with memory of [`Endpoint::register`]. On shared memory an end that
    /// receives into adopted memory fetches the bytes from the sender's memory when it polls; if the kernel does not
    /// permit that ([`Statistics::relayed_bytes`]), there is one more copy.
    ///
    /// # Panics
    /// If `memory` is read-only.
    pub fn adopt(&mut self, memory: &Region) -> Region {
        self.stack.fabric.adopt(memory)
    }

    /// Releases a region that [`Endpoint::adopt`] has returned: afterwards this endpoint and its peer no longer
    /// access the memory. Returns false and changes nothing while an operation on it is outstanding: cancel that and
    /// wait for its completion.
    #[must_use]
    pub fn release(&mut self, memory: &Region) -> bool {
        let released = self.stack.socket.release(&mut self.stack.fabric, memory);
        while released && self.stack.socket.is_releasing() {
            self.stack.poll();
        }
        released
    }

    /// Allocates a buffer of `bytes` bytes with memory of its own.
    ///
    /// # Panics
    /// If the allocation fails; see [`Endpoint::try_buffer`].
    pub fn buffer(&mut self, bytes: usize) -> Buffer {
        Buffer::new(&mut self.stack.fabric, bytes)
    }

    /// Allocates a buffer like [`Endpoint::buffer`], for sizes that may be too large.
    ///
    /// # Errors
    /// [`StreamError::Shortage`], with the limit that was reached.
    pub fn try_buffer(&mut self, bytes: usize) -> Result<Buffer, StreamError> {
        Ok(Buffer::try_new(&mut self.stack.fabric, bytes)?)
    }

    /// Sends `bytes` of `memory`, which must begin at a word and must not change before the completion.
    ///
    /// # Errors
    /// [`PostRefused`]; then nothing has been posted.
    pub fn post_send(&mut self, memory: &Region, bytes: Range<usize>) -> Result<SendId, PostRefused> {
        self.stack.has_posts = true;
        self.stack.socket.post_send(memory, bytes)
    }

    /// Receives into `bytes` of `memory`, which must begin at a word: any number of bytes, all of them if `wait_all`,
    /// or one packet. The bytes after the last one, up to the next word, may become zeros.
    ///
    /// # Errors
    /// [`PostRefused`]; then nothing has been posted.
    pub fn post_receive(
        &mut self,
        memory: &Region,
        bytes: Range<usize>,
        wait_all: bool,
    ) -> Result<ReceiveId, PostRefused> {
        self.stack.has_posts = true;
        self.stack.socket.post_receive(&mut self.stack.fabric, memory, bytes, wait_all)
    }

    /// Cancels a send of which nothing has been sent; returns false if it is too late.
    pub fn cancel_send(&mut self, id: SendId) -> bool {
        self.stack.socket.cancel_send(id)
    }

    /// Cancels a receive. It completes when the peer can no longer write to it, and it may have data that arrived
    /// before. Returns false if there is no receive of that number.
    pub fn cancel_receive(&mut self, id: ReceiveId) -> bool {
        self.stack.socket.cancel_receive(id)
    }

    /// Ends the stream after what has been posted.
    pub fn shut_down(&mut self) {
        self.stack.socket.shut_down();
    }

    /// Closes the connection at once.
    pub fn abort(&mut self) {
        self.stack.socket.abort(&mut self.stack.fabric);
        self.flush();
    }

    /// Returns whether there is a completion that has not been taken yet.
    #[inline]
    #[must_use]
    pub fn has_completion(&self) -> bool {
        self.stack.socket.has_completion()
    }

    /// Sets how long dropping it waits for the peer, instead of [`StreamOptions::linger`].
    pub const fn set_linger(&mut self, linger: Duration) {
        self.linger = linger;
    }

    /// Returns counters of what has been done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let statistics = *self.stack.socket.statistics();
        let AnyFabric::Shm(fabric) = &self.stack.fabric else { return statistics };
        let RemoteCopyCounters { fetched_bytes, relayed_bytes } = fabric.remote_copies();
        Statistics { fetched_bytes, relayed_bytes, ..statistics }
    }

    /// Returns why the connection has failed, if it has; the event follows when the peer can no longer write.
    #[must_use]
    pub fn failure(&self) -> Option<SocketFailure> {
        self.stack.socket.failure()
    }

    /// Returns whether the connection has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.stack.socket.is_closed()
    }

    /// Returns the next completion, without waiting.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        if !self.has_completion() {
            self.stack.poll();
        }
        self.stack.socket.poll_completion()
    }

    /// Waits for the next completion for up to `timeout` (`None`: forever). Returns `None` if there is none.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Option<Completion> {
        if let Some(completion) = self.poll() {
            return Some(completion);
        }
        let until = timeout.map(|timeout| self.stack.fabric.now() + timeout);
        self.stack.until = until;
        let completion = loop {
            self.runner.step(&mut self.stack);
            if let Some(completion) = self.stack.socket.poll_completion() {
                break Some(completion);
            }
            if self.is_closed() || until.is_some_and(|until| self.stack.fabric.now() >= until) {
                break None;
            }
        };
        self.stack.until = None;
        completion
    }

    /// Makes all the progress that is possible now; afterwards the peer knows of all that could be posted.
    pub fn flush(&mut self) {
        for _ in 0..FLUSH_POLLS_MAX {
            if self.stack.poll() == 0 {
                break;
            }
        }
        self.stack.fabric.flush();
    }

    /// From now on each poll sends what was posted, but leaves acknowledgements alone to the next polls: for a caller that soon sends
    /// something, or waits, which sends them, too.
    pub(crate) fn gather_answers(&mut self) {
        if let AnyFabric::Tcp(fabric) = &mut self.stack.fabric {
            fabric.gather_answers();
            self.stack.gathers = true;
        }
    }

    /// Returns whether all that was posted to be sent has left this process, so that it arrives even if this endpoint
    /// is never polled again.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.stack.socket.has_posted_all() && self.stack.fabric.is_flushed()
    }

    /// Waits until [`Endpoint::has_left`] returns true, the connection ends, there is a completion, or the timeout
    /// expires.
    pub(super) fn wait_left(&mut self, timeout: Option<Duration>) {
        let until = timeout.map(|timeout| self.stack.fabric.now() + timeout);
        self.stack.until = until;
        while !self.has_left()
            && !self.is_closed()
            && !self.stack.socket.has_completion()
            && until.is_none_or(|until| self.stack.fabric.now() < until)
        {
            self.runner.step(&mut self.stack);
        }
        self.stack.until = None;
    }

    /// Prepares to wait for [`Endpoint::readiness`]: from now on the peer rings the doorbell. Returns false if there
    /// is something to do at once instead. In either case call [`Endpoint::end_wait`] afterwards.
    #[must_use]
    pub fn begin_wait(&mut self) -> bool {
        self.stack.fabric.prepare_park();
        if self.stack.poll() > 0 || self.stack.socket.has_completion() {
            return false;
        }
        // What this poll has posted must not wait as long as the caller does, and it may complete at once.
        self.stack.fabric.flush();
        self.stack.poll() == 0 && !self.stack.socket.has_completion()
    }

    /// Returns the descriptor that becomes readable when there is something to do, and how long to wait for it at
    /// most.
    #[must_use]
    pub fn readiness(&self) -> (BorrowedFd<'_>, Option<Duration>) {
        let (fd, patience) = self.stack.fabric.readiness();
        let now = self.stack.fabric.now();
        let deadline = self.stack.next_deadline().map(|deadline| deadline.since(now));
        (fd, [patience, deadline].into_iter().flatten().min())
    }

    /// Returns a waker that ends a wait from any other thread.
    pub(super) fn waker(&self) -> squall_transports::Waker {
        self.stack.fabric.waker()
    }

    /// Ends a wait that [`Endpoint::begin_wait`] has begun.
    pub fn end_wait(&mut self) {
        self.stack.fabric.unpark();
    }
}

impl Drop for Endpoint {
    /// Ends the stream and waits until the peer has taken it, for at most [`StreamOptions::linger`].
    fn drop(&mut self) {
        if self.is_closed() || self.failure().is_some() {
            return;
        }
        self.shut_down();
        self.flush();
        let until = self.stack.fabric.now() + self.linger;
        self.stack.until = Some(until);
        while !self.stack.socket.is_sent() && !self.is_closed() && self.stack.fabric.now() < until {
            self.runner.step(&mut self.stack);
            // Other completions no longer matter, but they must not keep the runner from parking.
            while self.stack.socket.poll_completion().is_some() {}
        }
    }
}

impl Driven for Stack {
    type Transport = AnyFabric;

    fn transport(&mut self) -> &mut AnyFabric {
        &mut self.fabric
    }

    #[inline]
    fn poll(&mut self) -> usize {
        let has_posts = std::mem::take(&mut self.has_posts);
        let (socket, events, gathers) = (&mut self.socket, &mut self.events, self.gathers);
        // Matched once, not at each call: calls make up the cost of a small message.
        match &mut self.fabric {
            AnyFabric::Shm(fabric) => step(fabric, socket, events, has_posts, gathers),
            AnyFabric::Tcp(fabric) => step(fabric, socket, events, has_posts, gathers),
            AnyFabric::Verbs(fabric) => step(&mut **fabric, socket, events, has_posts, gathers),
            AnyFabric::Auto(fabric) => step(&mut **fabric, socket, events, has_posts, gathers),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let core = squall_fabric::Core::<AnyFabric>::next_deadline(&self.socket);
        [core, self.until].into_iter().flatten().min()
    }
}

/// Makes all the progress that is possible; returns the amount of work done.
#[inline]
fn step<T: TransportFabric>(
    fabric: &mut T,
    socket: &mut core::SocketCore,
    events: &mut Vec<FabricEvent>,
    has_posts: bool,
    gathers: bool,
) -> usize {
    let mut work = 0;
    if has_posts {
        // At once, since the peer waits for it. On TCP it is sent at the beginning of the next statement.
        work += socket.poll(fabric);
    }
    work += fabric.poll(&mut |event| {
        // Events that arrived before it are handled first.
        if !events.is_empty() || !socket.absorb(&event) {
            events.push(event);
        }
    });
    for event in &*events {
        socket.handle_event(fabric, event);
    }
    events.clear();
    let posted = socket.poll(fabric);
    // The user may do other things for a long time after this. A user that gets a completion, however, usually
    // answers it or asks for more: then what the peer must know about its own posts is sent along with that.
    if gathers || socket.has_completion() {
        fabric.flush_own_posts()
    } else {
        fabric.flush()
    }
    work + posted
}

/// Waits until one of `endpoints` has something to do, for up to `timeout`. It takes no completions.
///
/// ```
/// use squall::stream::{Listener, Socket, StreamOptions, wait_any};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = StreamOptions::local("doc-wait-any");
/// let listener = Listener::bind(&"127.0.0.1:0".parse()?, &options)?;
/// let address = listener.address().clone();
///
/// let connecting = std::thread::spawn(move || Socket::connect(&address, &options).unwrap());
/// let (mut first, mut second) = (listener.accept()?, connecting.join().unwrap());
/// wait_any(&mut [first.endpoint(), second.endpoint()], Some(Duration::from_millis(10)))?;
/// while let Some(event) = first.poll() {
///     println!("{event:?}");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The system's error.
pub fn wait_any(endpoints: &mut [&mut Endpoint], timeout: Option<Duration>) -> std::io::Result<()> {
    let idle = endpoints.iter_mut().fold(true, |idle, endpoint| idle & endpoint.begin_wait());
    let waited = if idle {
        let waits: Vec<_> = endpoints.iter().map(|endpoint| endpoint.readiness()).collect();
        let patience = waits.iter().filter_map(|(_, patience)| *patience);
        let timeout = patience.chain(timeout).min();
        let fds: Vec<_> = waits.into_iter().map(|(fd, _)| fd).collect();
        squall_transports::wait_readable(&fds, timeout).map(drop)
    } else {
        Ok(())
    };
    endpoints.iter_mut().for_each(|endpoint| endpoint.end_wait());
    waited
}

/// The channel of the stream between the two nodes.
const CHANNEL: Channel = Channel(1);

/// The largest number of polls of one flush: if there is more work, the peer is working at the same time, and the
/// next poll continues.
const FLUSH_POLLS_MAX: usize = 64;
