//! A small server of HTTP/1 (of no paper), for the metrics of members and the page of `squall top`: a thread that accepts, and a
//! short-lived one for each of the few connections that there may be.
//!
//! Everything that a client can take is bounded: connections, the bytes of a request, and the time from its first byte to the
//! last one of the answer ([`PATIENCE`]), however slowly it reads and writes.

mod answer;
mod request;

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, AtomicUsize, Ordering};

pub use answer::{HttpAnswer, HttpReply, StreamWriter};
pub use request::{HttpRequest, RequestFault, read_request};

use crate::log;
use request::REQUEST_BYTES_MAX;

/// Serves HTTP. Dropping it stops that; connections that are being answered may last longer.
pub struct HttpServer {
    address: SocketAddr,
    state: Arc<ServerState>,
    /// Wakes the accepting thread, to end it.
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

type HttpService = dyn Fn(&HttpRequest) -> HttpReply + Send + Sync;

struct ServerState {
    /// The name of its threads, and of the server in the log.
    name: &'static str,
    connections_max: usize,
    service: Box<HttpService>,
    connections: AtomicUsize,
    is_closed: AtomicBool,
}

impl HttpServer {
    /// Listens at `address`, a host and a port, and answers by `service`, to at most `connections_max` clients at once.
    ///
    /// # Errors
    /// Returns the system's error if it cannot listen there.
    pub fn open(
        name: &'static str,
        address: (&str, u16),
        connections_max: usize,
        service: impl Fn(&HttpRequest) -> HttpReply + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let state = Arc::new(ServerState {
            name,
            connections_max,
            service: Box::new(service),
            connections: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
        });
        let (bell, rung) = UnixStream::pair()?;
        let accepting = Arc::clone(&state);
        let thread = Builder::new().name(name.into()).spawn(move || accept(&listener, &rung, &accepting))?;
        Ok(Self { address, state, bell, thread: Some(thread) })
    }

    /// Returns the address at which it listens, with the port that the kernel has chosen.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.state.is_closed.store(true, Ordering::Relaxed);
        // If the write fails, the thread has already ended.
        let _ = self.bell.write_all(&[0]);
        if let Some(thread) = self.thread.take() {
            // The address is free afterwards. If the thread panicked, it has already reported that.
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, bell: &UnixStream, state: &Arc<ServerState>) {
    loop {
        let waited = crate::wait_readable(&[listener.as_fd(), bell.as_fd()], None);
        if waited.is_err() || state.is_closed.load(Ordering::Relaxed) {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => begin(stream, state),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                log::warn!(%error, server = state.name, "failed to accept a connection");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

/// Gives a connection a thread, unless there are too many.
fn begin(stream: TcpStream, state: &Arc<ServerState>) {
    let before = state.connections.fetch_add(1, Ordering::Relaxed);
    let own = Arc::clone(state);
    let run = move || {
        // A client that has gone needs no answer.
        let _ = serve(&stream, &own);
        own.connections.fetch_sub(1, Ordering::Relaxed);
    };
    let spawned = before < state.connections_max && Builder::new().name(state.name.into()).spawn(run).is_ok();
    if !spawned {
        state.connections.fetch_sub(1, Ordering::Relaxed);
        log::debug!(server = state.name, "closed a connection: there are {before} already");
    }
}

/// Reads a request and answers it, within [`PATIENCE`].
fn serve(stream: &TcpStream, state: &ServerState) -> io::Result<()> {
    let mut timed = TimedStream { stream, deadline: Instant::now() + PATIENCE };
    let (reply, head_only) = match timed.request()? {
        None => return Ok(()),
        Some(Ok(request)) => ((state.service)(&request), request.head_only),
        Some(Err(fault)) => (fault.answer().into(), false),
    };
    // What is left of the time is for the answer, and there is some.
    timed.deadline = timed.deadline.max(Instant::now() + ANSWER_PATIENCE);
    match reply {
        HttpReply::Whole(answer) => timed.write_all(&answer.bytes(head_only))?,
        HttpReply::Stream(kind, write) => {
            timed.write_all(answer::head(200, kind, None).as_bytes())?;
            if !head_only {
                stream.set_write_timeout(Some(PATIENCE))?;
                let mut stream = stream;
                return write(&mut stream);
            }
        }
    }
    // A connection that is closed with bytes unread is reset, and the answer may be lost with it.
    stream.shutdown(Shutdown::Write)?;
    timed.deadline = timed.deadline.min(Instant::now() + ANSWER_PATIENCE);
    let mut rest = [0; 1 << 10];
    for _ in 0..REST_READS_MAX {
        if timed.read(&mut rest)? == 0 {
            break;
        }
    }
    Ok(())
}

/// A connection whose deadline does not move with each byte.
struct TimedStream<'s> {
    stream: &'s TcpStream,
    deadline: Instant,
}

impl TimedStream<'_> {
    /// Returns the request; `None` if the client sends nothing.
    fn request(&mut self) -> io::Result<Option<Result<HttpRequest, RequestFault>>> {
        let mut bytes = Vec::with_capacity(1 << 10);
        loop {
            if let Some(read) = read_request(&bytes).transpose() {
                return Ok(Some(read));
            }
            let mut part = [0; 1 << 10];
            let room = part.len().min(REQUEST_BYTES_MAX - bytes.len());
            match self.read(&mut part[..room]) {
                Ok(0) if bytes.is_empty() => return Ok(None),
                Ok(0) => return Ok(Some(Err(RequestFault::Malformed))),
                Ok(count) => bytes.extend_from_slice(&part[..count]),
                Err(error) if is_late(&error) => return Ok(Some(Err(RequestFault::Late))),
                Err(error) => return Err(error),
            }
        }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl io::Read for TimedStream<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl io::Write for TimedStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

impl fmt::Debug for HttpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpServer").field("address", &self.address).finish_non_exhaustive()
    }
}

/// From the first byte of a request to the end of its answer; for each write of one that has no end.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// For an answer, whenever its request has come; and for the client to close the connection after it.
const ANSWER_PATIENCE: Duration = Duration::from_millis(500);
/// After an answer, what a client may still have sent.
const REST_READS_MAX: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
