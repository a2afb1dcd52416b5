//! `squall send` and `squall recv`: a subgroup's messages from and to a shell.

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as Sending, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde_json::json;
use squall::config::{Address, quantity};
use squall::{Builder, Config, Group, Message, NodeId, Sender};
use squall_fabric::atomics::{AtomicUsize, Ordering};

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
leaves; so it does on Ctrl-C, and at a line that cannot be sent, with what it has sent until then. The error says which \
line that was.

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
    /// Print each message as JSON, with its view and its sender: rank in the configuration, number of the node
    #[arg(long)]
    json: bool,
    /// Messages that may wait to be printed; when it is more, this process leaves the group
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "64MiB")]
    queue: u64,
}

const RECV_EXAMPLES: &str =
    "The process joins the group that runs and prints what is delivered from then on; all members see the \
same order. Ctrl-C leaves in order. The group never waits for whoever reads the output: if more than --queue of it is \
unread, the process leaves the group with an error.

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

/// Messages of all subgroups but the named one are let go.
fn builder(config: Config, subgroup: &str, verbose: bool) -> Builder {
    let others: Vec<String> = config.subgroups.keys().filter(|name| *name != subgroup).cloned().collect();
    let mut builder = Group::builder(config).only_join();
    if verbose {
        builder = builder.on_progress(show);
    }
    others.iter().fold(builder, |builder, name| builder.on_message(name, |_| ()))
}

