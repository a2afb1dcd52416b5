//! The messages of `squall cp` and `squall serve`: lines of JSON, which may be hostile. Pure: the fuzzers include this file,
//! too.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::parcel::{ParcelKind, kind};

/// Identifies a host, whatever its names and addresses are: a random number of its `serve`. Copies to several hosts ask for
/// their turns in the order of these numbers, so that no two wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct HostId(pub(crate) u128);

/// Names one copy: a random number of its `cp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyToken(pub(crate) u128);

/// What a connection is: the caller's first message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CopyCall {
    /// The control line between `cp` and a host.
    Control,
    /// A link of the session of this copy, from its member of this rank.
    Link { copy: CopyToken, rank: usize },
}

/// The answer to a link.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CopyLinkAnswer {
    Accepted,
    Refused { message: String },
}

/// The position of a copy in the queue of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum QueuePosition {
    /// Behind `copies` others, of which the first comes from `source`.
    Waiting { copies: usize, source: String },
    /// It has its turn.
    First,
    /// It is not in the queue.
    Refused { message: String },
}

/// What is to be copied.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CopyRequest {
    /// From now on the host expects links of this copy.
    pub(crate) copy: CopyToken,
    /// The target, below the folder that is served.
    pub(crate) path: String,
    /// `path` is a folder into which the sources go, even if it does not exist.
    pub(crate) into: bool,
    pub(crate) entries: Vec<CopyEntry>,
    pub(crate) digest: CopyDigest,
}

impl CopyRequest {
    /// The number of files.
    pub(crate) fn files(&self) -> usize {
        self.entries.iter().filter(|entry| entry.file.is_some()).count()
    }

    /// Whether an answer fits the entries: each number of blocks is one that the file of that number can have.
    pub(crate) fn fits(&self, held: &[(usize, u64)]) -> bool {
        let files: Vec<FileEntry> = self.entries.iter().filter_map(|entry| entry.file).collect();
        held.iter().all(|(file, held)| files.get(*file).is_some_and(|file| *held <= blocks(file.bytes)))
    }

    /// How files travel that are sent as one parcel, named by their entries; `None` if they cannot be one.
    pub(crate) fn parcel_kind(&self, parcel: &[usize]) -> Option<ParcelKind> {
        let size = |entry: &usize| Some(self.entries.get(*entry)?.file?.bytes);
        kind(&parcel.iter().map(size).collect::<Option<Vec<u64>>>()?)
    }
}

/// A file or a folder of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyEntry {
    /// Its name and those of the folders above it, from the source's own name on.
    pub(crate) path: Vec<String>,
    /// Permission bits.
    pub(crate) mode: u32,
    /// `None`: a folder.
    pub(crate) file: Option<FileEntry>,
}

/// By what an interrupted copy of a file is known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) bytes: u64,
    pub(crate) modified_ns: i128,
}

/// How the digests of files are made. Both ends say it, so that one that makes others refuses before anything is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CopyDigest {
    Blake3,
}

/// What a host has, or why it takes nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CopyAnswer {
    /// For each file in the order of the entries: what is there.
    Ready {
        held: Vec<HeldContent>,
        digest: CopyDigest,
    },
    Refused {
        message: String,
    },
}

/// What a host has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HeldContent {
    /// Nothing that could be this file.
    Other,
    /// A file of the same size; only its digest shows whether it is the same content.
    SameSize,
    /// A file of the same size and time.
    SameTime,
}

/// The answer when a host knows which of its files have the right content and has made space for the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SpaceAnswer {
    /// With the files of which some blocks are here, from a copy that was interrupted, and with what could not be done, such as
    /// permissions that cannot be set.
    Ready {
        held: Vec<(usize, u64)>,
        failures: Vec<String>,
    },
    Refused {
        message: String,
    },
}

/// All is prepared: the session begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CopyBegin {
    /// The addresses at which `cp` has reached the hosts, of rank 1 and so on.
    pub(crate) hosts: Vec<String>,
    /// The rank of this host; 0 is the source.
    pub(crate) rank: usize,
    #[serde(default)]
    pub(crate) transport: CopyTransport,
}

/// Whether a host has made its links.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CopyLinks {
    Made,
    /// It cannot reach the host of this rank.
    Failed {
        rank: usize,
        message: String,
    },
}

/// How the files travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CopyTransport {
    #[default]
    Tcp,
    Verbs,
}

/// What a host says to a parcel.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ParcelAnswer {
    /// To each file of it.
    Judged(Vec<DigestVerdict>),
    /// The host takes no further part.
    Failed { message: String },
}

/// What a host says to a file's digest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DigestVerdict {
    Good,
    Bad { message: String },
}

/// Reads a line. Fuzzed as `copy`.
///
/// # Errors
/// If the line is not a `T` in JSON.
pub(crate) fn parse<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(line)
}

/// How many blocks a file has.
pub(crate) const fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

/// The size of a block: what is lost of a file when a host dies, at most, for each block under way.
pub(crate) const BLOCK_BYTES: u64 = 1 << 20;
