//! `squall bench stream`: one connection between two processes (EXS §IV.B).

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use squall::config::quantity;
use squall_simulator::blast::{self as simulated, MessageSizes};

use crate::blast::{BlastReceived, BlastReceiver, BlastSettings, MemoryName, PolicyName};
use crate::cluster::launcher;
use crate::control::{EncryptionName, IdleName, MemberLocation, TransportName};
use crate::latency::Percentiles;
use squall_transports::composite::PeerTransport;

use super::fabric::BenchFabric;
use crate::cores;
use crate::lab::LabMap;
use crate::terminal::{CommandVerdict, log, output, units};

/// Measure a stream between two processes: its rate, or the time of a round trip
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StreamArguments {
    /// How the processes reach each other
    #[arg(long, value_enum, default_value = TransportName::usual())]
    transport: BenchFabric,
    /// What is encrypted: what travels by TCP between hosts, within this host, too, or nothing
    #[arg(long, value_enum, default_value = "on")]
    encryption: EncryptionName,
    /// With --transport sim: whose machines
    #[arg(long, value_enum, default_value = "fdr")]
    model: Model,
    /// Bytes of a message, like 64, 1KiB or 1MB; `exp:1MiB` draws them from an exponential distribution
    #[arg(long, value_name = "BYTES", default_value = "64KiB", value_parser = parse_size)]
    size: Size,
    /// Messages [default: as many as make 4 GiB, 1000 to 1000000; 100000 round trips]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// Sends that are outstanding
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    outstanding_send: u64,
    /// Receives that are outstanding
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    outstanding_receive: u64,
    /// How data travels
    #[arg(long, value_enum, default_value = "dynamic")]
    policy: PolicyName,
    /// The receiver's ring
    #[arg(long, value_name = "BYTES", default_value = "1MiB", value_parser = parse_bytes)]
    ring: usize,
    /// Whose memory messages are in
    #[arg(long, value_enum, default_value = "shared")]
    memory: MemoryName,
    /// Send one message at a time, and measure how long a round trip takes
    #[arg(long)]
    round_trip: bool,
    /// What an end does when there is nothing to do
    #[arg(long, value_enum, default_value = "spin")]
    idle: IdleName,
    /// Where the ends run, the sender (here, so without netns) and the receiver: netns=NAME, address=IP, device=NAME, or
    /// several with commas between
    #[arg(long = "at", value_name = "LOCATION")]
    locations: Vec<MemberLocation>,
    /// Run this many times and print the median
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "All sends are of one memory, each receive has its own. The time ends when the receiver has reported that it has \
all. Both processes poll without pause unless --idle says otherwise, each on a core of its own if there are two.

Examples:
  squall bench stream --size 1MiB
  squall bench stream --transport tcp --size exp:1MiB --policy direct
  squall bench stream --size 1MiB --memory own   (the user's own, in place)
  squall bench stream --round-trip --size 64
  squall bench stream --round-trip --size 64 --idle park   (blocking)
  squall bench stream --transport verbs \\
      --at address=192.0.2.1,device=mlx5_0 --at address=192.0.2.2,device=mlx5_1
  squall bench stream --transport sim --model distant --size exp:1MiB";

/// The paper's machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Model {
    /// FDR InfiniBand through one switch
    Fdr,
    /// RoCE at 10 Gb/s with 24 ms each way
    Distant,
}

/// Bytes of a message.
#[derive(Clone, Copy, Debug)]
struct Size {
    bytes: usize,
    exponential: bool,
}

#[derive(Clone, Debug, Serialize)]
struct Outcome {
    transport: BenchFabric,
    policy: PolicyName,
    memory: MemoryName,
    size: usize,
    exponential: bool,
    messages: u64,
    outstanding_send: usize,
    outstanding_receive: usize,
    seconds: f64,
    bytes_per_second: f64,
    /// Direct transfers of all.
    direct_ratio: f64,
    mode_switches: u64,
    /// The part of a core that the receiver used.
    receiver_cpu: f64,
    /// By the receiver: out of its ring, from the sender's memory, through the ring of the link.
    copied_bytes: u64,
    fetched_bytes: u64,
    relayed_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ns: Option<Percentiles>,
    /// Of all runs, if there were several; the figures above are of the median one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runs_bytes_per_second: Vec<f64>,
}

pub(crate) fn run(arguments: &StreamArguments) -> Result<CommandVerdict> {
    if arguments.transport == BenchFabric::Sim {
        arguments.show(&arguments.simulate()?)?;
        return Ok(CommandVerdict::Good);
    }
    let blast = arguments.blast()?;
    // Before this process is bound to one of them.
    let cores = cores::for_members(2);
    let mut outcomes = (0..arguments.runs).map(|_| measure(&blast, &cores)).collect::<Result<Vec<_>>>()?;
    let all: Vec<f64> = outcomes.iter().map(|outcome| outcome.bytes_per_second).collect();
    outcomes.sort_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second));
    let mut outcome = outcomes.swap_remove(outcomes.len() / 2);
    if all.len() > 1 {
        outcome.runs_bytes_per_second = all;
    }
    arguments.show(&outcome)?;
    Ok(CommandVerdict::Good)
}

