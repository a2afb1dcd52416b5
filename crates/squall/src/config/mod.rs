//! The configuration of a group: a TOML file, or built in code.
//!
//! ```
//! let config = squall::config::Config::parse(
//!     r#"
//!     cluster = "kitchen"
//!     secret = "at least sixteen bytes"
//!     listen = "192.0.2.1:7000"                      # or "unix:@name" for shared memory
//!     contacts = ["192.0.2.1:7000"]                  # where some members listen: the same list everywhere
//!     members = 3
//!
//!     [subgroups.orders]
//!     senders = [0, 1]                # all members, if left out
//!     mode = "atomic"                                # or "durable", "unordered", "raw"
//!     window = 256                  # messages in flight, per sender
//!     message_max = "4KiB"
//!     slow_consumer = "wait"                         # or "exclude", after slow_after_ms = 5000
//!     "#,
//! )?;
//! assert_eq!(config.subgroups["orders"].message_max, 4096);
//! # Ok::<(), squall::config::ConfigError>(())
//! ```

mod agreement;
mod all_errors;
mod error;
mod file;
mod genuine;
mod given;
pub mod keys;
mod metrics;
mod nearest;
pub mod quantity;
mod storage;
mod subgroup;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use squall_protocols::genuine::QuorumRule;
use squall_protocols::membership::MEMBERS_MAX;
pub use squall_protocols::membership::PartitionSafety;
pub use squall_protocols::multicast::{Batching, Carrier, DeliveryMode};
pub use squall_transports::Transport;
pub use squall_transports::bootstrap::{Address, BootstrapPlan, Encryption, Secret};
use squall_transports::runner::IdleLimits;
pub use squall_transports::verbs::VerbsSettings;

pub use self::error::{ConfigError, ConfigPlace};
use self::file::OwnSettings;
pub use self::file::exposed_secret;
pub use self::genuine::GenuineConfig;
pub use self::given::{GivenValue, given_values};
pub use self::metrics::MetricsConfig;
pub use self::storage::{NewGroup, StorageConfig};
use self::subgroup::Durability;
pub use self::subgroup::{Ranks, Retention, SlowConsumer, SubgroupConfig};
use self::table::ConfigText;

/// The default time for all members to connect.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// The default time after which a silent member is considered dead: longer than a busy machine keeps a process
/// waiting.
const SUSPICION_AFTER: Duration = Duration::from_secs(5);

/// The default time for one connection to prove the secret.
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);

/// What the polling thread does when there is nothing to do.
///
/// ```
/// use squall::Config;
/// use squall::config::IdlePolicy;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut config = Config::local("idle", 2);
/// config.idle = IdlePolicy::Spin; // the least latency, for a core
/// config.core = Some(1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdlePolicy {
    /// The thread chooses the policy that suits the number of cores.
    #[default]
    Auto,
    /// The thread continues to poll, and keeps its core busy.
    Spin,
    /// The thread continues to poll, but yields to other threads in between.
    Yield,
    /// The thread soon sleeps.
    Park,
}

/// How long the polling thread spins, as a function of the number of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdleRule {
    pub(crate) policy: IdlePolicy,
    /// All members compete for the cores of this host.
    is_on_one_host: bool,
}

impl IdleRule {
    /// Returns what suits a group of `members`.
    pub(crate) fn limits(self, members: usize) -> IdleLimits {
        match self.policy {
            IdlePolicy::Auto => IdleLimits::auto(if self.is_on_one_host { members } else { 1 }),
            IdlePolicy::Spin => IdleLimits::SPIN,
            IdlePolicy::Yield => IdleLimits::YIELD,
            IdlePolicy::Park => IdleLimits::PARK,
        }
    }
}

