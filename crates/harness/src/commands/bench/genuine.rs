//! `squall bench genuine`: messages to several shards in one order, beside the same work in one totally ordered subgroup.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use squall::config::QuorumRule;
use squall_protocols::multicast::SubgroupSettings;
use squall_simulator::figures::{self, Experiment};
use squall_simulator::genuine::prediction::{self, ORDERED_WORK, RAMCAST, ShardExperiment, ShardLoad};

mod deaths;

use super::fabric::BenchFabric;
use crate::cluster::{ClusterPlan, ProcessCluster};
use crate::control::{EncryptionName, GenuineJob, IdleName, MemberWork, TransportName};
use crate::latency::{Latencies, Percentiles};
use crate::member::GENUINE_HEADER_BYTES as HEADER_BYTES;
use crate::progress::ProgressDisplay;
use crate::terminal::{CommandVerdict, Interrupts, output, table, units};

/// Measure messages to several shards of a group in one order
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GenuineArguments {
    /// How the members reach each other
    #[arg(long, value_enum, default_value = TransportName::usual())]
    transport: BenchFabric,
    /// Shards
    #[arg(long, value_name = "G", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    shards: u64,
    /// Members of each shard, each a process
    #[arg(long, value_name = "R", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=16))]
    replicas: u64,
    /// Shards that each message is for: that of its sender, and the next ones
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    destinations: u64,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    size: u64,
    /// Messages of each member [default: 100000; one at a time 10000; simulated 300]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// Messages that each member may have under way
    #[arg(long, value_name = "MESSAGES", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    window: u64,
    /// Let each member wait for the delivery of its message before it sends the next, and measure how long it takes
    #[arg(long)]
    latency: bool,
    /// Whose acknowledgements a delivery waits for; shards of one or two members have no other majority than all
    #[arg(long, value_enum, default_value = "all")]
    quorum: QuorumName,
    /// Instead: kill the leader of a shard under load, this often, and measure how long the others stall
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    deaths: Option<u64>,
    /// With --deaths: the shard whose leader is killed, from 0, not the last one; the leader of shard 0 also leads the view
    #[arg(long, value_name = "SHARD", default_value_t = 0, requires = "deaths")]
    leader_of: u64,
    /// What a member does when there is nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    idle: IdleName,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "All members send. The same messages are then sent through one subgroup of all members, in whose total \
order each drops what is for other shards. With --deaths messages are for all shards but the last one, whose members send to it \
alone: in each round the leader of the first shard, or of the one that --leader-of names, is killed (-9), and the others deliver without it. Rates count each message once, however many deliver it; the slowest member decides.

Examples:
  squall bench genuine
  squall bench genuine --shards 4 --replicas 1 --destinations 1
  squall bench genuine --replicas 3 --quorum majority
  squall bench genuine --shards 3 --deaths 20 --window 4
  squall bench genuine --shards 3 --deaths 20 --window 4 --leader-of 1
  squall bench genuine --transport sim --shards 64 --replicas 1
  squall bench genuine --transport tcp --size 1024 --latency --json";

/// Whose acknowledgements a delivery waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum QuorumName {
    /// All members of each shard
    All,
    /// More than half of them, with the leader
    Majority,
}

#[derive(Debug, Serialize)]
struct Outcome {
    transport: BenchFabric,
    quorum: QuorumName,
    shards: u64,
    replicas: u64,
    destinations: u64,
    size: u64,
    window: u64,
    /// Of all members together.
    messages: u64,
    #[serde(flatten)]
    genuine: Figures,
    /// The same through one subgroup of all members.
    one_subgroup: Figures,
}

#[derive(Debug, Serialize)]
struct Figures {
    seconds: f64,
    messages_per_second: f64,
    /// From sending to own delivery, one message at a time.
    latency_ns: Option<Percentiles>,
}

pub(crate) fn run(arguments: &GenuineArguments) -> Result<CommandVerdict> {
    let GenuineArguments { shards, replicas, destinations, .. } = *arguments;
    let members = shards * replicas;
    ensure!(
        members <= 64,
        "{shards} shards of {replicas} members are {members} processes: at most 64 can be"
    );
    ensure!(
        destinations <= shards,
        "--destinations {destinations} is above --shards {shards}: write no more than there are"
    );
    let few = |number: u64| usize::try_from(number).expect("at most a million");
    let usual = match arguments.transport {
        BenchFabric::Sim => 300,
        _ if arguments.latency => 10_000,
        _ => 100_000,
    };
    let messages = arguments.messages.unwrap_or(usual);
    let job = GenuineJob {
        shards: few(shards),
        replicas: few(replicas),
        destinations: few(destinations),
        size: few(arguments.size),
        messages,
        window: few(arguments.window),
        latency: arguments.latency,
        by_majority: arguments.quorum == QuorumName::Majority,
        outlives: arguments.deaths.is_some(),
        is_filtered: false,
    };
    if let Some(count) = arguments.deaths {
        return deaths::run(arguments, &job, count);
    }
    let filtered = GenuineJob { is_filtered: true, ..job.clone() };
    let (genuine, one_subgroup) = match arguments.transport.real() {
        Some(transport) => {
            let interrupts = Interrupts::take()?;
            let measure = |job: &GenuineJob| measure(arguments, transport, job, &interrupts);
            (measure(&job)?, measure(&filtered)?)
        }
        None => (predict(&job), predict_filtered(&job)?),
    };
    let outcome = Outcome {
        transport: arguments.transport,
        quorum: arguments.quorum,
        shards,
        replicas,
        destinations,
        size: arguments.size,
        window: arguments.window,
        messages: members * messages,
        genuine,
        one_subgroup,
    };
    if arguments.json {
        output::json(&outcome)?;
    } else {
        print(&outcome);
    }
    Ok(CommandVerdict::Good)
}

