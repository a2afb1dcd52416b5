//! `squall recover`: the log of a member takes from others what it lacks; or a group continues from it alone, because the others are lost.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use squall::Config;
use squall::recovery::{ExpectedLoss, SubgroupLoss, accept_loss, expected_loss};
use squall_harness::terminal::{CommandVerdict, output, units};

mod merge;

/// Mend the log of a member from the folders of others, or continue a durable group from one log
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
    /// Have this log take what it lacks from the folder of another member, or from a copy of it; once for each
    #[arg(long, value_name = "FOLDER", conflicts_with = "accept_loss")]
    from: Vec<PathBuf>,
    /// With --from: do it; without this nothing is changed
    #[arg(long, requires = "from")]
    yes: bool,
    /// Continue from this log, and lose what only others had
    #[arg(long)]
    accept_loss: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "A group restarts by itself, and loses nothing, when a majority of its last view is back, and \
one of their logs is not damaged.

If all logs are damaged, copy the folders of the others to this host, and give them with --from. The log of this member takes from them \
what it lacks, also from behind their damage. Only logs of one group and one history are merged. The other folders are only read; in that \
of this member nothing is written over but the register, which is kept in the folder `aside` in it as it was. If the log is whole then, \
start the members; one such log is enough. The exit status is 1 if something stays missing.

If a majority of the members can never come back, choose the member whose log goes furthest: without --from this command says how far each \
one goes, and changes nothing without --accept-loss. With it the member starts alone the next time, and others join it with empty \
folders. Members that have a log of the group of before are refused from then on, so do this at one member only, and move the folders of \
the others away. The contacts are asked first: while one of them answers that has a log of the group, nothing is accepted, since there \
would be two groups.

Examples:
  squall recover --config squall.toml
  squall recover -c squall.toml --rank 1 --json
  squall recover -c squall.toml --rank 1 --from /tmp/r0 --from /tmp/r2
  squall recover -c squall.toml --rank 1 --from /tmp/r0 --from /tmp/r2 --yes
  squall recover -c squall.toml --accept-loss";

pub(crate) fn run(arguments: &RecoverArguments) -> Result<CommandVerdict> {
    let config = Config::load_for(&arguments.config, arguments.listen.clone(), arguments.rank)?;
    if !arguments.from.is_empty() {
        return merge::run(&config, &arguments.from, arguments.yes, arguments.json);
    }
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
             log goes further, use --accept-loss; before that, --from takes what this log lacks from the folders of others",
        );
    }
}
