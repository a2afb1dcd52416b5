//! `squall send` and `squall recv`: a subgroup's messages from and to a shell, through a member.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::Duration;

use anyhow::{Error, Result, anyhow, ensure};
use clap::Args;
use serde_json::json;
use squall::config::quantity;
use squall::external::{Observed, Observer, ObserverOptions, PublishError, Publisher, Replay, ReplayOptions};
use squall::{Config, Position, StoredMessage};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_harness::terminal::{
    CommandVerdict, Interrupted, Interrupts, PendingNote, error_text, escaped_text, output, units,
};

use crate::input_lines;

/// What both need to find the group.
#[derive(Debug, Args)]
struct MessageArguments {
    /// The configuration of the group
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// How long to look for a member, at the start and whenever one is lost
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "10s")]
    timeout: Duration,
}

impl MessageArguments {
    fn config(&self) -> Result<Config> {
        Ok(Config::load_for_client(&self.config)?)
    }

    /// Reports that the search for a member takes long.
    fn pending(&self, config: &Config) -> PendingNote {
        let contacts: Vec<String> = config.contacts.iter().map(ToString::to_string).collect();
        let timeout = self.timeout;
        PendingNote::new(format!(
            "looking for a member at {}, for {timeout:.0?} at most...",
            contacts.join(", ")
        ))
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
    /// If a member dies with messages of which it is unknown whether they are delivered, send them again through another
    /// member and continue: none is lost, and some may arrive twice
    #[arg(long)]
    resend: bool,
    /// Print as JSON at the end how many messages are delivered, of how many that is unknown, and the error if there was one
    #[arg(long)]
    json: bool,
}

const SEND_EXAMPLES: &str =
    "A member of the group sends the messages, one that is among the subgroup's senders; this process does not join the \
group. It ends when all members have delivered every message, with exit status 0. At a line that cannot be sent, at Ctrl-C, \
and when the member dies, it ends with an error that says which messages are delivered.

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
    /// Begin at this position of a durable subgroup, `start` or VIEW/SEQUENCE, with what was delivered before; nothing is lost then
    #[arg(long, value_name = "POSITION", value_parser = parse_position, conflicts_with = "queue")]
    from: Option<Position>,
    /// End after this many messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print each message as JSON, with its view and its sender: rank in the configuration, number of the node; and each
    /// gap as {"lost": N}, where null is an unknown number. With --from, with its view, its sequence there, and its sender's rank in
    /// the subgroup
    #[arg(long)]
    json: bool,
    /// Messages that may wait at the member until this process takes them, at most 64MiB; what exceeds this is lost
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, default_value = "16MiB")]
    queue: u64,
}

const RECV_EXAMPLES: &str =
    "A member of the group sends what it delivers from now on; this process does not join the group, and the group never \
waits for it. When the output is read too slowly, --queue bytes wait at the member, and what exceeds this is lost. When the \
member dies, another one continues. Both are gaps: the log reports each, and the exit status is 1 if there was one. With -v the \
log also has the member and the views.

With --from the member sends what is in its log, and then what is delivered. Nothing is lost, however slowly the output is read, and \
another member continues where one has died. The position behind a message is its view and one more than its sequence.

Examples:
  squall recv --config squall.toml log
  squall recv -c squall.toml orders --from start --json
  squall recv -c squall.toml orders --from 3/1702
  squall recv -c squall.toml log --count 1 --json";

