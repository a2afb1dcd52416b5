//! The connections of a copy, all of which lead to the port of a `serve`: the caller proves the secret and says what the connection is.
//! The control line carries messages in both directions; a link becomes a part of the session.

use std::io::{self, BufRead, BufReader, ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::net::sockopt;
use serde::{Serialize, de::DeserializeOwned};
use squall::config::Secret;
use squall_harness::lines::write_line;
use squall_transports::bootstrap::{ProofError, connect_within};
use squall_transports::session::{CallerKind, ConnectionEnds, PeerStream, Proof, SealedHalf, SessionKeys};

use super::deadline::DeadlineStream;
use super::message::{self, CopyCall};

type TimedStream = DeadlineStream<Arc<TcpStream>>;

/// A connection whose ends have proved the secret, before it is used.
#[derive(Debug)]
pub(crate) struct ProvedConnection {
    stream: TimedStream,
    session: SessionKeys,
}

impl ProvedConnection {
    /// Proves the secret as the end that has connected, and says what the connection is.
    pub(crate) fn call(stream: TcpStream, secret: &Secret, call: &CopyCall) -> Result<Self> {
        let ends = ConnectionEnds::of(&stream)?;
        stream.set_nodelay(true)?;
        let mut stream = DeadlineStream::new(Arc::new(stream));
        stream.begin(Some(PROOF_TIMEOUT));
        let session = Proof::new(secret, CLUSTER).prove(&mut stream, Some(ends), CallerKind::Copy)?;
        let mut connection = Self { stream, session };
        connection.say(call)?;
        Ok(connection)
    }

    /// Demands the proof of the end that has connected. It, and the message that says what the connection is, which comes next,
    /// must arrive within [`PROOF_TIMEOUT`].
    pub(crate) fn demand(stream: Arc<TcpStream>, secret: &Secret) -> Result<Self> {
        let ends = ConnectionEnds::of(&stream)?;
        stream.set_nodelay(true)?;
        let mut stream = DeadlineStream::new(stream);
        stream.begin(Some(PROOF_TIMEOUT));
        let caller = Proof::new(secret, CLUSTER).demand(&mut stream, Some(ends), &[CallerKind::Copy])?;
        Ok(Self { stream, session: caller.session })
    }

    /// Sends a short message.
    pub(crate) fn say(&mut self, message: &impl Serialize) -> Result<()> {
        write_line(&mut self.session.preface(&mut self.stream), message)
    }

    /// Reads a short message, and not a byte beyond it, within what is left of the time for the proof.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let (mut preface, mut line) = (self.session.preface(&mut self.stream), Vec::new());
        while line.len() < PREFACE_BYTES_MAX {
            let mut byte = [0];
            preface.read_exact(&mut byte).context("the connection is lost")?;
            if byte == *b"\n" {
                return parse(std::str::from_utf8(&line)?);
            }
            line.extend(byte);
        }
        bail!("the other end sent a line that is too long")
    }

    /// Makes it a control line. All messages are encrypted, wherever the other end is.
    pub(crate) fn into_line(self) -> Result<CopyConnection> {
        let stream = Arc::clone(self.stream.stream());
        // Notices an end that has lost its power.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEP_ALIVE_PERIOD)?;
        sockopt::set_tcp_keepcnt(&stream, KEEP_ALIVE_TRIALS)?;
        let (reader, writer) = self.session.halves(DeadlineStream::new(stream), self.stream);
        Ok(CopyConnection { reader: BufReader::new(reader), writer })
    }

    /// Makes it a link of a session, whose data are encrypted between hosts.
    pub(crate) fn into_link(self) -> Result<PeerStream> {
        let stream = self.stream.stream().try_clone()?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        Ok(PeerStream::new(stream, self.session))
    }
}

/// A control line between `cp` and `serve`.
#[derive(Debug)]
pub(crate) struct CopyConnection {
    reader: BufReader<SealedHalf<TimedStream>>,
    writer: SealedHalf<TimedStream>,
}

impl CopyConnection {
    pub(crate) fn write(&mut self, message: &impl Serialize) -> Result<()> {
        self.writer.stream_mut().begin(Some(WRITE_PATIENCE));
        write_line(&mut self.writer, message)
    }

    /// Reads the next message, within `patience`.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, patience: Option<Duration>) -> Result<T> {
        self.reader.get_mut().stream_mut().begin(patience);
        let mut line = String::new();
        let read = (&mut self.reader).take(LINE_BYTES_MAX).read_line(&mut line);
        let bytes = read.context("the connection is lost")?;
        ensure!(bytes > 0, "the other end has closed the connection");
        ensure!(line.ends_with('\n'), "a line of more than {LINE_BYTES_MAX} bytes, or half of one");
        parse(&line)
    }

    pub(crate) fn peer(&self) -> Result<SocketAddr> {
        Ok(self.reader.get_ref().stream().stream().peer_addr()?)
    }
}

/// Reads a line. Fuzzed as `copy`.
fn parse<T: DeserializeOwned>(line: &str) -> Result<T> {
    message::parse(line).context("the other end sent an unexpected message: run the same release")
}

/// Connects to the `serve` at a host, proves the secret and says what the connection is.
pub(crate) fn reach(host: &str, port: u16, secret: &Secret, call: &CopyCall) -> Result<ProvedConnection> {
    let begun = Instant::now();
    loop {
        match ProvedConnection::call(connect(host, port)?, secret, call) {
            // A host to which many strangers connect closes some before they can prove anything.
            Err(error) if is_cut_off(&error) && begun.elapsed() < CONNECT_TIMEOUT => {
                std::thread::sleep(CONNECT_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Returns whether a connection has ended in the middle of what the ends say first, or has taken too long.
pub(crate) fn is_cut_off(error: &anyhow::Error) -> bool {
    let ends =
        [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::TimedOut];
    let is_end = |cause: &io::Error| ends.contains(&cause.kind());
    error.chain().any(|cause| match cause.downcast_ref() {
        Some(ProofError::Io(error)) => is_end(error),
        _ => cause.downcast_ref().is_some_and(is_end),
    })
}

fn connect(host: &str, port: u16) -> Result<TcpStream> {
    let mut last = None;
    let addresses = (host, port).to_socket_addrs().with_context(|| format!("cannot find the host {host}"))?;
    for address in addresses {
        match connect_within(address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => {
            bail!("cannot reach {host} at port {port} ({error}): is `squall serve` running there?")
        }
        None => bail!("{host} has no address"),
    }
}

const CLUSTER: &str = "squall-copy";
/// For the whole proof, and what the connection is, however slowly the bytes arrive.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest message before a connection is used.
const PREFACE_BYTES_MAX: usize = 4096;
/// For a line to be accepted.
const WRITE_PATIENCE: Duration = Duration::from_secs(600);
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(20);
const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TRIALS: u32 = 4;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// A list of a million files or so.
const LINE_BYTES_MAX: u64 = 256 << 20;
