//! Copying files to many hosts: what `squall cp` and `squall serve` say to each other, and what each does.
//!
//! `cp` connects to each `serve`, both prove the secret, and then lines of JSON travel over that connection: a
//! [`Request`] with the list of files, the answer with what is there already ([`Answer`]), the word to begin with the
//! address of a bulk session ([`Begin`]), and for each file its digest and the answer to it ([`Judgement`]). The files
//! themselves go through the session, from pages to pages, each host relaying for the others.

pub(crate) mod folder;
pub(crate) mod partial;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod source;

use std::io::{BufRead, BufReader, Read as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use squall::config::{Secret, VerbsSettings};
use squall_transports::bootstrap::Proof;

use crate::control::write_line;

/// Where `serve` listens, unless it is told otherwise.
pub(crate) const PORT: u16 = 7401;
/// The size of a block: what is lost of a file when a host dies, at most, for each block under way.
pub(crate) const BLOCK_BYTES: u64 = 1 << 20;

/// What shall be copied.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Where, below the folder that is served.
    pub(crate) path: String,
    /// `path` is a folder into which the sources go, even if it does not exist.
    pub(crate) into: bool,
    pub(crate) entries: Vec<Entry>,
}

impl Request {
    /// Whether an answer is about these entries: a number of blocks for each file, which it may have.
    pub(crate) fn fits(&self, held: &[u64]) -> bool {
        let files = self.entries.iter().filter_map(|entry| entry.file);
        files.clone().count() == held.len() && files.zip(held).all(|(file, held)| *held <= blocks(file.bytes))
    }
}

/// A file or a folder of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Its name and those of the folders above it, from the source's own name on.
    pub(crate) path: Vec<String>,
    /// Permission bits.
    pub(crate) mode: u32,
    /// `None`: a folder.
    pub(crate) file: Option<FileEntry>,
}

/// By what a file is known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) bytes: u64,
    pub(crate) modified_ns: i128,
}

/// What a host has, or why it takes nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// For each file in the order of the entries: how many of its blocks are there.
    Ready {
        held: Vec<u64>,
    },
    Refused {
        message: String,
    },
}

/// All is prepared: the session begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// Of this one session.
    pub(crate) name: String,
    /// Where `cp` listens, on the host from which it is connected.
    pub(crate) port: u16,
    pub(crate) members: usize,
    pub(crate) rank: usize,
    /// The entries that are sent, in this order.
    pub(crate) send: Vec<usize>,
    #[serde(default)]
    pub(crate) transport: Transport,
}

/// How the files travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// TCP, from pages to pages
    #[default]
    Tcp,
    /// RDMA by verbs, through memory of the size of the largest file at each host; see docs/verbs.md
    Verbs,
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

/// What a host says to a file's digest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Judgement {
    Good,
    Bad { message: String },
}

/// A connection between `cp` and `serve`, proved.
#[derive(Debug)]
pub(crate) struct Line {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Line {
    /// Proves the secret as who has connected.
    pub(crate) fn prove(mut stream: TcpStream, secret: &Secret) -> Result<Self> {
        stream.set_read_timeout(Some(PROOF_TIMEOUT))?;
        Proof::new(secret, CLUSTER, PURPOSE).prove(&mut stream)?;
        Self::new(stream)
    }

    /// Demands the proof of who has connected.
    pub(crate) fn demand(mut stream: TcpStream, secret: &Secret) -> Result<Self> {
        stream.set_read_timeout(Some(PROOF_TIMEOUT))?;
        Proof::new(secret, CLUSTER, PURPOSE).demand(&mut stream)?;
        Self::new(stream)
    }

    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_read_timeout(None)?;
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::new(stream.try_clone()?), stream })
    }

    pub(crate) fn say(&mut self, message: &impl Serialize) -> Result<()> {
        write_line(&mut self.stream, message)
    }

    /// The next line, within `patience`.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self, patience: Option<Duration>) -> Result<T> {
        self.stream.set_read_timeout(patience)?;
        let mut line = String::new();
        let read = (&mut self.reader).take(LINE_BYTES_MAX).read_line(&mut line);
        let bytes = read.context("the connection is lost")?;
        ensure!(bytes > 0, "the other end has closed the connection");
        ensure!(line.ends_with('\n'), "a line of more than {LINE_BYTES_MAX} bytes, or half of one");
        serde_json::from_str(&line).context("the other end said what was not expected: run the same release")
    }

    /// Another handle, to say something from elsewhere.
    pub(crate) fn mouth(&self) -> Result<TcpStream> {
        Ok(self.stream.try_clone()?)
    }

    pub(crate) fn peer(&self) -> Result<std::net::SocketAddr> {
        Ok(self.stream.peer_addr()?)
    }
}

/// How many blocks a file has.
pub(crate) const fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

/// Reads the cluster's secret from a file; white space around it does not count.
pub(crate) fn read_secret(file: &std::path::Path) -> Result<Secret> {
    let text =
        std::fs::read(file).with_context(|| format!("cannot read the secret in {}", file.display()))?;
    Ok(Secret::new(text.trim_ascii())?)
}

/// Hexadecimal SHA-256 of the first `bytes` bytes of a file.
pub(crate) fn digest(file: &std::fs::File, bytes: u64) -> Result<String> {
    use sha2::Digest as _;
    use std::os::unix::fs::FileExt as _;
    let (mut hash, mut at, mut buffer) = (sha2::Sha256::new(), 0, vec![0; DIGEST_STEP_BYTES]);
    while at < bytes {
        let length = buffer.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
        file.read_exact_at(&mut buffer[..length], at)?;
        hash.update(&buffer[..length]);
        at += length as u64;
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

const CLUSTER: &str = "squall-copy";
const PURPOSE: &str = "copy";
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// A list of a million files or so.
const LINE_BYTES_MAX: u64 = 256 << 20;
const DIGEST_STEP_BYTES: usize = 1 << 20;
