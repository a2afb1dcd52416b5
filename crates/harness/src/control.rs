//! The messages between the parent and its members: one JSON object per line, over the members' pipes.
//!
//! The parent writes a [`MemberJob`], then [`ParentCommand`]s; a member answers with [`MemberEvent`]s. The job travels by pipe
//! and not as an argument, so that the secret is not seen in the list of processes.

mod churn;
mod idle;
mod topic;

use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use squall::config::Transport;
use squall_fabric::Instant;
use squall_protocols::group::ViewChange;
use squall_protocols::membership::{ViewChangeStep, ViewChangeSteps};

use crate::lab::{LAB_VARIABLE, LabHost, LabMap, addresses, outside};
use crate::latency::Latencies;
use crate::operations::OperationEvent;
pub(crate) use churn::{ChurnJob, ClientJob, StoreJob};
pub(crate) use idle::IdleName;
pub(crate) use topic::{DdsJob, ProfileName};

/// All that a member needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemberJob {
    /// How to find the others.
    pub(crate) group: GroupJob,
    /// What to do then.
    pub(crate) work: MemberWork,
}

/// How a member finds the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GroupJob {
    /// Of this one run; no other has it.
    pub(crate) name: String,
    pub(crate) secret: String,
    pub(crate) transport: TransportName,
    #[serde(default)]
    pub(crate) encryption: EncryptionName,
    pub(crate) members: usize,
    pub(crate) rank: usize,
    /// Where member 0 listens; unknown to itself.
    pub(crate) contact: Option<String>,
    /// Where members of the running group listen, for a joiner.
    #[serde(default)]
    pub(crate) joins: Vec<String>,
    /// The core that the member is bound to.
    pub(crate) core: Option<usize>,
    pub(crate) idle: IdleName,
    pub(crate) location: MemberLocation,
}

#[cfg(test)]
impl GroupJob {
    /// A group of one, for tests.
    pub(crate) fn alone() -> Self {
        Self {
            name: "test".into(),
            secret: "at least sixteen bytes".into(),
            transport: TransportName::Shm,
            encryption: EncryptionName::On,
            members: 1,
            rank: 0,
            contact: None,
            joins: Vec::new(),
            core: None,
            idle: IdleName::Auto,
            location: MemberLocation::default(),
        }
    }
}

/// What is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EncryptionName {
    /// Nothing
    Off,
    /// What travels by TCP between hosts
    #[default]
    On,
    /// What travels by TCP, within this host, too
    Always,
}

impl From<EncryptionName> for squall::config::Encryption {
    fn from(name: EncryptionName) -> Self {
        match name {
            EncryptionName::Off => Self::Off,
            EncryptionName::On => Self::On,
            EncryptionName::Always => Self::Always,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TransportName {
    /// Shared memory
    Shm,
    /// TCP over the loopback interface, or the lab's network
    Tcp,
    /// Shared memory, RDMA or TCP, the fastest that each pair of members has
    Auto,
    /// RDMA by verbs; see docs/verbs.md
    Verbs,
}

impl TransportName {
    /// The name of what members use by default: on hosts of a lab, they share no memory.
    pub(crate) fn usual() -> &'static str {
        if std::env::var_os(LAB_VARIABLE).is_some() { "tcp" } else { "shm" }
    }

    /// The same for the library.
    pub(crate) const fn transport(self) -> Transport {
        match self {
            Self::Shm => Transport::Shm,
            Self::Tcp => Transport::Tcp,
            Self::Auto => Transport::Auto,
            Self::Verbs => Transport::Verbs,
        }
    }

    /// The name for people.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Shm => "shared memory",
            Self::Tcp => "tcp",
            Self::Auto => "the fastest transport of each pair",
            Self::Verbs => "RDMA",
        }
    }
}

/// Where a member runs: by default here, on the loopback interface, with whatever RDMA device fits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberLocation {
    /// The network namespace, as `ip netns` lists it.
    pub(crate) netns: Option<String>,
    /// The host of the lab.
    #[serde(default)]
    pub(crate) host: Option<LabHost>,
    /// The address at which the member listens.
    pub(crate) address: Option<IpAddr>,
    /// The RDMA device.
    pub(crate) device: Option<String>,
}

impl MemberLocation {
    /// A host of a lab.
    pub(crate) fn on_host(map: &LabMap, host: usize) -> Self {
        let host = map.hosts[host].clone();
        Self { address: Some(host.addresses[0]), host: Some(host), ..Self::default() }
    }

    /// Beside the hosts of the lab in which this process runs.
    pub(crate) fn outside(map: &LabMap) -> Self {
        Self { address: Some(addresses(outside(map.hosts.len()))[0]), ..Self::default() }
    }
}

impl FromStr for MemberLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut location = Self::default();
        for part in text.split(',') {
            let expected = || format!("`{part}`: write netns=NAME, address=IP or device=NAME");
            let (key, value) =
                part.split_once('=').filter(|(_, value)| !value.is_empty()).ok_or_else(expected)?;
            match key {
                "netns" => location.netns = Some(value.into()),
                "address" => {
                    let address = value.parse().map_err(|_| format!("`{value}` is not an IP address"))?;
                    location.address = Some(address);
                }
                "device" => location.device = Some(value.into()),
                _ => return Err(expected()),
            }
        }
        Ok(location)
    }
}

