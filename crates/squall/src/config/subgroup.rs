//! A subgroup's part of the configuration: its members, its senders, and how messages are sent (Derecho §2.3, Spindle
//! §3).

use std::time::Duration;

use squall_fabric::NodeId;
use squall_log::{LogSettings, RECORD_HEADER_BYTES};
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::{Member, PartitionSafety, View};
use squall_protocols::multicast::{
    Batching, Carrier, DeliveryMode, LargeMessages, PIECE_BYTES, SubgroupSettings,
};
use squall_protocols::replica::{members_of_shard, place};
use squall_transports::bootstrap::Address;

/// A set of the group's members.
///
/// ```
/// use squall::config::{Ranks, SubgroupConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let log = SubgroupConfig { senders: Ranks::These(vec![0, 2]), ..SubgroupConfig::default() };
/// assert!(log.senders.has(2) && !log.senders.has(1));
/// assert_eq!(log.member_ranks(3), [0, 1, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ranks {
    /// All members.
    #[default]
    All,
    /// The members of these ranks, in ascending order.
    These(Vec<usize>),
}

impl Ranks {
    /// Returns whether `rank` is in the set.
    #[must_use]
    pub fn has(&self, rank: usize) -> bool {
        match self {
            Self::All => true,
            Self::These(ranks) => ranks.contains(&rank),
        }
    }

    /// Returns the ranks of the set, where `all` are the ranks of all members.
    #[must_use]
    pub fn among(&self, all: &[usize]) -> Vec<usize> {
        match self {
            Self::All => all.to_vec(),
            Self::These(ranks) => ranks.clone(),
        }
    }
}

/// What happens to a member whose consumer holds up the others.
///
/// ```
/// use squall::config::{SlowConsumer, SubgroupConfig};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let exclude = SlowConsumer::Exclude;
/// let log = SubgroupConfig { slow_consumer: exclude, slow_after: Duration::from_secs(2), ..SubgroupConfig::default() };
/// assert_eq!(SubgroupConfig::default().slow_consumer, SlowConsumer::Wait);
/// # drop(log);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowConsumer {
    /// The others wait for it.
    #[default]
    Wait,
    /// The others continue without it after `slow_after_ms`, if they are a majority.
    Exclude,
}

/// The configuration of a subgroup, the same at all members.
///
/// ```
/// use squall::Config;
/// use squall::config::SubgroupConfig;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let log = SubgroupConfig { message_max: 4 << 10, window: 64, ..SubgroupConfig::default() };
/// let config = Config::local("subgroups", 3).subgroup("log", log);
/// config.check()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubgroupConfig {
    /// The members, by rank in the group.
    pub members: Ranks,
    /// The senders, by rank in the group; a subset of the members.
    pub senders: Ranks,
    /// When and in which order messages are delivered.
    pub mode: DeliveryMode,
    /// The largest number of messages that a sender may have in flight.
    pub window: usize,
    /// The length of the longest message in bytes.
    pub message_max: usize,
    /// The largest number of bytes that a sender may have in flight.
    pub window_bytes: usize,
    /// The length of the longest large message in bytes; `None`: no message is longer than `message_max`. A message
    /// longer than `message_max` is sent outside the window and takes its place in the order. See
    /// `large_window_bytes` for the memory that this takes.
    pub large_max: Option<usize>,
    /// The largest number of bytes of large messages that a sender may have in flight; `None`: two of the longest
    /// messages. Each member has memory for that many bytes of each sender, and for one more of the longest messages.
    pub large_window_bytes: Option<usize>,
    /// How large messages are sent; `None`: in place on one host, relayed from member to member (RDMC) elsewhere.
    pub large_carrier: Option<Carrier>,
    /// The stages that process all available messages at once.
    pub batching: Batching,
    /// Whether a sender without messages fills the rounds that others have begun with null messages.
    pub null_sends: bool,
    /// Whether a single message of up to 40 bytes is sent in the same write as its announcement; `None`: unless the
    /// transport is shared memory, where a write costs almost nothing.
    pub express: Option<bool>,
    /// What happens when a member's consumer stops taking messages, and so holds up the others.
    pub slow_consumer: SlowConsumer,
    /// With [`SlowConsumer::Exclude`]: the time after which the member is excluded. A member that takes a single
    /// message in this time is not excluded.
    pub slow_after: Duration,
    /// The number of shards, each a subgroup of its own with the name `NAME/0` and so on; a single shard has the name
    /// `NAME`.
    pub shards: usize,
    /// The number of members that replicate a shard, chosen by weight, so that few shards move when members join or
    /// leave; 0: all of them.
    pub replicas: usize,
    /// After how many bytes of updates a member writes a checkpoint of a durable object, or after twice the length of the last checkpoint
    /// if that is more.
    pub checkpoint_bytes: usize,
    /// What the log of a durable subgroup keeps in any case, besides what a restart needs. The log of an object is shortened behind its
    /// checkpoints, other messages are kept until the application discards them ([`crate::DeliveriesFrom::discard_log`]),
    /// or [by themselves](Retention::automatic).
    pub retain: Option<Retention>,
    /// The number of this shard; 0 in a configuration, where one entry stands for all shards.
    pub shard: u32,
}

