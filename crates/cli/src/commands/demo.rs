//! `squall demo`: several processes on this host replicate real input in one order.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::Verdict;
use crate::cluster::{Cluster, Ending, Interrupts, Plan};
use crate::control::{DemoJob, IdleName, Location, LogReport, Report, TransportName, Work};
use crate::latency::{Latencies, Percentiles};
use crate::progress::Display;
use crate::text::Text;
use crate::{output, table, units};

/// Messages that the demo sends at least, unless `--rounds` or `--input` say otherwise.
const MESSAGES_MIN: u64 = 300_000;

/// Let several processes on this host replicate a text, line by line, in one total order
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=64))]
    members: u64,
    /// How they reach each other
    #[arg(long, value_enum, default_value = "shm")]
    transport: TransportName,
    /// Send the lines of this file instead of poems of the sea
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Send the whole text so many times [default: once for a file; for the poems, until there are 300000 lines]
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
    locations: Vec<Location>,
    /// Kill the last member (-9) when it has delivered a third of the lines: the others go on without it
    #[arg(long)]
    kill: bool,
    /// Write what each member delivers into this folder
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "Every member sends its share of the lines and delivers all of them; at the end the members' logs are
compared by digest. The exit status is 0 if all agree.

Examples:
  squall demo
  squall demo --members 5 --transport tcp
  squall demo --kill                              (the others go on without the member that dies)
  squall demo --input /etc/services --keep logs   (logs/member-0.log to -2.log are the same)";

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
    /// Members that died on the way, by rank.
    died: Vec<usize>,
    /// From the kill to the first delivery in the next view, at the survivor that needed longest.
    crash_to_delivery_ms: Option<f64>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let text = Text::read(arguments.input.as_deref())?;
    let members = usize::try_from(arguments.members).expect("at most 64");
    let job = job(arguments, &text)?;
    let interrupts = Interrupts::take()?;
    let plan = Plan {
        transport: arguments.transport,
        members,
        idle: arguments.idle,
        locations: arguments.locations.clone(),
        work: Work::Demo(job.clone()),
        survives: true,
        kill_after: arguments.kill.then_some(job.messages / 3),
    };
    if !arguments.json {
        output::line(format_args!(
            "{members} members over {}, {} lines in all",
            arguments.transport.title(),
            units::grouped(job.messages)
        ));
    }
    let mut display = Display::new(members, job.messages, "lines", arguments.json);
    let Ending { reports, deaths, killed_ns } = Cluster::run(&plan, &interrupts, &mut display)?;
    display.finish();

    let mut outcome = judge(&reports, arguments.transport);
    outcome.crash_to_delivery_ms = crash_to_delivery_ms(&reports, killed_ns);
    if arguments.json {
        output::line(serde_json::to_string(&outcome)?);
    } else {
        print(&outcome, &reports, display.pids());
        if let Some(folder) = &arguments.keep {
            output::line(format_args!("The logs are in {}.", folder.display()));
        }
    }
    let expected: &[usize] = if arguments.kill { &[members - 1] } else { &[] };
    if let Some(deaths) = deaths.filter(|_| outcome.died != expected) {
        output::note(deaths);
    }
    Ok(if outcome.agree && outcome.died == expected { Verdict::Good } else { Verdict::Bad })
}

fn job(arguments: &Arguments, text: &Text) -> Result<DemoJob> {
    let lines = text.lines() as u64;
    let usual = if arguments.input.is_some() { 1 } else { MESSAGES_MIN.div_ceil(lines) };
    let rounds = arguments.rounds.unwrap_or(usual);
    let messages = lines.checked_mul(rounds).context("so many rounds cannot be counted")?;
    ensure!(u32::try_from(text.longest()).is_ok(), "the input has a line of {} bytes", text.longest());
    // Members run in the same folder, but a path says more when it is whole.
    let input = arguments.input.as_deref().map(std::path::absolute).transpose()?;
    let keep = arguments.keep.as_deref().map(std::path::absolute).transpose()?;
    if let Some(folder) = &keep {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let window = usize::try_from(arguments.window).expect("at most 32768");
    Ok(DemoJob { input, rounds, messages, message_max: text.longest().max(1), window, keep })
}

/// The members agree if all logs are the same and hold exactly what each member that lives says it has sent.
fn judge(all: &[Option<Report>], transport: TransportName) -> Outcome {
    let died = all.iter().enumerate().filter(|(_, report)| report.is_none()).map(|(rank, _)| rank).collect();
    let reports: Vec<&Report> = all.iter().flatten().collect();
    let logs: Vec<_> = reports.iter().filter_map(|report| report.log.as_ref()).collect();
    let same = logs.len() == reports.len() && logs.iter().all(|log| log.digest == logs[0].digest);
    let sent = |rank: usize| all[rank].as_ref().and_then(|report| report.log.as_ref()).map(|log| &log.sent);
    let is_whole = |log: &&LogReport| {
        let mut parts = log.by_sender.iter().enumerate();
        parts.all(|(rank, part)| sent(rank).is_none_or(|sent| sent == part))
    };
    let whole = logs.iter().all(is_whole);
    let mut latencies = Latencies::default();
    reports.iter().for_each(|report| latencies.merge(&report.latencies));
    let seconds = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
    let (messages, bytes) = reports.first().map_or((0, 0), |report| (report.delivered, report.bytes));
    Outcome {
        members: all.len(),
        transport,
        messages,
        bytes,
        seconds,
        messages_per_second: messages as f64 / seconds,
        bytes_per_second: bytes as f64 / seconds,
        latency_ns: latencies.percentiles(),
        agree: same && whole,
        digests: logs.iter().map(|log| log.digest.clone()).collect(),
        died,
        crash_to_delivery_ms: None,
    }
}

fn crash_to_delivery_ms(reports: &[Option<Report>], killed_ns: Option<u64>) -> Option<f64> {
    let went_on_ns = reports.iter().flatten().filter_map(|report| report.went_on_ns).max()?;
    Some(went_on_ns.saturating_sub(killed_ns?) as f64 / 1e6)
}

fn print(outcome: &Outcome, reports: &[Option<Report>], pids: &[u32]) {
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
    if let Some(ms) = outcome.crash_to_delivery_ms {
        output::line(format_args!(
            "The others delivered again {ms:.2} ms after the kill, in a view without the dead."
        ));
    }
    if outcome.agree {
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

    fn report(digest: &str, by_sender: [&str; 2], sent: &str) -> Option<Report> {
        let by_sender = by_sender.map(String::from).to_vec();
        let log = LogReport { digest: digest.into(), by_sender, sent: sent.into() };
        Some(Report { delivered: 10, seconds: 0.5, log: Some(log), ..Report::default() })
    }

    #[test]
    fn members_agree_when_the_logs_are_the_same_and_whole() {
        let agree = |reports: &[Option<Report>]| judge(reports, TransportName::Shm).agree;
        let good = [report("d", ["a", "b"], "a"), report("d", ["a", "b"], "b")];
        assert!(agree(&good));
        assert_eq!(judge(&good, TransportName::Shm).messages_per_second, 20.0);
        assert!(!agree(&[good[0].clone(), report("e", ["a", "b"], "b")]), "another order");
        assert!(!agree(&[good[0].clone(), report("d", ["a", "b"], "c")]), "not what was sent");
        assert!(!agree(&[good[0].clone(), Some(Report::default())]), "no log");
        assert!(agree(&[good[0].clone(), None]), "who lives agrees with itself");
        assert_eq!(judge(&[good[0].clone(), None], TransportName::Shm).died, [1]);
    }
}