/// What the members do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MemberWork {
    Demo(DemoJob),
    Multicast(MulticastJob),
    Dds(DdsJob),
    Genuine(GenuineJob),
    Sst(SstJob),
    Rdmc(RdmcJob),
    Churn(ChurnJob),
    Client(ClientJob),
    Restart(RestartJob),
}

/// Every member sends its share of the lines and keeps a digest of what it delivers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DemoJob {
    /// The text, or the one that ships with the program.
    pub(crate) input: Option<std::path::PathBuf>,
    pub(crate) rounds: u64,
    /// Lines times rounds.
    pub(crate) messages: u64,
    pub(crate) message_max: usize,
    pub(crate) window: usize,
    /// The folder for the members' logs.
    pub(crate) keep: Option<std::path::PathBuf>,
    /// The rank of the joiner, which sends the last member's share once more.
    #[serde(default)]
    pub(crate) joiner: Option<usize>,
}

/// Members of a durable subgroup check their logs, and send until they are killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RestartJob {
    /// The text, or the one that ships with the program.
    pub(crate) input: Option<std::path::PathBuf>,
    /// The folder for the members' logs and notes.
    pub(crate) storage: std::path::PathBuf,
    pub(crate) window: usize,
    /// Whether they send; else they only report.
    pub(crate) sends: bool,
}

/// Senders send as fast as they can, or one message at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MulticastJob {
    /// Members of lower rank send.
    pub(crate) senders: usize,
    /// The number of subgroups, which get the messages in turn.
    pub(crate) subgroups: usize,
    /// Subgroups of all members beside these, without messages.
    #[serde(default)]
    pub(crate) idle_subgroups: usize,
    /// The bytes of a message, or of the longest.
    pub(crate) size: usize,
    /// Messages have any length from this one on, at random; else all have the same.
    #[serde(default)]
    pub(crate) shortest: Option<usize>,
    /// Of each sender.
    pub(crate) messages: u64,
    pub(crate) mode: ModeName,
    pub(crate) window: usize,
    pub(crate) window_bytes: Option<usize>,
    /// Messages that are longer travel as large ones.
    pub(crate) message_max: Option<usize>,
    pub(crate) send_batching: bool,
    pub(crate) receive_batching: bool,
    pub(crate) delivery_batching: bool,
    pub(crate) null_sends: bool,
    /// One message at a time.
    pub(crate) latency: bool,
    /// The folder for the members' logs, in mode `durable`.
    #[serde(default)]
    pub(crate) storage: Option<std::path::PathBuf>,
    /// Whether the logs keep what all have delivered.
    #[serde(default)]
    pub(crate) keeps_log: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ModeName {
    /// Total order, delivered when all members have received
    Atomic,
    /// Total order, delivered when all members have it on their disks; needs --storage, and is not simulated
    Durable,
    /// In the order of each sender, delivered at receipt
    Unordered,
    /// As unordered, with no promise when a member fails
    Raw,
}

/// All members, which are shards of as many each, send to some of the shards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GenuineJob {
    pub(crate) shards: usize,
    /// Members of each shard.
    pub(crate) replicas: usize,
    /// Shards that each message is for.
    pub(crate) destinations: usize,
    pub(crate) size: usize,
    /// Of each member.
    pub(crate) messages: u64,
    pub(crate) window: usize,
    /// One message at a time.
    pub(crate) latency: bool,
    /// More than half of a shard acknowledge, not all.
    pub(crate) by_majority: bool,
    /// All send until they have delivered without a member that dies, those of the last shard to it alone.
    pub(crate) outlives: bool,
    /// Through one subgroup of all members, each of which drops what is for other shards.
    pub(crate) is_filtered: bool,
}

/// Members raise a column in turn and wait until all have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SstJob {
    pub(crate) rounds: u64,
}

/// The root sends objects, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RdmcJob {
    pub(crate) size: usize,
    pub(crate) objects: u64,
    /// Sent before, and not measured.
    pub(crate) warm_up: u64,
    pub(crate) block_bytes: Option<u64>,
    pub(crate) schedule: Option<ScheduleName>,
    /// Block size and schedule that are not given are chosen by the size of the objects.
    pub(crate) choose: bool,
    /// Receivers read objects where the root wrote them.
    pub(crate) in_place: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ScheduleName {
    /// The whole object to one member after the other
    Sequential,
    /// Block by block from member to member
    Chain,
    /// The whole object along a binomial tree
    Tree,
    /// Block by block along rotating binomial trees
    Pipeline,
}

/// What the parent sends a member after its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ParentCommand {
    /// All are ready: begin.
    Go,
    /// To a joiner: the number of lines that each member, by rank, had yet to deliver when this view began. It counts if it
    /// is the joiner's first view: a joiner that has to rejoin has several.
    CatchUp { view: u64, missing: Vec<u64> },
    /// Send nothing more; a member is done when it has delivered all of its own and nothing more arrives.
    Drain,
    /// Deliver what is under way, and leave the group in order.
    Leave,
    /// All are done: leave.
    Stop,
}

