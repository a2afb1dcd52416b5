//! `squall bench genuine --deaths`: how long shards stall when a leader dies.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{GenuineArguments, QuorumName};
use crate::cluster::{ClusterPlan, PlannedKill, ProcessCluster};
use crate::commands::bench::view::Spread;
use crate::control::{EncryptionName, GenuineJob, MemberReport, MemberWork, TransportName};
use crate::progress::ProgressDisplay;
use crate::terminal::{CommandVerdict, Interrupts, output};

#[derive(Debug, Serialize)]
struct DeathOutcome {
    transport: TransportName,
    quorum: QuorumName,
    shards: usize,
    replicas: usize,
    window: usize,
    deaths: u64,
    /// The shard whose leader was killed, from 0.
    leader_of: u64,
    /// From the kill to the first delivery of a message to several shards in the next view, at the slowest member.
    death_to_delivery_ms: Spread,
    /// The longest time between two deliveries of a member of the last shard, of which the second came after the kill.
    other_shard_stall_ms: Spread,
    /// The longest time between the latest deliveries of the same member before the kill: what the machine does without a death.
    other_shard_pause_before_ms: Spread,
}

/// Kills a leader `count` times, each time in a new group.
pub(super) fn run(arguments: &GenuineArguments, job: &GenuineJob, count: u64) -> Result<CommandVerdict> {
    let Some(transport) = arguments.transport.real() else {
        anyhow::bail!("the simulator has no deaths here: choose another --transport, or omit --deaths");
    };
    ensure!(
        job.shards > 1 && job.replicas > 1 && job.shards * job.replicas > 3,
        "a leader of {} shards of {} members dies: two shards of two are needed at least, so that each has a member left",
        job.shards,
        job.replicas
    );
    ensure!(
        arguments.leader_of + 1 < arguments.shards,
        "--leader-of {}: of {} shards the last one is not to be concerned: write less than {}",
        arguments.leader_of,
        arguments.shards,
        arguments.shards - 1
    );
    let interrupts = Interrupts::take()?;
    let (mut deliveries, mut stalls, mut pauses) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..count {
        let (delivery, stall, pause) = kill_once(arguments, transport, job, &interrupts)?;
        deliveries.push(delivery);
        stalls.push(stall);
        pauses.push(pause);
        if !arguments.json {
            output::note(format_args!(
                "round {} of {count}: {delivery:.2} ms from the kill to delivery, {stall:.2} ms stall of the last shard",
                round + 1
            ));
        }
    }
    let outcome = DeathOutcome {
        transport,
        quorum: arguments.quorum,
        shards: job.shards,
        replicas: job.replicas,
        window: job.window,
        deaths: count,
        leader_of: arguments.leader_of,
        death_to_delivery_ms: Spread::of(deliveries),
        other_shard_stall_ms: Spread::of(stalls),
        other_shard_pause_before_ms: Spread::of(pauses),
    };
    if arguments.json {
        output::json(&outcome)?;
        return Ok(CommandVerdict::Good);
    }
    for (what, spread) in [
        ("kill to delivery", &outcome.death_to_delivery_ms),
        ("stall of the last shard", &outcome.other_shard_stall_ms),
        ("its longest pause before", &outcome.other_shard_pause_before_ms),
    ] {
        output::line(format_args!("{what:26} median {:8.2} ms   worst {:8.2} ms", spread.p50, spread.max));
    }
    Ok(CommandVerdict::Good)
}

/// One death, in milliseconds: to the delivery, the stall of the last shard, and its longest pause before.
fn kill_once(
    arguments: &GenuineArguments,
    transport: TransportName,
    job: &GenuineJob,
    interrupts: &Interrupts,
) -> Result<(f64, f64, f64)> {
    let members = job.shards * job.replicas;
    // A shard's leader is its first member.
    let leader = usize::try_from(arguments.leader_of).expect("a shard") * job.replicas;
    let plan = ClusterPlan {
        transport,
        encryption: EncryptionName::On,
        members,
        idle: arguments.idle,
        locations: Vec::new(),
        work: MemberWork::Genuine(job.clone()),
        survives: true,
        kill: Some(PlannedKill { rank: leader, after: WARM_UP }),
        join: false,
    };
    let mut display = ProgressDisplay::new(members, 0, WARM_UP, "messages", true);
    let ending = ProcessCluster::run(&plan, interrupts, &mut display)?;
    display.finish();
    let killed_ns = ending.killed_ns.expect("it was killed: else the others would not have ended");
    let millis = |nanos: u64| nanos as f64 / 1e6;
    let (mut delivery, mut stall, mut pause) = (0, 0, 0);
    for (rank, report) in ending.reports.iter().enumerate() {
        let Some(MemberReport { stamps_ns, resumed_ns: Some(resumed_ns), .. }) = report else { continue };
        if rank / job.replicas < job.shards - 1 {
            delivery = delivery.max(resumed_ns.saturating_sub(killed_ns));
            continue;
        }
        for pair in stamps_ns.windows(2) {
            let longest = if pair[1] > killed_ns { &mut stall } else { &mut pause };
            *longest = pair[1].saturating_sub(pair[0]).max(*longest);
        }
    }
    Ok((millis(delivery), millis(stall), millis(pause)))
}

/// Messages that the leader delivers before it is killed.
const WARM_UP: u64 = 1_000;