pub(crate) fn send(arguments: &SendArguments) -> Result<CommandVerdict> {
    let (config, timeout) = (arguments.group.config()?, arguments.group.timeout);
    let interrupts = Interrupts::take()?;
    let pending = arguments.group.pending(&config);
    let connected = Publisher::connect_with(&config, &arguments.subgroup, timeout);
    drop(pending);
    let is_json = arguments.json;
    let mut publisher = match connected {
        Ok(publisher) => publisher,
        Err(error) => {
            return SendOutcome { delivered: 0, unknown: 0, error: Some(error.into()) }.finish(is_json);
        }
    };
    publisher.set_resend(arguments.resend);
    let (inputs, input) = sync_channel(BATCH_MAX);
    let max = publisher.message_max().unwrap_or(usize::MAX / 2);
    read(arguments.messages.clone(), max, inputs);
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let (events, event) = channel();
    let (flag, interrupt) = (Arc::clone(&is_interrupted), events.clone());
    interrupts.set(move || {
        flag.store(true, Ordering::Relaxed);
        // The receiver has gone when the command is about to end.
        interrupt.send(None).unwrap_or_default();
    });
    std::thread::spawn(move || {
        let outcome = send_all(&mut publisher, &input, &is_interrupted);
        events.send(Some(outcome)).unwrap_or_default();
    });
    match event.recv()? {
        Some(outcome) => outcome.finish(is_json),
        // What is under way is waited for.
        None => match event.recv_timeout(INTERRUPT_PATIENCE) {
            Ok(Some(outcome)) => outcome.finish(is_json).and(Err(Interrupted::ALONE.into())),
            _ => Err(anyhow!("interrupted; what was sent last is not delivered yet, and may be later")
                .context(Interrupted::ALONE)),
        },
    }
}

/// What has become of the messages.
struct SendOutcome {
    /// The first of them are delivered.
    delivered: u64,
    /// Of these after them it is unknown.
    unknown: u64,
    /// Why the rest was not sent.
    error: Option<Error>,
}

impl SendOutcome {
    fn finish(self, is_json: bool) -> Result<CommandVerdict> {
        let Self { delivered, unknown, error } = self;
        if is_json {
            let error = error.as_ref().map(error_text);
            output::json(&json!({ "delivered": delivered, "unknown": unknown, "error": error }))?;
        }
        error.map_or(Ok(CommandVerdict::Good), Err)
    }
}

/// Sends the inputs until they end, an interruption or an error.
fn send_all(
    publisher: &mut Publisher,
    inputs: &Receiver<Result<String>>,
    is_interrupted: &AtomicBool,
) -> SendOutcome {
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
        if let Err(error) = publisher.publish(&batch) {
            return explain(sent, error);
        }
        sent += batch.len() as u64;
    }
    SendOutcome { delivered: sent, unknown: 0, error: fault.map(|fault| fault.context(not_sent(sent))) }
}

/// Says that the message after `sent` others was not sent.
fn not_sent(sent: u64) -> String {
    match sent {
        0 => "message 1 was not sent, nor any after it".to_owned(),
        _ => format!("message {} was not sent, nor any after it; the {sent} before it were", sent + 1),
    }
}

/// What has become of messages of which the first is number `before + 1`.
fn explain(before: u64, error: PublishError) -> SendOutcome {
    let PublishError { delivered, unknown, cause, .. } = error;
    let (delivered, unknown) = (before + delivered as u64, unknown as u64);
    let context = match unknown {
        0 => not_sent(delivered),
        _ => format!(
            "messages {} to {} may be delivered or not; the {delivered} before them are, and none after them was \
             sent: look for them at a reader, and send the missing ones again, or use --resend",
            delivered + 1,
            delivered + unknown
        ),
    };
    SendOutcome { delivered, unknown, error: Some(Error::new(cause).context(context)) }
}

/// Gives the messages, or the lines of standard input, none longer than `max`, to `inputs`, from a thread that may wait for them.
fn read(messages: Vec<String>, max: usize, inputs: SyncSender<Result<String>>) {
    std::thread::spawn(move || {
        // Fails when the receiver has gone.
        let forward = |input: Result<String>| inputs.send(input).is_ok();
        match messages.is_empty() {
            true => input_lines::lines(std::io::stdin().lock(), max).all(forward),
            false => messages.into_iter().map(Ok).all(forward),
        };
    });
}

pub(crate) fn recv(arguments: &RecvArguments) -> Result<CommandVerdict> {
    ensure!(arguments.queue > 0, "--queue 0: give the bytes that may wait, such as 1MiB");
    let config = arguments.group.config()?;
    if let Some(from) = arguments.from {
        return replay(arguments, &config, from);
    }
    let options = ObserverOptions { queue_bytes: arguments.queue, timeout: arguments.group.timeout };
    let interrupts = Interrupts::take()?;
    let pending = arguments.group.pending(&config);
    let mut observer = Observer::connect_with(&config, &arguments.subgroup, options)?;
    drop(pending);
    let (events, event) = channel();
    let interrupt = events.clone();
    // The receiver has gone when the command has ended.
    interrupts.set(move || interrupt.send(None).unwrap_or_default());
    output::end_with_reader();
    let printer = Printer { left: arguments.count.unwrap_or(u64::MAX), json: arguments.json };
    // It may wait for the reader of the output.
    std::thread::spawn(move || events.send(Some(printer.run(&mut observer))).unwrap_or_default());
    event.recv()?.unwrap_or_else(|| Err(Interrupted::ALONE.into()))
}

