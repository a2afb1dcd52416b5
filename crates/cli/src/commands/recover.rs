//! `squall recover`: a group continues from the log of one member, because the others are lost.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use squall::Config;
use squall::recovery::{ExpectedLoss, SubgroupLoss, accept_loss, expected_loss};
use squall_harness::terminal::{CommandVerdict, output, units};

/// Continue a durable group from the log of one member, because the logs of a majority are lost
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RecoverArguments {
    /// The configuration of the group
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Where this member can be reached, instead of `listen` in the file
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<squall::config::Address>,
    /// The rank that this member wants, instead of `rank` in the file
    #[arg(long)]
    rank: Option<usize>,
    /// Continue from this log, and lose what only others had
    #[arg(long)]
    accept_loss: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "A group restarts by itself, and loses nothing, when a majority of its last view is back. Only if that can never be, \
choose the member whose log goes furthest: this command says how far each one goes, and changes nothing without --accept-loss. With it \
the member starts alone the next time, and others join it with empty folders. Members that have a log of the group of before are \
refused from then on, so do this at one member only, and move the folders of the others away. The contacts are asked first: while one of \
them answers that has a log of the group, nothing is accepted, since there would be two groups.

Examples:
  squall recover --config squall.toml
  squall recover -c squall.toml --rank 1 --json
  squall recover -c squall.toml --accept-loss";

pub(crate) fn run(arguments: &RecoverArguments) -> Result<CommandVerdict> {
    let config = Config::load_for(&arguments.config, arguments.listen.clone(), arguments.rank)?;
    let loss = if arguments.accept_loss { accept_loss(&config)? } else { expected_loss(&config)? };
    if arguments.json {
        output::json(&summary(&loss, arguments.accept_loss))?;
    } else {
        print(&loss, arguments.accept_loss);
    }
    Ok(CommandVerdict::Good)
}

fn summary(loss: &ExpectedLoss, is_accepted: bool) -> serde_json::Value {
    let members: Vec<u32> = loss.members.iter().map(|node| node.0).collect();
    let subgroup = |(name, of): (&String, &SubgroupLoss)| {
        let of = match *of {
            SubgroupLoss::Tail { messages, sequences, missing } => {
                json!({ "messages": messages, "sequences": sequences, "missing": missing })
            }
            // `All`, and what later versions add.
            _ => json!(null),
        };
        (name.clone(), of)
    };
    let subgroups: serde_json::Map<_, _> = loss.subgroups.iter().map(subgroup).collect();
    json!({
        "folder": loss.folder,
        "view": loss.view,
        "members": members,
        "node": loss.node.0,
        "damaged": loss.is_damaged,
        "copy": loss.is_copy,
        "subgroups": subgroups,
        "accepted": is_accepted,
    })
}

fn print(loss: &ExpectedLoss, is_accepted: bool) {
    output::line(format_args!(
        "the log in {} goes up to view {}, which had {}",
        loss.folder.display(),
        loss.view,
        units::things(loss.members.len() as u64, "member")
    ));
    for (name, of) in &loss.subgroups {
        output::line(match *of {
            SubgroupLoss::Tail { messages, sequences, missing } => {
                let kept = units::things(messages, "message");
                let lost = match missing {
                    0 => String::new(),
                    missing => format!("; {} more of that view are known, and lost", units::grouped(missing)),
                };
                format!(
                    "{name}: {kept}, up to sequence {} of view {}{lost}",
                    units::grouped(sequences),
                    loss.view
                )
            }
            _ => format!("{name}: this member did not have it, so that all of it is lost"),
        });
    }
    if loss.is_damaged {
        output::line("the end of the log is damaged: it may have had more");
    }
    if loss.is_copy {
        output::line(
            "this is a copy that `squall log backup` has made: what was delivered after it is lost, too",
        );
    }
    if is_accepted {
        output::line(
            "the group continues from here: start this member, and then others with empty folders (move their old ones away)",
        );
    } else {
        output::line(
            "what only other logs have is lost, too. Nothing was changed: if a majority of the members cannot come back, and no other \
             log goes further, use --accept-loss",
        );
    }
}