/// What the log of a durable subgroup keeps in any case: the messages for which one of these holds. More is kept for a while, since a log is
/// removed a segment (64 MiB) at a time, and only as far as two checkpoints have taken its place.
///
/// ```
/// use std::time::Duration;
/// use squall::DeliveryMode;
/// use squall::config::{Retention, SubgroupConfig};
///
/// let retain = Some(Retention { time: Duration::from_secs(86_400), ..Retention::default() });
/// let accounts = SubgroupConfig { mode: DeliveryMode::Durable, retain, ..SubgroupConfig::default() };
/// assert_eq!(accounts.checkpoint_bytes, 256 << 20);
/// // Messages of the last 10 GB, as a journal has them that others read from their own position on.
/// let retain = Some(Retention { bytes: 10_000_000_000, automatic: true, ..Retention::default() });
/// # drop(retain);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Those that the member received within this time; zero: none for their age.
    pub time: Duration,
    /// Those in this many latest bytes of the member's log, of all its subgroups; 0: none for their place.
    pub bytes: u64,
    /// Those at this many latest positions; 0: none for their number.
    pub versions: u64,
    /// Whether the rest is discarded by itself when this member's application has taken it, and so all members have it on their disks,
    /// without [`DeliveriesFrom::discard_log`](crate::DeliveriesFrom::discard_log). What this member's reader of an earlier position
    /// needs is kept while it reads on; one that goes back, readers outside the group, histories and versions find what the other
    /// fields say. Such a subgroup cannot have an object.
    pub automatic: bool,
}

impl Default for SubgroupConfig {
    /// All members send messages of up to 10 KiB, in total order, with all optimisations.
    fn default() -> Self {
        let usual = SubgroupSettings::new(1, 10 << 10);
        Self {
            members: Ranks::All,
            senders: Ranks::All,
            mode: usual.mode,
            window: usual.window,
            message_max: usual.message_max,
            window_bytes: usual.window_bytes,
            large_max: None,
            large_window_bytes: None,
            large_carrier: None,
            batching: usual.batching,
            null_sends: usual.null_sends,
            express: None,
            slow_consumer: SlowConsumer::Wait,
            slow_after: Duration::from_secs(5),
            shards: 1,
            replicas: 0,
            checkpoint_bytes: 256 << 20,
            retain: None,
            shard: 0,
        }
    }
}

impl SubgroupConfig {
    /// Returns its members in a group of `members`, by rank in the group.
    #[must_use]
    pub fn member_ranks(&self, members: usize) -> Vec<usize> {
        self.members.among(&(0..members).collect::<Vec<_>>())
    }

