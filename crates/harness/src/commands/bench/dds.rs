//! `squall bench dds`: samples of a topic from one writer to some readers, in each of the four profiles (Spindle §4.6).

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum as _};
use serde::Serialize;
use squall::config::quantity;

use super::run_folder::RunFolder;
use crate::cluster::{ClusterPlan, ProcessCluster};
use crate::control::{
    DdsJob, EncryptionName, IdleName, MemberReport, MemberWork, ProfileName, TransportName,
};
use crate::latency::{Latencies, Percentiles};
use crate::progress::ProgressDisplay;
use crate::terminal::{CommandVerdict, Interrupts, output, table, units};

/// Measure topics: one process writes samples, and others read them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DdsBenchArguments {
    /// How the participants reach each other
    #[arg(long, value_enum, default_value = TransportName::usual())]
    transport: TransportName,
    /// The profiles to measure, one after the other [default: all; logged only with --storage]
    #[arg(long = "profile", value_name = "PROFILE", value_enum, value_delimiter = ',')]
    profiles: Vec<ProfileName>,
    /// Processes that read, each with one reader; one more writes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=63))]
    subscribers: u64,
    /// Bytes of a sample, like 64, 1KiB or 10KB; at least 8
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = parse_size)]
    size: usize,
    /// Samples of each profile [default: as many as take about a second on a usual machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// Samples that the writer may have under way
    #[arg(long, value_name = "MESSAGES", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=32768))]
    window: u64,
    /// Let all readers answer each sample before the next is written, and measure the time until all answers are there
    #[arg(long)]
    latency: bool,
    /// Read samples where they are, by upcalls; for the profiles unordered and atomic
    #[arg(long)]
    in_place: bool,
    /// A folder on the disk for the logs of the participants; what is written into it is removed at the end
    #[arg(long, value_name = "FOLDER")]
    storage: Option<PathBuf>,
    /// What a participant's polling thread does when there is nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    idle: IdleName,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "Rates are what each reader takes, at the slowest one. A topic has a subgroup of its own here. With the \
profiles kept and logged, a sample is under way until all members have it in the history, which keeps the last 1000 here. With \
unordered, a reader that is full rejects samples, which count as lost.

Examples:
  squall bench dds
  squall bench dds --subscribers 3 --size 1KiB --json
  squall bench dds --in-place --size 10KB
  squall bench dds --profile atomic,kept --latency
  squall bench dds --profile logged --storage /var/tmp";