/// Prints a durable subgroup from a position on.
fn replay(arguments: &RecvArguments, config: &Config, from: Position) -> Result<CommandVerdict> {
    let options = ReplayOptions { timeout: arguments.group.timeout, group: None };
    let interrupts = Interrupts::take()?;
    let pending = arguments.group.pending(config);
    let mut reader = Replay::connect_with(config, &arguments.subgroup, from, options)?;
    drop(pending);
    let (events, event) = channel();
    let interrupt = events.clone();
    // The receiver has gone when the command has ended.
    interrupts.set(move || interrupt.send(None).unwrap_or_default());
    output::end_with_reader();
    let (mut left, is_json) = (arguments.count.unwrap_or(u64::MAX), arguments.json);
    let mut run = move || -> Result<CommandVerdict> {
        while left > 0 {
            let StoredMessage { view, sequence, sender, bytes, .. } = reader.next()?;
            let text = String::from_utf8_lossy(&bytes);
            match is_json {
                true => output::json(
                    &json!({ "view": view, "sequence": sequence, "sender": sender, "message": text }),
                )?,
                false => output::write(&format!("{}\n", escaped_text(&text))),
            }
            left -= 1;
        }
        Ok(CommandVerdict::Good)
    };
    // It may wait for the reader of the output.
    std::thread::spawn(move || events.send(Some(run())).unwrap_or_default());
    event.recv()?.unwrap_or_else(|| Err(Interrupted::ALONE.into()))
}

fn parse_position(text: &str) -> Result<Position, String> {
    if text == "start" {
        return Ok(Position::default());
    }
    let position = text.split_once('/').and_then(|(view, sequence)| {
        Some(Position { view: view.parse().ok()?, sequence: sequence.parse().ok()? })
    });
    position.ok_or_else(|| "a position is `start` or VIEW/SEQUENCE, as in 3/1702".into())
}

/// Prints what an observer sees.
struct Printer {
    /// Messages that are yet to be printed.
    left: u64,
    json: bool,
}

impl Printer {
    fn run(mut self, observer: &mut Observer) -> Result<CommandVerdict> {
        let mut verdict = CommandVerdict::Good;
        log_member(observer);
        while self.left > 0 {
            match observer.next()? {
                Observed::Message { view, node, rank, bytes, .. } => {
                    let text = String::from_utf8_lossy(&bytes);
                    match self.json {
                        true => output::json(
                            &json!({ "view": view, "rank": rank, "node": node.0, "message": text }),
                        )?,
                        // However long.
                        false => output::write(&format!("{}\n", escaped_text(&text))),
                    }
                    self.left -= 1;
                }
                Observed::Lost { messages, cause } => {
                    verdict = CommandVerdict::Bad;
                    if self.json {
                        output::json(&json!({ "lost": messages }))?;
                    }
                    match messages {
                        Some(messages) => tracing::warn!(
                            "{} are lost here: {cause}; read the output faster, or raise --queue",
                            units::things(messages, "message")
                        ),
                        None => {
                            tracing::warn!("messages may be missing here: {cause}");
                            log_member(observer);
                        }
                    }
                }
                Observed::View { id, members } => {
                    let ranks: Vec<String> = members.iter().map(|member| member.tag.to_string()).collect();
                    tracing::info!("view {id}: members {}", ranks.join(", "));
                }
                _ => {}
            }
        }
        Ok(verdict)
    }
}

fn log_member(observer: &Observer) {
    if let Some(member) = observer.member() {
        tracing::info!("reads through the member at {member}");
    }
}

/// Lines that are read ahead, and sent together.
const BATCH_MAX: usize = 1024;
/// The time between two checks whether the command was interrupted.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// How long an interrupted command waits for what it has under way.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(5);
