//! Questions that a member answers through its admission listener, from other members and from operators' tools.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use squall_transports::bootstrap::{self, Address, BootstrapError, BootstrapPlan};

use crate::config::Config;
use crate::flight_record::FlightRecord;
use crate::operate::calls::{FetchCall, FetchReply, RestartAnswer, RestartCall};
use crate::operate::missing::MissingData;

/// A question. An empty request is a question, too, by which a process finds out whether a group is running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StatusQuestion {
    /// What is the member's status? The answer is a [`MemberStatus`].
    Status,
    /// Where are its objects served? The answer is an address, if there is one.
    Service,
    /// Where does it serve external clients? The answer is an address, if it serves any.
    Clients,
    /// What does it know of how the group's views have ended? The answer is a [`RestartAnswer`].
    Restart(Box<RestartCall>),
    /// What has its log of a view? The answer is a [`FetchReply`].
    Fetch(FetchCall),
    /// What has it noticed lately? The answer is a [`FlightRecord`].
    Flight,
}

/// What a leader sends to a joiner through its admission listener.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinToken {
    pub(crate) rank: u64,
}

/// A member's status, as it reports it itself.
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-status-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// let _group = Group::join(config.clone())?;
/// let status = squall::ask_status(&config, &config.listen)?; // from any process with the secret
/// assert!(status.ready);
/// for line in &status.subgroups {
///     println!("{}: {} sent, {} delivered", line.name, line.sent_total, line.delivered_total);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemberStatus {
    /// The number of its group, which is another for each group that begins.
    #[serde(default)]
    pub group: u64,
    /// Its number as a node, which is never used for another process of the group.
    pub node: u32,
    /// Its rank in the configuration.
    pub rank: u64,
    /// The number of its view.
    pub view: u64,
    /// Whether all members of the view have begun it, so that messages flow.
    pub ready: bool,
    /// Whether it hears no majority of the view, and waits for one with its state.
    #[serde(default)]
    pub without_majority: bool,
    /// What of its data it does not have yet, although messages flow.
    #[serde(default)]
    pub missing: MissingData,
    /// The members of the view, the oldest first; the oldest is the leader.
    pub members: Vec<MemberLine>,
    /// The members that wait to leave because they hold a state that no other member has yet: indices in `members`, ascending.
    pub leaving: Vec<usize>,
    /// For each subgroup of the configuration, in the order of their names, the members that hold its state: indices in `members`,
    /// ascending.
    pub holders: Vec<Vec<usize>>,
    /// The subgroups that it is in.
    pub subgroups: Vec<SubgroupLine>,
    /// Its latest view changes, the oldest first.
    pub changes: Vec<ViewChangeLine>,
    /// What the transport has carried between it and each other member; nothing for those with which it shares memory.
    pub traffic: Vec<TrafficLine>,
    /// What the log of its durable subgroups has written since it was started; `None` if it has none.
    pub log: Option<LogLine>,
    /// What it has done in the shards; `None` if the group has none.
    pub shards: Option<ShardsLine>,
    /// The time by its host's clock when it answered, in milliseconds since 1970.
    pub clock_millis: u64,
}

/// What was carried between a member and another one, in a [`MemberStatus`].
///
/// ```
/// # fn show(status: &squall::MemberStatus) {
/// for line in &status.traffic {
///     println!("{} bytes to node {}", line.sent, line.node);
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TrafficLine {
    /// The other member's number as a node.
    pub node: u32,
    /// The bytes that were sent to it since it is connected.
    pub sent: u64,
    /// The bytes that came from it; `None` if that is not known, as over RDMA.
    pub received: Option<u64>,
}

/// What a log has written, in a [`MemberStatus`].
///
/// ```
/// # fn show(status: &squall::MemberStatus) {
/// if let Some(log) = status.log {
///     println!("{} bytes in {} frames", log.bytes, log.frames);
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LogLine {
    /// The frames that are on the disk; each was one write.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether the disk is nearly full, so that the member takes no new messages of durable subgroups.
    pub is_short: bool,
}

