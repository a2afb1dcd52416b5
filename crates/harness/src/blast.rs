//! The two ends of `squall bench stream`: the paper's blast tool, and a round trip (EXS §IV.B).

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use squall::stream::{
    Address, Completion, Endpoint, Listener, ReceiveOutcome, Region, RegionId, Socket, Statistics,
    StreamOptions, StreamSettings, TransferPolicy, VerbsSettings,
};
use squall_transports::composite::PeerTransport;
use squall_transports::runner::{IdleLimits, pin};

use crate::control::{EncryptionName, IdleName, MemberLocation, TransportName};
use crate::latency::{Latencies, Percentiles};
use crate::member::parent_watchdog::die_with;

/// What both ends know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BlastSettings {
    pub(crate) transport: TransportName,
    pub(crate) encryption: EncryptionName,
    pub(crate) policy: PolicyName,
    pub(crate) idle: IdleName,
    /// Bytes of a message; the mean, if they are exponential.
    pub(crate) size: usize,
    pub(crate) exponential: bool,
    pub(crate) messages: u64,
    pub(crate) outstanding_send: usize,
    pub(crate) outstanding_receive: usize,
    pub(crate) round_trip: bool,
    pub(crate) ring: usize,
    pub(crate) memory: MemoryName,
    /// Of the sender and the receiver.
    pub(crate) locations: [MemberLocation; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Sender,
    Receiver,
}

/// How data travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PolicyName {
    /// Straight into the receiver's memory if it is ahead, else through its ring
    Dynamic,
    /// The same by the paper's rules alone: no waiting, no measuring
    Reference,
    /// Always straight into the receiver's memory: wait for it
    Direct,
    /// Always through the receiver's ring
    Indirect,
}

impl PolicyName {
    /// The library's name for it.
    pub(crate) const fn policy(self) -> TransferPolicy {
        match self {
            Self::Dynamic => TransferPolicy::Dynamic,
            Self::Reference => TransferPolicy::Reference,
            Self::Direct => TransferPolicy::Direct,
            Self::Indirect => TransferPolicy::Indirect,
        }
    }
}

/// Whose memory messages are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MemoryName {
    /// The library's, which both processes share on one host
    Shared,
    /// The user's own, sent from where it is; on one host the receiver reads the sender's memory
    Own,
    /// The user's own, and the receiver must not read the sender's memory
    Relayed,
    /// The user's own, copied to and from the library's by the user
    Copied,
}

impl MemoryName {
    /// Memory of the user of `words` words, as the endpoint knows it.
    fn region(self, endpoint: &mut Endpoint, words: usize) -> Region {
        match self {
            Self::Shared | Self::Copied => endpoint.register(words),
            Self::Own | Self::Relayed => {
                let memory = Region::heap(RegionId(0), words);
                endpoint.adopt(&memory)
            }
        }
    }
}

/// What the receiver reports.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct BlastReceived {
    /// The part of a core that it used meanwhile.
    pub(crate) cpu: f64,
    pub(crate) copied_bytes: u64,
    pub(crate) fetched_bytes: u64,
    pub(crate) relayed_bytes: u64,
}

/// What the sender has measured.
#[derive(Clone, Debug)]
pub(crate) struct BlastSent {
    /// How the ends were connected.
    pub(crate) transport: PeerTransport,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) statistics: Statistics,
    pub(crate) latency: Option<Percentiles>,
}

/// The job of the receiving process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BlastReceiver {
    pub(crate) blast: BlastSettings,
    pub(crate) address: String,
    pub(crate) parent: u32,
    pub(crate) core: Option<usize>,
}

impl BlastSettings {
    fn options(&self, end: End) -> StreamOptions {
        let policy = self.policy.policy();
        let transport = self.transport.transport();
        let device = self.locations[end as usize].device.clone();
        let verbs = VerbsSettings { device, ..VerbsSettings::default() };
        let idle = match self.idle {
            IdleName::Auto => IdleLimits::auto(2),
            IdleName::Spin => IdleLimits::SPIN,
            IdleName::Yield => IdleLimits::YIELD,
            IdleName::Park => IdleLimits::PARK,
        };
        let settings = StreamSettings {
            policy,
            ring_words: (self.ring as u64).div_ceil(8),
            ..StreamSettings::default()
        };
        let fetching = self.memory != MemoryName::Relayed;
        let encryption = self.encryption.into();
        StreamOptions {
            transport,
            encryption,
            fetching,
            verbs,
            idle,
            settings,
            ..StreamOptions::local("squall-bench-stream")
        }
    }

