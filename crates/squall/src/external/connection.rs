//! A connection between an external client and a member, and how a client finds the member.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use squall_fabric::Backoff;
use squall_transports::bootstrap::pair::PairService;
use squall_transports::bootstrap::{Address, BootstrapError, BootstrapPlan};

use super::error::ExternalError;
use super::wire::{self, ExternalNotice, ExternalRequest, FrameReader};
use crate::config::Config;
use crate::operate::inquiry;
use crate::stream::{Stream, StreamOptions};

/// A stream of frames.
#[derive(Debug)]
pub(super) struct FrameConnection {
    pub(super) stream: Stream,
    pub(super) frames: FrameReader,
    /// Reused.
    chunk: Vec<u8>,
    /// When bytes last came: a long message takes a while.
    pub(super) heard: Instant,
}

impl FrameConnection {
    pub(super) fn new(mut stream: Stream, frame_bytes_max: usize) -> Self {
        stream.set_write_timeout(Some(SILENCE_MAX));
        Self {
            stream,
            frames: FrameReader::new(frame_bytes_max),
            chunk: vec![0; BUFFER_BYTES],
            heard: Instant::now(),
        }
    }

    /// Returns the next frame; `None` if it does not arrive within `patience`.
    pub(super) fn receive<T: DeserializeOwned>(
        &mut self,
        patience: Duration,
    ) -> io::Result<Option<(T, Vec<u8>)>> {
        let until = Instant::now() + patience;
        loop {
            if let Some(found) = self.frames.next()? {
                return Ok(Some(found));
            }
            let left = until.saturating_duration_since(Instant::now());
            // With a timeout of zero, not even the bytes that are there would be read.
            self.stream.set_read_timeout(Some(left.max(LEAST_WAIT)));
            match self.stream.read(&mut self.chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => {
                    self.frames.push(&self.chunk[..bytes]);
                    self.heard = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn send(&mut self, head: &impl Serialize) -> io::Result<()> {
        let mut bytes = Vec::new();
        wire::write(head, &[], &mut bytes);
        self.stream.write_all(&bytes)
    }

    /// Returns whether the other end is gone.
    pub(super) fn is_over(&mut self) -> bool {
        self.stream.drive();
        self.stream.socket().is_closed()
    }
}

/// Returns the options of streams between members and external clients. There are many of them, so each takes little
/// memory.
pub(super) fn options(config: &Config) -> StreamOptions {
    let mut options = StreamOptions::new(&config.cluster, &config.secret);
    (options.encryption, options.transport) = (config.encryption, config.streams);
    (options.timeout, options.linger) = (CONNECT_TIMEOUT, LINGER);
    (options.buffer_bytes, options.buffers) = (BUFFER_BYTES, BUFFERS);
    options.settings.ring_words = RING_WORDS;
    options
}

/// Finds members that serve a subgroup.
#[derive(Debug)]
pub(super) struct MemberFinder {
    config: Arc<Config>,
    plan: BootstrapPlan,
    subgroup: String,
    /// The addresses of members that other members have named.
    hints: Vec<Address>,
    /// Where the next round begins.
    next_contact: usize,
    /// The length limit for frames from members.
    frame_bytes_max: usize,
}

/// A member that has accepted this client.
#[derive(Debug)]
pub(super) struct FoundMember {
    pub(super) connection: FrameConnection,
    /// The address at which it listens.
    pub(super) member: Address,
    /// Its answer.
    pub(super) notice: ExternalNotice,
}

impl MemberFinder {
    pub(super) fn new(config: &Config, subgroup: &str) -> Result<Self, ExternalError> {
        let mut config = config.clone().with_shards();
        let Some(settings) = config.subgroups.get(subgroup) else {
            let names: Vec<String> = config.subgroups.keys().map(|name| format!("`{name}`")).collect();
            let known = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(ExternalError::UnknownSubgroup { subgroup: subgroup.into(), known });
        };
        let longest = settings.large_max.unwrap_or(0).max(settings.message_max);
        if config.contacts.is_empty() {
            config.contacts = vec![config.listen.clone()];
        }
        let mut plan = config.plan();
        // A contact that hangs must not keep the others waiting.
        plan.handshake_timeout = plan.handshake_timeout.min(PROOF_TIMEOUT);
        let frame_bytes_max = longest + wire::HEAD_BYTES_MAX;
        let (config, subgroup) = (Arc::new(config), subgroup.into());
        Ok(Self { config, plan, subgroup, hints: Vec::new(), next_contact: 0, frame_bytes_max })
    }

    pub(super) fn subgroup(&self) -> &str {
        &self.subgroup
    }

    /// Connects to a member that accepts `request`; tries all known members for up to `patience`.
    pub(super) fn find(
        &mut self,
        request: &ExternalRequest,
        patience: Duration,
    ) -> Result<FoundMember, ExternalError> {
        let begun = Instant::now();
        let mut pauses = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            let (cause, is_final) = match self.round(request) {
                Ok(found) => return Ok(found),
                Err(cause) => cause,
            };
            let pause = pauses.grow();
            if is_final || begun.elapsed() + pause >= patience {
                let (subgroup, tried_for) = (self.subgroup.clone(), begun.elapsed());
                return Err(ExternalError::Unserved { subgroup, tried_for, cause });
            }
            std::thread::sleep(pause);
        }
    }

    /// Tries each member once; the error has the causes, and whether to give up.
    fn round(&mut self, request: &ExternalRequest) -> Result<FoundMember, (String, bool)> {
        let contacts = &self.config.contacts;
        let (before, from) = contacts.split_at(self.next_contact % contacts.len());
        let mut candidates: VecDeque<Address> = from.iter().chain(before).cloned().collect();
        candidates.extend(std::mem::take(&mut self.hints));
        self.next_contact += 1;
        let mut tried: Vec<Address> = Vec::new();
        let mut causes: Vec<String> = Vec::new();
        let mut is_final = true;
        while let Some(candidate) = candidates.pop_front() {
            if tried.contains(&candidate) || tried.len() >= CANDIDATES_MAX {
                continue;
            }
            tried.push(candidate.clone());
            match inquiry::ask_clients_at(&self.plan, &candidate) {
                Ok(true) => {}
                Ok(false) => {
                    is_final = false;
                    causes.push(format!("{candidate} does not accept clients yet, or not any more"));
                    continue;
                }
                Err(error) => {
                    is_final &= matches!(error, BootstrapError::SecretRefused { .. });
                    causes.push(error.to_string());
                    continue;
                }
            }
            is_final = false;
            match self.call(&candidate, request) {
                Ok(FoundMember { notice: ExternalNotice::Elsewhere { why, members }, .. }) => {
                    let named = members.iter().filter_map(|member| member.parse::<Address>().ok());
                    let named = named.map(|named| named.as_reached_by(&candidate));
                    let named: Vec<Address> = named.take(CANDIDATES_MAX).collect();
                    self.hints.clone_from(&named);
                    candidates.extend(named);
                    causes.push(why);
                }
                Ok(FoundMember { notice: ExternalNotice::Ended(why), .. }) => causes.push(why),
                Ok(found) => return Ok(found),
                Err(error) => causes.push(format!("{candidate}: {error}")),
            }
        }
        causes.dedup();
        Err((causes.join("; "), is_final))
    }

    /// Connects to `member`, and awaits its first notice.
    pub(super) fn call(&self, member: &Address, request: &ExternalRequest) -> io::Result<FoundMember> {
        let stream = Stream::connect_service(member, PairService::Clients, &options(&self.config))?;
        let mut connection = FrameConnection::new(stream, self.frame_bytes_max);
        connection.send(request)?;
        let answer = connection.receive(SILENCE_MAX)?;
        let (notice, _) = answer.ok_or(io::ErrorKind::TimedOut)?;
        Ok(FoundMember { connection, member: member.clone(), notice })
    }
}

/// A member that sends nothing for this long is given up: it sends [`ExternalNotice::Alive`] every second.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How often a member sends [`ExternalNotice::Alive`] while a client waits for it.
pub(super) const ALIVE_EVERY: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);
/// What was sent arrives even without its sender, unless the other end is slow to take it.
const LINGER: Duration = Duration::from_millis(100);
const LEAST_WAIT: Duration = Duration::from_millis(1);
/// Members that are tried in one round.
const CANDIDATES_MAX: usize = 128;
/// Pauses between rounds.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(250);
const BUFFER_BYTES: usize = 16 << 10;
const BUFFERS: usize = 4;
const RING_WORDS: u64 = 16 << 10;
