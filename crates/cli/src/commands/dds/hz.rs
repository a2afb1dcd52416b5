//! `squall dds hz`: how often a topic is written.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use clap::Args;
use serde_json::json;
use squall_dds::{DurabilityKind, Qos, ReadError, Sample};
use squall_harness::terminal::{CommandVerdict, output, units};

use super::{Connected, DomainArguments, LOOK_PERIOD, reader_qos};

/// Print how many samples of a topic come in a second, and how large they are
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct HzArguments {
    #[command(flatten)]
    domain: DomainArguments,
    /// The topic, which another process has created, or creates within --timeout
    topic: String,
    /// End after this many seconds
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Print each second as JSON: samples, bytes, and the least and greatest time between two samples in nanoseconds
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "This process is a client of the domain, and reads the topic through a node. It counts what is written from now on, not what \
the topic has kept. The times between samples are by the clocks of the writers' hosts, or of the nodes that write for them.

Examples:
  squall dds hz --config squall.toml ticks
  squall dds hz -c squall.toml ticks --seconds 5 --json";

/// What came in a second.
#[derive(Default)]
struct SecondCount {
    samples: u64,
    bytes: u64,
    /// The times between samples, in nanoseconds.
    gap_least: Option<u64>,
    gap_greatest: Option<u64>,
}

pub(super) fn run(arguments: HzArguments) -> Result<CommandVerdict> {
    let HzArguments { domain, topic, seconds, json } = arguments;
    domain.run(move |connected| measure(connected, &topic, seconds, json))
}

fn measure(
    connected: &Connected,
    topic: &str,
    seconds: Option<u64>,
    is_json: bool,
) -> Result<CommandVerdict> {
    let topic = connected.find(topic)?;
    let qos = Qos { durability: DurabilityKind::Volatile, durability_service: None, ..reader_qos(&topic) };
    let reader = connected.client.reader::<Vec<u8>>(&topic.name, qos)?;
    let mut last = None::<SystemTime>;
    for _ in 0..seconds.unwrap_or(u64::MAX) {
        let (begun, mut count) = (Instant::now(), SecondCount::default());
        while begun.elapsed() < SECOND {
            if connected.is_interrupted() {
                return Ok(CommandVerdict::Good);
            }
            match reader.wait_for_data(LOOK_PERIOD.min(SECOND.saturating_sub(begun.elapsed()))) {
                Err(ReadError::Timeout(_)) => continue,
                Err(ReadError::Interrupted(cause)) => {
                    tracing::warn!(
                        "samples may be missing here, since the connection with a node has ended: {cause}"
                    );
                    continue;
                }
                waited => waited?,
            }
            for Sample { data, info, .. } in reader.take(AT_ONCE_MAX)? {
                let Some(data) = data else { continue };
                let written = info.source_timestamp;
                // The clocks of several writers may differ, and a clock may have been set back.
                let gap = last.replace(written).map(|last| written.duration_since(last).unwrap_or_default());
                count.add(data.len() as u64, gap);
            }
            // One that this process is too slow for counts, too, and its length is not known.
            count.samples += reader.sample_lost().total_count_change;
        }
        count.print(begun.elapsed(), is_json)?;
    }
    Ok(CommandVerdict::Good)
}

impl SecondCount {
    fn add(&mut self, bytes: u64, gap: Option<Duration>) {
        (self.samples, self.bytes) = (self.samples + 1, self.bytes + bytes);
        if let Some(gap) = gap.map(|gap| u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX)) {
            self.gap_least = Some(self.gap_least.map_or(gap, |least| least.min(gap)));
            self.gap_greatest = Some(self.gap_greatest.map_or(gap, |greatest| greatest.max(gap)));
        }
    }

    fn print(&self, time: Duration, is_json: bool) -> Result<()> {
        let seconds = time.as_secs_f64();
        let Self { samples, bytes, gap_least, gap_greatest } = self;
        if is_json {
            let rate = *samples as f64 / seconds;
            output::json(&json!({
                "samples": samples, "bytes": bytes, "hz": rate, "gap_least_ns": gap_least, "gap_greatest_ns": gap_greatest,
            }))?;
            return Ok(());
        }
        let rate = units::count(*samples as f64 / seconds);
        let gaps = match (gap_least, gap_greatest) {
            (Some(least), Some(greatest)) => {
                format!(", {} to {} apart", units::nanos(*least), units::nanos(*greatest))
            }
            _ => String::new(),
        };
        output::line(format_args!("{rate} Hz, {}/s{gaps}", units::bytes(*bytes as f64 / seconds)));
        Ok(())
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// Samples that are taken together.
const AT_ONCE_MAX: usize = 10_000;