/// Runs the same protocol in virtual time, under the cost model of RamCast's testbed.
fn predict(job: &GenuineJob) -> Figures {
    let load = ShardLoad::Closed(if job.latency { 1 } else { job.window });
    let experiment = ShardExperiment {
        replicas: job.replicas,
        clients: 0,
        destinations: job.destinations,
        size: HEADER_BYTES + job.size,
        messages: job.messages,
        load,
        quorum: if job.by_majority { QuorumRule::Majority } else { QuorumRule::All },
        ..ShardExperiment::ramcast(job.shards)
    };
    let prediction = prediction::predict(&experiment);
    Figures::of(job, prediction.seconds, &prediction.own_ns)
}

/// The same through one subgroup.
fn predict_filtered(job: &GenuineJob) -> Result<Figures> {
    let members = job.shards * job.replicas;
    let window = job.window;
    let settings = SubgroupSettings { window, ..SubgroupSettings::new(members, HEADER_BYTES + job.size) };
    settings.check(members)?;
    let experiment = Experiment {
        settings,
        messages: job.messages,
        singly: job.latency,
        work: ORDERED_WORK,
        cost: RAMCAST,
        ..Experiment::spindle(members)
    };
    let prediction = figures::predict(&experiment);
    Ok(Figures::of(job, prediction.seconds, &prediction.latency_ns))
}

impl Figures {
    /// The figures of a prediction.
    fn of(job: &GenuineJob, seconds: f64, latency_ns: &[u64]) -> Self {
        let mut latencies = Latencies::default();
        let own = latency_ns.iter().filter(|_| job.latency);
        own.for_each(|nanos| latencies.record(Duration::from_nanos(*nanos)));
        let messages = (job.shards * job.replicas) as u64 * job.messages;
        Self { seconds, messages_per_second: messages as f64 / seconds, latency_ns: latencies.percentiles() }
    }
}

fn measure(
    arguments: &GenuineArguments,
    transport: TransportName,
    job: &GenuineJob,
    interrupts: &Interrupts,
) -> Result<Figures> {
    let members = job.shards * job.replicas;
    let plan = ClusterPlan {
        transport,
        encryption: EncryptionName::On,
        members,
        idle: arguments.idle,
        locations: Vec::new(),
        work: MemberWork::Genuine(job.clone()),
        survives: false,
        kill: None,
        join: false,
    };
    let total = (job.destinations * job.replicas) as u64 * job.messages;
    let mut display = ProgressDisplay::new(members, 0, total, "messages", arguments.json);
    let reports: Vec<_> =
        ProcessCluster::run(&plan, interrupts, &mut display)?.reports.into_iter().flatten().collect();
    display.finish();
    let mut latencies = Latencies::default();
    reports.iter().for_each(|report| latencies.merge(&report.latencies));
    let seconds = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
    Ok(Figures {
        seconds,
        messages_per_second: (members as u64 * job.messages) as f64 / seconds,
        latency_ns: latencies.percentiles(),
    })
}

fn print(outcome: &Outcome) {
    let row = |name: &str, figures: &Figures| {
        let rate = units::count(figures.messages_per_second);
        vec![name.to_owned(), format!("{:.3}", figures.seconds), rate]
    };
    let header = ["order", "seconds", "messages/s"].map(String::from).to_vec();
    let rows = [header, row("genuine", &outcome.genuine), row("one subgroup", &outcome.one_subgroup)];
    output::line(format_args!(
        "{} messages of {} B, each to {} of {} shards of {}",
        units::grouped(outcome.messages),
        outcome.size,
        outcome.destinations,
        outcome.shards,
        outcome.replicas
    ));
    table::lines(&rows).iter().for_each(output::line);
    for (name, figures) in [("genuine", &outcome.genuine), ("one subgroup", &outcome.one_subgroup)] {
        if let Some(latency) = figures.latency_ns {
            output::line(format_args!("from sending to own delivery, {name}: {latency}"));
        }
    }
}