/// What a member reports to the parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MemberEvent {
    /// Where this member can be reached.
    Listening { address: String },
    /// This number of members have joined.
    Joined { joined: usize },
    /// The group has admitted this process, which is in no view yet.
    Admitted,
    /// It is not admitted yet, and why.
    Waiting { reason: String },
    /// This member has the states of all objects that it is to have.
    Held,
    /// This member has left the group in order.
    Left,
    /// All have attached: messages can flow.
    Ready,
    /// This number of messages (or rounds) of the total are done.
    Progress { done: u64 },
    /// Another member is gone, and the group continues without it.
    Gone { member: usize },
    /// A joiner is in the view; what it needs, as in [`ParentCommand::CatchUp`].
    Arrived { view: u64, missing: Vec<u64> },
    /// What it has asked of the object that it shares with the others, or was answered.
    Operation(OperationEvent),
    /// The member has delivered in a new view.
    View(ViewNews),
    /// The work is done.
    Done(Box<MemberReport>),
    /// It cannot continue.
    Failed { message: String },
}

/// How a member changed from view to view; times are in nanoseconds of the clock that the processes of a host share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ViewNews {
    /// The number of the new view.
    pub(crate) view: u64,
    /// The ranks of its members.
    pub(crate) ranks: Vec<usize>,
    /// The last delivery before; 0 if there was none.
    pub(crate) last_ns: u64,
    /// The first delivery in the new view.
    pub(crate) first_ns: u64,
}

/// What a member has done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MemberReport {
    /// Messages sent.
    pub(crate) sent: u64,
    /// Messages (or rounds) delivered.
    pub(crate) delivered: u64,
    /// Bytes delivered.
    pub(crate) bytes: u64,
    /// From the start to the last delivery.
    pub(crate) seconds: f64,
    /// From sending to own delivery.
    pub(crate) latencies: Latencies,
    /// Of the delivered sequence, and of each sender's part of it.
    pub(crate) log: Option<LogReport>,
    /// When each object began (at the root) or was complete (at a receiver), in nanoseconds of the clock that the
    /// processes of a host share.
    #[serde(default)]
    pub(crate) stamps_ns: Vec<u64>,
    /// When it delivered its first message in the view after a member had gone, by the same clock.
    #[serde(default)]
    pub(crate) resumed_ns: Option<u64>,
    /// The view changes of the member.
    #[serde(default)]
    pub(crate) timeline: Vec<ChangeReport>,
    /// What the protocol did, by name.
    pub(crate) counters: std::collections::BTreeMap<String, u64>,
}

/// Digests of a delivered log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogReport {
    /// Of all messages in the order of delivery.
    pub(crate) digest: String,
    /// Of each sender's messages in the order of delivery.
    pub(crate) by_sender: Vec<String>,
    /// Of the messages that this member sent, in the order of sending.
    pub(crate) sent: String,
    /// Of the messages since the view of the joiner began, in the order of delivery.
    #[serde(default)]
    pub(crate) since: Option<String>,
}

/// One view change of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChangeReport {
    pub(crate) to: u64,
    pub(crate) members: usize,
    pub(crate) removed: usize,
    pub(crate) joined: usize,
    pub(crate) led: bool,
    /// The name of each step and when it was taken, in nanoseconds of the clock that the processes of a host share.
    pub(crate) steps: Vec<(String, u64)>,
}

impl ChangeReport {
    /// Of a change whose instants are `offset_ns` behind that clock.
    pub(crate) fn new(change: &ViewChange, offset_ns: u64) -> Self {
        let steps = change.steps.taken().into_iter();
        let steps = steps.map(|(step, at)| (step.name().to_owned(), at.as_nanos() + offset_ns)).collect();
        let ViewChange { to, members, removed, joined, led, .. } = *change;
        Self { to, members, removed, joined, led, steps }
    }

    /// The change again, with instants of the shared clock.
    pub(crate) fn change(&self) -> ViewChange {
        let mut steps = ViewChangeSteps::default();
        for (name, at) in &self.steps {
            if let Some(step) = ViewChangeStep::ALL.iter().find(|step| step.name() == name) {
                steps.note(*step, Instant::from_nanos(*at));
            }
        }
        let Self { to, members, removed, joined, led, .. } = *self;
        ViewChange { to, members, removed, joined, led, steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_read() {
        let location: MemberLocation = "netns=m0,address=10.78.0.1,device=rxe0".parse().unwrap();
        let address = "10.78.0.1".parse().ok();
        let (netns, device) = (Some("m0".into()), Some("rxe0".into()));
        assert_eq!(location, MemberLocation { netns, host: None, address, device });
        assert_eq!("device=rxe1".parse::<MemberLocation>().unwrap().netns, None);
        for text in ["", "m0", "netns=", "address=10.78", "netns=m0,", "host=a"] {
            assert!(text.parse::<MemberLocation>().is_err(), "{text}");
        }
    }
}