/// The configuration of a member.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster's name, the same at all members.
    pub cluster: String,
    /// The cluster's secret, the same at all members.
    pub secret: Secret,
    /// The address at which this member listens.
    pub listen: Address,
    /// The address at which others reach this member, if that is not where it listens, as behind a port map or NAT: a name or an
    /// address, and a port (0: that of `listen`). A name is resolved at each attempt to connect.
    pub advertise: Option<Address>,
    /// The addresses at which some of the members listen; the list is the same at all members. Any contact can
    /// coordinate the first start, in which a majority of the contacts has to take part; a process that joins later
    /// asks them in turn. There should be several, preferably three or more. If the list is empty, this member
    /// coordinates the start.
    pub contacts: Vec<Address>,
    /// The number of members with which the group starts, the same at all members.
    pub members: usize,
    /// The rank that this member asks for; `None`: any free one.
    pub rank: Option<usize>,
    /// How members reach each other.
    pub transport: Transport,
    /// The transport of streams between a process and one member: requests of clients of objects, and states of joiners. Each
    /// stream takes the best one unless a test or a measurement chooses; the file has no key for it.
    #[doc(hidden)]
    pub streams: Transport,
    /// Whether TCP traffic is encrypted; RDMA and shared memory are not. If two members differ, the stricter setting
    /// applies.
    pub encryption: Encryption,
    /// The RDMA device that this member uses; it may differ from member to member.
    pub verbs: VerbsSettings,
    /// The subgroups by name, the same at all members.
    pub subgroups: BTreeMap<String, SubgroupConfig>,
    /// The shards to which messages are sent in one order, the same at all members.
    pub genuine: Option<GenuineConfig>,
    /// What the polling thread does when there is nothing to do.
    pub idle: IdlePolicy,
    /// The core that the polling thread is bound to.
    pub core: Option<usize>,
    /// A member that shows no sign of life for this long is considered dead; `None`: only failures that the transport
    /// notices count. The same at all members.
    pub suspicion_after: Option<Duration>,
    /// When a part of the group may continue alone. The same at all members.
    pub partition_safety: PartitionSafety,
    /// The time for all members to connect.
    pub timeout: Duration,
    /// The time for one connection to prove the secret.
    pub handshake_timeout: Duration,
    /// Where this member keeps the log of its durable subgroups; it may differ from member to member.
    pub storage: Option<StorageConfig>,
    /// Where this member's metrics can be read; it differs from member to member.
    pub metrics: Option<MetricsConfig>,
    /// The file into which this member writes what it has noticed lately when its group ends here, as a trace
    /// ([`crate::trace::of_records`]); it differs from member to member.
    pub flight_record: Option<PathBuf>,
}

impl Config {
    /// Reads a file.
    ///
    /// ```no_run
    /// use squall::{Config, Group};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let group = Group::join(Config::load("squall.toml")?)?;
    /// # drop(group);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`], with file and line.
    pub fn load(file: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::load_for(file, None, None)
    }

    /// Reads a file for one member, as [`Config::load`] does. A `listen` or `rank` that is given here replaces the
    /// file's, which then needs none.
    ///
    /// ```no_run
    /// use squall::{Config, Group};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let listen = "192.0.2.1:7400".parse()?;
    /// let group = Group::join(Config::load_for("squall.toml", Some(listen), None)?)?;
    /// # drop(group);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`], with file and line.
    pub fn load_for(
        file: impl AsRef<Path>,
        listen: Option<Address>,
        rank: Option<usize>,
    ) -> Result<Self, ConfigError> {
        Self::read(file.as_ref(), OwnSettings { listen, rank, ..OwnSettings::default() })
    }

    /// Returns all errors of a file for one member, for which [`Config::load_for`] returns the first; none if it can be used.
    #[must_use]
    pub fn errors_in(file: impl AsRef<Path>, listen: Option<&Address>) -> Vec<ConfigError> {
        let file = file.as_ref();
        let own = || OwnSettings { listen: listen.cloned(), ..OwnSettings::default() };
        match std::fs::read_to_string(file) {
            Ok(text) => {
                all_errors::all_errors(ConfigText { file: Some(file), text: &text, lenient: None }, &own)
            }
            Err(cause) => vec![ConfigError::Read { file: file.into(), cause }],
        }
    }

