//! `squall dds list`: the topics of a domain.

use anyhow::Result;
use clap::Args;
use serde_json::json;
use squall_dds::TopicDescription;
use squall_harness::terminal::{CommandVerdict, escaped, output, table};

use super::DomainArguments;

/// List the topics of a domain: name, type, profile, and how many writers and readers there are
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ListArguments {
    #[command(flatten)]
    domain: DomainArguments,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "This process asks a node. Readers and writers of all processes count; of a topic that keeps samples, \
those of a client that has died do so for a minute.

Examples:
  squall dds list --config squall.toml
  squall dds list -c squall.toml --json";

pub(super) fn run(arguments: ListArguments) -> Result<CommandVerdict> {
    let ListArguments { domain, json } = arguments;
    domain.run(move |connected| print(&connected.client.topics()?, json))
}

fn print(topics: &[TopicDescription], is_json: bool) -> Result<CommandVerdict> {
    if is_json {
        let topics: Vec<_> = topics.iter().map(describe).collect();
        output::json(&json!({ "topics": topics }))?;
        return Ok(CommandVerdict::Good);
    }
    let header = ["topic", "type", "profile", "writers", "readers"].map(str::to_owned).to_vec();
    let rows = topics.iter().map(|topic| {
        let (writers, readers) = (topic.writers.to_string(), topic.readers.to_string());
        vec![
            escaped(&topic.name),
            escaped(&topic.type_name),
            topic.qos.profile().to_string(),
            writers,
            readers,
        ]
    });
    let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
    table::lines(&rows).into_iter().for_each(output::line);
    Ok(CommandVerdict::Good)
}

fn describe(topic: &TopicDescription) -> serde_json::Value {
    json!({
        "name": topic.name,
        "type": topic.type_name,
        "profile": topic.qos.profile().to_string(),
        "writers": topic.writers,
        "readers": topic.readers,
    })
}
