//! `squall dds sub` and `squall dds echo`: samples of a topic to a shell.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use serde_json::json;
use squall_dds::{DurabilityKind, InstanceState, ReadError, Sample, SampleInfo, TopicDescription};
use squall_harness::terminal::{CommandVerdict, output, units};

use super::{Connected, DomainArguments, LOOK_PERIOD, TopicArguments, reader_qos};

/// Print the samples of a topic as they come, one a line; create the topic if it is not there
#[derive(Debug, Args)]
#[command(after_help = SUB_EXAMPLES)]
pub(super) struct SubArguments {
    #[command(flatten)]
    domain: DomainArguments,
    #[command(flatten)]
    topic: TopicArguments,
    #[command(flatten)]
    output: SampleOutput,
}

const SUB_EXAMPLES: &str = "This process is a client of the domain: it reads through a node, which never waits for it. If the topic's \
profile is kept or logged, the samples that were written before come first, each once and in the order of all readers, whichever nodes \
end. If some were lost, since the topic keeps the last ones only, the output is taken too slowly, or the node has ended, the log reports \
that, and the exit status is 1.

Examples:
  squall dds sub --config squall.toml chat
  squall dds sub -c squall.toml --profile kept log --count 10 --json";

/// Print the samples of a topic with what is known about them
#[derive(Debug, Args)]
#[command(after_help = ECHO_EXAMPLES)]
pub(super) struct EchoArguments {
    #[command(flatten)]
    domain: DomainArguments,
    /// The topic, which another process has created, or creates within --timeout
    topic: String,
    #[command(flatten)]
    output: SampleOutput,
}

const ECHO_EXAMPLES: &str = "This process is a client of the domain, as `squall dds sub` is. Above each sample it prints the writer, the position in the order \
of the topic, and how long ago the sample was written by the clock of the writer's host, or of the node that writes for it; and it prints when an instance was disposed of, or has \
no writers any more. Bytes that are no text are printed in hexadecimal.

Examples:
  squall dds echo --config squall.toml chat
  squall dds echo -c squall.toml readings --json --count 1";

#[derive(Debug, Args)]
struct SampleOutput {
    /// End after this many samples
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print each sample as JSON, with its writer and its position
    #[arg(long)]
    json: bool,
}

/// How samples are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Lines,
    Details,
    Json,
}

pub(super) fn run_sub(arguments: SubArguments) -> Result<CommandVerdict> {
    let SubArguments { domain, topic, output } = arguments;
    domain.run(move |connected| {
        let topic = topic.open(connected)?;
        print_all(connected, &topic, &output, Style::Lines)
    })
}

pub(super) fn run_echo(arguments: EchoArguments) -> Result<CommandVerdict> {
    let EchoArguments { domain, topic, output } = arguments;
    domain.run(move |connected| {
        let topic = connected.find(&topic)?;
        print_all(connected, &topic, &output, Style::Details)
    })
}

fn print_all(
    connected: &Connected,
    topic: &TopicDescription,
    arguments: &SampleOutput,
    style: Style,
) -> Result<CommandVerdict> {
    output::end_with_reader();
    let style = if arguments.json { Style::Json } else { style };
    let reader = connected.client.reader::<Vec<u8>>(&topic.name, reader_qos(topic))?;
    let (mut left, mut verdict) = (arguments.count.unwrap_or(u64::MAX), CommandVerdict::Good);
    while left > 0 && !connected.is_interrupted() {
        let taken = match reader.wait_for_data(LOOK_PERIOD) {
            Err(ReadError::Timeout(_)) => Ok(Vec::new()),
            waited => waited
                .and_then(|()| reader.take(usize::try_from(left).unwrap_or(usize::MAX).min(AT_ONCE_MAX))),
        };
        let lost = reader.sample_lost().total_count_change;
        if lost > 0 {
            verdict = CommandVerdict::Bad;
            let cause = match topic.qos.durability {
                DurabilityKind::Volatile => {
                    "read the output faster: the node keeps 16 MiB for a reader that is slow"
                }
                _ => "the topic keeps the last ones only",
            };
            tracing::warn!("{} are lost here: {cause}", units::things(lost, "sample"));
        }
        let taken = match taken {
            Err(ReadError::Interrupted(cause)) => {
                verdict = CommandVerdict::Bad;
                tracing::warn!(
                    "samples may be missing here, since the connection with a node has ended: {cause}"
                );
                continue;
            }
            taken => taken?,
        };
        for sample in taken {
            left -= u64::from(sample.data.is_some());
            print(&sample, style)?;
        }
    }
    Ok(verdict)
}

fn print(sample: &Sample<Vec<u8>>, style: Style) -> Result<()> {
    let Sample { data, info, .. } = sample;
    let text = data.as_deref().map(text);
    match (style, text) {
        (Style::Json, text) => output::json(&json!({
            "sample": text,
            "state": state(info.instance_state),
            "writer": info.publication.to_string(),
            "view": info.position.view,
            "sequence": info.position.sequence,
            "written_ns": nanoseconds(info.source_timestamp),
        }))?,
        (Style::Lines, Some(text)) => output::write(&format!("{text}\n")),
        (Style::Lines, None) => {}
        (Style::Details, Some(text)) => output::write(&format!("{}\n{text}\n", details(info))),
        (Style::Details, None) => {
            output::line(format_args!("{}: {}", details(info), state(info.instance_state)));
        }
    }
    Ok(())
}

/// Returns what is known about a sample.
fn details(info: &SampleInfo) -> String {
    let age = SystemTime::now().duration_since(info.source_timestamp).unwrap_or_default();
    let age = units::nanos(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
    let position = format!("{}.{}", info.position.view, info.position.sequence);
    format!("--- writer {}, position {position}, written {age} ago", info.publication)
}

const fn state(state: InstanceState) -> &'static str {
    match state {
        InstanceState::Alive => "alive",
        InstanceState::NotAliveDisposed => "disposed of",
        InstanceState::NotAliveNoWriters => "without writers",
    }
}

/// Returns a sample as text, or its bytes in hexadecimal.
fn text(bytes: &[u8]) -> String {
    let is_shown = |c: char| !c.is_control() || c == '\n' || c == '\t';
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(is_shown) => text.to_owned(),
        _ => hex::encode(bytes),
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since: Duration = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Samples that are taken together.
const AT_ONCE_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_in_hexadecimal() {
        assert_eq!(text("Grüße\tan alle".as_bytes()), "Grüße\tan alle");
        assert_eq!([text(&[0xff, 1]), text(b"\x1b[2J")], ["ff01", "1b5b324a"]);
    }
}
