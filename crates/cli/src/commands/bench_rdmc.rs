//! `squall bench rdmc`: bulk multicast of large objects.

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use squall::config::quantity;

use crate::Verdict;
use crate::cluster::{Cluster, Interrupts, Plan};
use crate::control::{IdleName, RdmcJob, Report, ScheduleName, TransportName, Work};
use crate::output;
use crate::progress::Display;
use crate::units;

/// Measure bulk multicast: member 0 sends large objects to all others, one after the other
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// How the members reach each other
    #[arg(long, value_enum, default_value = "shm")]
    transport: TransportName,
    /// Processes, the root included
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=64))]
    members: u64,
    /// Bytes of an object, like 1MiB or 64MB
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = parse_size)]
    size: usize,
    /// Objects
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    objects: u64,
    /// Objects sent before, and not measured
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=1000))]
    warm_up: u64,
    /// Bytes of a block, a multiple of 8
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    block: Option<usize>,
    /// How blocks travel on TCP; on shared memory receivers take them from the root's pages
    #[arg(long, value_enum)]
    schedule: Option<ScheduleName>,
    /// Let receivers read objects where the root wrote them, without a copy (shared memory)
    #[arg(long)]
    in_place: bool,
    /// What a member does when there is nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    idle: IdleName,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "A time is from the call of send to the moment when the last receiver has the object; the median of all objects is
printed. Receivers have memory of their own, which they use again for each object. In place, a receiver looks at the
ends of an object only.

Examples:
  squall bench rdmc --members 8 --size 64MiB
  squall bench rdmc --transport tcp --members 4 --schedule chain --block 256KiB --json
  squall bench rdmc --members 9 --size 64MiB --in-place";

#[derive(Debug, Serialize)]
struct Outcome {
    transport: TransportName,
    members: usize,
    size: usize,
    objects: u64,
    in_place: bool,
    /// Medians of all objects; until the last receiver has it.
    seconds: f64,
    bytes_per_second: f64,
    /// From the first receiver to the last.
    skew_ms: f64,
    seconds_least: f64,
    seconds_most: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let members = usize::try_from(arguments.members).expect("at most 64");
    arguments.transport.require_plain()?;
    let interrupts = Interrupts::take()?;
    let job = RdmcJob {
        size: arguments.size,
        objects: arguments.objects,
        warm_up: arguments.warm_up,
        block_bytes: arguments.block.map(|bytes| bytes as u64),
        schedule: arguments.schedule,
        in_place: arguments.in_place,
    };
    let work = Work::Rdmc(job);
    let plan = Plan {
        transport: arguments.transport,
        members,
        idle: arguments.idle,
        locations: Vec::new(),
        work,
        survives: false,
        kill_after: None,
        join: false,
    };
    let mut display = Display::new(members, 0, arguments.objects, "objects", arguments.json);
    let reports: Vec<_> =
        Cluster::run(&plan, &interrupts, &mut display)?.reports.into_iter().flatten().collect();
    display.finish();
    let outcome = outcome(arguments, &reports);
    if arguments.json {
        output::line(serde_json::to_string(&outcome)?);
    } else {
        print(&outcome);
    }
    Ok(Verdict::Good)
}

fn outcome(arguments: &Arguments, reports: &[Report]) -> Outcome {
    let (root, receivers) = reports.split_first().expect("there is a root");
    let (mut times, mut skews) = (Vec::new(), Vec::new());
    for (i, begun) in root.stamps_ns.iter().enumerate() {
        let ends = receivers.iter().map(|receiver| receiver.stamps_ns[i]);
        let (first, last) = (ends.clone().min().unwrap_or(*begun), ends.max().unwrap_or(*begun));
        times.push(last.saturating_sub(*begun));
        skews.push(last - first);
    }
    times.sort_unstable();
    skews.sort_unstable();
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let median = seconds(times[times.len() / 2]);
    Outcome {
        transport: arguments.transport,
        members: reports.len(),
        size: arguments.size,
        objects: arguments.objects,
        in_place: arguments.in_place,
        seconds: median,
        bytes_per_second: arguments.size as f64 / median,
        skew_ms: seconds(skews[skews.len() / 2]) * 1e3,
        seconds_least: seconds(times[0]),
        seconds_most: seconds(times[times.len() - 1]),
    }
}

fn print(outcome: &Outcome) {
    let nanos = |seconds: f64| units::nanos((seconds * 1e9) as u64);
    output::line(format_args!(
        "{} to {} receivers: {} ({} to {}), {}/s at each, first to last receiver {}",
        units::bytes(outcome.size as f64),
        outcome.members - 1,
        nanos(outcome.seconds),
        nanos(outcome.seconds_least),
        nanos(outcome.seconds_most),
        units::bytes(outcome.bytes_per_second),
        nanos(outcome.skew_ms / 1e3),
    ));
}

fn parse_size(text: &str) -> Result<usize, String> {
    let bytes = quantity::bytes(text)?;
    usize::try_from(bytes).map_err(|_| "this is more than fits memory".into())
}