    /// Reads a file for a member of a domain of `squall-dds`, as [`Config::load_for`] does. The file needs no subgroups, since these
    /// are topics, which the participant adds.
    ///
    /// ```no_run
    /// use squall::Config;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = Config::load_for_domain("domain.toml", Some("192.0.2.1:7400".parse()?), None)?;
    /// assert!(config.subgroups.is_empty()); // for `squall_dds::DomainParticipant::builder`
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`], with file and line.
    pub fn load_for_domain(
        file: impl AsRef<Path>,
        listen: Option<Address>,
        rank: Option<usize>,
    ) -> Result<Self, ConfigError> {
        Self::read(file.as_ref(), OwnSettings { listen, rank, is_domain: true, ..OwnSettings::default() })
    }

    fn read(file: &Path, own: OwnSettings) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(file).map_err(|cause| ConfigError::Read { file: file.into(), cause })?;
        file::read(ConfigText { file: Some(file), text: &text, lenient: None }, own)
    }

    /// Reads a file for a process that is no member, such as an [`crate::external::Observer`], as [`Config::load`] does.
    /// The file needs no `listen`: if it has none, the first of the `contacts` stands for it. It needs no subgroups either, as far as
    /// the process uses none.
    ///
    /// ```no_run
    /// use squall::Config;
    /// use squall::external::Observer;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let observer = Observer::connect(&Config::load_for_client("squall.toml")?, "log")?;
    /// # drop(observer);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`], with file and line.
    pub fn load_for_client(file: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::read(file.as_ref(), OwnSettings { is_client: true, ..OwnSettings::default() })
    }

