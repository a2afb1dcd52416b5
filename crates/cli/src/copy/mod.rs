//! Copying files to many hosts: what `squall cp` and `squall serve` say to each other, and what each does.
//!
//! `cp` connects to each `serve`, both prove the secret, and then lines of JSON travel over that connection: the host's
//! [`HostId`], the word that the copy wants its turn, its [`Position`] in the queue until the turn has come, a [`Request`] with the list of files, the answer with what is there already ([`Answer`]), the word to begin with the
//! address of a bulk session ([`Begin`]), and for each [`parcel`] the digests of its files and the answer to each
//! ([`Judgement`]). The files themselves go through the session, each host relaying for the others: large ones from pages to
//! pages, small ones together.

mod deadline;
pub(crate) mod entrance;
pub(crate) mod folder;
pub(crate) mod message;
pub(crate) mod parcel;
pub(crate) mod partial;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod source;
mod turns;

use std::io::{BufRead, BufReader, Read as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::builder::PossibleValue;
use rustix::net::sockopt;
use serde::{Serialize, de::DeserializeOwned};
use sha2::Digest as _;
use squall::config::{Secret, VerbsSettings};
use squall_transports::bootstrap::Proof;

use crate::control::write_line;
use deadline::Timed;

pub(crate) use message::{
    Answer, BLOCK_BYTES, Begin, Entry, FileEntry, HostId, Judgement, Position, Request, Transport, blocks,
};

/// Where `serve` listens, unless it is told otherwise.
pub(crate) const PORT: u16 = 7401;

impl clap::ValueEnum for Transport {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Tcp, Self::Verbs]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Tcp => PossibleValue::new("tcp").help("TCP, from pages to pages"),
            Self::Verbs => PossibleValue::new("verbs").help(
                "RDMA by verbs, through memory of the size of the largest file at each host; see docs/verbs.md",
            ),
        })
    }
}

impl Transport {
    /// As the library calls it.
    pub(crate) const fn named(self) -> squall::config::Transport {
        match self {
            Self::Tcp => squall::config::Transport::Tcp,
            Self::Verbs => squall::config::Transport::Verbs,
        }
    }
}

/// This host's device, if it is to be one and not any.
pub(crate) fn device(name: Option<&str>) -> VerbsSettings {
    VerbsSettings { device: name.map(Into::into), ..VerbsSettings::default() }
}

/// A connection between `cp` and `serve`, proved.
#[derive(Debug)]
pub(crate) struct Line {
    stream: Arc<TcpStream>,
    writer: Timed<Arc<TcpStream>>,
    reader: BufReader<Timed<Arc<TcpStream>>>,
}

impl Line {
    /// Proves the secret as the end that has connected.
    pub(crate) fn prove(stream: TcpStream, secret: &Secret) -> Result<Self> {
        let mut timed = Timed::new(Arc::new(stream));
        timed.begin(Some(PROOF_TIMEOUT));
        Proof::new(secret, CLUSTER, PURPOSE).prove(&mut timed)?;
        Self::new(timed)
    }

    /// Demands the proof of the end that has connected, as a whole within [`PROOF_TIMEOUT`].
    pub(crate) fn demand(stream: Arc<TcpStream>, secret: &Secret) -> Result<Self> {
        let mut timed = Timed::new(stream);
        timed.begin(Some(PROOF_TIMEOUT));
        Proof::new(secret, CLUSTER, PURPOSE).demand(&mut timed)?;
        Self::new(timed)
    }

    fn new(writer: Timed<Arc<TcpStream>>) -> Result<Self> {
        let stream = Arc::clone(writer.stream());
        stream.set_nodelay(true)?;
        // An end that has lost its power is not waited for.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEP_ALIVE_PERIOD)?;
        sockopt::set_tcp_keepcnt(&stream, KEEP_ALIVE_TRIALS)?;
        Ok(Self { writer, reader: BufReader::new(Timed::new(Arc::clone(&stream))), stream })
    }

    pub(crate) fn say(&mut self, message: &impl Serialize) -> Result<()> {
        self.writer.begin(Some(SAY_PATIENCE));
        write_line(&mut self.writer, message)
    }

    /// The next line, within `patience`.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self, patience: Option<Duration>) -> Result<T> {
        self.reader.get_mut().begin(patience);
        let mut line = String::new();
        let read = (&mut self.reader).take(LINE_BYTES_MAX).read_line(&mut line);
        let bytes = read.context("the connection is lost")?;
        ensure!(bytes > 0, "the other end has closed the connection");
        ensure!(line.ends_with('\n'), "a line of more than {LINE_BYTES_MAX} bytes, or half of one");
        message::parse(&line).context("the other end said what was not expected: run the same release")
    }

    /// Another handle, to say something from elsewhere.
    pub(crate) fn mouth(&self) -> Result<TcpStream> {
        Ok(self.stream.try_clone()?)
    }

    pub(crate) fn peer(&self) -> Result<std::net::SocketAddr> {
        Ok(self.stream.peer_addr()?)
    }
}

/// Reads the cluster's secret from a file; white space around it does not count.
pub(crate) fn read_secret(file: &std::path::Path) -> Result<Secret> {
    if let Some(warning) = squall::config::exposed_secret(file) {
        crate::output::note(format_args!("squall: warning: {warning}"));
    }
    let text =
        std::fs::read(file).with_context(|| format!("cannot read the secret in {}", file.display()))?;
    Ok(Secret::new(text.trim_ascii())?)
}

/// Hexadecimal SHA-256 of the first `bytes` bytes of a file.
pub(crate) fn digest(file: &std::fs::File, bytes: u64) -> Result<String> {
    use std::os::unix::fs::FileExt as _;
    let (mut hash, mut at, mut buffer) = (sha2::Sha256::new(), 0, vec![0; DIGEST_STEP_BYTES]);
    while at < bytes {
        let length = buffer.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
        file.read_exact_at(&mut buffer[..length], at)?;
        hash.update(&buffer[..length]);
        at += length as u64;
    }
    Ok(hexadecimal(hash))
}

/// Hexadecimal SHA-256 of a file's content.
pub(crate) fn digest_of(content: &[u8]) -> String {
    hexadecimal(sha2::Sha256::new_with_prefix(content))
}

fn hexadecimal(hash: sha2::Sha256) -> String {
    use std::fmt::Write as _;
    hash.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

const CLUSTER: &str = "squall-copy";
const PURPOSE: &str = "copy";
/// For the whole proof, however its bytes come.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// For a line to be taken.
const SAY_PATIENCE: Duration = Duration::from_secs(600);
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(20);
const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TRIALS: u32 = 4;
/// A list of a million files or so.
const LINE_BYTES_MAX: u64 = 256 << 20;
const DIGEST_STEP_BYTES: usize = 1 << 20;
