//! `squall send` and `squall recv`: a subgroup's messages from and to a shell, through a member.

use std::io::BufRead as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, ensure};
use clap::Args;
use serde_json::json;
use squall::Config;
use squall::config::quantity;
use squall::external::{Observed, Observer, ObserverOptions, PublishError, Publisher};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_harness::terminal::{CommandVerdict, Interrupted, Interrupts, output};

/// What both need to find the group.
#[derive(Debug, Args)]
struct MessageArguments {
    /// The configuration of the group
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// How long to look for a member, at the beginning and whenever one is lost
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "10s")]
    timeout: Duration,
}

impl MessageArguments {
    fn config(&self) -> Result<Config> {
        Ok(Config::load(&self.config)?)
    }
}

/// Send messages to a subgroup: the arguments, or the lines of standard input
#[derive(Debug, Args)]
#[command(after_help = SEND_EXAMPLES)]
pub(crate) struct SendArguments {
    #[command(flatten)]
    group: MessageArguments,
    /// The subgroup
    subgroup: String,
    /// The messages [default: the lines of standard input]
    messages: Vec<String>,
    /// If a member dies with messages of which it is unknown whether they are delivered, send them again by another one
    /// and go on: none is lost, and some may come twice
    #[arg(long)]
    resend: bool,
}

const SEND_EXAMPLES: &str =
    "A member of the group sends the messages, one that is among the subgroup's senders; this process does not join the \
group. It ends when all members have delivered every message, and then its exit status is 0. At a line that cannot be \
sent, at Ctrl-C, and when the member dies, it ends with an error that says which messages are delivered.

Examples:
  squall send --config squall.toml log \"hello, all\"
  journalctl -f | squall send -c squall.toml log --resend";

/// Print the messages of a subgroup as they are delivered
#[derive(Debug, Args)]
#[command(after_help = RECV_EXAMPLES)]
pub(crate) struct RecvArguments {
    #[command(flatten)]
    group: MessageArguments,
    /// The subgroup
    subgroup: String,
    /// End after so many messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print each message as JSON, with its view and its sender: rank in the configuration, number of the node; and each
    /// gap as {"lost": N}, where null is an unknown number
    #[arg(long)]
    json: bool,
    /// Messages that may wait at the member until this process takes them, at most 64MiB; what comes beyond is lost
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "16MiB")]
    queue: u64,
    /// Tell of each view on standard error
    #[arg(short, long)]
    verbose: bool,
}

const RECV_EXAMPLES: &str =
    "A member of the group sends what it delivers from now on; this process does not join the group, and the group never \
waits for it. When the output is read too slowly, --queue bytes wait at the member, and what comes beyond is lost. When \
the member dies, another one goes on. Both are gaps: standard error tells of each, and the exit status is 1 if there was one.

Examples:
  squall recv --config squall.toml log
  squall recv -c squall.toml log --count 1 --json";

pub(crate) fn send(arguments: &SendArguments) -> Result<CommandVerdict> {
    let (config, timeout) = (arguments.group.config()?, arguments.group.timeout);
    let interrupts = Interrupts::take()?;
    let mut publisher = Publisher::connect_with(&config, &arguments.subgroup, timeout)?;
    publisher.set_resend(arguments.resend);
    let (inputs, input) = sync_channel(BATCH_MAX);
    read(arguments.messages.clone(), inputs);
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let (events, event) = channel();
    let (flag, interrupt) = (Arc::clone(&is_interrupted), events.clone());
    interrupts.set(move || {
        flag.store(true, Ordering::Relaxed);
        // Nobody listens any more when the command is about to end.
        interrupt.send(None).unwrap_or_default();
    });
    std::thread::spawn(move || {
        let outcome = send_all(&mut publisher, &input, &is_interrupted);
        events.send(Some(outcome)).unwrap_or_default();
    });
    match event.recv()? {
        Some(outcome) => outcome,
        // What is under way is waited for.
        None => match event.recv_timeout(INTERRUPT_PATIENCE) {
            Ok(Some(outcome)) => outcome.and(Err(Interrupted::ALONE.into())),
            _ => Err(anyhow!("interrupted; what was sent last is not delivered yet, and may be later")
                .context(Interrupted::ALONE)),
        },
    }
}

/// Sends what comes until the end, an interruption or an error.
fn send_all(
    publisher: &mut Publisher,
    inputs: &Receiver<Result<String>>,
    is_interrupted: &AtomicBool,
) -> Result<CommandVerdict> {
    let mut sent: u64 = 0;
    let (mut is_over, mut fault) = (false, None);
    while !is_over && fault.is_none() && !is_interrupted.load(Ordering::Relaxed) {
        let mut batch = Vec::new();
        let mut next = inputs.recv_timeout(LOOK_PERIOD);
        loop {
            match next {
                Ok(Ok(message)) => batch.push(message),
                Ok(Err(error)) => fault = Some(error),
                Err(RecvTimeoutError::Disconnected) => is_over = true,
                Err(RecvTimeoutError::Timeout) => break,
            }
            if batch.len() == BATCH_MAX || is_over || fault.is_some() {
                break;
            }
            next = inputs.recv_timeout(Duration::ZERO);
        }
        publisher.publish(&batch).map_err(|error| explain(sent, error))?;
        sent += batch.len() as u64;
    }
    fault.map_or(Ok(CommandVerdict::Good), |fault| Err(fault.context(not_sent(sent))))
}

