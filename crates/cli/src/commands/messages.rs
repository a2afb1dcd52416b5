//! `squall send` and `squall recv`: a subgroup's messages from and to a shell.

use std::io::BufRead as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::json;
use squall::config::Address;
use squall::{Config, Group};

use super::node::{leave_patience, show};
use crate::Verdict;
use crate::cluster::{Interrupted, Interrupts};
use crate::output;

/// What both need to come into the group.
#[derive(Debug, Args)]
struct Way {
    /// The configuration of the group
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Where this process can be reached by the members [default: at the host of `listen`, at a free port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,
    /// Tell what happens on the way into the group
    #[arg(short, long)]
    verbose: bool,
}

/// Send messages to a subgroup: the arguments, or the lines of standard input
#[derive(Debug, Args)]
#[command(after_help = SEND_EXAMPLES)]
pub(crate) struct SendArguments {
    #[command(flatten)]
    way: Way,
    /// The subgroup
    subgroup: String,
    /// The messages [default: the lines of standard input]
    messages: Vec<String>,
}

const SEND_EXAMPLES: &str =
    "The process joins the group that runs, sends, waits until all members have every message, and \
leaves; so it does on Ctrl-C, with what it has sent until then.

Examples:
  squall send --config squall.toml log \"hello, all\"
  journalctl -f | squall send -c squall.toml log";

/// Print the messages of a subgroup as they are delivered
#[derive(Debug, Args)]
#[command(after_help = RECV_EXAMPLES)]
pub(crate) struct RecvArguments {
    #[command(flatten)]
    way: Way,
    /// The subgroup
    subgroup: String,
    /// End after so many messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print each message as JSON, with its view and the sender's place in it
    #[arg(long)]
    json: bool,
}

const RECV_EXAMPLES: &str =
    "The process joins the group that runs and prints what is delivered from then on; all members see the \
same order. Ctrl-C leaves in order.

Examples:
  squall recv --config squall.toml log
  squall recv -c squall.toml log --count 1 --json";

/// The configuration of a process that comes for a while.
fn visitor(way: &Way, subgroup: &str) -> Result<Config> {
    let mut config = Config::load(&way.config)?;
    ensure!(
        config.subgroups.contains_key(subgroup),
        "{} has no subgroup `{subgroup}`: it has {}",
        way.config.display(),
        list(config.subgroups.keys())
    );
    if config.contacts.is_empty() {
        config.contacts = vec![config.listen.clone()];
    }
    config.rank = None;
    config.listen = match (&way.listen, &config.listen) {
        (Some(listen), _) => listen.clone(),
        (None, Address::Tcp { host, .. }) => Address::Tcp { host: host.clone(), port: 0 },
        (None, _) => Address::Abstract(format!("squall-{}-{}", config.cluster, std::process::id())),
    };
    Ok(config)
}

fn list<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Joins; all subgroups but the named one are looked after.
fn join(config: Config, subgroup: &str, verbose: bool) -> Result<Group> {
    let others: Vec<String> = config.subgroups.keys().filter(|name| *name != subgroup).cloned().collect();
    let mut builder = Group::builder(config).only_join();
    if verbose {
        builder = builder.on_progress(show);
    }
    let builder = others.iter().fold(builder, |builder, name| builder.on_message(name, |_| ()));
    Ok(builder.join()?)
}

pub(crate) fn send(arguments: &SendArguments) -> Result<Verdict> {
    let config = visitor(&arguments.way, &arguments.subgroup)?;
    let patience = leave_patience(&config);
    let interrupts = Interrupts::take()?;
    let mut group = join(config, &arguments.subgroup, arguments.way.verbose)?;
    let subgroup = group.subgroup(&arguments.subgroup)?;
    let mut sender = subgroup.sender().context("this process would need the rank of a sender")?;
    let mut deliveries = subgroup.deliveries()?;
    // Others' messages are let go, so that nobody waits for this process.
    let letting_go = std::thread::spawn(move || while deliveries.next().is_ok() {});
    let mut send = |text: &[u8]| sender.send_blocking(text.len(), |slot| slot.copy_from_slice(text));
    let (inputs, input) = sync_channel(INPUTS_MAX);
    let interrupt = inputs.clone();
    // Nobody listens any more when the command is about to end.
    interrupts.set(move || drop(interrupt.send(Input::Interrupted)));
    read(arguments.messages.clone(), inputs);
    let mut interrupted = false;
    for input in input {
        match input {
            Input::Message(text) => send(text?.as_bytes())?,
            Input::End => break,
            Input::Interrupted => {
                interrupted = true;
                break;
            }
        }
    }
    while !sender.is_drained() {
        if let Some(failure) = group.failure() {
            return Err(failure.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    group.leave(patience);
    // It has seen the end of the group.
    let _ = letting_go.join();
    if interrupted { Err(Interrupted::LEFT.into()) } else { Ok(Verdict::Good) }
}

/// What `squall send` waits for.
enum Input {
    Message(Result<String>),
    End,
    Interrupted,
}

/// Gives the messages, or the lines of standard input, to `inputs`, from a thread that may wait for them.
fn read(messages: Vec<String>, inputs: SyncSender<Input>) {
    std::thread::spawn(move || {
        // Fails when nobody listens any more.
        let give = |input: Input| inputs.send(input).is_ok();
        let lines = std::io::stdin().lock().lines();
        let lines = lines.map(|line| line.context("standard input cannot be read as text"));
        let all = match messages.is_empty() {
            true => lines.map(Input::Message).all(give),
            false => messages.into_iter().map(|message| Input::Message(Ok(message))).all(give),
        };
        if all {
            give(Input::End);
        }
    });
}

pub(crate) fn recv(arguments: &RecvArguments) -> Result<Verdict> {
    let config = visitor(&arguments.way, &arguments.subgroup)?;
    let patience = leave_patience(&config);
    let interrupts = Interrupts::take()?;
    let mut group = join(config, &arguments.subgroup, arguments.way.verbose)?;
    let mut deliveries = group.subgroup(&arguments.subgroup)?.deliveries()?;
    let (sender, interrupted) = channel();
    // Nobody listens any more when the command has ended.
    interrupts.set(move || sender.send(()).unwrap_or_default());
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 {
        match deliveries.try_next() {
            Ok(Some(message)) => {
                let text = String::from_utf8_lossy(message.bytes);
                if arguments.json {
                    output::line(json!({ "view": message.view, "sender": message.sender, "message": text }));
                } else {
                    output::line(text);
                }
                left -= 1;
            }
            Ok(None) if is_interrupted(&interrupted) => {
                group.leave(patience);
                return Err(Interrupted::LEFT.into());
            }
            Ok(None) => {}
            Err(error) => return Err(error.into()),
        }
    }
    group.leave(patience);
    Ok(Verdict::Good)
}

/// Waits a little; whether somebody has asked to end.
fn is_interrupted(interrupted: &Receiver<()>) -> bool {
    !matches!(interrupted.recv_timeout(LOOK_PERIOD), Err(RecvTimeoutError::Timeout))
}

/// Lines that are read ahead.
const INPUTS_MAX: usize = 64;
/// Between looks for messages where a shell waits for them.
const LOOK_PERIOD: Duration = Duration::from_millis(2);
