//! `squall demo --total-failure`: all members of a group are killed at full load, and the group comes back from its logs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;
use squall_fabric::sim::Prng;

use crate::cluster::{
    ClusterEnding, ClusterIdentity, ClusterLife, ClusterObserver, ClusterPlan, ProcessCluster,
};
use crate::control::{EncryptionName, IdleName, MemberReport, MemberWork, RestartJob, TransportName};
use crate::terminal::{CommandVerdict, Interrupts, output, units};

/// What to show.
pub(super) struct TotalFailure {
    pub(super) members: usize,
    pub(super) transport: TransportName,
    pub(super) idle: IdleName,
    pub(super) input: Option<PathBuf>,
    pub(super) window: usize,
    /// How often all members are killed.
    pub(super) failures: u32,
    /// Where the folder for the logs is made, which is kept then.
    pub(super) storage: Option<PathBuf>,
    pub(super) json: bool,
}

#[derive(Debug, Serialize)]
struct Outcome {
    members: usize,
    transport: TransportName,
    /// How often all were killed.
    failures: u32,
    /// How often messages had been delivered since the restart before.
    under_load: u32,
    /// In each log, at the end.
    messages: u64,
    /// How often a member noted what it had delivered; each note was compared with each log.
    notes: u64,
    /// From the start of the processes until messages could flow, for each restart.
    restart_ms: Vec<f64>,
    agree: bool,
    digests: Vec<String>,
}

/// Watches nothing: what counts is in the logs.
struct Watch;

impl ClusterObserver for Watch {
    fn on_started(&mut self, _rank: usize, _pid: u32) {}
    fn on_joined(&mut self, _joined: usize) {}
    fn on_progress(&mut self, _rank: usize, _done: u64) {}
}

/// Runs the members, kills them and starts them again, and compares their logs.
pub(super) fn run(what: &TotalFailure) -> Result<CommandVerdict> {
    let interrupts = Interrupts::take()?;
    let folder = LogFolder::create(what.storage.as_deref())?;
    let identity = ClusterIdentity::new()?;
    let plan = |sends: bool| ClusterPlan {
        transport: what.transport,
        encryption: EncryptionName::On,
        members: what.members,
        idle: what.idle,
        locations: Vec::new(),
        work: MemberWork::Restart(RestartJob {
            input: what.input.clone(),
            storage: folder.path.clone(),
            window: what.window,
            sends,
        }),
        survives: false,
        kill: None,
        join: false,
    };
    let (mut restart_ms, mut under_load) = (Vec::new(), 0);
    let mut dice = Prng::new(std::process::id().into());
    for failure in 0..what.failures {
        let (work, waits) = work_of(&mut dice, failure);
        let ClusterLife { started, found, done } =
            ProcessCluster::run_to_death(&plan(true), &identity, work, waits, &interrupts, &mut Watch)?;
        let took = started.as_secs_f64() * 1e3;
        if failure > 0 {
            restart_ms.push(took);
        }
        under_load += u32::from(done > found);
        if !what.json {
            let what_began = if failure == 0 { "started" } else { "restarted" };
            output::line(format_args!(
                "{} members {what_began} in {took:.0} ms; all killed (-9) with about {} lines delivered, {} of them since then",
                what.members,
                units::grouped(done),
                units::grouped(done - found)
            ));
        }
    }
    let begun = Instant::now();
    let ClusterEnding { reports, .. } =
        ProcessCluster::run_as(&plan(false), &identity, &interrupts, &mut Watch)?;
    restart_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    let outcome = judge(what, &reports, restart_ms, under_load);
    if what.json {
        output::json(&outcome)?;
    } else {
        print(&outcome, &folder);
    }
    Ok(if outcome.agree { CommandVerdict::Good } else { CommandVerdict::Bad })
}

/// How long the members work before they are killed, and whether that begins when a message has been delivered; in one of four times it
/// begins at once, so that some die before.
fn work_of(dice: &mut Prng, failure: u32) -> (Duration, bool) {
    (Duration::from_millis(dice.below(400)), failure % 4 != 3)
}

fn judge(
    what: &TotalFailure,
    reports: &[Option<MemberReport>],
    restart_ms: Vec<f64>,
    under_load: u32,
) -> Outcome {
    let all: Vec<&MemberReport> = reports.iter().flatten().collect();
    let digests: Vec<String> =
        all.iter().filter_map(|report| Some(report.log.as_ref()?.digest.clone())).collect();
    let is_same = |report: &&MemberReport| report.delivered == all[0].delivered;
    let messages = all.first().map_or(0, |report| report.delivered);
    Outcome {
        members: what.members,
        transport: what.transport,
        failures: what.failures,
        under_load,
        messages,
        notes: all.first().and_then(|report| report.counters.get("checked").copied()).unwrap_or(0),
        restart_ms,
        // Members that did nothing have shown nothing.
        agree: messages > 0
            && digests.len() == what.members
            && all.iter().all(is_same)
            && digests.iter().all(|digest| *digest == digests[0]),
        digests,
    }
}

fn print(outcome: &Outcome, folder: &LogFolder) {
    if outcome.agree {
        let verdict = format!(
            "All {} logs are the same after {} total failures, {} of them behind new deliveries: {} lines in one order, and nothing \
             that was delivered is missing ({} notes of deliveries compared).",
            outcome.members,
            outcome.failures,
            outcome.under_load,
            units::grouped(outcome.messages),
            units::grouped(outcome.notes)
        );
        output::line(console::style(verdict).green().bold());
    } else {
        let verdict = if outcome.messages == 0 { "NOTHING WAS DELIVERED." } else { "THE LOGS DIFFER." };
        output::line(console::style(verdict).red().bold());
    }
    if folder.is_kept {
        output::line(format_args!("The logs are in {}.", folder.path.display()));
    }
}

/// The folder for the logs. Unless it is kept, dropping this removes it.
struct LogFolder {
    path: PathBuf,
    is_kept: bool,
}

impl LogFolder {
    fn create(storage: Option<&Path>) -> Result<Self> {
        let parent = storage.map_or_else(|| Ok(std::env::temp_dir()), std::path::absolute)?;
        let path = parent.join(format!("squall-demo-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("failed to make the folder {}", path.display()))?;
        Ok(Self { path, is_kept: storage.is_some() })
    }
}

impl Drop for LogFolder {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            output::note(format!("squall: failed to remove {}: {error}; remove it", self.path.display()));
        }
    }
}
