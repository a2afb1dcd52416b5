//! `squall bench view`: how long a group stalls when a member dies or joins (Derecho fig. 6).

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use crate::clock::now_ns;
use crate::cluster::check_locations;
use crate::cluster::churn::{ChurnPlan, ProcessPool, ProcessState, START_TIMEOUT};
use crate::control::{ChurnJob, IdleName, MemberLocation, TransportName};
use crate::operations::recorder::OperationRecorder;
use crate::terminal::{CommandVerdict, Interrupts, output};

/// Measure how long members stall when one dies (kill -9) and when one joins
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ViewArguments {
    /// Processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..=32))]
    members: u64,
    /// How they reach each other
    #[arg(long, value_enum, default_value = TransportName::usual())]
    transport: TransportName,
    /// Where processes run, in turn: netns=NAME, address=IP, device=NAME, or several with commas between
    #[arg(long = "at", value_name = "LOCATION")]
    locations: Vec<MemberLocation>,
    /// How often a member is killed and another joins
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u64).range(16..=1_000_000))]
    size: u64,
    /// Messages per second of each member [default: as many as possible]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pace: Option<u32>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "All members send all the time. In each round one of them is killed, the leader in its turn, and \
another joins. Times are those of the slowest member:
  crash to delivery   from the kill to the first delivery without the dead
  join stall          from the last delivery before a join to the first after

Examples:
  squall bench view
  squall bench view --transport tcp --members 5 --rounds 50 --json";

#[derive(Debug, Serialize)]
struct Outcome {
    transport: TransportName,
    members: u64,
    rounds: u64,
    size: u64,
    crash_to_delivery_ms: Spread,
    join_stall_ms: Spread,
    /// From the start of the process to its first delivery.
    start_to_delivery_ms: Spread,
}

#[derive(Debug, Serialize)]
pub(super) struct Spread {
    pub(super) p50: f64,
    pub(super) max: f64,
}

impl Spread {
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { p50: values[values.len() / 2], max: values[values.len() - 1] }
    }
}

pub(crate) fn run(arguments: &ViewArguments) -> Result<CommandVerdict> {
    check_locations(arguments.transport, &arguments.locations)?;
    let members = usize::try_from(arguments.members).expect("at most 32");
    let job = ChurnJob {
        process: 0,
        log_of: 0,
        size: usize::try_from(arguments.size).expect("at most a million"),
        pace: arguments.pace,
        suspicion_ms: 5000,
        // Of two members, one is no majority.
        majority: members > 2,
        account: None,
        storage: None,
        store: None,
    };
    let (transport, locations) = (arguments.transport, arguments.locations.clone());
    let plan =
        ChurnPlan { transport, members, idle: IdleName::Auto, locations, clients: 0, job, folder: None };
    let interrupts = Interrupts::take()?;
    let mut pool = ProcessPool::start(plan, OperationRecorder::default(), &interrupts)?;
    let (mut crashes, mut joins, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..arguments.rounds {
        pool.rest(PAUSE)?;
        crashes.push(crash(&mut pool, round)?);
        pool.rest(PAUSE)?;
        let (stall, start) = join(&mut pool)?;
        joins.push(stall);
        starts.push(start);
        if !arguments.json {
            let (crash, stall) = (crashes[crashes.len() - 1], stall);
            output::note(format_args!(
                "round {} of {}: {crash:.2} ms from the kill to delivery, {stall:.2} ms stall by the join",
                round + 1,
                arguments.rounds
            ));
        }
    }
    let outcome = Outcome {
        transport: arguments.transport,
        members: arguments.members,
        rounds: arguments.rounds,
        size: arguments.size,
        crash_to_delivery_ms: Spread::of(crashes),
        join_stall_ms: Spread::of(joins),
        start_to_delivery_ms: Spread::of(starts),
    };
    print(&outcome, arguments.json)?;
    Ok(CommandVerdict::Good)
}

/// Kills a member, each rank of the view in its turn; returns how long the others needed, in milliseconds.
fn crash(pool: &mut ProcessPool, round: u64) -> Result<f64> {
    let (view, ranks) = pool.view();
    let running = pool.running();
    let place = usize::try_from(round).unwrap_or(0) % ranks.len();
    let victim = running.iter().copied().find(|number| pool.lives[*number].rank == ranks[place]);
    let Some(victim) = victim else { bail!("no process has rank {}: {}", ranks[place], pool.describe()) };
    let killed_ns = now_ns();
    pool.kill(victim);
    let news =
        await_view(pool, view, "the others deliver again", |ranks, rank| !ranks.contains(&rank), victim)?;
    Ok(news.into_iter().map(|(_, first)| first.saturating_sub(killed_ns)).max().unwrap_or(0) as f64 / 1e6)
}

/// Lets a process join; returns how long the others stalled, and how long the joiner needed, in milliseconds.
fn join(pool: &mut ProcessPool) -> Result<(f64, f64)> {
    let (view, ranks) = pool.view();
    let free = (0..).find(|rank| !ranks.contains(rank)).expect("there are more ranks than members");
    let started_ns = now_ns();
    let number = pool.join(free)?;
    let news =
        await_view(pool, view, "all deliver with the joiner", |ranks, rank| ranks.contains(&rank), number)?;
    let first_ns = pool.lives[number].views.first().map_or(0, |news| news.first_ns);
    let stalls =
        news.into_iter().filter(|(last, _)| *last > 0).map(|(last, first)| first.saturating_sub(last));
    Ok((stalls.max().unwrap_or(0) as f64 / 1e6, first_ns.saturating_sub(started_ns) as f64 / 1e6))
}

/// Waits until all that run have delivered in a view after `before` that fits the rank of `number`; returns their last
/// deliveries before it and their first in it.
fn await_view(
    pool: &mut ProcessPool,
    before: u64,
    what: &str,
    is_so: fn(&[usize], usize) -> bool,
    number: usize,
) -> Result<Vec<(u64, u64)>> {
    let rank = pool.lives[number].rank;
    let delivered_at = |pool: &ProcessPool, life: usize| {
        let mut news =
            pool.lives[life].views.iter().filter(|news| news.view > before && is_so(&news.ranks, rank));
        news.next().map(|news| (news.last_ns, news.first_ns))
    };
    pool.wait(what, START_TIMEOUT, |pool| {
        let starting = pool.lives.iter().any(|life| life.state == ProcessState::Starting);
        let failed = pool.lives.iter().any(|life| matches!(life.state, ProcessState::Failed(_)));
        failed || !starting && pool.running().iter().all(|life| delivered_at(pool, *life).is_some())
    })?;
    if pool.lives.iter().any(|life| matches!(life.state, ProcessState::Failed(_))) {
        bail!("a member failed: {}", pool.describe());
    }
    Ok(pool.running().iter().filter_map(|life| delivered_at(pool, *life)).collect())
}

fn print(outcome: &Outcome, json: bool) -> Result<()> {
    if json {
        output::json(outcome)?;
        return Ok(());
    }
    let line = |what: &str, spread: &Spread| {
        output::line(format_args!("{what:22} median {:8.2} ms   worst {:8.2} ms", spread.p50, spread.max));
    };
    line("crash to delivery", &outcome.crash_to_delivery_ms);
    line("join stall", &outcome.join_stall_ms);
    line("start to delivery", &outcome.start_to_delivery_ms);
    Ok(())
}

/// Between changes, in which messages flow.
const PAUSE: Duration = Duration::from_millis(200);
