//! `squall dds node`: a participant without topics of its own, which holds the domain.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use serde_json::json;
use squall::Config;
use squall::config::{Address, quantity};
use squall_dds::{DomainParticipant, TopicStore};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_harness::terminal::{CommandVerdict, Interrupts, PendingNote, output, units};

use super::LOOK_PERIOD;

/// Run a member of the domain: the other commands are its clients, and what topics keep stays while they come and go
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DdsNodeArguments {
    /// The configuration of the domain's group; it needs no subgroups, since these are topics
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Where this member listens, instead of `listen` in the file
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,
    /// How long to try to join
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "10s")]
    timeout: Duration,
    /// The rank that this member wants, instead of `rank` in the file
    #[arg(long)]
    rank: Option<usize>,
    /// Print the view as JSON when it has changed; it is looked at ten times a second
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "The first nodes bring the domain together, as `squall node` does for other groups: as many as `members` in the \
file. Ctrl-C leaves in order. Topics that are kept are in the memory of all nodes; with [storage] in the file, the \
topics themselves and what logged topics keep are on the disks of all nodes, and are there again when these have been started again.

Examples:
  squall dds node --config squall.toml
  squall dds node -c squall.toml --listen 192.0.2.2:7400 --rank 1";

pub(super) fn run(arguments: &DdsNodeArguments) -> Result<CommandVerdict> {
    let (participant, is_interrupted) = join(arguments)?;
    let mut shown = None;
    while !is_interrupted.load(Ordering::Relaxed) {
        if let Some(failure) = participant.failure() {
            return Err(failure.into());
        }
        let view = participant.view().ok_or_else(|| anyhow!("the domain has ended here"))?;
        if shown != Some(view) {
            shown = Some(view);
            let (node, participants) = (participant.node(), participant.participants());
            if arguments.json {
                output::json(&json!({ "view": view, "node": node, "participants": participants }))?;
            } else {
                let participants = units::things(participants as u64, "participant");
                output::line(format_args!("view {view}: {participants}; this is node {node}"));
            }
        }
        std::thread::sleep(LOOK_PERIOD);
    }
    let departure = participant.leave(LEAVE_PATIENCE);
    tracing::info!("left the domain: {departure:?}");
    Ok(CommandVerdict::Good)
}

/// Joins the domain, or brings it together with others; returns also whether the command was interrupted, from then on.
fn join(arguments: &DdsNodeArguments) -> Result<(DomainParticipant, Arc<AtomicBool>)> {
    let mut config = Config::load_for_domain(&arguments.config, arguments.listen.clone(), arguments.rank)?;
    config.timeout = arguments.timeout;
    let interrupts = Interrupts::take()?;
    let contacts: Vec<String> = config.contacts.iter().map(ToString::to_string).collect();
    let _pending = PendingNote::new(format!(
        "joining the domain at {}, for {:.0?} at most...",
        contacts.join(", "),
        arguments.timeout
    ));
    let store = if config.storage.is_some() { TopicStore::Disk } else { TopicStore::Memory };
    let participant = DomainParticipant::builder(config).run_time_topics(store).join()?;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_interrupted);
    interrupts.set(move || flag.store(true, Ordering::Relaxed));
    Ok((participant, is_interrupted))
}

/// How long the process waits for the view that it leaves with.
const LEAVE_PATIENCE: Duration = Duration::from_secs(10);
