//! `squall bench rdmc`: bulk multicast of large objects.

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use squall::config::quantity;
use squall_protocols::rdmc::schedule::Algorithm;
use squall_simulator::rdmc::PaperMachines;

use super::fabric::BenchFabric;
use crate::cluster::{ClusterPlan, ProcessCluster};
use crate::control::{
    EncryptionName, IdleName, MemberLocation, MemberReport, MemberWork, RdmcJob, ScheduleName, TransportName,
};
use crate::progress::ProgressDisplay;
use crate::terminal::{CommandVerdict, Interrupts, output, units};

/// Measure bulk multicast: member 0 sends large objects to all others, one after the other
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RdmcArguments {
    /// How the members reach each other
    #[arg(long, value_enum, default_value = TransportName::usual())]
    transport: BenchFabric,
    /// With `--transport sim`: which cluster of the paper
    #[arg(long, value_enum, default_value = "fractus")]
    cluster: ClusterName,
    /// Processes, the root included; at most 64, in the simulator 1024
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=1024))]
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
    /// How blocks travel between hosts and in the simulator; on shared memory receivers take them from the root's pages
    #[arg(long, value_enum)]
    schedule: Option<ScheduleName>,
    /// Choose block size and schedule for a network, by the size of the objects and the number of members
    #[arg(long)]
    choose: bool,
    /// Let receivers read objects where the root wrote them, without a copy (shared memory)
    #[arg(long)]
    in_place: bool,
    /// What a member does when there is nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    idle: IdleName,
    /// Where members run, in turn: netns=NAME, address=IP, device=NAME, or several with commas between
    #[arg(long = "at", value_name = "LOCATION")]
    locations: Vec<MemberLocation>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "A time is from the call of send to the moment when the last receiver has the object; the median of all objects is \
printed. Receivers have memory of their own, which they use again for each object. In place, a receiver looks at the \
ends of an object only.

Examples:
  squall bench rdmc --members 8 --size 64MiB
  squall bench rdmc --transport tcp --members 4 --schedule chain --block 256KiB
  squall bench rdmc --members 9 --size 64MiB --in-place
  squall bench rdmc --transport verbs --members 4 \\
      --at device=rxe0,address=10.77.0.1 --at device=rxe1,address=10.77.0.2
  squall bench rdmc --transport sim --cluster sierra --members 512 --size 256MiB";

/// The clusters of the RDMC paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ClusterName {
    /// 20 Gb/s
    Sierra,
    /// 40 Gb/s
    Stampede,
    /// 100 Gb/s
    Fractus,
}

#[derive(Debug, Serialize)]
struct Outcome {
    transport: BenchFabric,
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

pub(crate) fn run(arguments: &RdmcArguments) -> Result<CommandVerdict> {
    let outcome = match arguments.transport.real() {
        Some(transport) => measure(arguments, transport)?,
        None => predict(arguments)?,
    };
    if arguments.json {
        output::json(&outcome)?;
    } else {
        print(&outcome);
    }
    Ok(CommandVerdict::Good)
}

fn measure(arguments: &RdmcArguments, transport: TransportName) -> Result<Outcome> {
    let members = usize::try_from(arguments.members).expect("at most 1024");
    anyhow::ensure!(
        members <= PROCESSES_MAX,
        "{members} processes on one host: choose at most {PROCESSES_MAX}"
    );
    let interrupts = Interrupts::take()?;
    let job = RdmcJob {
        size: arguments.size,
        objects: arguments.objects,
        warm_up: arguments.warm_up,
        block_bytes: arguments.block.map(|bytes| bytes as u64),
        schedule: arguments.schedule,
        choose: arguments.choose,
        in_place: arguments.in_place,
    };
    let plan = ClusterPlan {
        transport,
        encryption: EncryptionName::On,
        members,
        idle: arguments.idle,
        locations: arguments.locations.clone(),
        work: MemberWork::Rdmc(job),
        survives: false,
        kill: None,
        join: false,
    };
    let mut display = ProgressDisplay::new(members, 0, arguments.objects, "objects", arguments.json);
    let reports: Vec<_> =
        ProcessCluster::run(&plan, &interrupts, &mut display)?.reports.into_iter().flatten().collect();
    display.finish();
    Ok(outcome(arguments, &reports))
}

/// The time of one object in the simulator.
fn predict(arguments: &RdmcArguments) -> Result<Outcome> {
    anyhow::ensure!(!arguments.in_place, "the simulator relays: omit --in-place, or choose --transport shm");
    let machines = match arguments.cluster {
        ClusterName::Sierra => PaperMachines::SIERRA,
        ClusterName::Stampede => PaperMachines::STAMPEDE,
        ClusterName::Fractus => PaperMachines::FRACTUS,
    };
    let algorithm = arguments.schedule.map_or(Algorithm::Pipeline, ScheduleName::algorithm);
    let members = u32::try_from(arguments.members).expect("at most 1024");
    let (size, block) = (arguments.size as u64, arguments.block.unwrap_or(1 << 20) as u64);
    anyhow::ensure!(block > 0, "blocks of no bytes: choose --block 8 or more");
    let simulated = u64::from(members) * size / SIMULATED_PER_BYTE;
    anyhow::ensure!(
        simulated <= SIMULATED_MAX,
        "the simulation would take {} of memory: choose a smaller --size or fewer --members",
        units::bytes(simulated as f64)
    );
    let prediction = squall_simulator::rdmc::predict(machines, algorithm, members, size, block);
    let seconds = prediction.last.as_secs_f64();
    Ok(Outcome {
        transport: arguments.transport,
        members: members as usize,
        size: arguments.size,
        objects: 1,
        in_place: false,
        seconds,
        bytes_per_second: arguments.size as f64 / seconds,
        skew_ms: (prediction.last - prediction.first).as_secs_f64() * 1e3,
        seconds_least: seconds,
        seconds_most: seconds,
    })
}

/// More processes than processors would measure their scheduler.
const PROCESSES_MAX: usize = 64;
/// The simulator needs a byte of memory for this many bytes at each member.
const SIMULATED_PER_BYTE: u64 = 250;
const SIMULATED_MAX: u64 = 4 << 30;

fn outcome(arguments: &RdmcArguments, reports: &[MemberReport]) -> Outcome {
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
    let (size, receivers) = (units::bytes(outcome.size as f64), outcome.members - 1);
    let (middle, least, most) = (outcome.seconds, outcome.seconds_least, outcome.seconds_most);
    let times = format!("{} ({} to {})", nanos(middle), nanos(least), nanos(most));
    let skew = nanos(outcome.skew_ms / 1e3);
    let plural = if receivers == 1 { "" } else { "s" };
    if outcome.in_place {
        // Nothing moves, so there is no rate.
        output::line(format_args!(
            "{size} shown in place to {receivers} receiver{plural}: {times}, first to last receiver {skew}"
        ));
    } else {
        let rate = units::bytes(outcome.bytes_per_second);
        output::line(format_args!(
            "{size} to {receivers} receiver{plural}: {times}, {rate}/s at each, first to last receiver {skew}"
        ));
    }
}

fn parse_size(text: &str) -> Result<usize, String> {
    let bytes = quantity::bytes(text)?;
    usize::try_from(bytes).map_err(|_| "this is more than fits memory".into())
}
