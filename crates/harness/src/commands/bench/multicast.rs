//! `squall bench multicast`: throughput and latency of one subgroup.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use squall::config::quantity;
use squall_simulator::figures::{self, Experiment};

use super::fabric::BenchFabric;
use super::run_folder::RunFolder;
use crate::cluster::{ClusterPlan, ProcessCluster};
use crate::control::{
    EncryptionName, IdleName, MemberLocation, MemberReport, MemberWork, ModeName, MulticastJob, TransportName,
};
use crate::latency::{Latencies, Percentiles};
use crate::member::subgroup;
use crate::progress::ProgressDisplay;
use crate::terminal::{CommandVerdict, Interrupts, output, table, units};

/// Measure the multicast: every sender sends as fast as it can, or one message at a time
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MulticastArguments {
    /// How the members reach each other
    #[arg(long, value_enum, default_value = TransportName::usual())]
    transport: BenchFabric,
    /// What is encrypted: what travels by TCP between hosts, within this host, too, or nothing
    #[arg(long, value_enum, default_value = "on")]
    encryption: EncryptionName,
    /// Processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    members: u64,
    /// Which members send: all, half, one, or a number
    #[arg(long, default_value = "all", value_parser = parse_senders)]
    senders: Senders,
    /// Bytes of a message, like 64, 1KiB or 10KB, or any length between two, like 8-512, at random
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = parse_sizes)]
    size: MessageSizes,
    /// Messages of each sender [default: 1000000; one at a time 100000; durable a tenth of that; simulated 300]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// When and in which order messages are delivered
    #[arg(long, value_enum, default_value = "atomic")]
    mode: ModeName,
    /// A folder on the disk for the logs of the members in mode durable, or of a durable subgroup without messages beside
    /// another mode; what is written into it is removed at the end
    #[arg(long, value_name = "FOLDER")]
    storage: Option<PathBuf>,
    /// Keep the whole log, which then is written twice: each segment with zeros before it is used for the first time
    #[arg(long, requires = "storage")]
    keep_log: bool,
    /// Messages that each sender may have under way
    #[arg(long, value_name = "MESSAGES", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=32768))]
    window: u64,
    /// Bytes that each sender may have under way
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    window_bytes: Option<usize>,
    /// Send to this many subgroups of all members in turn; not simulated
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    subgroups: u64,
    /// Have this many subgroups of all members without messages beside them; not simulated
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1000))]
    idle_subgroups: u64,
    /// Let longer messages travel outside the window, as `large_max` of a configuration does; not simulated
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    message_max: Option<usize>,
    /// Handle one message at a time at every stage
    #[arg(long)]
    no_batching: bool,
    /// Send one message at a time
    #[arg(long)]
    no_send_batching: bool,
    /// Acknowledge one message at a time
    #[arg(long)]
    no_receive_batching: bool,
    /// Deliver one message at a time
    #[arg(long)]
    no_delivery_batching: bool,
    /// Let senders without messages hold up the others
    #[arg(long)]
    no_nulls: bool,
    /// Let each sender wait for the delivery of its message before it sends the next, and measure how long it takes
    #[arg(long)]
    latency: bool,
    /// What a member does when there is nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    idle: IdleName,
    /// Where members run, in turn: netns=NAME, address=IP, device=NAME, or several with commas between
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
    "Rates are what each member delivers, at the slowest member. The payload is written by the sender and \
read by every member. Processes are bound to cores if there is a core for each.

In mode durable each member writes what it receives into a log in --storage; `squall bench log` measures that disk alone. What all have \
delivered is discarded, and its place written over, as in a log that has been in use for long; see --keep-log. In another mode, --storage \
adds a durable subgroup without messages: what logs cost those who do not use them.

Examples:
  squall bench multicast --members 2 --size 1KiB
  squall bench multicast --transport tcp --members 3 --size 256 --json
  squall bench multicast --latency --senders one --messages 100000
  squall bench multicast --mode durable --storage logs --senders one --latency
  squall bench multicast --mode durable --storage logs --subgroups 16
  squall bench multicast --idle-subgroups 1000  (what idle ones cost)
  squall bench multicast --size 10KB --no-batching --no-nulls  (without Spindle)";

/// The lengths of messages: one, or any between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MessageSizes {
    shortest: Option<usize>,
    longest: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Senders {
    All,
    Half,
    Number(usize),
}

