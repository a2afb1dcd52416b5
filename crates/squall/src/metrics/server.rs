//! Serves metrics over HTTP: a thread that accepts, and a short-lived one for each of the few connections that there may be.
//!
//! Everything that a client can take is bounded: connections ([`CONNECTIONS_MAX`]), the bytes of a request, and the time from its
//! first byte to the last one of the answer ([`PATIENCE`]), however slowly it reads and writes.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use squall_fabric::atomics::{AtomicBool, AtomicUsize, Ordering};
use squall_transports::bootstrap::Address;
use squall_transports::log;

use super::board::FiguresBoard;
use super::exposition;
use super::request::{self, MetricsQuestion, REQUEST_BYTES_MAX, RequestFault};
use crate::config::MetricsConfig;

/// Serves the metrics of a member. Dropping it stops that.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    address: SocketAddr,
    state: Arc<ServerState>,
    /// Wakes the accepting thread, to end it.
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ServerState {
    board: Arc<FiguresBoard>,
    registry: Registry,
    connections: AtomicUsize,
    is_closed: AtomicBool,
}

impl MetricsServer {
    /// Listens, and answers from what is on the board.
    pub(crate) fn open(config: &MetricsConfig, board: Arc<FiguresBoard>) -> io::Result<Self> {
        let Address::Tcp { host, port } = &config.listen else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no TCP address"));
        };
        let listener = TcpListener::bind((host.as_str(), *port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let registry = exposition::registry(Arc::clone(&board));
        let (connections, is_closed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let state = Arc::new(ServerState { board, registry, connections, is_closed });
        let (bell, rung) = UnixStream::pair()?;
        let accepting = Arc::clone(&state);
        let run = move || accept(&listener, &rung, &accepting);
        let thread = std::thread::Builder::new().name("squall metrics".into()).spawn(run)?;
        Ok(Self { address, state, bell, thread: Some(thread) })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
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
        let waited = squall_transports::wait_readable(&[listener.as_fd(), bell.as_fd()], None);
        if waited.is_err() || state.is_closed.load(Ordering::Relaxed) {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => begin(stream, state),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                log::warn!(%error, "failed to accept a connection to this member's metrics");
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
    let spawned = before < CONNECTIONS_MAX
        && std::thread::Builder::new().name("squall metrics".into()).spawn(run).is_ok();
    if !spawned {
        state.connections.fetch_sub(1, Ordering::Relaxed);
        log::debug!("closed a connection to this member's metrics: there are {before} already");
    }
}

/// Reads a request and answers it, within [`PATIENCE`].
fn serve(stream: &TcpStream, state: &ServerState) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut stream = TimedStream { stream, deadline };
    let mut bytes = Vec::with_capacity(1 << 10);
    let (answer, head_only) = loop {
        match request::read(&bytes) {
            Ok(Some(request)) => break (answer(request.question, state), request.head_only),
            Err(fault) => break (refusal(fault), false),
            Ok(None) => {}
        }
        let mut part = [0; 1 << 10];
        let room = part.len().min(REQUEST_BYTES_MAX - bytes.len());
        match stream.read(&mut part[..room]) {
            Ok(0) if bytes.is_empty() => return Ok(()),
            Ok(0) => break (refusal(RequestFault::Malformed), false),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if is_late(&error) => {
                break (HttpAnswer::new(408, "the request did not come in time"), false);
            }
            Err(error) => return Err(error),
        }
    };
    // What is left of the time is for the answer, and there is some.
    stream.deadline = stream.deadline.max(Instant::now() + ANSWER_PATIENCE);
    stream.write_all(&answer.bytes(head_only))?;
    // A connection that is closed with bytes unread is reset, and the answer may be lost with it.
    stream.stream.shutdown(Shutdown::Write)?;
    stream.deadline = stream.deadline.min(Instant::now() + ANSWER_PATIENCE);
    let mut rest = [0; 1 << 10];
    for _ in 0..REST_READS_MAX {
        if stream.read(&mut rest)? == 0 {
            break;
        }
    }
    Ok(())
}

fn answer(question: MetricsQuestion, state: &ServerState) -> HttpAnswer {
    let board = &state.board;
    if let (MetricsQuestion::Health | MetricsQuestion::Readiness, Some(failure)) = (question, board.failure())
    {
        return HttpAnswer::new(503, &failure.to_string());
    }
    match question {
        MetricsQuestion::Metrics => HttpAnswer {
            status: 200,
            kind: exposition::CONTENT_TYPE,
            body: exposition::text(&state.registry),
        },
        MetricsQuestion::Trace => HttpAnswer { status: 200, kind: "application/json", body: board.trace() },
        MetricsQuestion::Health if board.lives(HEALTH_PATIENCE) => HttpAnswer::new(200, "this member lives"),
        MetricsQuestion::Health => {
            HttpAnswer::new(503, &format!("the polling thread has not run for {HEALTH_PATIENCE:?}"))
        }
        MetricsQuestion::Readiness => {
            let figures = board.read();
            match (figures.written, figures.ready) {
                (None, _) => HttpAnswer::new(503, "this member has not joined its group yet"),
                (Some(_), true) => HttpAnswer::new(200, "messages flow"),
                (Some(_), false) if figures.lacks_majority => {
                    HttpAnswer::new(503, "this member hears no majority, and waits for one with its state")
                }
                (Some(_), false) => HttpAnswer::new(503, "the view is changing, so no message flows"),
            }
        }
    }
}

fn refusal(fault: RequestFault) -> HttpAnswer {
    match fault {
        RequestFault::Malformed => HttpAnswer::new(400, "this is no request of HTTP/1"),
        RequestFault::Long => HttpAnswer::new(431, "the request is too long"),
        RequestFault::Method => HttpAnswer::new(405, "there is nothing to change here: GET"),
        RequestFault::Path => HttpAnswer::new(404, "there are /metrics, /healthz, /readyz and /trace"),
    }
}

/// An answer, after which the connection ends.
#[derive(Debug)]
struct HttpAnswer {
    status: u16,
    kind: &'static str,
    body: String,
}

impl HttpAnswer {
    /// Returns an answer with a line of text.
    fn new(status: u16, line: &str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: format!("{line}\n") }
    }

    fn bytes(&self, head_only: bool) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            _ => "Service Unavailable",
        };
        let allow = if self.status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        let mut text = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
             Connection: close\r\n\r\n",
            self.status,
            self.kind,
            self.body.len(),
        );
        if !head_only {
            text.push_str(&self.body);
        }
        text.into_bytes()
    }
}

/// A connection whose deadline does not move with each byte.
struct TimedStream<'s> {
    stream: &'s TcpStream,
    deadline: Instant,
}

impl TimedStream<'_> {
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

/// Scrapers ask a few times a minute, one after the other.
const CONNECTIONS_MAX: usize = 8;
/// From the first byte of a request to the end of its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// For an answer, whenever its request has come; and for the client to close the connection after it.
const ANSWER_PATIENCE: Duration = Duration::from_millis(500);
/// After an answer, what a client may still have sent.
const REST_READS_MAX: usize = 64;
/// How long the polling thread may take to give a sign of life: a busy machine keeps it waiting.
const HEALTH_PATIENCE: Duration = Duration::from_secs(2);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
