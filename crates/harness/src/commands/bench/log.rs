//! `squall bench log`: what the durable log makes of a disk, beside the bare disk in the same run (Derecho §4, table 1).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use squall::config::quantity;
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_log::{
    AlignedBuffer, AppendError, Disk as _, DurableLog, FRAME_HEADER_BYTES, FileDisk, LogPosition, LogRecord,
    LogSettings, RECORD_HEADER_BYTES, RecordKind, Storage, StorageOwner,
};

use crate::terminal::{CommandVerdict, Interrupted, Interrupts, output, units};

/// Measure the durable log of a process on a disk
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LogBenchArguments {
    /// A folder on the disk; what is written into it is removed at the end
    #[arg(long, value_name = "FOLDER")]
    storage: PathBuf,
    /// Bytes of a record, like 64 or 4KiB; at most 1MiB
    #[arg(long, value_name = "BYTES", default_value = "256", value_parser = parse_size)]
    size: usize,
    /// How long to measure, in all
    #[arg(long, value_name = "SECONDS", default_value_t = 8.0)]
    seconds: f64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Latency is that of one record at a time, from append to persisted. Bandwidth is that of records appended \
without a pause, in frames of up to 1 MiB, four at a time. The bare disk gets writes of the same sizes, with the same flags, in a \
file that is already written. The log and the bare disk alternate, since a disk that others use changes from second to second. \
About 400 MB are written to the folder at most.

Examples:
  squall bench log --storage /var/tmp
  squall bench log --storage /var/tmp --size 4KiB --json";

#[derive(Debug, Serialize)]
struct Outcome {
    size: usize,
    /// Whether writes go past the page cache.
    direct: bool,
    /// Records that were appended one at a time.
    appends: usize,
    latency_us_p50: f64,
    latency_us_p99: f64,
    bare_latency_us_p50: f64,
    bare_latency_us_p99: f64,
    records_per_second: f64,
    bytes_per_second: f64,
    bare_bytes_per_second: f64,
}

pub(crate) fn run(arguments: &LogBenchArguments) -> Result<CommandVerdict> {
    let storage = arguments.storage.display();
    ensure!(arguments.storage.is_dir(), "{storage} is no folder: make it, or choose another --storage");
    ensure!(arguments.seconds > 0.0, "--seconds {}: choose more than 0", arguments.seconds);
    let part = Duration::try_from_secs_f64(arguments.seconds / f64::from(PARTS * ROUNDS))
        .with_context(|| format!("--seconds {}: choose less", arguments.seconds))?;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::clone(&is_interrupted);
    let interrupts = Interrupts::take()?;
    interrupts.set(move || interrupted.store(true, Ordering::Relaxed));

    let folder = arguments.storage.join(format!("squall-bench-log-{}", std::process::id()));
    let outcome = measure(arguments.size, part, &folder, &is_interrupted);
    let removed = std::fs::remove_dir_all(&folder);
    let outcome = outcome?;
    removed.with_context(|| format!("failed to remove {}: remove it", folder.display()))?;
    if arguments.json {
        output::json(&outcome)?;
    } else {
        print(&outcome);
    }
    Ok(CommandVerdict::Good)
}

fn measure(size: usize, part: Duration, folder: &Path, is_interrupted: &AtomicBool) -> Result<Outcome> {
    let bare = BareDisk::new(&folder.join("bare"))?;
    let disk = FileDisk::open(&folder.join("log"))?;
    let direct = disk.is_direct();
    let owner = StorageOwner { cluster: "bench".into(), member: "bench".into() };
    let storage = Storage::open(disk, &owner, LogSettings::DEFAULT, 1)?;
    let recovered = storage.recover(&mut |_, _| ())?;
    let mut log = MeasuredLog::new(DurableLog::start(storage, recovered)?, size);
    let (mut appends, mut writes) = (Vec::new(), Vec::new());
    let (mut bandwidths, mut bare_bandwidths) = (Vec::new(), Vec::new());
    let frame =
        (FRAME_HEADER_BYTES + RECORD_HEADER_BYTES + size).next_multiple_of(LogSettings::DEFAULT.block);
    for _ in 0..ROUNDS {
        bare.time_writes(frame, part, &mut writes)?;
        log.time_appends(part, &mut appends)?;
        bare_bandwidths.push(bare.bandwidth(part)?);
        bandwidths.push(log.bandwidth(part)?);
        ensure!(!is_interrupted.load(Ordering::Relaxed), Interrupted::ALONE);
    }
    for values in [&mut appends, &mut writes, &mut bandwidths, &mut bare_bandwidths] {
        values.sort_by(f64::total_cmp);
    }
    let at =
        |values: &[f64], part: f64| values.get((values.len() as f64 * part) as usize).copied().unwrap_or(0.0);
    Ok(Outcome {
        size,
        direct,
        appends: appends.len(),
        latency_us_p50: at(&appends, 0.5),
        latency_us_p99: at(&appends, 0.99),
        bare_latency_us_p50: at(&writes, 0.5),
        bare_latency_us_p99: at(&writes, 0.99),
        records_per_second: at(&bandwidths, 0.5) / size as f64,
        bytes_per_second: at(&bandwidths, 0.5),
        bare_bytes_per_second: at(&bare_bandwidths, 0.5),
    })
}

/// The log, and what was appended to it.
struct MeasuredLog {
    log: DurableLog<FileDisk>,
    bytes: Vec<u8>,
    sequence: u64,
    /// The sequence of the last checkpoint.
    checkpoint: u64,
}

impl MeasuredLog {
    fn new(log: DurableLog<FileDisk>, size: usize) -> Self {
        let bytes = (0..size).map(|at| at as u8).collect();
        Self { log, bytes, sequence: 0, checkpoint: 0 }
    }

    /// Appends a record, and returns how many are persisted when it is.
    fn append(&mut self) -> Result<u64, AppendError> {
        let position = LogPosition { view: 0, sequence: self.sequence };
        let (kind, bytes) = (RecordKind::Message, &self.bytes);
        let record = LogRecord { subgroup: 0, kind, position, sender: 0, time: self.sequence, bytes };
        let records = self.log.append(&record)?;
        self.sequence += 1;
        Ok(records)
    }

    /// One record at a time, in microseconds.
    fn time_appends(&mut self, part: Duration, times: &mut Vec<f64>) -> Result<()> {
        let end = Instant::now() + part;
        loop {
            let begun = Instant::now();
            if begun >= end {
                return Ok(());
            }
            let records = self.append()?;
            self.log.wait(records)?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
    }

    /// Bytes of records per second. Checkpoints keep the log short, as in a group, so that segments are recycled.
    fn bandwidth(&mut self, part: Duration) -> Result<f64> {
        let (begun, before) = (Instant::now(), self.sequence);
        let record_bytes = (RECORD_HEADER_BYTES + self.bytes.len()) as u64;
        while begun.elapsed() < part {
            match self.append() {
                Ok(_) => {}
                Err(AppendError::Full) => self.log.wait(self.log.persisted() + 1)?,
                Err(error) => return Err(error.into()),
            }
            if (self.sequence - self.checkpoint) * record_bytes > CHECKPOINT_BYTES {
                self.checkpoint = self.sequence;
                let position = LogPosition { view: 0, sequence: self.sequence.saturating_sub(1) };
                self.log.checkpoint(0, position, LogPosition::MAX, &mut |out| out.write_all(b"state"))?;
            }
        }
        self.log.wait(self.sequence)?;
        let bytes = (self.sequence - before) * self.bytes.len() as u64;
        Ok(bytes as f64 / begun.elapsed().as_secs_f64())
    }
}

/// A file that is already written.
struct BareDisk {
    disk: FileDisk,
}

impl BareDisk {
    fn new(folder: &Path) -> Result<Self> {
        let disk = FileDisk::open(folder)?;
        disk.create(FILE, FILE_BYTES)?;
        Ok(Self { disk })
    }

    /// One write of `length` bytes at a time, in microseconds.
    fn time_writes(&self, length: usize, part: Duration, times: &mut Vec<f64>) -> Result<()> {
        let mut bytes = AlignedBuffer::zeroed(length);
        bytes.bytes_mut().fill(7);
        let (end, mut offset) = (Instant::now() + part, 0);
        loop {
            let begun = Instant::now();
            if begun >= end {
                return Ok(());
            }
            self.disk.write(FILE, offset, &bytes)?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            offset += length as u64;
            if offset + length as u64 > FILE_BYTES {
                offset = 0;
            }
        }
    }

    /// Bytes per second of long writes, as many at a time as the log has.
    fn bandwidth(&self, part: Duration) -> Result<f64> {
        let settings = LogSettings::DEFAULT;
        let writers = settings.in_flight_max as u64;
        let begun = Instant::now();
        let write = &|writer: u64| -> Result<u64> {
            let bytes = AlignedBuffer::zeroed(settings.frame_bytes);
            let (length, mut written) = (bytes.len() as u64, 0);
            while begun.elapsed() < part {
                let offset = (written * writers + writer * length) % (FILE_BYTES / length * length);
                self.disk.write(FILE, offset, &bytes)?;
                written += length;
            }
            Ok(written)
        };
        let written: Vec<Result<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..writers).map(|writer| scope.spawn(move || write(writer))).collect();
            threads.into_iter().map(|thread| thread.join().expect("the writer does not panic")).collect()
        });
        let written = written.into_iter().sum::<Result<u64>>()?;
        Ok(written as f64 / begun.elapsed().as_secs_f64())
    }
}

