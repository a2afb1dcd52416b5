//! `squall bench restart`: how long a group takes to begin again from its logs, beside the reading of these logs (Derecho §3.4,
//! "durable" mode).

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use squall::config::quantity;
use squall_log::{AlignedBuffer, Disk as _, DiskError, FileDisk, RECORD_HEADER_BYTES};

use super::run_folder::RunFolder;
use crate::cluster::{ClusterIdentity, ClusterPlan, ProcessCluster};
use crate::control::{EncryptionName, IdleName, MemberWork, ModeName, MulticastJob, TransportName};
use crate::progress::ProgressDisplay;
use crate::terminal::{CommandVerdict, Interrupts, output, units};

/// Measure how long a group takes to begin again from its logs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RestartArguments {
    /// A folder on the disk; the logs that are written into it are removed at the end
    #[arg(long, value_name = "FOLDER")]
    storage: PathBuf,
    /// Bytes of messages in each log, like 64MiB or 1GiB
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = quantity::bytes)]
    bytes: u64,
    /// Bytes of a message, like 256 or 10KiB
    #[arg(long, value_name = "BYTES", default_value = "256", value_parser = quantity::bytes)]
    size: u64,
    /// Number of members, each with a log
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=64))]
    members: u64,
    /// How the members reach each other
    #[arg(long, value_enum, default_value = TransportName::usual())]
    transport: TransportName,
    /// How often the group begins again
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "The members write their logs and are killed (-9). Then, in turn, all logs are read, each by a thread, and the group \
begins again: from the start of its processes until messages can flow. Figures are medians. A group without logs shows what the start of \
the processes takes.

Examples:
  squall bench restart --storage /var/tmp
  squall bench restart --storage /var/tmp --bytes 1GiB --transport tcp --json";

#[derive(Debug, Serialize)]
struct Outcome {
    members: usize,
    transport: TransportName,
    /// Of messages, in each log.
    message_bytes: u64,
    /// In records and their headers, in each log.
    log_bytes: u64,
    /// Until messages can flow in a group without logs.
    first_start_seconds: f64,
    /// Until all logs are read.
    read_seconds: f64,
    /// Until messages can flow in the group with these logs.
    restart_seconds: f64,
    /// How much longer the restart took than the reading.
    beyond_reading_seconds: f64,
    runs_read_seconds: Vec<f64>,
    runs_restart_seconds: Vec<f64>,
}

pub(crate) fn run(arguments: &RestartArguments) -> Result<CommandVerdict> {
    let storage = arguments.storage.display();
    ensure!(arguments.storage.is_dir(), "{storage} is no folder: make it, or choose another --storage");
    ensure!(
        (1..=SIZE_MAX).contains(&arguments.size),
        "--size {}: choose 1 byte to {}",
        arguments.size,
        units::bytes(SIZE_MAX as f64)
    );
    let interrupts = Interrupts::take()?;
    let folder = RunFolder::create(&arguments.storage, "restart")?;
    let outcome = measure(arguments, folder.path(), &interrupts)?;
    if arguments.json {
        output::json(&outcome)?;
    } else {
        print(&outcome);
    }
    Ok(CommandVerdict::Good)
}

fn measure(arguments: &RestartArguments, folder: &Path, interrupts: &Interrupts) -> Result<Outcome> {
    let members = usize::try_from(arguments.members).expect("at most 64");
    let messages = (arguments.bytes / arguments.size).max(1);
    let identity = ClusterIdentity::new()?;
    let group = |messages: u64| -> Result<f64> {
        let mut display =
            ProgressDisplay::new(members, 0, messages, "messages", arguments.json || messages == 0);
        let plan = plan(arguments, members, messages, folder);
        let started = ProcessCluster::run_then_kill(&plan, &identity, interrupts, &mut display)?;
        display.finish();
        Ok(started.as_secs_f64())
    };
    let first_start_seconds = group(messages)?;
    let logs: Vec<PathBuf> = log_folders(folder)?;
    ensure!(logs.len() == members, "{} logs of {members} members", logs.len());
    let (mut reads, mut restarts, mut log_bytes) = (Vec::new(), Vec::new(), 0);
    // Segments are longer than what is written in them.
    let written = messages * (RECORD_HEADER_BYTES as u64 + arguments.size).next_multiple_of(8);
    for _ in 0..arguments.runs {
        let begun = Instant::now();
        log_bytes = read_all(&logs, written)? / members as u64;
        reads.push(begun.elapsed().as_secs_f64());
        restarts.push(group(0)?);
    }
    let (read_seconds, restart_seconds) = (median(&reads), median(&restarts));
    Ok(Outcome {
        members,
        transport: arguments.transport,
        message_bytes: messages * arguments.size,
        log_bytes,
        first_start_seconds,
        read_seconds,
        restart_seconds,
        beyond_reading_seconds: restart_seconds - read_seconds,
        runs_read_seconds: reads,
        runs_restart_seconds: restarts,
    })
}