impl StreamArguments {
    /// The same in virtual time.
    fn simulate(&self) -> Result<Outcome> {
        ensure!(self.memory == MemoryName::Shared, "memory is simulated as shared: omit --memory");
        ensure!(!self.round_trip, "round trips are not simulated: choose --transport shm or tcp");
        let make = match self.model {
            Model::Fdr => simulated::BlastRun::fdr,
            Model::Distant => simulated::BlastRun::distant,
        };
        let (sends, receives) = (count(self.outstanding_send), count(self.outstanding_receive));
        let bytes = self.size.bytes as u64;
        let sizes =
            if self.size.exponential { MessageSizes::Exponential(bytes) } else { MessageSizes::Fixed(bytes) };
        let mut blast = make(self.policy.policy(), sends, receives);
        (blast.sizes, blast.messages) = (sizes, self.messages.unwrap_or(400));
        blast.settings.ring_words = (self.ring as u64).div_ceil(8);
        let report = blast.run();
        Ok(Outcome {
            transport: self.transport,
            policy: self.policy,
            memory: self.memory,
            size: self.size.bytes,
            exponential: self.size.exponential,
            messages: blast.messages,
            outstanding_send: sends,
            outstanding_receive: receives,
            seconds: report.seconds,
            bytes_per_second: report.bytes as f64 / report.seconds,
            direct_ratio: report.sender.direct_ratio(),
            mode_switches: report.sender.mode_switches,
            receiver_cpu: report.receiver_busy,
            copied_bytes: report.copied_bytes,
            fetched_bytes: 0,
            relayed_bytes: 0,
            latency_ns: None,
            runs_bytes_per_second: Vec::new(),
        })
    }

    fn show(&self, outcome: &Outcome) -> Result<()> {
        if self.json {
            output::json(outcome)?;
        } else {
            show(outcome);
        }
        Ok(())
    }

    /// Where the two ends run.
    fn ends(&self) -> Result<[MemberLocation; 2]> {
        let mut locations = self.locations.iter().cloned();
        ensure!(self.locations.len() <= 2, "a stream has two ends: give --at twice at most");
        if let Some(map) = LabMap::of_this_process()?.filter(|_| self.locations.is_empty()) {
            ensure!(self.transport != BenchFabric::Shm, "hosts share no memory: choose --transport tcp");
            return Ok([MemberLocation::outside(&map), MemberLocation::on_host(&map, 0)]);
        }
        let ends = [(); 2].map(|()| locations.next().unwrap_or_default());
        ensure!(ends[0].netns.is_none(), "the sender runs here: give the first --at without netns");
        let is_shm = self.transport == BenchFabric::Shm;
        ensure!(
            !is_shm || self.locations.is_empty(),
            "shared memory runs here: choose --transport tcp or verbs, or omit --at"
        );
        Ok(ends)
    }

