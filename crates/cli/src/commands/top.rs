//! `squall top`: what the members of a group do, live.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use squall::Config;
use squall::config::{Address, quantity};
use squall_harness::terminal::{CommandVerdict, PendingNote, output, table};

use crate::census;
use crate::top::columns::rows;
use crate::top::{GroupActivity, GroupLook, change_lines, live, serve};

/// Show what the members of a running group do, live
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArguments {
    /// The configuration of the group
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Members to ask first, instead of `contacts` in the file
    #[arg(value_name = "ADDRESS")]
    addresses: Vec<Address>,
    /// How often to ask the members
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    interval: Duration,
    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "1500ms")]
    timeout: Duration,
    /// Print one table, with the rates of one interval, and end; so it is if the output is no terminal
    #[arg(long)]
    once: bool,
    /// Show the same in a browser: serve a page at this address (host:port)
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["once", "json"])]
    serve: Option<Address>,
    /// Print JSON: one line for each interval, or one with --once
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "Any member that answers names the others, which are then asked, too, as `squall status` does. For each member there are its view, \
the messages per second that it sends and delivers in all subgroups, what 99 % of its own messages took at most until it delivered \
them (p99), the messages by which it is behind in receiving (lag), how much of its window is used and for which part of the time it was full, what of durable subgroups is not on its disk, the bytes \
that its log has written and that went to all other members (out) and came from them (in) unless they share memory, and the ranks of \
the members that take no messages, so that this one waits for them (waits). A terminal that is too narrow shows less, and says so. Below are the latest view changes. q or Ctrl-C ends it. The page of \
--serve shows the same to anyone who can reach its address, without the secret; requests that name another host than that address, \
localhost or an IP address are refused, so that pages of other sites in a browser cannot read it.

Examples:
  squall top --config squall.toml
  squall top -c squall.toml 192.0.2.2:7400 --interval 200ms
  squall top -c squall.toml --once
  squall top -c squall.toml --serve 127.0.0.1:8080   (a page for browsers)
  squall top -c squall.toml --json | jq .members[].lag";

/// More often, the questions themselves would be what the members do.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = quantity::duration(text)?;
    if interval < INTERVAL_MIN { Err(format!("write {INTERVAL_MIN:?} or more")) } else { Ok(interval) }
}

pub(crate) fn run(arguments: &TopArguments) -> Result<CommandVerdict> {
    let config = Config::load_for_client(&arguments.config)?;
    let first = census::first(&config, &arguments.addresses);
    let title = format!("squall top: {}, every {:?}", config.cluster, arguments.interval);
    let timeout = arguments.timeout;
    let look = move || Ok(GroupLook::new(Instant::now(), census::ask(&config, first.clone(), timeout)?));
    if let Some(address) = &arguments.serve {
        match serve::serve(address, title, arguments.interval, look)? {}
    }
    if !arguments.once && !arguments.json && console::Term::stdout().features().is_attended() {
        return live::watch(title, arguments.interval, look);
    }
    let pending = PendingNote::new("waiting for answers...".into());
    let mut before = look()?;
    drop(pending);
    loop {
        std::thread::sleep(arguments.interval);
        let now = look()?;
        let activity = GroupActivity::between(Some(&before), &now);
        if arguments.json {
            output::json(&activity)?;
        } else {
            let silence = now.silence();
            ensure!(silence.is_none(), "{}", silence.unwrap_or_default());
            table::lines(&rows(&activity, usize::MAX).0).iter().for_each(output::line);
            change_lines(&activity).iter().for_each(output::line);
        }
        if arguments.once || !arguments.json {
            return Ok(if now.silence().is_none() { CommandVerdict::Good } else { CommandVerdict::Bad });
        }
        before = now;
    }
}