/// One member sends this number of messages; without any the members only come together.
fn plan(arguments: &RestartArguments, members: usize, messages: u64, folder: &Path) -> ClusterPlan {
    let size = usize::try_from(arguments.size).expect("checked before");
    ClusterPlan {
        transport: arguments.transport,
        encryption: EncryptionName::On,
        members,
        idle: IdleName::Auto,
        locations: Vec::new(),
        work: MemberWork::Multicast(MulticastJob {
            shortest: None,
            senders: 1,
            subgroups: 1,
            idle_subgroups: 0,
            size,
            messages,
            mode: ModeName::Durable,
            window: WINDOW,
            window_bytes: None,
            message_max: None,
            send_batching: true,
            receive_batching: true,
            delivery_batching: true,
            null_sends: true,
            latency: false,
            storage: Some(folder.to_owned()),
            keeps_log: true,
        }),
        survives: false,
        kill: None,
        join: false,
    }
}

/// The folders of the members' logs.
fn log_folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = || format!("failed to list {}", folder.display());
    let entries: std::io::Result<Vec<_>> = std::fs::read_dir(folder).with_context(failed)?.collect();
    let folders = entries.with_context(failed)?.into_iter().map(|entry| entry.path());
    Ok(folders.filter(|path| path.join(SEGMENTS).is_dir()).collect())
}

/// Reads this much of all logs at the same time, in the way in which a group does that begins again; returns the bytes that were read.
fn read_all(logs: &[PathBuf], written: u64) -> Result<u64> {
    let bytes: Vec<Result<u64, DiskError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = logs.iter().map(|log| scope.spawn(move || read_log(log, written))).collect();
        threads.into_iter().map(|thread| thread.join().expect("reading does not panic")).collect()
    });
    Ok(bytes.into_iter().sum::<Result<u64, DiskError>>()?)
}

fn read_log(log: &Path, written: u64) -> Result<u64, DiskError> {
    let (disk, mut all) = (FileDisk::inspect(log), 0);
    let mut buffer = AlignedBuffer::zeroed(PIECE);
    for name in disk.list(SEGMENTS)? {
        let path = format!("{SEGMENTS}/{name}");
        let length = disk.length(&path)?.min(written.saturating_sub(all));
        let mut offset = 0;
        while offset < length {
            let read = disk.read(&path, offset, &mut buffer)?;
            if read == 0 {
                break;
            }
            offset += read as u64;
        }
        all += offset;
    }
    Ok(all)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn print(outcome: &Outcome) {
    let seconds = |seconds: f64| units::nanos((seconds * 1e9) as u64);
    output::line(format_args!(
        "{} members, each with a log of {}: all logs read in {}; the group begins again in {}, {} of it beyond the reading (without logs \
         it starts in {})",
        outcome.members,
        units::bytes(outcome.log_bytes as f64),
        seconds(outcome.read_seconds),
        seconds(outcome.restart_seconds),
        seconds(outcome.beyond_reading_seconds.max(0.0)),
        seconds(outcome.first_start_seconds)
    ));
}

/// A longer message would make the windows the subject.
const SIZE_MAX: u64 = 1 << 20;
const WINDOW: usize = 1024;
/// Of a log's folder: where its segments are.
const SEGMENTS: &str = "log";
/// What is read at a time.
const PIECE: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
    }
}