    /// Returns its settings in a group of `members`. Senders are named by their ranks *in the subgroup*.
    ///
    /// # Panics
    /// If a sender is not a member, which [`super::Config::check`] reports as an error.
    #[must_use]
    pub fn settings(&self, members: usize) -> SubgroupSettings {
        let mut ranks = self.member_ranks(members);
        if self.replicas > 0 {
            ranks.truncate(self.replicas);
        }
        let place =
            |sender: &usize| ranks.iter().position(|rank| rank == sender).expect("senders are members");
        SubgroupSettings {
            mode: self.mode,
            window: self.window,
            message_max: self.message_max,
            window_bytes: self.window_bytes,
            piece_bytes: PIECE_BYTES,
            batching: self.batching,
            large: self.large(),
            null_sends: self.null_sends,
            express: self.express.unwrap_or(true),
            slow_after: self.slow_after(),
            senders: self.senders.among(&ranks).iter().map(place).collect(),
        }
    }

    fn slow_after(&self) -> Option<Duration> {
        (self.slow_consumer == SlowConsumer::Exclude).then_some(self.slow_after)
    }

    fn large(&self) -> Option<LargeMessages> {
        let message_max = self.large_max?;
        Some(LargeMessages {
            message_max,
            window: LARGE_WINDOW,
            window_bytes: self.large_window_bytes.unwrap_or(message_max.saturating_mul(2)),
            carrier: self.large_carrier.unwrap_or(Carrier::Pushed),
        })
    }

    /// Returns whether the member of `rank` may be in it.
    pub(crate) fn takes(&self, rank: usize) -> bool {
        self.members.has(rank)
    }

    /// Returns its members and settings in a view, whose members have their ranks as tags. `None` if none of the
    /// configured members is in the view.
    pub(crate) fn place(&self, view: &View, id: SubgroupId) -> Option<(Vec<NodeId>, SubgroupSettings)> {
        let nodes: Vec<NodeId> = view
            .members
            .iter()
            .filter(|member| has(&self.members, member))
            .map(|member| member.node)
            .collect();
        if self.replicas == 0 {
            return self.place_among(view, &nodes);
        }
        let choose = |nodes: &[NodeId]| members_of_shard(self.shard, self.replicas, nodes);
        self.place_among(view, &place(view, id.0, &nodes, choose))
    }

    /// Returns its members and settings in a view if its members are to be `nodes`, whatever the configuration says.
    pub(crate) fn place_among(
        &self,
        view: &View,
        nodes: &[NodeId],
    ) -> Option<(Vec<NodeId>, SubgroupSettings)> {
        let members: Vec<&Member> =
            view.members.iter().filter(|member| nodes.contains(&member.node)).collect();
        let sends = |(_, member): &(usize, &&Member)| has(&self.senders, member);
        let senders: Vec<usize> = members.iter().enumerate().filter(sends).map(|(place, _)| place).collect();
        let members = members.iter().map(|member| member.node).collect();
        let settings = SubgroupSettings {
            mode: self.mode,
            window: self.window,
            message_max: self.message_max,
            window_bytes: self.window_bytes,
            piece_bytes: PIECE_BYTES,
            batching: self.batching,
            large: self.large(),
            null_sends: self.null_sends,
            express: self.express.unwrap_or(true),
            slow_after: self.slow_after(),
            senders,
        };
        (!settings.senders.is_empty()).then_some((members, settings))
    }

    /// Returns what is wrong with it in a group of `members`, and what to change.
    pub(super) fn fault(&self, members: usize, durability: &Durability) -> Option<String> {
        let ranks = self.member_ranks(members);
        for (what, list) in [("members", &self.members), ("senders", &self.senders)] {
            let Ranks::These(list) = list else { continue };
            if list.is_empty() || !list.is_sorted_by(|a, b| a < b) {
                return Some(format!("`{what}`: name at least one rank, in ascending order, each once"));
            }
            if let Some(rank) = list.iter().find(|rank| **rank >= members) {
                return Some(format!(
                    "`{what}`: rank {rank} is not below `members` = {members} (ranks begin at 0)"
                ));
            }
        }
        if !(1..=SHARDS_MAX).contains(&self.shards) {
            return Some(format!("`shards` = {}: write 1 to {SHARDS_MAX}", self.shards));
        }
        if self.replicas > ranks.len() {
            let (replicas, count) = (self.replicas, ranks.len());
            return Some(format!(
                "`replicas` = {replicas} is above the number of its members at the start, {count}: lower it"
            ));
        }
        if (self.shards > 1 || self.replicas > 0) && self.senders != Ranks::All {
            return Some("`senders`: all members of a shard send; leave it out".into());
        }
        let senders = self.senders.among(&ranks);
        if let Some(sender) = senders.iter().find(|sender| !ranks.contains(sender)) {
            return Some(format!(
                "sender {sender} is not among its `members`: add it there, or remove it here"
            ));
        }
        if let Some(fault) = durability.fault(self) {
            return Some(fault);
        }
        if self.slow_after < SLOW_AFTER_MIN {
            return Some(format!(
                "`slow_after_ms` = {}: write at least {}, or a short pause of a consumer ends its membership",
                self.slow_after.as_millis(),
                SLOW_AFTER_MIN.as_millis()
            ));
        }
        if self.window_bytes < self.message_max {
            return Some(format!(
                "`window_bytes` = {} is below `message_max` = {}: raise the one or lower the other",
                self.window_bytes, self.message_max
            ));
        }
        let count = if self.replicas > 0 { self.replicas } else { ranks.len() };
        self.settings(members).check(count).err().map(|error| error.to_string())
    }
}

