//! `squall dds node`: a participant without topics of its own, which holds the domain.

use anyhow::{Result, anyhow};
use clap::Args;
use serde_json::json;
use squall::Config;
use squall_harness::terminal::{CommandVerdict, output, units};

use super::{DomainArguments, LOOK_PERIOD};

/// Run a process that holds the domain: others join it, and what topics keep stays while they come and go
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DdsNodeArguments {
    #[command(flatten)]
    domain: DomainArguments,
    /// The rank that this member wants, instead of `rank` in the file
    #[arg(long)]
    rank: Option<usize>,
    /// Print the view as JSON when it has changed; it is looked at ten times a second
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "The first nodes bring the domain together, as `squall node` does for other groups: as many as `members` in the \
file. Ctrl-C leaves in order. Topics that are kept are in the memory of all processes of the domain; with [storage] in the file, the \
topics themselves and what logged topics keep are on the disks of all nodes, and are there again when these have been started again.

Examples:
  squall dds node --config squall.toml
  squall dds node -c squall.toml --listen 192.0.2.2:7400 --rank 1";

pub(super) fn run(arguments: &DdsNodeArguments) -> Result<CommandVerdict> {
    let domain = &arguments.domain;
    let config = Config::load_for_domain(&domain.config, domain.listen.clone(), arguments.rank)?;
    let joined = domain.begin(config)?;
    let mut shown = None;
    while !joined.is_interrupted() {
        if let Some(failure) = joined.participant.failure() {
            return Err(failure.into());
        }
        let view = joined.participant.view().ok_or_else(|| anyhow!("the domain has ended here"))?;
        if shown != Some(view) {
            shown = Some(view);
            let (node, participants) = (joined.participant.node(), joined.participant.participants());
            if arguments.json {
                output::json(&json!({ "view": view, "node": node, "participants": participants }))?;
            } else {
                let participants = units::things(participants as u64, "participant");
                output::line(format_args!("view {view}: {participants}; this is node {node}"));
            }
        }
        std::thread::sleep(LOOK_PERIOD);
    }
    joined.leave();
    Ok(CommandVerdict::Good)
}