impl Senders {
    fn among(self, members: usize) -> Result<usize> {
        match self {
            Self::All => Ok(members),
            Self::Half => Ok(members.div_ceil(2)),
            Self::Number(number) => {
                ensure!(number <= members, "{number} senders among {members} members: raise --members");
                Ok(number)
            }
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct Outcome {
    transport: BenchFabric,
    members: usize,
    senders: usize,
    subgroups: usize,
    size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    shortest: Option<usize>,
    /// Delivered by each member.
    messages: u64,
    seconds: f64,
    messages_per_second: f64,
    bytes_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ns: Option<Percentiles>,
    mode: ModeName,
    window: usize,
    /// What the protocol did, for each member.
    counters: Vec<std::collections::BTreeMap<String, u64>>,
    /// Of all runs, if there were several; the figures above are of the median one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runs_messages_per_second: Vec<f64>,
}

pub(crate) fn run(arguments: &MulticastArguments) -> Result<CommandVerdict> {
    let members = usize::try_from(arguments.members).expect("at most 64");
    check_storage(arguments)?;
    let job = job(arguments, members)?;
    let outcome = match arguments.transport.real() {
        Some(transport) => median(measure(arguments, transport, members, &job)?),
        None => predict(arguments, members, &job)?,
    };
    if arguments.json {
        output::json(&outcome)?;
    } else {
        print(&outcome);
    }
    Ok(CommandVerdict::Good)
}

/// Checks that there is a folder for logs if these are written, and only then.
fn check_storage(arguments: &MulticastArguments) -> Result<()> {
    let is_durable = arguments.mode == ModeName::Durable;
    match &arguments.storage {
        Some(storage) => {
            let shown = storage.display();
            ensure!(storage.is_dir(), "{shown} is no folder: make it, or choose another --storage");
        }
        None => ensure!(
            !is_durable,
            "members in mode durable write logs: add --storage FOLDER, on the disk to use"
        ),
    }
    ensure!(
        (!is_durable && arguments.storage.is_none()) || arguments.transport.real().is_some(),
        "the simulator has no disk here: choose another --transport, or omit --storage and --mode durable"
    );
    Ok(())
}

/// Runs the members as processes, as often as requested.
fn measure(
    arguments: &MulticastArguments,
    transport: TransportName,
    members: usize,
    job: &MulticastJob,
) -> Result<Vec<Outcome>> {
    let interrupts = Interrupts::take()?;
    let total = job.messages * job.senders as u64;
    let (idle, locations) = (arguments.idle, arguments.locations.clone());
    let mut plan = ClusterPlan {
        transport,
        encryption: arguments.encryption,
        members,
        idle,
        locations,
        work: MemberWork::Multicast(job.clone()),
        survives: false,
        kill: None,
        join: false,
    };
    let mut outcomes = Vec::new();
    for _ in 0..arguments.runs {
        let create = |storage| RunFolder::create(storage, "multicast");
        let folder = arguments.storage.as_deref().map(create).transpose()?;
        let storage = folder.as_ref().map(|folder| folder.path().to_owned());
        plan.work = MemberWork::Multicast(MulticastJob { storage, ..job.clone() });
        let mut display = ProgressDisplay::new(members, 0, total, "messages", arguments.json);
        let reports: Vec<_> =
            ProcessCluster::run(&plan, &interrupts, &mut display)?.reports.into_iter().flatten().collect();
        display.finish();
        outcomes.push(outcome(arguments.transport, job, &reports));
    }
    Ok(outcomes)
}

/// Runs the same protocol in virtual time, under the cost model of Spindle's testbed.
fn predict(arguments: &MulticastArguments, members: usize, job: &MulticastJob) -> Result<Outcome> {
    anyhow::ensure!(
        arguments.message_max.is_none(),
        "the simulator has no large messages here: omit --message-max"
    );
    anyhow::ensure!(
        arguments.subgroups == 1 && arguments.idle_subgroups == 0,
        "the simulator has one subgroup here: omit --subgroups and --idle-subgroups"
    );
    let settings = subgroup(job).settings(members);
    settings.check(members)?;
    let singly = job.latency;
    let experiment = Experiment { settings, messages: job.messages, singly, ..Experiment::spindle(members) };
    let prediction = figures::predict(&experiment);
    let mut latencies = Latencies::default();
    prediction.latency_ns.iter().for_each(|nanos| latencies.record(Duration::from_nanos(*nanos)));
    let report = MemberReport { seconds: prediction.seconds, latencies, ..MemberReport::default() };
    Ok(Outcome { members, ..outcome(arguments.transport, job, &[report]) })
}

fn job(arguments: &MulticastArguments, members: usize) -> Result<MulticastJob> {
    let batching = !arguments.no_batching;
    let usual = if arguments.latency { 100_000 } else { 1_000_000 };
    Ok(MulticastJob {
        senders: arguments.senders.among(members)?,
        subgroups: usize::try_from(arguments.subgroups).expect("at most 1000"),
        idle_subgroups: usize::try_from(arguments.idle_subgroups).expect("at most 1000"),
        size: arguments.size.longest,
        shortest: arguments.size.shortest,
        messages: arguments.messages.unwrap_or(match arguments.transport {
            BenchFabric::Sim => 300,
            BenchFabric::Shm | BenchFabric::Tcp | BenchFabric::Auto | BenchFabric::Verbs => {
                match arguments.mode {
                    ModeName::Durable => usual / 10,
                    ModeName::Atomic | ModeName::Unordered | ModeName::Raw => usual,
                }
            }
        }),
        mode: arguments.mode,
        window: usize::try_from(arguments.window).expect("at most 32768"),
        window_bytes: arguments.window_bytes,
        message_max: arguments.message_max,
        send_batching: batching && !arguments.no_send_batching,
        receive_batching: batching && !arguments.no_receive_batching,
        delivery_batching: batching && !arguments.no_delivery_batching,
        null_sends: !arguments.no_nulls,
        latency: arguments.latency,
        storage: None,
        keeps_log: arguments.keep_log,
    })
}

fn outcome(transport: BenchFabric, job: &MulticastJob, reports: &[MemberReport]) -> Outcome {
    let mut latencies = Latencies::default();
    reports.iter().for_each(|report| latencies.merge(&report.latencies));
    let seconds = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
    let messages = job.messages * job.senders as u64;
    let rate = messages as f64 / seconds;
    Outcome {
        transport,
        members: reports.len(),
        senders: job.senders,
        subgroups: job.subgroups,
        size: job.size,
        shortest: job.shortest,
        messages,
        seconds,
        messages_per_second: rate,
        bytes_per_second: rate * (job.shortest.unwrap_or(job.size) + job.size) as f64 / 2.0,
        latency_ns: latencies.percentiles(),
        mode: job.mode,
        window: job.window,
        counters: reports.iter().map(|report| report.counters.clone()).collect(),
        runs_messages_per_second: Vec::new(),
    }
}

/// The run with the median rate, or with latencies the one with the median latency.
fn median(mut outcomes: Vec<Outcome>) -> Outcome {
    let rates: Vec<_> = outcomes.iter().map(|outcome| outcome.messages_per_second).collect();
    outcomes.sort_by(|a, b| {
        let by_rate = a.messages_per_second.total_cmp(&b.messages_per_second);
        let p50 = |outcome: &Outcome| outcome.latency_ns.map(|latency| latency.p50);
        p50(a).cmp(&p50(b)).then(by_rate)
    });
    let mut median = outcomes.swap_remove(outcomes.len() / 2);
    if rates.len() > 1 {
        median.runs_messages_per_second = rates;
    }
    median
}

fn print(outcome: &Outcome) {
    let header = ["members", "senders", "size", "messages", "seconds", "messages/s", "bytes/s"];
    let row = vec![
        outcome.members.to_string(),
        outcome.senders.to_string(),
        outcome.shortest.map_or_else(String::new, |shortest| format!("{shortest}-"))
            + &format!("{} B", outcome.size),
        units::grouped(outcome.messages),
        format!("{:.3}", outcome.seconds),
        units::count(outcome.messages_per_second),
        units::bytes(outcome.bytes_per_second),
    ];
    table::lines(&[header.map(String::from).to_vec(), row]).iter().for_each(output::line);
    if let Some(latency) = outcome.latency_ns {
        output::line(format_args!("from sending to own delivery: {latency}"));
    }
    if let Some(most) = outcome.runs_messages_per_second.iter().copied().reduce(f64::max) {
        let least = outcome.runs_messages_per_second.iter().copied().fold(most, f64::min);
        let runs = outcome.runs_messages_per_second.len();
        output::line(format_args!(
            "the median of {runs} runs; rates from {} to {}",
            units::count(least),
            units::count(most)
        ));
    }
}

fn parse_senders(text: &str) -> Result<Senders, String> {
    match text {
        "all" => Ok(Senders::All),
        "half" => Ok(Senders::Half),
        "one" => Ok(Senders::Number(1)),
        _ => match text.parse() {
            Ok(number) if number > 0 => Ok(Senders::Number(number)),
            _ => Err("write all, half, one, or a number above 0".into()),
        },
    }
}

fn parse_sizes(text: &str) -> Result<MessageSizes, String> {
    let Some((shortest, longest)) = text.split_once('-') else {
        return Ok(MessageSizes { shortest: None, longest: parse_size(text)? });
    };
    let (shortest, longest) = (parse_size(shortest)?, parse_size(longest)?);
    if shortest > longest {
        return Err(format!("write the shorter one first: {longest}-{shortest}"));
    }
    Ok(MessageSizes { shortest: Some(shortest), longest })
}

fn parse_size(text: &str) -> Result<usize, String> {
    let bytes = quantity::bytes(text)?;
    usize::try_from(bytes).ok().filter(|bytes| *bytes < 1 << 32).ok_or_else(|| "write less than 4 GiB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_are_named_or_counted() {
        let among = |text: &str, members| parse_senders(text).unwrap().among(members).ok();
        assert_eq!(
            [among("all", 5), among("half", 5), among("one", 5), among("4", 5)],
            [5, 3, 1, 4].map(Some)
        );
        assert_eq!(among("6", 5), None);
        assert!(["0", "-1", "some", ""].iter().all(|text| parse_senders(text).is_err()));
    }

    #[test]
    fn the_median_run_is_shown_with_all_rates() {
        let job = MulticastJob {
            senders: 1,
            subgroups: 1,
            idle_subgroups: 0,
            size: 8,
            shortest: None,
            messages: 100,
            mode: ModeName::Atomic,
            window: 1,
            window_bytes: None,
            message_max: None,
            send_batching: true,
            receive_batching: true,
            delivery_batching: true,
            null_sends: true,
            latency: false,
            storage: None,
            keeps_log: false,
        };
        let of =
            |seconds| outcome(BenchFabric::Shm, &job, &[MemberReport { seconds, ..MemberReport::default() }]);
        let median_of = median(vec![of(1.0), of(4.0), of(2.0)]);
        assert_eq!(median_of.messages_per_second, 50.0);
        assert_eq!(median_of.runs_messages_per_second, [100.0, 25.0, 50.0]);
        assert!(median(vec![of(1.0)]).runs_messages_per_second.is_empty());
    }

    #[test]
    fn lengths_are_one_or_between_two() {
        let sizes = |shortest, longest| Ok(MessageSizes { shortest, longest });
        assert_eq!(parse_sizes("1KiB"), sizes(None, 1024));
        assert_eq!(parse_sizes("8-512"), sizes(Some(8), 512));
        assert_eq!(parse_sizes("512-8").unwrap_err(), "write the shorter one first: 8-512");
        assert!(["-8", "8-", "8-x", "8-4GiB"].iter().all(|text| parse_sizes(text).is_err()));
    }

    /// A folder that is not used, or that is missing, is said.
    #[test]
    fn logs_and_their_folder_go_together() {
        let error = |arguments: &[&str]| {
            let all = [&["bench"], arguments].concat();
            let arguments = <ArgumentsForTest as clap::Parser>::parse_from(all);
            check_storage(&arguments.inner).map_err(|error| error.to_string()).err().unwrap_or_default()
        };
        assert_eq!(error(&["--mode", "durable", "--storage", "/tmp"]), "");
        assert!(error(&["--mode", "durable"]).contains("add --storage"));
        assert_eq!(error(&["--storage", "/tmp"]), "");
        assert!(error(&["--mode", "durable", "--storage", "/none"]).contains("/none is no folder"));
        let simulated = ["--mode", "durable", "--storage", "/tmp", "--transport", "sim"];
        assert!(error(&simulated).contains("no disk"));
        assert!(error(&simulated[2..]).contains("no disk"));
    }

    /// Scripts rely on these keys.
    #[test]
    fn the_json_has_its_keys() {
        let arguments =
            <ArgumentsForTest as clap::Parser>::parse_from(["bench", "--latency", "--senders", "one"]);
        let job = job(&arguments.inner, 2).unwrap();
        let mut report = MemberReport { seconds: 0.5, ..MemberReport::default() };
        report.latencies.record(std::time::Duration::from_micros(1));
        let json = serde_json::to_value(outcome(BenchFabric::Tcp, &job, &[report.clone(), report])).unwrap();
        for key in
            ["members", "senders", "size", "messages", "seconds", "messages_per_second", "bytes_per_second"]
        {
            assert!(json[key].is_number(), "{key} in {json}");
        }
        for key in ["p50", "p99", "p999", "max"] {
            assert_eq!(json["latency_ns"][key], 1000, "{key} in {json}");
        }
        assert_eq!(json["messages_per_second"], 200_000.0);
    }

    #[derive(clap::Parser)]
    struct ArgumentsForTest {
        #[command(flatten)]
        inner: MulticastArguments,
    }
}