/// Returns whether the set has the member.
fn has(ranks: &Ranks, member: &Member) -> bool {
    usize::try_from(member.tag).is_ok_and(|rank| ranks.has(rank))
}

/// With a shorter time, a pause of the scheduler could be mistaken for a consumer that has stopped.
const SLOW_AFTER_MIN: Duration = Duration::from_millis(100);
/// The largest number of shards of one subgroup: each costs its members a window.
pub(super) const SHARDS_MAX: usize = 1024;
/// The number of large messages that a sender may have in flight: usually the bytes limit them first.
const LARGE_WINDOW: usize = 16;

/// What a durable subgroup needs of the rest of the configuration.
pub(super) struct Durability {
    has_storage: bool,
    safety: PartitionSafety,
    /// Whether the folder of the log has the same name whenever the member starts.
    has_name: bool,
}

impl Durability {
    pub(super) fn new(
        has_storage: bool,
        safety: PartitionSafety,
        rank: Option<usize>,
        listen: &Address,
    ) -> Self {
        let is_random = matches!(listen, Address::Tcp { port: 0, .. });
        Self { has_storage, safety, has_name: rank.is_some() || !is_random }
    }

    /// Returns what keeps a subgroup from being durable, if it is to be, and what to change.
    pub(super) fn fault(&self, subgroup: &SubgroupConfig) -> Option<String> {
        if subgroup.mode != DeliveryMode::Durable {
            return None;
        }
        let longest = subgroup.large_max.unwrap_or(0).max(subgroup.message_max);
        let fault = if !self.has_storage {
            "needs a folder for the log of this member: write `path = \"FOLDER\"` in [storage]".into()
        } else if self.safety == PartitionSafety::Off {
            "and `partition_safety = \"off\"` do not go together, since the parts of a partitioned group would write logs that \
             contradict each other: write `partition_safety = \"majority\"`"
                .into()
        } else if subgroup.shards > 1 || subgroup.replicas > 0 {
            "and `shards` or `replicas` do not go together, since the members of a durable subgroup do not move: name them with \
             `members`, or write `mode = \"atomic\"`"
                .into()
        } else if longest > DURABLE_MESSAGE_MAX {
            format!(
                "and messages of {longest} bytes do not go together: write at most {DURABLE_MESSAGE_MAX} for `message_max` and \
                 `large_max`, since a message is in one segment of the log"
            )
        } else if !self.has_name {
            "needs a member that has the same name when it starts again, by which its folder is found: write a `rank`, or a \
             `listen` address with a port"
                .into()
        } else {
            return None;
        };
        Some(format!("`mode = \"durable\"` {fault}"))
    }
}

/// The largest number of bytes that a sender may have in flight: enough for four of the longest messages.
pub(super) const WINDOW_BYTES_MAX: usize = 1 << 34;
/// The longest message of a durable subgroup: with its header it fits a segment.
const DURABLE_MESSAGE_MAX: usize = LogSettings::DEFAULT.record_bytes_max() - RECORD_HEADER_BYTES;