#[derive(Debug, Serialize)]
struct Outcome {
    transport: TransportName,
    subscribers: u64,
    size: usize,
    window: u64,
    in_place: bool,
    profiles: Vec<Figures>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Figures {
    profile: ProfileName,
    /// Samples that were written.
    messages: u64,
    /// Of these, how many the reader that has lost most has lost.
    lost: u64,
    seconds: f64,
    messages_per_second: f64,
    bytes_per_second: f64,
    /// From writing to the answers of all readers, one sample at a time.
    latency_ns: Option<Percentiles>,
}

fn parse_size(text: &str) -> Result<usize, String> {
    quantity::bytes(text)
        .and_then(|size| usize::try_from(size).map_err(|_| format!("{size} is too much")))
        .and_then(|size| {
            let is_long_enough = size >= DdsJob::SIZE_MIN;
            is_long_enough.then_some(size).ok_or_else(|| format!("{size} B is too short: write at least 8"))
        })
}

pub(crate) fn run(arguments: &DdsBenchArguments) -> Result<CommandVerdict> {
    let profiles = profiles(arguments)?;
    let interrupts = Interrupts::take()?;
    let figures = profiles.into_iter().map(|profile| measure(arguments, profile, &interrupts));
    let outcome = Outcome {
        transport: arguments.transport,
        subscribers: arguments.subscribers,
        size: arguments.size,
        window: arguments.window,
        in_place: arguments.in_place,
        profiles: figures.collect::<Result<_>>()?,
    };
    if arguments.json {
        output::json(&outcome)?;
    } else {
        print(&outcome);
    }
    Ok(CommandVerdict::Good)
}

/// Returns the profiles to measure; checks that there is a folder for logs if these are written.
fn profiles(arguments: &DdsBenchArguments) -> Result<Vec<ProfileName>> {
    let mut profiles = arguments.profiles.clone();
    if profiles.is_empty() {
        profiles = ProfileName::value_variants().to_vec();
        if arguments.in_place {
            profiles.retain(|profile| !profile.keeps());
        } else if arguments.storage.is_none() {
            profiles.retain(|profile| *profile != ProfileName::Logged);
            if !arguments.json {
                output::note("logged is not measured: add --storage FOLDER, on the disk to use");
            }
        }
    }
    ensure!(
        !(arguments.in_place && profiles.iter().any(|profile| profile.keeps())),
        "samples of topics that keep them are not read in place: measure unordered and atomic, or omit --in-place"
    );
    let is_logged = profiles.contains(&ProfileName::Logged);
    match &arguments.storage {
        Some(storage) => {
            let shown = storage.display();
            ensure!(storage.is_dir(), "{shown} is no folder: make it, or choose another --storage");
            ensure!(is_logged, "only the profile logged writes logs: measure it, too, or omit --storage");
        }
        None => ensure!(
            !is_logged,
            "participants with the profile logged write logs: add --storage FOLDER, on the disk to use"
        ),
    }
    Ok(profiles)
}

fn measure(arguments: &DdsBenchArguments, profile: ProfileName, interrupts: &Interrupts) -> Result<Figures> {
    let create = |storage| RunFolder::create(storage, "dds");
    let logs = arguments.storage.as_deref().filter(|_| profile == ProfileName::Logged);
    let folder = logs.map(create).transpose()?;
    let few = |number: u64| usize::try_from(number).expect("at most 32768");
    let mut usual = usual_samples(profile, arguments.size, arguments.latency);
    if arguments.in_place && !arguments.latency {
        usual *= IN_PLACE_FACTOR;
    }
    let job = DdsJob {
        profile,
        size: arguments.size,
        samples: arguments.messages.unwrap_or(usual),
        window: few(arguments.window),
        latency: arguments.latency,
        in_place: arguments.in_place,
        storage: folder.as_ref().map(|folder| folder.path().to_owned()),
    };
    let members = few(arguments.subscribers) + 1;
    let plan = ClusterPlan {
        transport: arguments.transport,
        encryption: EncryptionName::On,
        members,
        idle: arguments.idle,
        locations: Vec::new(),
        work: MemberWork::Dds(job.clone()),
        survives: false,
        kill: None,
        join: false,
    };
    let mut display = ProgressDisplay::new(members, 0, job.samples, "samples", arguments.json);
    let reports: Vec<_> =
        ProcessCluster::run(&plan, interrupts, &mut display)?.reports.into_iter().flatten().collect();
    display.finish();
    Ok(figures(&job, &reports))
}

/// Returns as many samples as take about a second.
fn usual_samples(profile: ProfileName, size: usize, latency: bool) -> u64 {
    let small: u64 = match (profile, latency) {
        (ProfileName::Unordered | ProfileName::Atomic, false) => 4_000_000,
        (ProfileName::Unordered | ProfileName::Atomic, true) => 20_000,
        (ProfileName::Kept, false) => 2_000_000,
        (ProfileName::Kept, true) => 20_000,
        (ProfileName::Logged, _) => 500,
    };
    // Copies weigh more than the rest from a few KB on.
    (small / (1 + size as u64 / 1024)).max(500)
}

/// How many times as many samples are read in place in the same time.
const IN_PLACE_FACTOR: u64 = 2;

fn figures(job: &DdsJob, reports: &[MemberReport]) -> Figures {
    let least = reports.iter().map(|report| report.delivered).min().unwrap_or(0);
    let seconds = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
    let mut latencies = Latencies::default();
    reports.iter().for_each(|report| latencies.merge(&report.latencies));
    Figures {
        profile: job.profile,
        messages: job.samples,
        lost: job.samples - least,
        seconds,
        messages_per_second: least as f64 / seconds,
        bytes_per_second: least as f64 * job.size as f64 / seconds,
        latency_ns: latencies.percentiles(),
    }
}

fn print(outcome: &Outcome) {
    let header = ["profile", "samples/s", "bytes/s", "samples", "lost"].map(String::from).to_vec();
    let row = |figures: &Figures| {
        vec![
            figures.profile.title().to_owned(),
            units::count(figures.messages_per_second),
            units::bytes(figures.bytes_per_second),
            units::grouped(figures.messages),
            units::grouped(figures.lost),
        ]
    };
    output::line(format_args!(
        "samples of {} B to {} on {}",
        outcome.size,
        units::things(outcome.subscribers, "subscriber"),
        outcome.transport.title()
    ));
    let rows: Vec<_> = std::iter::once(header).chain(outcome.profiles.iter().map(row)).collect();
    table::lines(&rows).iter().for_each(output::line);
    for figures in &outcome.profiles {
        if let Some(latency) = figures.latency_ns {
            output::line(format_args!("from writing to all answers, {}: {latency}", figures.profile.title()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        inner: DdsBenchArguments,
    }

    fn chosen(words: &[&str]) -> Result<Vec<ProfileName>, String> {
        let line = std::iter::once("dds").chain(words.iter().copied());
        let line = Line::try_parse_from(line).map_err(|error| error.to_string())?;
        profiles(&line.inner).map_err(|error| error.to_string())
    }

    #[test]
    fn logs_need_a_folder() {
        use ProfileName::{Atomic, Kept, Logged, Unordered};
        assert_eq!(chosen(&["--json"]).unwrap(), [Unordered, Atomic, Kept]);
        assert_eq!(chosen(&["--storage", "/tmp"]).unwrap(), [Unordered, Atomic, Kept, Logged]);
        assert_eq!(chosen(&["--profile", "kept,atomic"]).unwrap(), [Kept, Atomic]);
        assert!(chosen(&["--profile", "logged"]).unwrap_err().contains("add --storage"));
        assert!(chosen(&["--profile", "kept", "--storage", "/tmp"]).unwrap_err().contains("omit --storage"));
        assert_eq!(chosen(&["--in-place"]).unwrap(), [Unordered, Atomic]);
        assert!(chosen(&["--in-place", "--profile", "kept"]).unwrap_err().contains("omit --in-place"));
        assert!(chosen(&["--storage", "/none"]).unwrap_err().contains("/none is no folder"));
        assert!(chosen(&["--size", "7"]).unwrap_err().contains("at least 8"));
    }

    /// The rate is that of the reader that took the fewest, over the longest time.
    #[test]
    fn the_slowest_reader_decides() {
        let job = DdsJob {
            profile: ProfileName::Unordered,
            size: 10,
            samples: 100,
            window: 1,
            latency: false,
            in_place: false,
            storage: None,
        };
        let report = |delivered, seconds| MemberReport { delivered, seconds, ..MemberReport::default() };
        let mut reports = [report(100, 1.0), report(90, 2.0), report(100, 1.0)];
        reports[0].latencies.record(Duration::from_nanos(500));
        let found = figures(&job, &reports);
        assert_eq!((found.lost, found.messages_per_second, found.bytes_per_second), (10, 45.0, 450.0));
        assert_eq!(found.latency_ns.map(|latency| latency.p50), Some(500));
    }
}
