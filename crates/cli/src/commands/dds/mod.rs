//! `squall dds`: topics from and to a shell, in the terms of OMG DDS.

mod hz;
mod list;
mod node;
mod publish;
mod subscribe;

use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use squall::Config;
use squall::config::{Address, quantity};
use squall_dds::{
    DomainParticipant, DurabilityService, EntityError, HistoryKind, Presentation, Qos, Topic, TopicStore,
};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_harness::terminal::{CommandVerdict, Interrupts, PendingNote};

/// Write and read topics, as processes of a domain in the terms of OMG DDS
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

pub(crate) fn run(arguments: &DdsArguments) -> Result<CommandVerdict> {
    match &arguments.command {
        DdsCommand::Node(arguments) => node::run(arguments),
        DdsCommand::Pub(arguments) => publish::run(arguments),
        DdsCommand::Sub(arguments) => subscribe::run_sub(arguments),
        DdsCommand::Echo(arguments) => subscribe::run_echo(arguments),
        DdsCommand::List(arguments) => list::run(arguments),
        DdsCommand::Hz(arguments) => hz::run(arguments),
    }
}

/// What all need to join the domain.
#[derive(Debug, Args)]
struct DomainArguments {
    /// The configuration of the domain's group; it needs no subgroups, since these are topics
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Where this process can be reached [default: a free address of this host]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,
    /// How long to try to join, and to look for the topic
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

/// A participant, until it leaves or is interrupted.
struct Joined {
    participant: DomainParticipant,
    is_interrupted: Arc<AtomicBool>,
}

impl DomainArguments {
    /// Joins the domain, which runs.
    fn join(&self) -> Result<Joined> {
        let client = Config::load_for_client(&self.config)?;
        let listen = match &self.listen {
            Some(listen) => listen.clone(),
            None => {
                ensure!(
                    client.storage.is_none(),
                    "the domain has a storage, where each process needs a folder of its own: give --listen, which names it"
                );
                free_address(&client)?
            }
        };
        let mut config = Config::load_for_domain(&self.config, Some(listen), None)?;
        // The file may name the rank of a member.
        config.rank = None;
        self.begin(config)
    }

    /// Joins the domain, or brings it together with others.
    fn begin(&self, mut config: Config) -> Result<Joined> {
        config.timeout = self.timeout;
        let interrupts = Interrupts::take()?;
        let contacts: Vec<String> = config.contacts.iter().map(ToString::to_string).collect();
        let pending = PendingNote::new(format!(
            "joining the domain at {}, for {:.0?} at most...",
            contacts.join(", "),
            self.timeout
        ));
        let store = if config.storage.is_some() { TopicStore::Disk } else { TopicStore::Memory };
        let participant = DomainParticipant::builder(config).run_time_topics(store).join()?;
        drop(pending);
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_interrupted);
        interrupts.set(move || flag.store(true, Ordering::Relaxed));
        Ok(Joined { participant, is_interrupted })
    }
}

impl Joined {
    fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Relaxed)
    }

    /// Leaves the domain in order. Readers and writers are dropped before.
    fn leave(self) {
        let departure = self.participant.leave(LEAVE_PATIENCE);
        tracing::info!("left the domain: {departure:?}");
    }

    /// Waits for a topic that another participant has created, or creates.
    fn find(&self, name: &str, timeout: Duration) -> Result<Topic<Vec<u8>>> {
        let pending = PendingNote::new(format!("waiting for topic `{name}`, for {timeout:.0?} at most..."));
        let mut left = timeout;
        loop {
            match self.participant.wait_for_topic(name, left.min(LOOK_PERIOD)) {
                Ok(()) => break,
                Err(EntityError::NotFound { topic, .. }) if self.is_interrupted() || left <= LOOK_PERIOD => {
                    return Err(EntityError::NotFound { topic, waited: timeout }.into());
                }
                Err(EntityError::NotFound { .. }) => left -= LOOK_PERIOD,
                Err(error) => return Err(error.into()),
            }
        }
        drop(pending);
        Ok(self.participant.topic_of_any_type(name)?)
    }
}

impl TopicArguments {
    /// Returns the topic as it is; creates it if it is not there.
    fn open(&self, joined: &Joined) -> Result<Topic<Vec<u8>>> {
        let wanted = self.profile.map(|profile| self.qos(profile));
        if wanted.is_none()
            && self.keep.is_none()
            && let Ok(topic) = joined.participant.topic_of_any_type(&self.topic)
        {
            return Ok(topic);
        }
        let qos = wanted.unwrap_or_else(|| self.qos(ProfileChoice::Atomic));
        match joined.participant.create_topic::<Vec<u8>>(&self.topic, qos) {
            // Readers take any type.
            Err(EntityError::TypeMismatch { .. }) => Ok(joined.participant.topic_of_any_type(&self.topic)?),
            created => Ok(created?),
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
fn endpoint_qos(topic: &Topic<Vec<u8>>) -> Qos {
    Qos { autodispose_unregistered_instances: false, ..topic.qos().clone() }
}

/// Returns the policies of a reader that reads the topic by itself, also if it is in one order with others.
fn reader_qos(topic: &Topic<Vec<u8>>) -> Qos {
    Qos { presentation: Presentation::TOPIC_ORDERED, ..endpoint_qos(topic) }
}

/// Returns an address of this host that no other process has.
fn free_address(config: &Config) -> Result<Address> {
    match config.contacts.first() {
        Some(Address::Tcp { host, port }) => {
            let reach = || {
                let socket = UdpSocket::bind(if host.contains(':') { "[::]:0" } else { "0.0.0.0:0" })?;
                // Sends nothing, and finds the address from which the contact can be reached.
                socket.connect((host.as_str(), *port))?;
                socket.local_addr()
            };
            let own =
                reach().with_context(|| format!("no address of this host reaches {host}: give --listen"))?;
            Ok(Address::Tcp { host: own.ip().to_string(), port: 0 })
        }
        _ => Ok(Address::Abstract(format!("squall-{}-dds-{}", config.cluster, std::process::id()))),
    }
}

/// Between looks whether the command was interrupted.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// How long a process waits for the view that it leaves with.
const LEAVE_PATIENCE: Duration = Duration::from_secs(10);