pub(crate) fn send(arguments: &SendArguments) -> Result<Verdict> {
    let config = visitor(&arguments.way, &arguments.subgroup)?;
    let patience = leave_patience(&config);
    let interrupts = Interrupts::take()?;
    // Others' messages are let go, so that nobody waits for this process.
    let builder = builder(config, &arguments.subgroup, arguments.way.verbose);
    let mut group = builder.on_message(&arguments.subgroup, |_| ()).join()?;
    let subgroup = group.subgroup(&arguments.subgroup)?;
    let mut sender = subgroup.sender().context("this process would need the rank of a sender")?;
    let (inputs, input) = sync_channel(INPUTS_MAX);
    let interrupt = inputs.clone();
    // Nobody listens any more when the command is about to end.
    interrupts.set(move || drop(interrupt.send(Input::Interrupted)));
    read(arguments.messages.clone(), inputs);
    let outcome = send_all(&mut sender, &input);
    // Also after an error: what was taken before it is safe with all members.
    while !sender.is_drained() {
        if let Some(failure) = group.failure() {
            return Err(failure.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    group.leave(patience);
    outcome
}

/// Sends what comes until the end, an interruption or an error.
fn send_all(sender: &mut Sender, inputs: &Receiver<Input>) -> Result<Verdict> {
    for number in 1_u64.. {
        let text = match inputs.recv() {
            Ok(Input::Message(text)) => text,
            Ok(Input::Interrupted) => return Err(Interrupted::LEFT.into()),
            Ok(Input::End) | Err(_) => break,
        };
        let send = |text: String| {
            sender.send_blocking(text.len(), |slot| slot.copy_from_slice(text.as_bytes())).map_err(Into::into)
        };
        text.and_then(send).with_context(|| match number {
            1 => "message 1 was not sent".to_owned(),
            _ => {
                format!("message {number} was not sent, nor any after it; the {} before it were", number - 1)
            }
        })?;
    }
    Ok(Verdict::Good)
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
    let (events, event) = channel();
    let (lines, line) = channel();
    let bytes_max = usize::try_from(arguments.queue).unwrap_or(usize::MAX);
    let (unread, is_over) = (Arc::new(AtomicUsize::new(0)), events.clone());
    let queue = Queue { lines: Some(lines), unread: Arc::clone(&unread), bytes_max, is_over };
    let ranks: Ranks = Arc::default();
    let known = Arc::clone(&ranks);
    let mut builder = builder(config, &arguments.subgroup, arguments.way.verbose);
    builder = builder.on_view(move |view| lock(&known).extend(view.members.iter().map(|m| (m.node, m.tag))));
    let group = builder.on_message(&arguments.subgroup, queue.into_upcall()).join()?;
    let interrupt = events.clone();
    // Nobody listens any more when the command has ended.
    interrupts.set(move || interrupt.send(Event::Interrupted).unwrap_or_default());
    let (count, json) = (arguments.count.unwrap_or(u64::MAX), arguments.json);
    std::thread::spawn(move || {
        print(&line, &unread, count, json.then_some(&*ranks));
        events.send(Event::Printed).unwrap_or_default();
    });
    loop {
        match event.recv_timeout(LOOK_PERIOD) {
            Ok(Event::Interrupted) => {
                group.leave(patience);
                return Err(Interrupted::LEFT.into());
            }
            Ok(Event::Unread { bytes }) => {
                group.leave(patience);
                bail!(
                    "nobody reads the output: {bytes} bytes of messages wait, so this process has left the group, \
                     which does not wait for it; read faster, or raise --queue"
                );
            }
            Ok(Event::Printed) | Err(RecvTimeoutError::Disconnected) => {
                group.leave(patience);
                return Ok(Verdict::Good);
            }
            Err(RecvTimeoutError::Timeout) => {
                let Some(failure) = group.failure() else { continue };
                // What was delivered before is printed first.
                drop(group);
                while !matches!(event.recv(), Ok(Event::Printed) | Err(_)) {}
                return Err(failure.into());
            }
        }
    }
}

/// What ends `squall recv`.
enum Event {
    Interrupted,
    /// So much is unread that the rest is not kept.
    Unread {
        bytes: usize,
    },
    /// All that was asked for, or all that came, is printed.
    Printed,
}

/// A message that waits to be printed.
struct Line {
    view: u64,
    node: NodeId,
    bytes: Vec<u8>,
}

/// Takes messages from the polling thread, which never waits here: when too much is unread it takes no more of them.
struct Queue {
    lines: Option<Sending<Line>>,
    unread: Arc<AtomicUsize>,
    bytes_max: usize,
    is_over: Sending<Event>,
}

impl Queue {
    fn into_upcall(mut self) -> impl FnMut(Message<'_>) + Send + 'static {
        move |message| {
            let Some(lines) = &self.lines else { return };
            let bytes = LINE_BYTES + message.bytes.len();
            let unread = self.unread.fetch_add(bytes, Ordering::Relaxed);
            if unread > 0 && unread + bytes > self.bytes_max {
                self.is_over.send(Event::Unread { bytes: unread }).unwrap_or_default();
                self.lines = None;
                return;
            }
            let Message { view, node, bytes, .. } = message;
            // Nobody prints any more when all that was asked for is printed.
            lines.send(Line { view, node, bytes: bytes.to_vec() }).unwrap_or_default();
        }
    }
}

/// The ranks of all members there have been, which are told before their first messages.
type Ranks = Arc<Mutex<BTreeMap<NodeId, u64>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints `count` messages, or until no more come; as JSON if there are ranks.
fn print(
    lines: &Receiver<Line>,
    unread: &AtomicUsize,
    count: u64,
    json: Option<&Mutex<BTreeMap<NodeId, u64>>>,
) {
    for _ in 0..count {
        let Ok(Line { view, node, bytes }) = lines.recv() else { return };
        let text = String::from_utf8_lossy(&bytes);
        match json {
            Some(ranks) => {
                let rank = lock(ranks).get(&node).copied();
                output::line(json!({ "view": view, "rank": rank, "node": node.0, "message": text }));
            }
            None => output::line(text),
        }
        unread.fetch_sub(LINE_BYTES + bytes.len(), Ordering::Relaxed);
    }
}

/// Lines that are read ahead.
const INPUTS_MAX: usize = 64;
/// What a message takes in the queue, besides its bytes.
const LINE_BYTES: usize = 64;
/// Between looks whether the group has ended.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