/// The shards in a [`MemberStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ShardsLine {
    /// The number of messages that this member has sent to shards since it joined; one that is sent again counts once.
    pub sent_total: u64,
    /// At least as many of them are not delivered by all members of their shards yet.
    pub under_way: u64,
    /// Its own shard; `None` if it is in none.
    pub own: Option<ShardLine>,
    /// The members for which messages of its shard wait there, of this or another shard: those for which most do, [`LAGS_MAX`] at most.
    pub lags: Vec<LagLine>,
}

/// A member's own shard in a [`ShardsLine`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ShardLine {
    /// Its name.
    pub name: String,
    /// Whether the member gives the shard's timestamps.
    pub leads: bool,
    /// The number of messages that it has delivered since it joined.
    pub delivered_total: u64,
    /// The number of messages that it knows and has not delivered.
    pub pending: u64,
    /// The latest timestamp of the shard in this view that it knows.
    pub clock: u64,
}

/// A view change in a [`MemberStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ViewChangeLine {
    /// The number of the view that began.
    pub to: u64,
    /// The number of its members.
    pub members: u64,
    /// The number of members of the previous view that are not in it.
    pub removed: u64,
    /// The number of members that are new in it.
    pub joined: u64,
    /// How long ago messages began to flow in it, in milliseconds.
    pub ago_millis: u64,
    /// How long that took, from the first suspicion or the end of sending, in microseconds; `None` if it is the first view of this
    /// member.
    pub took_micros: Option<u64>,
}

/// A member in a [`MemberStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemberLine {
    /// Its number as a node.
    pub node: u32,
    /// Its rank in the configuration.
    pub rank: u64,
    /// The address at which it listens; empty if that is not known.
    pub address: String,
}

/// A subgroup in a [`MemberStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubgroupLine {
    /// Its name.
    pub name: String,
    /// The number of messages that this member has sent in the current view.
    pub sent: u64,
    /// The number of messages that this member has delivered to an upcall in the current view; what an application or an object pulls is in
    /// `delivered_total` only.
    pub delivered: u64,
    /// The member that holds it up, as far as this member knows: this one has found no space for a message.
    pub held_up_by: Option<HeldUpLine>,
    /// The member for which this one's application has waited the most in the last second, whether it makes progress or not.
    pub slowest: Option<SlowestLine>,
    /// For how long this member's own consumer has taken nothing, although there were messages, in milliseconds.
    pub stood_still_millis: Option<u64>,
    /// The number of messages and nulls that this member has received in the current view and that are not on its disk
    /// yet; `None` if the subgroup is not durable.
    pub unpersisted: Option<u64>,
    /// The number of messages that this member has sent since it joined; one that a view change made it send again counts again.
    pub sent_total: u64,
    /// The number of messages that its application has got since it joined.
    pub delivered_total: u64,
    /// How much of this member's window is used; `None` if it does not send.
    pub window: Option<WindowLine>,
    /// For how long its application found no space in this window since it joined, in milliseconds: estimated.
    pub window_full_millis: u64,
    /// How long this member's own messages took since it joined; `None` if none was measured.
    pub latency: Option<LatencyLine>,
    /// The members that are behind, as far as this member knows: those that are behind the most, [`LAGS_MAX`] at most.
    pub lags: Vec<LagLine>,
}

/// The use of a member's window, in a [`SubgroupLine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WindowLine {
    /// The messages that it has sent and that some member has not delivered yet.
    pub used: u64,
    /// The messages that there is space for.
    pub size: u64,
}

/// How long a member's own messages took, from being sent to being delivered by itself, in a [`SubgroupLine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LatencyLine {
    /// How many messages were measured: a hundred in a second at most.
    pub measured: u64,
    /// The median in nanoseconds, rounded up to a power of two.
    pub p50_nanos: u64,
    /// What 99 % of the messages did not exceed, in nanoseconds, rounded up to a power of two.
    pub p99_nanos: u64,
}

