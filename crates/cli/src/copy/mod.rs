//! Copying files to many hosts: the messages of `squall cp` and `squall serve`, and what each does.
//!
//! `cp` connects to each `serve`, both prove the secret, and then lines of JSON travel over that connection: the host's
//! [`HostId`], the request for a turn, the [`QueuePosition`] in the queue until the turn has come, a [`CopyRequest`] with the
//! list of files, the answer with what may be there already ([`CopyAnswer`]), the files whose digests are wanted and these
//! digests, the files that are the same and the answer to that ([`SpaceAnswer`]), the start with the addresses of all hosts
//! ([`CopyBegin`]), the report that this host has its [`links`], and for each [`parcel`] its entries, the digests of its files
//! and the answer to them ([`ParcelAnswer`]). The files themselves travel over the links, and each host relays for the others:
//! large files from pages to pages, small ones together. All connections lead to the port of a `serve`, none to the source.
//!
//! **What is copied** the content decides: a host that has a file of the same size sends its digest, and the source compares.

pub(crate) mod compare;
pub(crate) mod connection;
mod deadline;
mod digest;
pub(crate) mod folder;
pub(crate) mod host;
pub(crate) mod links;
pub(crate) mod message;
pub(crate) mod parcel;
pub(crate) mod partial;
mod queue;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod source;
pub(crate) mod target;

use anyhow::{Context as _, Result, ensure};
use clap::builder::PossibleValue;
use rustix::rand::GetRandomFlags;
use squall::config::{Encryption, Secret, VerbsSettings};
use squall_transports::session::Proof;

pub(crate) use connection::CopyConnection;
pub(crate) use message::{
    BLOCK_BYTES, CopyAnswer, CopyBegin, CopyDigest, CopyEntry, CopyRequest, CopyTransport, DigestVerdict,
    FileEntry, HeldContent, HostId, ParcelAnswer, QueuePosition, SpaceAnswer, blocks,
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

/// What both ends of a connection have to know, and whether this one wants its links encrypted.
#[derive(Clone, Debug)]
pub(crate) struct CopyTrust {
    pub(crate) secret: Secret,
    encryption: Encryption,
}

impl CopyTrust {
    /// Reads the cluster's secret from a file; white space around it does not count.
    pub(crate) fn read(file: &std::path::Path, encryption: Encryption) -> Result<Self> {
        if let Some(warning) = squall::config::exposed_secret(file) {
            tracing::warn!("{warning}");
        }
        let text =
            std::fs::read(file).with_context(|| format!("cannot read the secret in {}", file.display()))?;
        Ok(Self { secret: Secret::new(text.trim_ascii())?, encryption })
    }

    /// Returns the proof of this end.
    fn proof(&self) -> Proof {
        Proof::new(&self.secret, CLUSTER).with_encryption(self.encryption)
    }
}

/// The cluster's name in the proofs of a copy.
const CLUSTER: &str = "squall-copy";

/// A number that no other process has. Not fuzzed: any bytes are a number.
pub(crate) fn random_number() -> Result<u128> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    ensure!(filled == bytes.len(), "the system has no random numbers");
    Ok(u128::from_le_bytes(bytes))
}
