//! `squall dds`: topics from and to a shell, in the terms of OMG DDS. A node is a member of the domain; all other commands are clients of
//! its members.

mod hz;
mod list;
mod node;
mod publish;
mod subscribe;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, ValueEnum};
use squall::Config;
use squall::config::quantity;
use squall_dds::{
    DomainClient, DurabilityService, EntityError, HistoryKind, Presentation, Qos, TopicDescription,
    TopicStore,
};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_harness::terminal::{CommandVerdict, Interrupted, Interrupts, PendingNote};

/// Write and read topics of a domain in the terms of OMG DDS
#[derive(Debug, Args)]
pub(crate) struct DdsArguments {
    #[command(subcommand)]
    command: DdsCommand,
}

#[derive(Debug, Subcommand)]
enum DdsCommand {
    Node(node::DdsNodeArguments),
    Pub(publish::PubArguments),
    Sub(subscribe::SubArguments),
    Echo(subscribe::EchoArguments),
    List(list::ListArguments),
    Hz(hz::HzArguments),
}

pub(crate) fn run(arguments: DdsArguments) -> Result<CommandVerdict> {
    match arguments.command {
        DdsCommand::Node(arguments) => node::run(&arguments),
        DdsCommand::Pub(arguments) => publish::run(arguments),
        DdsCommand::Sub(arguments) => subscribe::run_sub(arguments),
        DdsCommand::Echo(arguments) => subscribe::run_echo(arguments),
        DdsCommand::List(arguments) => list::run(arguments),
        DdsCommand::Hz(arguments) => hz::run(arguments),
    }
}

/// What all need to find the domain.
#[derive(Clone, Debug, Args)]
struct DomainArguments {
    /// The configuration of the domain's group; it needs no subgroups, since these are topics
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// How long to look for a node, and for the topic
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "10s")]
    timeout: Duration,
}

/// The profile of a topic.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ProfileChoice {
    /// In the order of each writer; nothing is kept
    Unordered,
    /// In one order for all; nothing is kept
    Atomic,
    /// As atomic, and kept in memory for readers that come later
    Kept,
    /// As kept, on the disks of all members
    Logged,
}

/// The topic that a command creates, if it is not there.
#[derive(Debug, Args)]
struct TopicArguments {
    /// The topic
    topic: String,
    /// The profile of the topic, if it is not there yet [default: atomic]
    #[arg(long, value_enum)]
    profile: Option<ProfileChoice>,
    /// Keep the last samples of each instance only, with the profiles kept and logged
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
}

/// A client of a domain.
struct Connected {
    client: DomainClient,
    is_interrupted: Arc<AtomicBool>,
    timeout: Duration,
}

impl DomainArguments {
    /// Connects to the domain, and does `act` until it ends or is interrupted; it looks for that between two waits of [`LOOK_PERIOD`].
    fn run(
        &self,
        act: impl FnOnce(&Connected) -> Result<CommandVerdict> + Send + 'static,
    ) -> Result<CommandVerdict> {
        let config = Config::load_for_client(&self.config)?;
        let interrupts = Interrupts::take()?;
        let contacts: Vec<String> = config.contacts.iter().map(ToString::to_string).collect();
        let (contacts, timeout) = (contacts.join(", "), self.timeout);
        let pending = PendingNote::new(format!(
            "looking for a node of the domain at {contacts}, for {timeout:.0?} at most..."
        ));
        let store = if config.storage.is_some() { TopicStore::Disk } else { TopicStore::Memory };
        let client = DomainClient::connect(config, store, timeout).with_context(|| {
            format!("no node of the domain serves this command at {contacts}: {}", self.advice())
        })?;
        drop(pending);
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let connected = Connected { client, is_interrupted: Arc::clone(&is_interrupted), timeout };
        let (events, event) = channel();
        let interrupt = events.clone();
        interrupts.set(move || {
            is_interrupted.store(true, Ordering::Relaxed);
            // The receiver has gone when the command is about to end.
            interrupt.send(None).unwrap_or_default();
        });
        // It may wait for the reader of the output.
        std::thread::spawn(move || {
            let outcome = act(&connected);
            // The client ends in order.
            drop(connected);
            events.send(Some(outcome)).unwrap_or_default();
        });
        match event.recv()? {
            Some(outcome) => outcome,
            None => match event.recv_timeout(INTERRUPT_PATIENCE) {
                Ok(Some(outcome)) => outcome.and(Err(Interrupted::ALONE.into())),
                _ => Err(Interrupted::ALONE.into()),
            },
        }
    }

    fn advice(&self) -> String {
        format!(
            "start one by `squall dds node --config {}`, or set `contacts` to where one listens",
            self.config.display()
        )
    }
}

impl Connected {
    fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Relaxed)
    }

    /// Returns the topic of this name, if there is one.
    fn topic(&self, name: &str) -> Result<Option<TopicDescription>> {
        Ok(self.client.topics()?.into_iter().find(|topic| topic.name == name))
    }

    /// Waits for a topic that another process has created, or creates.
    fn find(&self, name: &str) -> Result<TopicDescription> {
        let (begun, waited) = (Instant::now(), self.timeout);
        let _pending = PendingNote::new(format!("waiting for topic {name:?}, for {waited:.0?} at most..."));
        loop {
            if let Some(topic) = self.topic(name)? {
                return Ok(topic);
            }
            if self.is_interrupted() || begun.elapsed() >= waited {
                return Err(EntityError::NotFound { topic: name.into(), waited }.into());
            }
            std::thread::sleep(LOOK_PERIOD.min(waited));
        }
    }
}

impl TopicArguments {
    /// Returns the topic as it is; creates it if it is not there.
    fn open(&self, connected: &Connected) -> Result<TopicDescription> {
        let wanted = self.profile.map(|profile| self.qos(profile));
        if wanted.is_none()
            && self.keep.is_none()
            && let Some(topic) = connected.topic(&self.topic)?
        {
            return Ok(topic);
        }
        let qos = wanted.unwrap_or_else(|| self.qos(ProfileChoice::Atomic));
        match connected.client.create_topic::<Vec<u8>>(&self.topic, qos) {
            // Readers take any type.
            Ok(()) | Err(EntityError::TypeMismatch { .. }) => connected.find(&self.topic),
            Err(error) => Err(error.into()),
        }
    }

    fn qos(&self, profile: ProfileChoice) -> Qos {
        let qos = match profile {
            ProfileChoice::Unordered => Qos::UNORDERED,
            ProfileChoice::Atomic => Qos::ATOMIC,
            ProfileChoice::Kept => Qos::KEPT,
            ProfileChoice::Logged => Qos::LOGGED,
        };
        let history = self.keep.map(|depth| HistoryKind::KeepLast(depth as usize));
        let service = history.map(|history| DurabilityService { history, ..DurabilityService::EVERYTHING });
        Qos { durability_service: service, ..qos }
    }
}

/// Returns the policies of a reader or writer that suits the topic.
fn endpoint_qos(topic: &TopicDescription) -> Qos {
    Qos { autodispose_unregistered_instances: false, ..topic.qos.clone() }
}

/// Returns the policies of a reader that reads the topic by itself, also if it is in one order with others.
fn reader_qos(topic: &TopicDescription) -> Qos {
    Qos { presentation: Presentation::TOPIC_ORDERED, ..endpoint_qos(topic) }
}

/// Between looks whether the command was interrupted.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// How long an interrupted command may take to end in order; it may wait for the reader of its output.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(2);
