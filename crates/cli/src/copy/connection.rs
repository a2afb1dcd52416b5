//! The connections of a copy, all of which lead to the port of a `serve`: the caller proves the secret and says what the connection is.
//! The control line carries messages in both directions; a link becomes a part of the session.
//!
//! **Silence.** Both ends of a control line send a beat every second, from a thread that does nothing else, and each gives the other up if
//! nothing has come for a while: a host that is stopped or has lost its power, and a source. The link between the two is cut then, so the
//! session learns of it. Between two hosts the kernel ends a link on which it sends in vain for that long.

use std::io::{self, BufRead, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::net::sockopt;
use serde::{Serialize, de::DeserializeOwned};
use squall::config::quantity;
use squall_fabric::mutex::lock;
use squall_harness::lines::write_line;
use squall_transports::bootstrap::{ProofError, connect_within};
use squall_transports::session::{CallerKind, ConnectionEnds, PeerStream, SealedHalf, SessionKeys};

use super::CopyTrust;
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
    pub(crate) fn call(stream: TcpStream, trust: &CopyTrust, call: &CopyCall) -> Result<Self> {
        let ends = ConnectionEnds::of(&stream)?;
        stream.set_nodelay(true)?;
        let mut stream = DeadlineStream::new(Arc::new(stream), PROOF_TIMEOUT);
        let session = trust.proof().prove(&mut stream, Some(ends), CallerKind::Copy)?;
        let mut connection = Self { stream, session };
        connection.say(call)?;
        Ok(connection)
    }

    /// Demands the proof of the end that has connected. It, and the message that says what the connection is, which comes next,
    /// must arrive within [`PROOF_TIMEOUT`].
    pub(crate) fn demand(stream: Arc<TcpStream>, trust: &CopyTrust) -> Result<Self> {
        let ends = ConnectionEnds::of(&stream)?;
        stream.set_nodelay(true)?;
        let mut stream = DeadlineStream::new(stream, PROOF_TIMEOUT);
        let caller = trust.proof().demand(&mut stream, Some(ends), &[CallerKind::Copy])?;
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
                return parse(&line);
            }
            line.extend(byte);
        }
        bail!("the other end sent a line that is too long")
    }

    /// Makes it a control line, whose other end is given up after that long a silence. All messages are encrypted, wherever it is.
    pub(crate) fn into_line(self, silence: Duration) -> Result<CopyConnection> {
        let stream = Arc::clone(self.stream.stream());
        limit_silence(&stream, silence)?;
        let half = || DeadlineStream::without_silence(Arc::clone(&stream), silence);
        let (reader, writer) = self.session.halves(half(), half());
        CopyConnection::start(&stream, BufReader::new(reader), writer)
    }

    /// Makes it a link of a session, whose data are encrypted if either end wants that ([`CopyTrust`]), and returns what cuts it.
    pub(crate) fn into_link(self, silence: Duration) -> Result<(PeerStream, TcpStream)> {
        let stream = self.stream.stream().try_clone()?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        limit_silence(&stream, silence)?;
        let cut = stream.try_clone()?;
        Ok((PeerStream::new(stream, self.session), cut))
    }
}

/// Has the kernel end a connection to a host that has lost its power, whether something is sent to it or not.
fn limit_silence(stream: &TcpStream, silence: Duration) -> Result<()> {
    let milliseconds = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, milliseconds)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, silence.div_f64(2.0).max(KEEP_ALIVE_PERIOD))?;
    Ok(sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_PERIOD)?)
}

type LineReader = BufReader<SealedHalf<TimedStream>>;
type LineWriter = Arc<Mutex<SealedHalf<TimedStream>>>;

/// A control line between `cp` and `serve`. Two threads belong to it: one reads, the other sends beats.
#[derive(Debug)]
pub(crate) struct CopyConnection {
    stream: Arc<TcpStream>,
    writer: LineWriter,
    messages: Receiver<Result<Vec<u8>>>,
    link: Arc<Mutex<LineFate>>,
    /// Dropped, it ends the beats.
    _beats: Sender<()>,
}

/// What ends with a line.
#[derive(Debug, Default)]
struct LineFate {
    is_lost: bool,
    link: Option<TcpStream>,
}

impl CopyConnection {
    fn start(stream: &Arc<TcpStream>, reader: LineReader, writer: SealedHalf<TimedStream>) -> Result<Self> {
        let writer = Arc::new(Mutex::new(writer));
        let (forward, messages) = mpsc::sync_channel(MESSAGES_MAX);
        let (beats, ended) = mpsc::channel();
        let link = Arc::default();
        let (state, beaten) = (Arc::clone(&link), Arc::clone(&writer));
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        thread("copy reader").spawn(move || listen(reader, &forward, &state))?;
        thread("copy beats").spawn(move || beat(&beaten, &ended))?;
        Ok(Self { stream: Arc::clone(stream), writer, messages, link, _beats: beats })
    }

    pub(crate) fn write(&self, message: &impl Serialize) -> Result<()> {
        write_line(&mut *lock(&self.writer), message)
    }