fn print(outcome: &Outcome) {
    let micros = |micros: f64| units::nanos((micros * 1e3) as u64);
    let rate = |bytes: f64| format!("{}/s", units::bytes(bytes));
    let size = units::bytes(outcome.size as f64);
    output::line(format_args!(
        "one record of {size} at a time: median {}, 99 % within {} (bare disk: {} and {})",
        micros(outcome.latency_us_p50),
        micros(outcome.latency_us_p99),
        micros(outcome.bare_latency_us_p50),
        micros(outcome.bare_latency_us_p99)
    ));
    output::line(format_args!(
        "without a pause: {} records/s, {} (bare disk: {})",
        units::count(outcome.records_per_second),
        rate(outcome.bytes_per_second),
        rate(outcome.bare_bytes_per_second)
    ));
}

fn parse_size(text: &str) -> Result<usize, String> {
    let bytes = quantity::bytes(text)?;
    let size = usize::try_from(bytes).ok().filter(|size| (1..=SIZE_MAX).contains(size));
    size.ok_or_else(|| "a record has 1 byte to 1MiB here".into())
}

/// How often the log and the bare disk alternate.
const ROUNDS: u32 = 5;
/// What is measured in a round: latency and bandwidth, of the log and of the bare disk.
const PARTS: u32 = 4;
/// With longer records bandwidth is that of frames of a record each.
const SIZE_MAX: usize = 1 << 20;
/// A checkpoint is taken after this many bytes: half of a segment.
const CHECKPOINT_BYTES: u64 = 32 << 20;
const FILE: &str = "bare";
const FILE_BYTES: u64 = 64 << 20;
