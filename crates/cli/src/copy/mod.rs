//! Copying files to many hosts: the messages of `squall cp` and `squall serve`, and what each does.
//!
//! `cp` connects to each `serve`, both prove the secret, and then lines of JSON travel over that connection: the host's
//! [`HostId`], the request for a turn, the [`QueuePosition`] in the queue until the turn has come, a [`CopyRequest`] with the
//! list of files, the answer with what is there already ([`CopyAnswer`]), the start with the address of a bulk session
//! ([`CopyBegin`]), and for each [`parcel`] the digests of its files and the answer to each ([`DigestVerdict`]). The files
//! themselves travel through the session, and each host relays for the others: large files from pages to pages, small ones
//! together.

mod deadline;
mod digest;
pub(crate) mod folder;
pub(crate) mod host;
pub(crate) mod message;
pub(crate) mod parcel;
pub(crate) mod partial;
mod queue;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod source;

use std::io::{BufRead, BufReader, Read as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::builder::PossibleValue;
use rustix::net::sockopt;
use serde::{Serialize, de::DeserializeOwned};
use squall::config::{Secret, VerbsSettings};
use squall_harness::lines::write_line;
use squall_transports::session::{CallerKind, Proof, SealedHalf, SessionKeys};

use deadline::DeadlineStream;

pub(crate) use message::{
    BLOCK_BYTES, CopyAnswer, CopyBegin, CopyDigest, CopyEntry, CopyRequest, CopyTransport, DigestVerdict,
    FileEntry, HostId, QueuePosition, blocks,
};

/// The port at which `serve` listens, unless `--port` names another.
pub(crate) const PORT: u16 = 7401;

impl clap::ValueEnum for CopyTransport {
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

impl CopyTransport {
    /// The library's name for it.
    pub(crate) const fn named(self) -> squall::config::Transport {
        match self {
            Self::Tcp => squall::config::Transport::Tcp,
            Self::Verbs => squall::config::Transport::Verbs,
        }
    }
}

/// The settings for this host's device: the one of that name, or any.
pub(crate) fn device(name: Option<&str>) -> VerbsSettings {
    VerbsSettings { device: name.map(Into::into), ..VerbsSettings::default() }
}

/// A connection between `cp` and `serve` whose ends have proved the secret.
#[derive(Debug)]
pub(crate) struct CopyConnection {
    reader: BufReader<SealedHalf<DeadlineStream<Arc<TcpStream>>>>,
    writer: MessageWriter,
}

/// Writes messages, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct MessageWriter(Arc<Mutex<SealedHalf<DeadlineStream<Arc<TcpStream>>>>>);

impl MessageWriter {
    pub(crate) fn write(&self, message: &impl Serialize) -> Result<()> {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writer.stream_mut().begin(Some(WRITE_PATIENCE));
        write_line(&mut *writer, message)
    }
}

impl CopyConnection {
    /// Proves the secret as the end that has connected.
    pub(crate) fn prove(stream: TcpStream, secret: &Secret) -> Result<Self> {
        let mut timed = DeadlineStream::new(Arc::new(stream));
        timed.begin(Some(PROOF_TIMEOUT));
        let session = Proof::new(secret, CLUSTER).prove(&mut timed, None, CallerKind::Copy)?;
        Self::new(timed, session)
    }

    /// Demands the proof of the end that has connected, as a whole within [`PROOF_TIMEOUT`].
    pub(crate) fn demand(stream: Arc<TcpStream>, secret: &Secret) -> Result<Self> {
        let mut timed = DeadlineStream::new(stream);
        timed.begin(Some(PROOF_TIMEOUT));
        let caller = Proof::new(secret, CLUSTER).demand(&mut timed, None, &[CallerKind::Copy])?;
        Self::new(timed, caller.session)
    }

    /// All messages are encrypted, wherever the other end is.
    fn new(writer: DeadlineStream<Arc<TcpStream>>, session: SessionKeys) -> Result<Self> {
        let stream = Arc::clone(writer.stream());
        stream.set_nodelay(true)?;
        // Notices an end that has lost its power.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEP_ALIVE_PERIOD)?;
        sockopt::set_tcp_keepcnt(&stream, KEEP_ALIVE_TRIALS)?;
        let (reader, writer) = session.halves(DeadlineStream::new(stream), writer);
        let writer = MessageWriter(Arc::new(Mutex::new(writer)));
        Ok(Self { reader: BufReader::new(reader), writer })
    }

    pub(crate) fn write(&mut self, message: &impl Serialize) -> Result<()> {
        self.writer.write(message)
    }

    /// Reads the next message, within `patience`.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, patience: Option<Duration>) -> Result<T> {
        self.reader.get_mut().stream_mut().begin(patience);
        let mut line = String::new();
        let read = (&mut self.reader).take(LINE_BYTES_MAX).read_line(&mut line);
        let bytes = read.context("the connection is lost")?;
        ensure!(bytes > 0, "the other end has closed the connection");
        ensure!(line.ends_with('\n'), "a line of more than {LINE_BYTES_MAX} bytes, or half of one");
        message::parse(&line).context("the other end sent an unexpected message: run the same release")
    }

    /// Another handle for writing.
    pub(crate) fn writer(&self) -> MessageWriter {
        self.writer.clone()
    }

    pub(crate) fn peer(&self) -> Result<std::net::SocketAddr> {
        Ok(self.reader.get_ref().stream().stream().peer_addr()?)
    }
}

/// Reads the cluster's secret from a file; white space around it does not count.
pub(crate) fn read_secret(file: &std::path::Path) -> Result<Secret> {
    if let Some(warning) = squall::config::exposed_secret(file) {
        tracing::warn!("{warning}");
    }
    let text =
        std::fs::read(file).with_context(|| format!("cannot read the secret in {}", file.display()))?;
    Ok(Secret::new(text.trim_ascii())?)
}

const CLUSTER: &str = "squall-copy";
/// For the whole proof, however slowly its bytes arrive.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// For a line to be accepted.
const WRITE_PATIENCE: Duration = Duration::from_secs(600);
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(20);
const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TRIALS: u32 = 4;
/// A list of a million files or so.
const LINE_BYTES_MAX: u64 = 256 << 20;
