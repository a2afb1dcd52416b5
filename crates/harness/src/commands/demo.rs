//! `squall demo`: several processes on this host replicate real input in one order.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use squall::trace::MemberTrack;
use squall_protocols::group::ViewChange;

use crate::cluster::{ClusterEnding, ClusterPlan, PlannedKill, ProcessCluster};
use crate::commands::total_failure::{self, TotalFailure};
use crate::control::{
    ChangeReport, DemoJob, EncryptionName, IdleName, LogReport, MemberLocation, MemberReport, MemberWork,
    TransportName,
};
use crate::latency::{Latencies, Percentiles};
use crate::progress::ProgressDisplay;
use crate::terminal::{CommandVerdict, Interrupts, output, table, units};
use crate::text::DemoText;

/// Messages that the demo sends at least, unless `--rounds` or `--input` say otherwise.
const MESSAGES_MIN: u64 = 300_000;

/// Let several processes on this host replicate a text, line by line, in one total order
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DemoArguments {
    /// Processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=64))]
    members: u64,
    /// How they reach each other
    #[arg(long, value_enum, default_value = TransportName::usual())]
    transport: TransportName,
    /// Send the lines of this file instead of poems of the sea
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Send the whole text this many times [default: once for a file; for the poems, until there are 300000 lines]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// Lines that each member may have under way
    #[arg(long, value_name = "LINES", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=32768))]
    window: u64,
    /// What a member does when there is nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    idle: IdleName,
    /// Where members run, in turn: netns=NAME, address=IP, device=NAME, or several with commas between
    #[arg(long = "at", value_name = "LOCATION")]
    locations: Vec<MemberLocation>,
    /// Let no member die and no process join
    #[arg(long, conflicts_with = "kill")]
    calm: bool,
    /// Only kill the last member (-9), and let no process join
    #[arg(long)]
    kill: bool,
    /// Kill all members (-9) at full load, start them again, and compare what their logs have with what was delivered
    #[arg(long, conflicts_with_all = ["calm", "kill", "trace", "keep", "rounds", "locations"])]
    total_failure: bool,
    /// With --total-failure: how often they are killed
    #[arg(long, value_name = "N", default_value_t = 3, requires = "total_failure")]
    failures: u32,
    /// With --total-failure: make the folder for the logs in this one, and keep it [default: in the folder for temporary files]
    #[arg(long, value_name = "FOLDER", requires = "total_failure")]
    storage: Option<PathBuf>,
    /// Write the view changes as a trace into this file, for chrome://tracing or ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write what each member delivers into this folder
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "Every member sends its share of the lines and delivers all of them. With at least three members \
the last one is killed (-9) when it has delivered a third, and another joins: the others continue. At \
the end the members' logs are compared by digest, the joiner's from its first view on. The exit \
status is 0 if all agree.

Examples:
  squall demo
  squall demo --members 5 --transport tcp
  squall demo --calm                              (no deaths, no joins)
  squall demo --total-failure --transport tcp     (all die at once, and restart)
  squall demo --trace views.json                  (views, for chrome://tracing)
  squall demo --input /etc/services --keep logs   (all logs/*.log are the same)";

#[derive(Debug, Serialize)]
struct Outcome {
    members: usize,
    transport: TransportName,
    messages: u64,
    bytes: u64,
    seconds: f64,
    messages_per_second: f64,
    bytes_per_second: f64,
    latency_ns: Option<Percentiles>,
    agree: bool,
    digests: Vec<String>,
    /// Members that died, by rank.
    died: Vec<usize>,
    /// The rank of the joiner.
    joined: Option<usize>,
    /// From the kill to the first delivery in the next view, at the survivor that needed longest.
    crash_to_delivery_ms: Option<f64>,
}

/// Lets a group replicate a text, compares its members' logs, and prints what they have done.
///
/// # Errors
/// If the group cannot be started, or ends before its work is done.
pub fn run(arguments: &DemoArguments) -> Result<CommandVerdict> {
    let text = DemoText::read(arguments.input.as_deref())?;
    if arguments.total_failure {
        return total_failure::run(&TotalFailure {
            members: usize::try_from(arguments.members).expect("at most 64"),
            transport: arguments.transport,
            idle: arguments.idle,
            input: arguments.input.as_deref().map(std::path::absolute).transpose()?,
            window: usize::try_from(arguments.window).expect("at most 32768"),
            failures: arguments.failures,
            storage: arguments.storage.clone(),
            json: arguments.json,
        });
    }
    let drama = Drama::of(arguments, &text);
    let members = usize::try_from(arguments.members).expect("at most 64");
    let job = job(arguments, &text, drama)?;
    let interrupts = Interrupts::take()?;
    let plan = ClusterPlan {
        transport: arguments.transport,
        encryption: EncryptionName::On,
        members,
        idle: arguments.idle,
        locations: arguments.locations.clone(),
        work: MemberWork::Demo(job.clone()),
        survives: true,
        kill: (drama != Drama::Calm).then_some(PlannedKill { rank: members - 1, after: job.messages / 3 }),
        join: drama == Drama::KillAndJoin,
    };
    if !arguments.json {
        output::line(format_args!(
            "{members} members over {}, {} lines in all",
            arguments.transport.title(),
            units::grouped(job.messages)
        ));
    }
    let joiners = usize::from(drama == Drama::KillAndJoin);
    let mut display = ProgressDisplay::new(members, joiners, job.messages, "lines", arguments.json);
    let ClusterEnding { reports, deaths, killed_ns } = ProcessCluster::run(&plan, &interrupts, &mut display)?;
    display.finish();

    let mut outcome = judge(&reports, members, arguments.transport);
    outcome.crash_to_delivery_ms = crash_to_delivery_ms(&reports, killed_ns);
    if arguments.json {
        output::json(&outcome)?;
    } else {
        print(&outcome, &reports, display.pids(), killed_ns);
        if let Some(folder) = &arguments.keep {
            output::line(format_args!("The logs are in {}.", folder.display()));
        }
    }
    if let Some(file) = &arguments.trace {
        write_trace(file, &reports)?;
    }
    let expected: &[usize] = if drama == Drama::Calm { &[] } else { &[members - 1] };
    if let Some(deaths) = deaths.filter(|_| outcome.died != expected) {
        output::note(deaths);
    }
    Ok(if outcome.agree && outcome.died == expected { CommandVerdict::Good } else { CommandVerdict::Bad })
}

/// What happens to the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drama {
    Calm,
    Kill,
    KillAndJoin,
}

impl Drama {
    fn of(arguments: &DemoArguments, text: &DemoText) -> Self {
        match arguments {
            DemoArguments { kill: true, .. } => Self::Kill,
            // One of two is no majority, and every member should have something to send.
            DemoArguments { calm: false, members, .. }
                if *members >= 3 && text.lines() as u64 >= *members =>
            {
                Self::KillAndJoin
            }
            _ => Self::Calm,
        }
    }
}

fn job(arguments: &DemoArguments, text: &DemoText, drama: Drama) -> Result<DemoJob> {
    let lines = text.lines() as u64;
    let usual = if arguments.input.is_some() { 1 } else { MESSAGES_MIN.div_ceil(lines) };
    let rounds = arguments.rounds.unwrap_or(usual);
    let messages = lines.checked_mul(rounds).context("too many rounds: lower --rounds")?;
    ensure!(u32::try_from(text.longest()).is_ok(), "the input has a line of {} bytes", text.longest());
    // Members run in the same folder, but a path says more when it is whole.
    let input = arguments.input.as_deref().map(std::path::absolute).transpose()?;
    let keep = arguments.keep.as_deref().map(std::path::absolute).transpose()?;
    if let Some(folder) = &keep {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let window = usize::try_from(arguments.window).expect("at most 32768");
    let members = usize::try_from(arguments.members).expect("at most 64");
    let joiner = (drama == Drama::KillAndJoin).then_some(members);
    Ok(DemoJob { input, rounds, messages, message_max: text.longest().max(1), window, keep, joiner })
}

/// The members agree if all logs are the same and hold exactly what each surviving member reports to have sent, and the log
/// of the joiner is what the others have since it joined.
fn judge(all: &[Option<MemberReport>], members: usize, transport: TransportName) -> Outcome {
    let died = (0..members).filter(|rank| all[*rank].is_none()).collect();
    let joined = all.get(members).map(|_| members);
    let reports: Vec<&MemberReport> = all[..members].iter().flatten().collect();
    let logs: Vec<_> = reports.iter().filter_map(|report| report.log.as_ref()).collect();
    let same = logs.len() == reports.len() && logs.iter().all(|log| log.digest == logs[0].digest);
    let log_of = |rank: usize| all[rank].as_ref().and_then(|report| report.log.as_ref());
    let is_whole = |log: &&LogReport| {
        let mut parts = log.by_sender.iter().enumerate();
        parts.all(|(rank, part)| log_of(rank).is_none_or(|sender| sender.sent == *part))
    };
    let whole = logs.iter().all(is_whole);
    let caught_up = joined.is_none_or(|rank| {
        let since = log_of(rank).map(|log| &log.digest);
        since.is_some() && logs.iter().all(|log| log.since.as_ref() == since)
    });
    let mut latencies = Latencies::default();
    reports.iter().for_each(|report| latencies.merge(&report.latencies));
    let seconds = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
    let (messages, bytes) = reports.first().map_or((0, 0), |report| (report.delivered, report.bytes));
    Outcome {
        members,
        transport,
        messages,
        bytes,
        seconds,
        messages_per_second: messages as f64 / seconds,
        bytes_per_second: bytes as f64 / seconds,
        latency_ns: latencies.percentiles(),
        agree: same && whole && caught_up,
        digests: logs.iter().map(|log| log.digest.clone()).collect(),
        died,
        joined,
        crash_to_delivery_ms: None,
    }
}

fn crash_to_delivery_ms(reports: &[Option<MemberReport>], killed_ns: Option<u64>) -> Option<f64> {
    let resumed_ns = reports.iter().flatten().filter_map(|report| report.resumed_ns).max()?;
    Some(resumed_ns.saturating_sub(killed_ns?) as f64 / 1e6)
}

fn write_trace(file: &Path, reports: &[Option<MemberReport>]) -> Result<()> {
    let timelines = reports.iter().enumerate().filter_map(|(rank, report)| {
        let changes: Vec<ViewChange> = report.as_ref()?.timeline.iter().map(ChangeReport::change).collect();
        Some((format!("member {rank}"), changes))
    });
    let timelines: Vec<_> = timelines.collect();
    let tracks = timelines.iter().map(|(name, changes)| MemberTrack { name, offset_ns: 0, changes });
    let trace = squall::trace::chrome(&tracks.collect::<Vec<_>>());
    std::fs::write(file, trace).with_context(|| format!("cannot write {}", file.display()))
}

/// How each view ended, as its leader saw it.
fn timeline(reports: &[Option<MemberReport>], killed_ns: Option<u64>) -> Vec<String> {
    let changes = reports.iter().enumerate().flat_map(|(rank, report)| {
        let changes = report.iter().flat_map(|report| &report.timeline);
        changes.filter(|change| change.led && change.members > 0).map(move |change| (rank, change))
    });
    let mut changes: Vec<_> = changes.collect();
    changes.sort_by_key(|(_, change)| change.to);
    changes.dedup_by_key(|(_, change)| change.to);
    let line = |(rank, change): (usize, &ChangeReport)| {
        let first = change.steps.first().map_or(0, |(_, at)| *at);
        let (origin, since) = match killed_ns {
            Some(killed) if change.removed > 0 => (killed, "since the kill"),
            _ => (first, "since the first step"),
        };
        let steps = change
            .steps
            .iter()
            .map(|(name, at)| format!("{name} {:.2}", at.saturating_sub(origin) as f64 / 1e6));
        let ChangeReport { to, members, removed, joined, .. } = change;
        let what = match (removed, joined) {
            (0, _) => format!("{joined} joined"),
            (_, 0) => format!("{removed} gone"),
            _ => format!("{removed} gone, {joined} joined"),
        };
        let steps: Vec<_> = steps.collect();
        format!("view {to} of {members} ({what}), led by member {rank}, ms {since}: {}", steps.join(", "))
    };
    changes.into_iter().map(line).collect()
}

fn print(outcome: &Outcome, reports: &[Option<MemberReport>], pids: &[u32], killed_ns: Option<u64>) {
    let header = ["", "pid", "sent", "delivered", "per second", "p50", "p99", "p99.9", "digest of the log"];
    let mut rows = vec![header.map(String::from).to_vec()];
    for (rank, report) in reports.iter().enumerate() {
        let pid = pids.get(rank).map_or_else(String::new, ToString::to_string);
        let Some(report) = report else {
            rows.push(vec![format!("member {rank}"), pid, "died".into()]);
            continue;
        };
        let percentiles = report.latencies.percentiles();
        let at = |value: fn(&Percentiles) -> u64| {
            percentiles.as_ref().map_or("–".into(), |p| units::nanos(value(p)))
        };
        rows.push(vec![
            format!("member {rank}"),
            pid,
            units::grouped(report.sent),
            units::grouped(report.delivered),
            units::count(report.delivered as f64 / report.seconds),
            at(|p| p.p50),
            at(|p| p.p99),
            at(|p| p.p999),
            report.log.as_ref().map_or_else(String::new, |log| log.digest[..16].into()),
        ]);
    }
    table::lines(&rows).iter().for_each(output::line);
    let rate = units::count(outcome.messages_per_second);
    let bytes = units::bytes(outcome.bytes_per_second);
    output::line(format_args!(
        "Each member delivered {rate} lines/s ({bytes}/s); latencies are from sending to own delivery, at full load."
    ));
    timeline(reports, killed_ns).iter().for_each(output::line);
    if let Some(ms) = outcome.crash_to_delivery_ms {
        output::line(format_args!(
            "The others delivered again {ms:.2} ms after the kill, in a view without the dead member."
        ));
    }
    if outcome.agree {
        if let Some(rank) = outcome.joined {
            output::line(format_args!("Member {rank} joined; its log is what the others have since then."));
        }
        let messages = units::grouped(outcome.messages);
        let logs = outcome.digests.len();
        let verdict = match outcome.died.len() {
            0 => format!("All {logs} logs are the same: {messages} lines in one order."),
            died => format!(
                "{died} died; all {logs} logs of the others are the same: {messages} lines in one order."
            ),
        };
        output::line(console::style(verdict).green().bold());
    } else {
        output::line(console::style("THE LOGS DIFFER.").red().bold());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(digest: &str, by_sender: [&str; 2], sent: &str) -> Option<MemberReport> {
        let by_sender = by_sender.map(String::from).to_vec();
        let log = LogReport { digest: digest.into(), by_sender, sent: sent.into(), since: None };
        Some(MemberReport { delivered: 10, seconds: 0.5, log: Some(log), ..MemberReport::default() })
    }

    #[test]
    fn members_agree_when_the_logs_are_the_same_and_whole() {
        let agree = |reports: &[Option<MemberReport>]| judge(reports, 2, TransportName::Shm).agree;
        let good = [report("d", ["a", "b"], "a"), report("d", ["a", "b"], "b")];
        assert!(agree(&good));
        assert_eq!(judge(&good, 2, TransportName::Shm).messages_per_second, 20.0);
        assert!(!agree(&[good[0].clone(), report("e", ["a", "b"], "b")]), "another order");
        assert!(!agree(&[good[0].clone(), report("d", ["a", "b"], "c")]), "not what was sent");
        assert!(!agree(&[good[0].clone(), Some(MemberReport::default())]), "no log");
        assert!(agree(&[good[0].clone(), None]), "a survivor agrees with itself");
        assert_eq!(judge(&[good[0].clone(), None], 2, TransportName::Shm).died, [1]);
    }
}