/// A member that is behind, in a [`SubgroupLine`] or a [`ShardsLine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LagLine {
    /// Its number as a node.
    pub node: u32,
    /// By how many messages and nulls it is behind the member that has received the most; in a [`ShardsLine`] the messages that wait for
    /// it.
    pub behind: u64,
}

/// The most members that a [`SubgroupLine`] reports as behind: a group may have many subgroups, and the answer is one message.
pub const LAGS_MAX: usize = 8;

/// A member that holds a subgroup up, in a [`SubgroupLine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HeldUpLine {
    /// Its number as a node.
    pub node: u32,
    /// Its rank in the configuration.
    pub rank: u64,
    /// For how long it has delivered nothing, although others waited for it, in milliseconds.
    pub millis: u64,
}

/// The member that others wait for, in a [`SubgroupLine`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SlowestLine {
    /// Its number as a node; it may be the member itself.
    pub node: u32,
    /// Its rank in the configuration.
    pub rank: u64,
    /// Why: its `consumer`, its `disk`, its `link`, or its `processor`.
    pub cause: String,
    /// In how many of a hundred moments.
    pub percent: u32,
}

/// Asks the member that listens at `address` for its status. Of `config`, only the cluster, its secret and the
/// transport matter.
///
/// # Errors
/// [`BootstrapError`], with what to do next.
pub fn ask_status(config: &Config, address: &Address) -> Result<MemberStatus, BootstrapError> {
    let mut status: MemberStatus = ask(&config.plan(), address, &StatusQuestion::Status)?;
    for line in &mut status.members {
        if let Ok(listen) = line.address.parse::<Address>() {
            line.address = listen.as_reached_by(address).to_string();
        }
    }
    Ok(status)
}

/// Asks the member that listens at `address` whether it serves objects, and returns that address if so.
pub(crate) fn ask_service_at(
    plan: &BootstrapPlan,
    address: &Address,
) -> Result<Option<Address>, BootstrapError> {
    let serves: bool = ask(plan, address, &StatusQuestion::Service)?;
    Ok(serves.then(|| address.clone()))
}

/// Asks the member that listens at `address` whether it serves external clients, which it begins to do for the first that asks.
pub(crate) fn ask_clients_at(plan: &BootstrapPlan, address: &Address) -> Result<bool, BootstrapError> {
    ask(plan, address, &StatusQuestion::Clients)
}

pub(crate) fn ask<T: DeserializeOwned>(
    plan: &BootstrapPlan,
    address: &Address,
    question: &StatusQuestion,
) -> Result<T, BootstrapError> {
    let question = write(question);
    let answer = if address.is_unix() {
        bootstrap::ask::<UnixStream>(plan, address, &question)?
    } else {
        bootstrap::ask::<TcpStream>(plan, address, &question)?
    };
    postcard::from_bytes(&answer).map_err(|_| BootstrapError::Protocol {
        contact: address.clone(),
        what: "an answer that cannot be read".into(),
    })
}

/// Reads a question. Fuzzed as `inquiry`.
pub(crate) fn read_question(bytes: &[u8]) -> Option<StatusQuestion> {
    postcard::from_bytes(bytes).ok()
}

pub(crate) fn write(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain values serialise")
}

/// Reads bytes as a question, as the answer to each question, and as the token of an admission, for fuzzing; returns
/// as how many of these they can be read. Fuzzed as `inquiry`.
///
/// # Panics
/// If writing and reading again does not give back what was read.
#[must_use]
pub fn read_foreign(bytes: &[u8]) -> usize {
    fn again<T: Serialize + DeserializeOwned + PartialEq>(bytes: &[u8]) -> usize {
        let Ok(read) = postcard::from_bytes::<T>(bytes) else { return 0 };
        assert!(postcard::from_bytes(&write(&read)).is_ok_and(|same: T| same == read), "not read again");
        1
    }
    again::<StatusQuestion>(bytes)
        + again::<MemberStatus>(bytes)
        + again::<bool>(bytes)
        + again::<JoinToken>(bytes)
        + again::<RestartAnswer>(bytes)
        + again::<FetchReply>(bytes)
        + again::<FlightRecord>(bytes)
}
