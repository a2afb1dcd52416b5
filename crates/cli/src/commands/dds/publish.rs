//! `squall dds pub`: samples of a topic from a shell.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Args;
use serde_json::json;
use squall_dds::{ClientWriter, DurabilityKind, Qos, TopicData, TopicDescription, WriteError};
use squall_harness::terminal::{CommandVerdict, error_text, output};

use super::{Connected, DomainArguments, LOOK_PERIOD, TopicArguments, endpoint_qos};
use crate::input_lines;

/// Write samples to a topic: the arguments, or the lines of standard input
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct PubArguments {
    #[command(flatten)]
    domain: DomainArguments,
    #[command(flatten)]
    topic: TopicArguments,
    /// The samples [default: the lines of standard input]
    samples: Vec<String>,
    /// Write all samples this many times; `{i}` in them is replaced by the number of the time, from 0 [default: once, as they are]
    #[arg(long, value_name = "N", requires = "samples")]
    repeat: Option<u64>,
    /// Write at most this many samples in a second [default: as many as can be written]
    #[arg(long, value_name = "HZ")]
    rate: Option<f64>,
    /// Wait for this many readers before the first sample
    #[arg(long, value_name = "N", default_value = "0")]
    readers: usize,
    /// Take the samples for bytes in hexadecimal, as `squall dds sub` prints what is no text
    #[arg(long)]
    hex: bool,
    /// Print as JSON at the end how many samples were written, and the error if there was one
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "This process is a client of the domain: it writes through a node, and ends when all nodes have every sample. A sample is \
bytes: the topic's type is `bytes`. The topic is created if it is not there. Readers that come later get what was written before if the \
topic's profile is kept or logged.

Examples:
  squall dds pub --config squall.toml chat \"hello, all\"
  squall dds pub -c squall.toml --profile kept log < lines.txt
  squall dds pub -c squall.toml ticks \"tick {i}\" --repeat 100 --rate 10";

pub(super) fn run(arguments: PubArguments) -> Result<CommandVerdict> {
    let pause = arguments.rate.map(pause_of).transpose()?;
    let PubArguments { domain, .. } = &arguments;
    let domain = domain.clone();
    domain.run(move |connected| {
        let mut written = 0;
        let outcome = publish(&arguments, connected, pause, &mut written);
        if arguments.json {
            let error = outcome.as_ref().err().map(error_text);
            output::json(&json!({ "written": written, "error": error }))?;
        }
        outcome.map(|()| CommandVerdict::Good)
    })
}

/// Returns the time between two samples at this many in a second.
fn pause_of(rate: f64) -> Result<Duration> {
    let is_rate = rate.is_finite() && rate > 0.0;
    let pause = is_rate.then(|| Duration::try_from_secs_f64(1.0 / rate).ok()).flatten();
    pause.filter(|pause| *pause <= PAUSE_MAX).ok_or_else(|| {
        anyhow!("--rate {rate}: give a number of samples per second, such as 10, or 0.1, and at least one sample in a year")
    })
}

fn publish(
    arguments: &PubArguments,
    connected: &Connected,
    pause: Option<Duration>,
    written: &mut u64,
) -> Result<()> {
    let topic = arguments.topic.open(connected)?;
    let bytes = <Vec<u8> as TopicData>::type_name();
    ensure!(
        topic.type_name == bytes,
        "topic {:?} has the type {:?}: this command writes `{bytes}` only; write it by a program that has the type",
        topic.name,
        topic.type_name
    );
    // Short, so that Ctrl-C is noticed; but a sample that is kept is sent at once, and this is the time for the outcome.
    let keeps = topic.qos.durability > DurabilityKind::Volatile;
    let max_blocking_time = if keeps { OUTCOME_PATIENCE } else { LOOK_PERIOD };
    let qos = Qos { max_blocking_time, ..endpoint_qos(&topic) };
    let writer = connected.client.writer(&topic.name, qos)?;
    if arguments.readers > 0 {
        let has_readers = |topic: TopicDescription| topic.readers >= arguments.readers;
        while !connected.is_interrupted() && !connected.topic(&topic.name)?.is_some_and(has_readers) {
            std::thread::sleep(LOOK_PERIOD / 2);
        }
    }
    let (inputs, input) = sync_channel(AHEAD_MAX);
    read(arguments.samples.clone(), arguments.repeat, inputs);
    let outcome = write_all(connected, &writer, &input, pause, arguments.hex, written);
    // What was written is for all members, also if the next sample was not.
    let acknowledged = loop {
        match writer.wait_for_acknowledgments(LOOK_PERIOD) {
            Err(WriteError::Timeout(_)) if !connected.is_interrupted() => {}
            acknowledged => break acknowledged,
        }
    };
    outcome?;
    if !connected.is_interrupted() {
        acknowledged?;
    }
    Ok(())
}

/// Writes the inputs until they end, an interruption or an error.
fn write_all(
    connected: &Connected,
    writer: &ClientWriter<Vec<u8>>,
    inputs: &Receiver<Result<String>>,
    pause: Option<Duration>,
    is_hex: bool,
    written: &mut u64,
) -> Result<()> {
    let mut due = Instant::now();
    while !connected.is_interrupted() {
        let sample = match inputs.recv_timeout(LOOK_PERIOD) {
            Ok(sample) => sample
                .and_then(|sample| bytes(sample, is_hex))
                .with_context(|| format!("sample {written} was not written"))?,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if let Some(pause) = pause {
            while Instant::now() < due && !connected.is_interrupted() {
                std::thread::sleep(due.saturating_duration_since(Instant::now()).min(LOOK_PERIOD));
            }
            due = (due + pause).max(Instant::now());
        }
        if !write(connected, writer, &sample).with_context(|| format!("sample {written} was not written"))? {
            break;
        }
        *written += 1;
    }
    Ok(())
}

/// Returns the bytes of a sample, which may be given in hexadecimal.
fn bytes(sample: String, is_hex: bool) -> Result<Vec<u8>> {
    if is_hex {
        hex::decode(&sample).with_context(|| format!("`{sample}` is not in hexadecimal, as in 0a1f"))
    } else {
        Ok(sample.into_bytes())
    }
}

/// Writes a sample, however long it takes. Returns whether it is written; if not, the command was interrupted.
fn write(connected: &Connected, writer: &ClientWriter<Vec<u8>>, sample: &Vec<u8>) -> Result<bool> {
    loop {
        match writer.write(sample) {
            Ok(()) => return Ok(true),
            Err(WriteError::Timeout(_)) if connected.is_interrupted() => return Ok(false),
            Err(WriteError::Timeout(_)) => {}
            Err(error) => bail!(error),
        }
    }
}

/// Gives the samples, or the lines of standard input, to `inputs`, from a thread that may wait for them.
fn read(samples: Vec<String>, repeat: Option<u64>, inputs: SyncSender<Result<String>>) {
    std::thread::spawn(move || {
        // Fails when the receiver has gone.
        let forward = |input: Result<String>| inputs.send(input).is_ok();
        if samples.is_empty() {
            input_lines::lines(std::io::stdin().lock(), SAMPLE_BYTES_MAX).all(forward);
        } else {
            let numbered = |sample: &String, number: u64| match repeat {
                Some(_) => sample.replace("{i}", &number.to_string()),
                None => sample.clone(),
            };
            (0..repeat.unwrap_or(1))
                .all(|number| samples.iter().all(|sample| forward(Ok(numbered(sample, number)))));
        }
    });
}

/// How long a sample may take until it is in the history.
const OUTCOME_PATIENCE: Duration = Duration::from_secs(60);
/// The longest time between two samples.
const PAUSE_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// More than a sample has.
const SAMPLE_BYTES_MAX: usize = 64 << 20;
/// Samples that are read ahead.
const AHEAD_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_may_be_in_hexadecimal() {
        assert_eq!(bytes("0a1f".into(), false).unwrap(), b"0a1f");
        assert_eq!(bytes("0a1f".into(), true).unwrap(), [0x0a, 0x1f]);
        assert!(
            bytes("hello".into(), true).unwrap_err().to_string().contains("`hello` is not in hexadecimal")
        );
    }
}
