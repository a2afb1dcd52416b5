//! Streams for tokio: AsyncRead and AsyncWrite without a thread behind them.
//!
//! A task that finds nothing to do asks the peer to ring the doorbell, checks once more, and registers its waker with
//! tokio's driver, which watches the file descriptor that the doorbell makes readable.
//!
//! **Nothing that a task waits for happens unseen.** Each poll makes progress for both directions, and what it finds
//! rings no doorbell later. So
//! - a task checks what it waits for after its last progress and before it waits: data that have left, for instance,
//!   are no event;
//! - a task that makes progress and waits nevertheless wakes the task of the other direction.

use std::future::Future as _;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use squall_fabric::mutex::lock;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::blocking::StreamFlow;
use super::{Address, Listener, Socket, StreamError, StreamOptions};

/// A stream with [`AsyncRead`] and [`AsyncWrite`] over a [`Socket`].
///
/// A write completes when its data is in a buffer that is posted, and usually the data has left this process by then;
/// `flush` waits until it certainly has, and `shutdown` until the end of the stream has. A stream that is dropped
/// without `shutdown` does not wait, and what its peer has not taken may be lost.
#[derive(Debug)]
pub struct AsyncStream {
    flow: StreamFlow,
    ready: AsyncFd<OwnedFd>,
    wakers: Arc<Wakers>,
    /// Whether the peer rings the doorbell.
    waits: bool,
    /// Whether the task that writes waits until what it has written has left.
    awaits_left: bool,
    /// When to check again although the doorbell does not ring.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The tasks that wait for the two directions, which share one doorbell.
#[derive(Debug, Default)]
struct Wakers(Mutex<[Option<Waker>; 2]>);

/// The direction that a task waits for.
#[derive(Clone, Copy, Debug)]
enum Direction {
    Reading,
    Writing,
}

impl Direction {
    const fn other(self) -> Self {
        match self {
            Self::Reading => Self::Writing,
            Self::Writing => Self::Reading,
        }
    }
}

impl Wakers {
    /// Wakes the task that waits for `direction`, if there is one.
    fn wake_one(&self, direction: Direction) {
        let waker = lock(&self.0)[direction as usize].take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn set(&self, direction: Direction, waker: &Waker) {
        let mut wakers = lock(&self.0);
        match &mut wakers[direction as usize] {
            Some(old) => old.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl AsyncStream {
    /// Connects to the listener at `address`, without blocking the runtime meanwhile.
    ///
    /// # Errors
    /// [`StreamError`], with what to do next.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one without input, output and time.
    pub async fn connect(address: &Address, options: &StreamOptions) -> Result<Self, StreamError> {
        let (address, options) = (address.clone(), suited(options));
        let call = move || Socket::connect(&address, &options);
        let socket =
            tokio::task::spawn_blocking(call).await.map_err(|error| failed(io::Error::other(error)))?;
        Self::new(socket?)
    }

    /// Creates a stream over a socket with nothing posted.
    ///
    /// # Errors
    /// [`StreamError`] if the socket takes fewer posts than there are buffers, or tokio cannot watch it.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one without input, output and time.
    pub fn new(mut socket: Socket) -> Result<Self, StreamError> {
        // Dropping it must not block a thread of the runtime.
        socket.endpoint().set_linger(Duration::ZERO);
        let fd = socket.endpoint().readiness().0.try_clone_to_owned().map_err(failed)?;
        let ready = watch(fd)?;
        let flow = StreamFlow::new(socket)?;
        Ok(Self { flow, ready, wakers: Arc::default(), waits: false, awaits_left: false, timer: None })
    }

    /// Returns the underlying socket.
    pub const fn socket(&self) -> &Socket {
        &self.flow.socket
    }

    /// Closes the connection at once; the peer sees it break.
    pub fn abort(mut self) {
        self.flow.socket.abort();
    }

    /// Ends the wait before any progress is made: a doorbell that rings on the way must not be the one that a task
    /// waits for.
    fn begin(&mut self) {
        if std::mem::replace(&mut self.waits, false) {
            self.flow.socket.endpoint().end_wait();
        }
    }

    /// Completes a task. The peer no longer rings then, so the other task has to check for itself.
    fn finish<T>(&self, outcome: T) -> Poll<T> {
        self.wakers.wake_by_ref();
        Poll::Ready(outcome)
    }

    /// Returns when something has happened or `is_there` returns true; otherwise the peer will ring, and the task is
    /// woken.
    fn poll_happening(
        &mut self,
        direction: Direction,
        context: &Context<'_>,
        is_there: impl Fn(&mut StreamFlow) -> bool,
    ) -> Poll<io::Result<()>> {
        self.wakers.set(direction, context.waker());
        loop {
            self.begin();
            let happened = self.flow.step() || self.flow.socket.is_closed();
            // The task of the other direction may wait for just this.
            let may_end = matches!(direction, Direction::Reading) && self.awaits_left;
            if happened || may_end && has_left(&mut self.flow) {
                self.wakers.wake_one(direction.other());
            }
            if happened || is_there(&mut self.flow) {
                return Poll::Ready(Ok(()));
            }
            self.waits = true;
            // If this makes progress, everything is checked again.
            if !self.flow.socket.endpoint().begin_wait() {
                continue;
            }
            let both = Waker::from(self.wakers.clone());
            match self.ready.poll_read_ready(&mut Context::from_waker(&both)) {
                Poll::Ready(ready) => ready?.clear_ready(),
                Poll::Pending => {
                    self.set_timer(&both);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Has both tasks woken when it is time to check again, if there is such a time.
    fn set_timer(&mut self, both: &Waker) {
        let Some(wait) = self.flow.socket.endpoint().readiness().1 else {
            self.timer = None;
            return;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
        timer.as_mut().reset(Instant::now() + wait);
        if timer.as_mut().poll(&mut Context::from_waker(both)).is_ready() {
            both.wake_by_ref();
        }
    }

    fn poll_left(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.flow.has_left() {
                Ok(false) => {
                    self.awaits_left = true;
                    ready!(self.poll_happening(Direction::Writing, context, has_left))?;
                    self.awaits_left = false;
                }
                left => {
                    self.awaits_left = false;
                    return self.finish(left.map(|_| ()));
                }
            }
        }
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.begin();
        loop {
            match self.flow.read_now(target.initialize_unfilled()) {
                Ok(None) => ready!(self.poll_happening(Direction::Reading, context, nothing_more))?,
                Ok(Some(read)) => {
                    target.advance(read);
                    return self.finish(Ok(()));
                }
                Err(error) => return self.finish(Err(error)),
            }
        }
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        source: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.begin();
        self.awaits_left = false;
        loop {
            match self.flow.write_now(source) {
                Ok(None) => ready!(self.poll_happening(Direction::Writing, context, nothing_more))?,
                Ok(Some(written)) => return self.finish(Ok(written)),
                Err(error) => return self.finish(Err(error)),
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.begin();
        self.poll_left(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.begin();
        self.flow.socket.shut_down();
        self.flow.socket.flush();
        self.poll_left(context)
    }
}

/// A listener whose `accept` awaits.
#[derive(Debug)]
pub struct AsyncListener {
    listener: AsyncFd<Listener>,
}

impl AsyncListener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// [`StreamError`] if the address is not available.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one without input, output and time.
    pub fn bind(address: &Address, options: &StreamOptions) -> Result<Self, StreamError> {
        let listener = Listener::bind(address, &suited(options))?;
        let listener = watch(listener)?;
        Ok(Self { listener })
    }

    /// Returns the address at which it listens, with the port that the kernel has chosen.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.listener.get_ref().address()
    }

    /// Returns the next stream, as soon as a process that knows the secret connects.
    ///
    /// # Errors
    /// [`StreamError`] if the system fails to accept connections.
    pub async fn accept(&self) -> Result<AsyncStream, StreamError> {
        loop {
            if let Some(socket) = self.listener.get_ref().accept_within(Some(Duration::ZERO))? {
                return AsyncStream::new(socket);
            }
            let mut ready = self.listener.readable().await.map_err(failed)?;
            match self.listener.get_ref().accept_within(Some(Duration::ZERO))? {
                Some(socket) => return AsyncStream::new(socket),
                None => ready.clear_ready(),
            }
        }
    }
}

/// Returns whether all that was written has left, or never will.
fn has_left(flow: &mut StreamFlow) -> bool {
    flow.has_left().unwrap_or(true)
}

/// For a task that waits for events only.
const fn nothing_more(_: &mut StreamFlow) -> bool {
    false
}

/// Returns options without waits for adverts: a sender that waits for adverts needs a clock of microseconds, which
/// tokio does not have.
fn suited(options: &StreamOptions) -> StreamOptions {
    let mut options = options.clone();
    options.settings.copy_bytes_per_us = 0;
    options
}

/// Lets tokio's driver watch a file descriptor.
#[expect(
    deprecated,
    reason = "its replacement is unsafe, for types whose descriptor can change; these types own theirs"
)]
fn watch<T: AsRawFd>(fd: T) -> Result<AsyncFd<T>, StreamError> {
    AsyncFd::with_interest(fd, Interest::READABLE).map_err(failed)
}

fn failed(error: io::Error) -> StreamError {
    StreamError::Transport(error)
}