    fn blast(&self) -> Result<BlastSettings> {
        ensure!(
            !self.round_trip || self.memory != MemoryName::Copied,
            "a round trip copies nothing: omit --round-trip, or choose another --memory"
        );
        let bytes = self.size.bytes as u64;
        let usual = if self.round_trip { 100_000 } else { ((4 << 30) / bytes).clamp(1000, 1_000_000) };
        // Messages of many megabytes: enough of them for a second.
        let usual = if bytes > 4 << 20 { ((8 << 30) / bytes).max(10) } else { usual };
        Ok(BlastSettings {
            transport: self.transport.real().unwrap_or(TransportName::Shm),
            encryption: self.encryption,
            policy: self.policy,
            idle: self.idle,
            size: self.size.bytes,
            exponential: self.size.exponential,
            messages: self.messages.unwrap_or(usual),
            outstanding_send: count(self.outstanding_send),
            outstanding_receive: count(self.outstanding_receive),
            round_trip: self.round_trip,
            ring: self.ring,
            memory: self.memory,
            locations: self.ends()?,
        })
    }
}

fn measure(blast: &BlastSettings, cores: &[Option<usize>]) -> Result<Outcome> {
    let listener = blast.listen()?;
    let address = listener.address().to_string();
    let parent = if blast.locations[1].host.is_some() { 0 } else { std::process::id() };
    let job = BlastReceiver { blast: blast.clone(), address, parent, core: cores[1] };
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let child = launcher(program, &blast.locations[1])
        .args(["stream-receiver", &serde_json::to_string(&job)?])
        .args(log::inherited())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the receiving process")?;
    if let Some(core) = cores[0] {
        squall_transports::runner::pin(core);
    }
    let sent = blast.send(&listener)?;
    let ended = child.wait_with_output()?;
    ensure!(ended.status.success(), "the receiving process failed");
    let received: BlastReceived = serde_json::from_slice(&ended.stdout)?;
    Ok(Outcome {
        transport: match sent.transport {
            PeerTransport::Shm => BenchFabric::Shm,
            PeerTransport::Verbs => BenchFabric::Verbs,
            PeerTransport::Tcp => BenchFabric::Tcp,
        },
        policy: blast.policy,
        memory: blast.memory,
        size: blast.size,
        exponential: blast.exponential,
        messages: blast.messages,
        outstanding_send: blast.outstanding_send,
        outstanding_receive: blast.outstanding_receive,
        seconds: sent.seconds,
        bytes_per_second: sent.bytes as f64 / sent.seconds,
        direct_ratio: sent.statistics.direct_ratio(),
        mode_switches: sent.statistics.mode_switches,
        receiver_cpu: received.cpu,
        copied_bytes: received.copied_bytes,
        fetched_bytes: received.fetched_bytes,
        relayed_bytes: received.relayed_bytes,
        latency_ns: sent.latency,
        runs_bytes_per_second: Vec::new(),
    })
}

fn show(outcome: &Outcome) {
    match outcome.latency_ns {
        Some(latency) => output::line(format_args!("round trip of {} bytes: {latency}", outcome.size)),
        None => output::line(format_args!(
            "{} messages of {} bytes: {}/s, {:.1} % direct, {} switches, receiver {:.0} % of a core",
            units::grouped(outcome.messages),
            units::grouped(outcome.size as u64),
            units::bytes(outcome.bytes_per_second),
            100.0 * outcome.direct_ratio,
            outcome.mode_switches,
            100.0 * outcome.receiver_cpu,
        )),
    }
}

/// Operations that are outstanding.
fn count(number: u64) -> usize {
    usize::try_from(number).expect("at most 1024")
}

fn parse_size(text: &str) -> Result<Size, String> {
    match text.strip_prefix("exp:") {
        Some(mean) => Ok(Size { bytes: parse_bytes(mean)?, exponential: true }),
        None => Ok(Size { bytes: parse_bytes(text)?, exponential: false }),
    }
}

fn parse_bytes(text: &str) -> Result<usize, String> {
    let bytes = usize::try_from(quantity::bytes(text)?).map_err(|_| "write less")?;
    if (1..=1 << 30).contains(&bytes) { Ok(bytes) } else { Err("write 1 byte to 1 GiB".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_fixed_or_exponential() {
        let size = |text: &str| parse_size(text).ok().map(|size| (size.bytes, size.exponential));
        assert_eq!(size("64"), Some((64, false)));
        assert_eq!(size("exp:1MiB"), Some((1 << 20, true)));
        assert_eq!((size("0"), size("exp:"), size("2GiB")), (None, None, None));
    }
}
