//! `squall bench object`: how many updates a client outside the group gets applied (Derecho app. A: external clients).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use squall::object::Client;

use crate::cluster::check_locations;
use crate::cluster::churn::{ChurnPlan, ProcessPool};
use crate::control::{ChurnJob, IdleName, StoreJob, TransportName};
use crate::member;
use crate::member::store::{NAME, StoredValues};
use crate::operations::StoreStep;
use crate::operations::recorder::OperationRecorder;
use crate::terminal::{CommandVerdict, Interrupts, output};

/// Measure updates of a replicated object by a client outside the group
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ObjectArguments {
    /// Members, each a process
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=32))]
    members: u64,
    /// How members and the client reach each other
    #[arg(long, value_enum, default_value = "tcp")]
    transport: TransportName,
    /// At how many members the shard is [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=32))]
    replicas: Option<u64>,
    /// Updates that the client has under way at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=256))]
    under_way: u64,
    /// What a member does when there is nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    idle: IdleName,
    /// How long to measure, after a fifth of it to warm up
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "The object is a list of numbers; the client appends to it, and takes the replies in their order. All \
updates go to one shard, and a reply is the place of the number, as all its members have it.

Examples:
  squall bench object
  squall bench object --under-way 1 --json
  squall bench object --transport shm --members 5 --replicas 3";

#[derive(Debug, Serialize)]
struct Outcome {
    transport: TransportName,
    members: u64,
    replicas: u64,
    under_way: u64,
    updates: u64,
    seconds: f64,
    updates_per_second: f64,
    latency_us_p50: f64,
    latency_us_p99: f64,
}

pub(crate) fn run(arguments: &ObjectArguments) -> Result<CommandVerdict> {
    check_locations(arguments.transport, &[])?;
    let replicas = arguments.replicas.unwrap_or(arguments.members).min(arguments.members);
    let few = |number: u64| usize::try_from(number).expect("at most 256");
    let store =
        StoreJob { replicas: few(replicas), transfer_ms: 0, has_clients: false, has_transactions: false };
    let subgroup = member::store::subgroup(&store);
    let job = ChurnJob {
        process: 0,
        log_of: 0,
        size: ChurnJob::SIZE_MIN,
        pace: Some(1),
        suspicion_ms: 5000,
        // Of two members, one is no majority.
        majority: arguments.members > 2,
        account: None,
        storage: None,
        store: Some(store),
    };
    let (transport, members) = (arguments.transport, few(arguments.members));
    let plan = ChurnPlan {
        transport,
        members,
        idle: arguments.idle,
        locations: Vec::new(),
        clients: 0,
        job,
        folder: None,
    };
    let interrupts = Interrupts::take()?;
    let mut pool = ProcessPool::start(plan, OperationRecorder::default(), &interrupts)?;
    let config = member::config(&pool.contact())?.subgroup(NAME, subgroup);
    let client = Client::<StoredValues>::connect_with(&config, NAME, Duration::from_secs(10))?;
    let seconds = Duration::try_from_secs_f64(arguments.seconds).context("--seconds is no time")?;
    let mut times = Vec::new();
    let started = Instant::now() + seconds / 5;
    let mut under_way = VecDeque::new();
    let mut number = 0;
    let ended = loop {
        while under_way.len() < few(arguments.under_way) {
            number += 1;
            under_way.push_back((
                Instant::now(),
                client.update(b"", &StoreStep::Append { list: 0, value: number })?,
            ));
        }
        let (begun, reply) = under_way.pop_front().context("one was begun")?;
        reply.wait().context("an update failed")?;
        let now = Instant::now();
        if now >= started {
            times.push((now - begun).as_secs_f64() * 1e6);
        }
        if now >= started + seconds {
            break now;
        }
    };
    pool.rest(Duration::ZERO)?;
    print(arguments, replicas, &mut times, (ended - started).as_secs_f64())?;
    Ok(CommandVerdict::Good)
}

fn print(arguments: &ObjectArguments, replicas: u64, times: &mut [f64], seconds: f64) -> Result<()> {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied().unwrap_or(0.0);
    let outcome = Outcome {
        transport: arguments.transport,
        members: arguments.members,
        replicas,
        under_way: arguments.under_way,
        updates: times.len() as u64,
        seconds,
        updates_per_second: times.len() as f64 / seconds,
        latency_us_p50: at(0.5),
        latency_us_p99: at(0.99),
    };
    if arguments.json {
        output::json(&outcome)?;
        return Ok(());
    }
    output::line(format_args!(
        "{:.0} updates/s with {} under way, {} members: median {:.0} µs, 99 % within {:.0} µs",
        outcome.updates_per_second,
        outcome.under_way,
        outcome.members,
        outcome.latency_us_p50,
        outcome.latency_us_p99
    ));
    Ok(())
}
