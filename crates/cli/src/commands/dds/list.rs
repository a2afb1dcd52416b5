//! `squall dds list`: the topics of a domain.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde_json::json;
use squall_dds::TopicDescription;
use squall_harness::terminal::{CommandVerdict, output, table};

use super::{DomainArguments, LOOK_PERIOD};

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

const EXAMPLES: &str = "This process joins the domain, looks for half a second, and leaves it in order.

Examples:
  squall dds list --config squall.toml
  squall dds list -c squall.toml --json";

pub(super) fn run(arguments: &ListArguments) -> Result<CommandVerdict> {
    let joined = arguments.domain.join()?;
    // The writers and readers of topics that keep nothing announce themselves when they notice this process.
    let begun = Instant::now();
    while begun.elapsed() < LOOK && !joined.is_interrupted() {
        std::thread::sleep(LOOK_PERIOD);
    }
    let topics = joined.participant.topics();
    joined.leave();
    if arguments.json {
        let topics: Vec<_> = topics.iter().map(describe).collect();
        output::json(&json!({ "topics": topics }))?;
        return Ok(CommandVerdict::Good);
    }
    let header = ["topic", "type", "profile", "writers", "readers"].map(str::to_owned).to_vec();
    let rows = topics.iter().map(|topic| {
        let (writers, readers) = (topic.writers.to_string(), topic.readers.to_string());
        vec![topic.name.clone(), topic.type_name.clone(), topic.qos.profile().to_string(), writers, readers]
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

/// How long the participants have to announce their writers and readers.
const LOOK: Duration = Duration::from_millis(500);