    /// Reads a text. A relative `secret_file` is relative to the current directory. Fuzzed as `config`.
    ///
    /// # Errors
    /// [`ConfigError`], with the line.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        file::read(ConfigText { file: None, text, lenient: None }, OwnSettings::default())
    }

    /// Returns the configuration of a group of `members` processes or threads of this user on this host, over shared
    /// memory, for tests and examples. It is the configuration of rank 0; [`Config::for_rank`] makes the others'. The
    /// name must not be in use on this host. There is no subgroup yet.
    ///
    /// # Panics
    /// If the name is longer than 64 bytes.
    #[must_use]
    pub fn local(name: &str, members: usize) -> Self {
        assert!(name.len() <= 64, "the name of a local group is too long");
        let address = |rank: usize| Address::Abstract(format!("squall-{name}-{rank}"));
        Self {
            cluster: name.into(),
            // The kernel vouches for the user of a Unix socket, so the secret excludes no process here.
            secret: Secret::new("a group of one user on one host").expect("it is long enough"),
            contacts: (0..members.max(1)).map(address).collect(),
            listen: address(0),
            advertise: None,
            members,
            rank: Some(0),
            transport: Transport::Shm,
            streams: Transport::Auto,
            encryption: Encryption::On,
            verbs: VerbsSettings::default(),
            subgroups: BTreeMap::new(),
            genuine: None,
            idle: IdlePolicy::Auto,
            core: None,
            suspicion_after: Some(SUSPICION_AFTER),
            partition_safety: PartitionSafety::Majority,
            timeout: JOIN_TIMEOUT,
            handshake_timeout: PROOF_TIMEOUT,
            storage: None,
            metrics: None,
            flight_record: None,
        }
    }

    /// Returns the configuration of the member with this rank in a [`Config::local`] group. A rank of `members` or
    /// above is that of a process that joins later.
    #[must_use]
    pub fn for_rank(mut self, rank: usize) -> Self {
        self.listen = Address::Abstract(format!("squall-{}-{rank}", self.cluster));
        self.rank = Some(rank);
        self
    }

    /// Adds a subgroup.
    #[must_use]
    pub fn subgroup(mut self, name: &str, subgroup: SubgroupConfig) -> Self {
        self.subgroups.insert(name.into(), subgroup);
        self
    }

    /// Replaces each subgroup that has several shards by one subgroup for each of them.
    #[must_use]
    pub(crate) fn with_shards(mut self) -> Self {
        let expand = |(name, subgroup): (String, SubgroupConfig)| -> Vec<(String, SubgroupConfig)> {
            if subgroup.shards == 1 {
                return vec![(name, subgroup)];
            }
            let shard = |shard: u32| {
                let subgroup = SubgroupConfig { shards: 1, shard, ..subgroup.clone() };
                (format!("{name}/{shard}"), subgroup)
            };
            (0..).take(subgroup.shards).map(shard).collect()
        };
        self.subgroups = std::mem::take(&mut self.subgroups).into_iter().flat_map(expand).collect();
        self
    }

    /// Chooses how messages are sent, where the configuration leaves that open: on one host they are read in place.
    pub(crate) fn choose_transports(&mut self) {
        let is_shared = self.transport == Transport::Shm;
        for subgroup in self.subgroups.values_mut() {
            let usual = if is_shared { Carrier::Pushed } else { Carrier::Relayed };
            subgroup.large_carrier.get_or_insert(usual);
            subgroup.express.get_or_insert(!is_shared);
        }
    }

    /// Checks that the values are consistent, as [`Config::load`] and [`Config::parse`] do.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`], with what to change.
    pub fn check(&self) -> Result<(), ConfigError> {
        let durability =
            Durability::new(self.storage.is_some(), self.partition_safety, self.rank, &self.listen);
        let of_subgroup = |(name, subgroup): (&String, &SubgroupConfig)| {
            subgroup.fault(self.members, &durability).map(|fault| format!("[subgroups.{name}]: {fault}"))
        };
        let message = self.fault().or_else(|| self.subgroups.iter().find_map(of_subgroup));
        message.map_or(Ok(()), |message| {
            Err(ConfigError::Conflict { place: ConfigPlace::default(), table: None, message })
        })
    }

    /// Returns what is wrong outside the subgroups.
    fn fault(&self) -> Option<String> {
        if self.members == 0 {
            return Some("`members` = 0: a group has at least one".into());
        }
        if self.members > MEMBERS_MAX {
            return Some(format!("`members` = {}: a group has at most {MEMBERS_MAX}", self.members));
        }
        if let Some(rank) = self.rank.filter(|rank| *rank >= MEMBERS_MAX) {
            return Some(format!(
                "`rank` = {rank}: a group has at most {MEMBERS_MAX} members (ranks begin at 0)"
            ));
        }
        if let Some(name) = self.removed_fault() {
            return Some(format!(
                "`removed` in [storage] names `{name}`, which is a durable subgroup here: take it off that list to keep it, or remove \
                 [subgroups.{name}] to give it up"
            ));
        }
        let of_shards = self.genuine.as_ref().and_then(|genuine| genuine.fault(self.members));
        let of_shards = of_shards.or_else(|| self.object_fault());
        let of_shards = of_shards.map(|fault| format!("[genuine]: {fault}"));
        of_shards.or_else(|| self.metrics.as_ref().and_then(MetricsConfig::fault))
    }

    /// Returns a durable subgroup that is both there and given up.
    fn removed_fault(&self) -> Option<&String> {
        let is_durable = |name: &&String| {
            self.subgroups.get(*name).is_some_and(|subgroup| subgroup.mode == DeliveryMode::Durable)
        };
        self.storage.as_ref()?.removed.iter().find(is_durable)
    }

    /// Returns how many states belong to shards.
    pub(crate) fn shard_states(&self) -> usize {
        self.genuine.as_ref().filter(|genuine| genuine.object).map_or(0, |genuine| genuine.shards.len())
    }

    /// A group that restarts from its logs would begin without the object's state.
    fn object_fault(&self) -> Option<String> {
        self.genuine.as_ref().filter(|genuine| genuine.object)?;
        let is_durable = |(_, subgroup): &(&String, &SubgroupConfig)| subgroup.mode == DeliveryMode::Durable;
        let (name, _) = self.subgroups.iter().find(is_durable)?;
        Some(format!(
            "`object` = true, and subgroup `{name}` is durable: the object in the shards is in memory, and the group's logs do not \
             bring it back; use a group of its own for it"
        ))
    }

    /// Returns the plan by which the members find each other.
    #[must_use]
    pub fn plan(&self) -> BootstrapPlan {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let mut plan = BootstrapPlan::new(&self.cluster, &self.secret, number(self.members));
        plan.contacts.clone_from(&self.contacts);
        plan.rank = self.rank.map(number);
        plan.timeout = self.timeout;
        plan.handshake_timeout = self.handshake_timeout;
        plan.encryption = self.encryption;
        plan.agreement = agreement::agreement(self);
        plan
    }

    /// Returns what the polling thread does when there is nothing to do, in a group of `members`.
    #[must_use]
    pub fn idle_for(&self, members: usize) -> IdleLimits {
        self.idle_rule().limits(members)
    }

    /// Returns what [`Config::idle_for`] does, as a function: the number of members changes with the views.
    pub(crate) fn idle_rule(&self) -> IdleRule {
        IdleRule { policy: self.idle, is_on_one_host: self.is_on_one_host() }
    }

    /// Returns whether it is certain that all members run on this host.
    fn is_on_one_host(&self) -> bool {
        match &self.listen {
            Address::Tcp { host, .. } => {
                host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
            _ => true,
        }
    }
}
