//! `squall bench sst`: how fast members see each other's rows.

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::cluster::{ClusterPlan, ProcessCluster};
use crate::control::{EncryptionName, IdleName, MemberLocation, MemberWork, SstJob, TransportName};
use crate::latency::{Latencies, Percentiles};
use crate::progress::ProgressDisplay;
use crate::terminal::{CommandVerdict, Interrupts, output, units};

/// Measure the shared state table: each member raises its column and waits until all have, round by round
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SstArguments {
    /// How the members reach each other
    #[arg(long, value_enum, default_value = TransportName::usual())]
    transport: TransportName,
    /// Processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    members: u64,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
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
    "A round takes as long as a store needs to be seen by all members, and theirs to be seen here.

Examples:
  squall bench sst
  squall bench sst --members 3 --transport tcp --rounds 20000 --json";

#[derive(Debug, Serialize)]
struct Outcome {
    transport: TransportName,
    members: usize,
    rounds: u64,
    seconds: f64,
    rounds_per_second: f64,
    latency_ns: Option<Percentiles>,
}

pub(crate) fn run(arguments: &SstArguments) -> Result<CommandVerdict> {
    let members = usize::try_from(arguments.members).expect("at most 64");
    let interrupts = Interrupts::take()?;
    let work = MemberWork::Sst(SstJob { rounds: arguments.rounds });
    let locations = arguments.locations.clone();
    let plan = ClusterPlan {
        transport: arguments.transport,
        encryption: EncryptionName::On,
        members,
        idle: arguments.idle,
        locations,
        work,
        survives: false,
        kill: None,
        join: false,
    };
    let mut display = ProgressDisplay::new(members, 0, arguments.rounds, "rounds", arguments.json);
    let reports: Vec<_> =
        ProcessCluster::run(&plan, &interrupts, &mut display)?.reports.into_iter().flatten().collect();
    display.finish();

    let mut latencies = Latencies::default();
    reports.iter().for_each(|report| latencies.merge(&report.latencies));
    let seconds = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
    let outcome = Outcome {
        transport: arguments.transport,
        members,
        rounds: arguments.rounds,
        seconds,
        rounds_per_second: arguments.rounds as f64 / seconds,
        latency_ns: latencies.percentiles(),
    };
    if arguments.json {
        output::json(&outcome)?;
    } else {
        let rate = units::count(outcome.rounds_per_second);
        output::line(format_args!(
            "{} rounds among {members} members: {rate} rounds/s",
            units::grouped(outcome.rounds)
        ));
        if let Some(latency) = outcome.latency_ns {
            output::line(format_args!("{latency}"));
        }
    }
    Ok(CommandVerdict::Good)
}
