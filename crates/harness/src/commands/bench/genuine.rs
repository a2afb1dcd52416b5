//! `squall bench genuine`: messages to several shards in one order, beside the same work in one totally ordered subgroup.

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::cluster::{ClusterPlan, ProcessCluster};
use crate::control::{EncryptionName, GenuineJob, IdleName, MemberWork, TransportName};
use crate::latency::{Latencies, Percentiles};
use crate::progress::ProgressDisplay;
use crate::terminal::{CommandVerdict, Interrupts, output, table, units};

/// Measure messages to several shards of a group in one order
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GenuineArguments {
    /// How the members reach each other
    #[arg(long, value_enum, default_value = "shm")]
    transport: TransportName,
    /// Shards
    #[arg(long, value_name = "G", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=16))]
    shards: u64,
    /// Members of each shard, each a process
    #[arg(long, value_name = "R", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=16))]
    replicas: u64,
    /// Shards that each message is for: that of its sender, and the next ones
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=16))]
    destinations: u64,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    size: u64,
    /// Messages of each member [default: 100000; one at a time 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// Messages that each member may have under way
    #[arg(long, value_name = "MESSAGES", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    window: u64,
    /// Let each member wait for the delivery of its message before it sends the next, and measure how long it takes
    #[arg(long)]
    latency: bool,
    /// What a member does when there is nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    idle: IdleName,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "All members send. The same messages are then sent through one subgroup of all members, in whose total \
order each drops what is for other shards. Rates count each message once, however many deliver it; the slowest member decides.

Examples:
  squall bench genuine
  squall bench genuine --shards 4 --replicas 1 --destinations 1
  squall bench genuine --transport tcp --size 1024 --latency --json";

#[derive(Debug, Serialize)]
struct Outcome {
    transport: TransportName,
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
    let messages = arguments.messages.unwrap_or(if arguments.latency { 10_000 } else { 100_000 });
    let job = GenuineJob {
        shards: few(shards),
        replicas: few(replicas),
        destinations: few(destinations),
        size: few(arguments.size),
        messages,
        window: few(arguments.window),
        latency: arguments.latency,
        is_filtered: false,
    };
    let interrupts = Interrupts::take()?;
    let genuine = measure(arguments, &job, &interrupts)?;
    let one_subgroup = measure(arguments, &GenuineJob { is_filtered: true, ..job }, &interrupts)?;
    let outcome = Outcome {
        transport: arguments.transport,
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

fn measure(arguments: &GenuineArguments, job: &GenuineJob, interrupts: &Interrupts) -> Result<Figures> {
    let members = job.shards * job.replicas;
    let plan = ClusterPlan {
        transport: arguments.transport,
        encryption: EncryptionName::On,
        members,
        idle: arguments.idle,
        locations: Vec::new(),
        work: MemberWork::Genuine(job.clone()),
        survives: false,
        kill_after: None,
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