    /// Where the sender listens.
    pub(crate) fn listen(&self) -> Result<Listener> {
        let address: Address = match self.transport {
            TransportName::Shm => format!("unix:@squall-bench-stream-{}", std::process::id()).parse()?,
            _ => {
                let host = self.locations[End::Sender as usize].address.unwrap_or(Ipv4Addr::LOCALHOST.into());
                Address::Tcp { host: host.to_string(), port: 0 }
            }
        };
        Ok(Listener::bind(&address, &self.options(End::Sender))?)
    }

    /// The longest message.
    fn longest(&self) -> usize {
        if self.exponential { 4 * self.size } else { self.size }
    }

    /// The lengths of all messages, the same at every run.
    fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        let mut prng = squall_fabric::sim::Prng::new(0xb1a57);
        (0..self.messages).map(move |_| {
            if !self.exponential {
                return self.size;
            }
            let uniform = (prng.draw() >> 11) as f64 / (1_u64 << 53) as f64;
            let length = -(1.0 - uniform).ln() * self.size as f64;
            (length as usize).clamp(1, self.longest())
        })
    }

    /// Sends all messages; the time ends when the receiver reports that it has all.
    pub(crate) fn send(&self, listener: &Listener) -> Result<BlastSent> {
        let waited = listener.accept_within(Some(Duration::from_secs(20)))?;
        let mut endpoint = waited.context("the receiving process has not connected")?.into_endpoint();
        await_connected(&mut endpoint)?;
        if self.round_trip { self.play(&mut endpoint) } else { self.blast(&mut endpoint) }
    }

    fn blast(&self, endpoint: &mut Endpoint) -> Result<BlastSent> {
        let words = self.longest().div_ceil(8);
        let memory = self.memory.region(endpoint, words);
        (0..memory.words()).for_each(|word| memory.store_relaxed(word, word as u64 | 1));
        // Of the library, one for each send that is outstanding.
        let copies = if self.memory == MemoryName::Copied { self.outstanding_send } else { 0 };
        let copies: Vec<_> = (0..copies).map(|_| endpoint.register(words)).collect();
        let mut next = 0;
        let word = endpoint.register(1);
        // The receiver is ahead, as in the paper.
        receive_all(endpoint, &word)?;
        let (mut lengths, mut outstanding, mut bytes) = (self.lengths(), 0, 0);
        endpoint.post_receive(&word, 0..8, true)?;
        let begun = Instant::now();
        loop {
            while outstanding < self.outstanding_send
                && let Some(length) = lengths.next()
            {
                match copies.get(next) {
                    None => endpoint.post_send(&memory, 0..length)?,
                    Some(copy) => {
                        copy.copy_words(0, &memory, 0..length.div_ceil(8));
                        next = (next + 1) % copies.len();
                        endpoint.post_send(copy, 0..length)?
                    }
                };
                (outstanding, bytes) = (outstanding + 1, bytes + length as u64);
            }
            match endpoint.wait(None) {
                Some(Completion::Send { .. }) => outstanding -= 1,
                Some(Completion::Receive { outcome: ReceiveOutcome::Filled, .. }) => break,
                other => bail!("the receiver is gone: {other:?}"),
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(word.load(0) == bytes, "{} of {bytes} bytes have arrived", word.load(0));
        Ok(BlastSent {
            transport: transport(endpoint),
            bytes,
            seconds,
            statistics: endpoint.statistics(),
            latency: None,
        })
    }

    /// One message at a time, as round trips.
    fn play(&self, endpoint: &mut Endpoint) -> Result<BlastSent> {
        let words = self.size.div_ceil(8);
        let [source, target] = [0, 1].map(|_| self.memory.region(endpoint, words));
        let word = endpoint.register(1);
        receive_all(endpoint, &word)?;
        let mut latencies = Latencies::default();
        let begun = Instant::now();
        for round in 0..self.messages {
            source.store(0, round);
            let thrown = Instant::now();
            endpoint.post_send(&source, 0..self.size)?;
            endpoint.flush();
            endpoint.post_receive(&target, 0..self.size, true)?;
            await_receive(endpoint)?;
            // The first rounds find cold caches.
            if round >= self.messages / 10 {
                latencies.record(thrown.elapsed());
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        let (statistics, latency) = (endpoint.statistics(), latencies.percentiles());
        let bytes = self.size as u64 * self.messages;
        Ok(BlastSent { transport: transport(endpoint), bytes, seconds, statistics, latency })
    }

    /// Receives all messages.
    fn receive(&self, address: &Address) -> Result<BlastReceived> {
        let mut endpoint = Socket::connect(address, &self.options(End::Receiver))?.into_endpoint();
        await_connected(&mut endpoint)?;
        let result =
            if self.round_trip { self.return_all(&mut endpoint) } else { self.take_all(&mut endpoint) };
        // So that the sender sees the last word.
        endpoint.flush();
        result
    }

    fn take_all(&self, endpoint: &mut Endpoint) -> Result<BlastReceived> {
        let expected: u64 = self.lengths().map(|length| length as u64).sum();
        let words = self.longest().div_ceil(8);
        let memory: Vec<_> =
            (0..self.outstanding_receive).map(|_| self.memory.region(endpoint, words)).collect();
        let own = (self.memory == MemoryName::Copied).then(|| Region::heap(RegionId(0), words));
        let word = endpoint.register(1);
        for region in &memory {
            endpoint.post_receive(region, 0..self.longest(), false)?;
        }
        let begun = Clock::start();
        endpoint.post_send(&word, 0..8)?;
        let (mut next, mut bytes) = (0, 0);
        while bytes < expected {
            match endpoint.wait(None) {
                Some(Completion::Receive { bytes: more, outcome: ReceiveOutcome::Filled, .. }) => {
                    bytes += more;
                    if let Some(own) = &own {
                        let words = usize::try_from(more.div_ceil(8)).expect("it fits into memory");
                        own.copy_words(0, &memory[next], 0..words);
                    }
                    endpoint.post_receive(&memory[next], 0..self.longest(), false)?;
                    next = (next + 1) % memory.len();
                }
                Some(Completion::Send { .. }) => {}
                other => bail!("the sender is gone: {other:?}"),
            }
        }
        let received = begun.received(&endpoint.statistics());
        word.store(0, bytes);
        endpoint.post_send(&word, 0..8)?;
        await_sent(endpoint);
        Ok(received)
    }

    fn return_all(&self, endpoint: &mut Endpoint) -> Result<BlastReceived> {
        let words = self.size.div_ceil(8);
        let [source, target] = [0, 1].map(|_| self.memory.region(endpoint, words));
        let word = endpoint.register(1);
        endpoint.post_receive(&target, 0..self.size, true)?;
        endpoint.post_send(&word, 0..8)?;
        let begun = Clock::start();
        for round in 0..self.messages {
            await_receive(endpoint)?;
            ensure!(target.load(0) == round || self.size < 8, "message {} of {round}", target.load(0));
            endpoint.post_send(&source, 0..self.size)?;
            endpoint.flush();
            if round + 1 < self.messages {
                endpoint.post_receive(&target, 0..self.size, true)?;
            }
        }
        await_sent(endpoint);
        Ok(begun.received(&endpoint.statistics()))
    }
}

/// The receiving process: does the job in the line, and prints its report.
pub(crate) fn receive(line: &str) -> Result<()> {
    let job: BlastReceiver = serde_json::from_str(line)?;
    die_with(job.parent);
    if let Some(core) = job.core {
        pin(core);
    }
    let received = job.blast.receive(&job.address.parse()?)?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&received)?)?;
    Ok(())
}

fn await_connected(endpoint: &mut Endpoint) -> Result<()> {
    match endpoint.wait(Some(Duration::from_secs(20))) {
        Some(Completion::Connected) => Ok(()),
        other => bail!("the ends have not met: {other:?}"),
    }
}

/// Waits until the receiver reports that it is ready.
fn receive_all(endpoint: &mut Endpoint, word: &squall_fabric::Region) -> Result<()> {
    endpoint.post_receive(word, 0..8, true)?;
    await_receive(endpoint)
}

fn transport(endpoint: &Endpoint) -> PeerTransport {
    match (endpoint.is_shared(), endpoint.is_by_rdma()) {
        (true, _) => PeerTransport::Shm,
        (_, true) => PeerTransport::Verbs,
        _ => PeerTransport::Tcp,
    }
}

#[inline]
fn await_receive(endpoint: &mut Endpoint) -> Result<()> {
    loop {
        match endpoint.wait(None) {
            Some(Completion::Receive { outcome: ReceiveOutcome::Filled, .. }) => return Ok(()),
            Some(Completion::Send { .. }) => {}
            other => bail!("the peer is gone: {other:?}"),
        }
    }
}

/// Waits until the last word has reached the sender, or the sender has gone.
fn await_sent(endpoint: &mut Endpoint) {
    while !endpoint.has_left() && !endpoint.is_closed() {
        endpoint.wait(Some(Duration::from_millis(1)));
    }
}

/// Time, and the processor's part of it.
struct Clock {
    begun: Instant,
    cpu: Duration,
}

impl Clock {
    fn start() -> Self {
        Self { begun: Instant::now(), cpu: cpu_time() }
    }

    fn received(&self, statistics: &Statistics) -> BlastReceived {
        let cpu = (cpu_time() - self.cpu).as_secs_f64() / self.begun.elapsed().as_secs_f64();
        let Statistics { copied_bytes, fetched_bytes, relayed_bytes, .. } = *statistics;
        BlastReceived { cpu, copied_bytes, fetched_bytes, relayed_bytes }
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