    /// Reads the next message, which may come as late as the other end lives.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T> {
        parse(&self.messages.recv().context(LOST)??)
    }

    /// Same as [`CopyConnection::read`], but waits no longer than `patience`.
    pub(crate) fn read_within<T: DeserializeOwned>(&self, patience: Duration) -> Result<T> {
        parse(&self.messages.recv_timeout(patience).context(LOST)??)
    }

    /// Returns whether the other end has gone or is silent.
    pub(crate) fn is_lost(&self) -> bool {
        lock(&self.link).is_lost
    }

    /// Cuts the link when the line is lost.
    pub(crate) fn cut_with_line(&self, link: TcpStream) {
        let mut state = lock(&self.link);
        if state.is_lost {
            let _ = link.shutdown(Shutdown::Both);
        }
        state.link = Some(link);
    }

    pub(crate) fn peer(&self) -> Result<SocketAddr> {
        Ok(self.stream.peer_addr()?)
    }
}

impl Drop for CopyConnection {
    /// What was written arrives: the thread that reads continues until the other end has closed, too.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        // The session has ended, or has to do without the other end.
        if let Some(link) = &lock(&self.link).link {
            let _ = link.shutdown(Shutdown::Both);
        }
    }
}

/// Forwards messages until the line is lost.
fn listen(mut reader: LineReader, messages: &SyncSender<Result<Vec<u8>>>, state: &Mutex<LineFate>) {
    let lost = loop {
        match next_line(&mut reader) {
            Ok(line) if line.is_empty() => {}
            // It is not wanted if this end has closed.
            Ok(line) => drop(messages.send(Ok(line))),
            Err(error) => break error,
        }
    };
    let mut state = lock(state);
    state.is_lost = true;
    if let Some(link) = &state.link {
        let _ = link.shutdown(Shutdown::Both);
    }
    drop(state);
    let _ = messages.send(Err(lost));
}

/// Reads a line; a beat is an empty one.
fn next_line(reader: &mut LineReader) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    let read = reader.take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
    let bytes = read.context(LOST)?;
    ensure!(bytes > 0, "the other end has closed the connection");
    ensure!(line.pop() == Some(b'\n'), "a line of more than {LINE_BYTES_MAX} bytes, or half of one");
    Ok(line)
}

/// Sends beats until the line is dropped.
fn beat(writer: &LineWriter, ended: &Receiver<()>) {
    while ended.recv_timeout(BEAT_PERIOD) == Err(RecvTimeoutError::Timeout) {
        let mut writer = lock(writer);
        if writer.write_all(b"\n").and_then(|()| writer.flush()).is_err() {
            break;
        }
    }
}

/// Reads a line. Fuzzed as `copy`.
fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T> {
    message::parse(line).context("the other end sent an unexpected message: run the same release")
}

/// Reads the time after which a silent end is given up.
///
/// # Errors
/// If it is no time, or too short. Not fuzzed: an argument of the command.
pub(crate) fn silence(text: &str) -> Result<Duration, String> {
    let silence = quantity::duration(text)?;
    if silence < SILENCE_MIN {
        return Err(format!("give at least {SILENCE_MIN:?}: signs of life may be late"));
    }
    Ok(silence)
}

/// Connects to the `serve` at a host, proves the secret and says what the connection is.
pub(crate) fn reach(host: &str, port: u16, trust: &CopyTrust, call: &CopyCall) -> Result<ProvedConnection> {
    let begun = Instant::now();
    loop {
        match ProvedConnection::call(connect(host, port)?, trust, call) {
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

/// For the whole proof, and what the connection is, however slowly the bytes arrive.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest message before a connection is used.
const PREFACE_BYTES_MAX: usize = 4096;
/// How often each end of a line shows that it lives.
const BEAT_PERIOD: Duration = Duration::from_secs(1);
/// The least silence after which an end may be given up: beats may be late.
const SILENCE_MIN: Duration = Duration::from_secs(3);
/// Messages that nothing has read yet. There are never that many.
const MESSAGES_MAX: usize = 16;
const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(1);
const LOST: &str = "the connection is lost";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// A list of a million files or so.
const LINE_BYTES_MAX: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use squall::config::{Encryption, Secret};

    use super::*;

    /// A link is encrypted if either end wants that.
    #[test]
    fn the_end_that_wants_more_decides_on_encryption() {
        let secret = || Secret::new(b"at least sixteen bytes").unwrap();
        let trust = |encryption| CopyTrust { secret: secret(), encryption };
        for (near, far, is_sealed) in [
            (Encryption::Off, Encryption::Off, false),
            (Encryption::Off, Encryption::Always, true),
            (Encryption::Always, Encryption::Off, true),
        ] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let (near, far) = (trust(near), trust(far));
            std::thread::scope(|scope| {
                let accepted = scope.spawn(|| {
                    let stream = Arc::new(listener.accept().unwrap().0);
                    ProvedConnection::demand(stream, &far)
                        .unwrap()
                        .into_link(SILENCE_MIN)
                        .unwrap()
                        .0
                        .is_sealed()
                });
                let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let called = ProvedConnection::call(stream, &near, &CopyCall::Control).unwrap();
                assert_eq!(called.into_link(SILENCE_MIN).unwrap().0.is_sealed(), is_sealed);
                assert_eq!(accepted.join().unwrap(), is_sealed);
            });
        }
    }
}