/// That the message behind `sent` others was not sent.
fn not_sent(sent: u64) -> String {
    match sent {
        0 => "message 1 was not sent, nor any after it".to_owned(),
        _ => format!("message {} was not sent, nor any after it; the {sent} before it were", sent + 1),
    }
}

/// What has become of messages of which the first is number `before + 1`.
fn explain(before: u64, error: PublishError) -> Error {
    let PublishError { delivered, unknown, cause, .. } = error;
    let delivered = before + delivered as u64;
    if unknown == 0 {
        return Error::new(cause).context(not_sent(delivered));
    }
    let (first, last) = (delivered + 1, delivered + unknown as u64);
    Error::new(cause).context(format!(
        "messages {first} to {last} may be delivered or not; the {delivered} before them are, and none after them was \
         sent: look for them at a reader, and send the missing ones again, or use --resend"
    ))
}

/// Gives the messages, or the lines of standard input, to `inputs`, from a thread that may wait for them.
fn read(messages: Vec<String>, inputs: SyncSender<Result<String>>) {
    std::thread::spawn(move || {
        // Fails when nobody listens any more.
        let forward = |input: Result<String>| inputs.send(input).is_ok();
        let lines = std::io::stdin().lock().lines();
        let mut lines = lines.map(|line| line.context("standard input cannot be read as text"));
        match messages.is_empty() {
            true => lines.all(forward),
            false => messages.into_iter().map(Ok).all(forward),
        };
    });
}

pub(crate) fn recv(arguments: &RecvArguments) -> Result<CommandVerdict> {
    ensure!(arguments.queue > 0, "--queue 0: give the bytes that may wait, such as 1MiB");
    let config = arguments.group.config()?;
    let options = ObserverOptions { queue_bytes: arguments.queue, timeout: arguments.group.timeout };
    let interrupts = Interrupts::take()?;
    let mut observer = Observer::connect_with(&config, &arguments.subgroup, options)?;
    let (events, event) = channel();
    let interrupt = events.clone();
    // Nobody listens any more when the command has ended.
    interrupts.set(move || interrupt.send(None).unwrap_or_default());
    let printer = Printer {
        left: arguments.count.unwrap_or(u64::MAX),
        json: arguments.json,
        verbose: arguments.verbose,
    };
    // It may wait for whoever reads the output.
    std::thread::spawn(move || events.send(Some(printer.run(&mut observer))).unwrap_or_default());
    event.recv()?.unwrap_or_else(|| Err(Interrupted::ALONE.into()))
}

/// Prints what an observer sees.
struct Printer {
    /// Messages that are yet to be printed.
    left: u64,
    json: bool,
    verbose: bool,
}

impl Printer {
    fn run(mut self, observer: &mut Observer) -> Result<CommandVerdict> {
        let mut verdict = CommandVerdict::Good;
        self.name_member(observer);
        while self.left > 0 {
            match observer.next()? {
                Observed::Message { view, node, rank, bytes, .. } => {
                    let text = String::from_utf8_lossy(&bytes);
                    match self.json {
                        true => output::line(
                            json!({ "view": view, "rank": rank, "node": node.0, "message": text }),
                        ),
                        false => output::line(text),
                    }
                    self.left -= 1;
                }
                Observed::Lost { messages, cause } => {
                    verdict = CommandVerdict::Bad;
                    if self.json {
                        output::line(json!({ "lost": messages }));
                    }
                    match messages {
                        Some(messages) => output::note(format_args!(
                            "squall: {messages} messages are lost here: {cause}; read the output faster, or raise --queue"
                        )),
                        None => {
                            output::note(format_args!("squall: messages may be missing here: {cause}"));
                            self.name_member(observer);
                        }
                    }
                }
                Observed::View { id, members } if self.verbose => {
                    let ranks: Vec<String> = members.iter().map(|member| member.tag.to_string()).collect();
                    output::note(format_args!("view {id}: members {}", ranks.join(", ")));
                }
                _ => {}
            }
        }
        Ok(verdict)
    }

    fn name_member(&self, observer: &Observer) {
        if let Some(member) = observer.member().filter(|_| self.verbose) {
            output::note(format_args!("reads through the member at {member}"));
        }
    }
}

/// Lines that are read ahead, and sent together.
const BATCH_MAX: usize = 1024;
/// Between looks whether the command was interrupted.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// How long an interrupted command waits for what it has under way.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(5);
