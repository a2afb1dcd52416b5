//! Qualities of service: the 22 policies of OMG DDS 1.4 (§2.2.3), and the four profiles of Spindle §4.6.
//!
//! [`Qos`] has a value for each policy. Three functions decide about it, all without I/O: [`Qos::check`] refuses values that
//! are not kept, [`Qos::incompatible`] compares what a writer offers with what a reader requests, and [`Qos::profile`] chooses
//! the mode of the subgroup.

mod check;
mod matching;
mod partition;
mod policies;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use check::QosError;
pub use policies::{
    DestinationOrderKind, DurabilityKind, DurabilityService, HistoryKind, LivelinessKind, OwnershipKind,
    PolicyId, Presentation, PresentationScope, ReliabilityKind, ResourceLimits,
};

/// The policies of a topic, a writer or a reader. Each field is a policy; a type of entity that a policy does not concern passes
/// over it, as in the specification.
///
/// ```
/// use squall_dds::{HistoryKind, PolicyId, Profile, Qos};
///
/// let offered = Qos { history: HistoryKind::KeepLast(8), ..Qos::ATOMIC };
/// assert_eq!(offered.profile(), Profile::Atomic);
/// offered.check()?;
///
/// // A reader that wants what was written before it came does not get it from this writer.
/// assert_eq!(offered.incompatible(&Qos::KEPT), [PolicyId::Durability]);
/// # Ok::<(), squall_dds::QosError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qos {
    /// USER_DATA: bytes that matched peers can read.
    pub user_data: Vec<u8>,
    /// TOPIC_DATA: bytes that matched peers can read.
    pub topic_data: Vec<u8>,
    /// GROUP_DATA: bytes that matched peers can read.
    pub group_data: Vec<u8>,
    /// DURABILITY: whether readers that come later get what was written before.
    pub durability: DurabilityKind,
    /// DURABILITY_SERVICE: what of a topic is kept for them; `None`: everything, up to
    /// [`DurabilityService::KEPT_SAMPLES_MAX`] samples.
    pub durability_service: Option<DurabilityService>,
    /// PRESENTATION: how far the order of samples extends.
    pub presentation: Presentation,
    /// DEADLINE: how often each instance is written; `None`: no deadline. Others are refused.
    pub deadline: Option<Duration>,
    /// LATENCY_BUDGET: a hint, which is compared and has no effect: samples are never held back.
    pub latency_budget: Duration,
    /// OWNERSHIP: whether several writers may update an instance.
    pub ownership: OwnershipKind,
    /// OWNERSHIP_STRENGTH: which of them prevails, for [`OwnershipKind::Exclusive`].
    pub ownership_strength: i32,
    /// LIVELINESS: how readers learn that a writer has gone. The views of the group do.
    pub liveliness: LivelinessKind,
    /// LIVELINESS' lease; `None`: the suspicion time of the group's configuration. Others are refused.
    pub liveliness_lease: Option<Duration>,
    /// TIME_BASED_FILTER: a reader takes at most one sample of an instance in this time, by the writers' clocks.
    pub time_based_filter: Duration,
    /// PARTITION: names of partitions, or patterns: writers and readers match only in a common one ([`Qos::shares_partition`]). Refused for
    /// a topic. A topic that keeps its samples has one history for all partitions: DURABILITY_SERVICE's depth counts the samples of a key
    /// over all of them, so a late sample in one partition may replace the only one in another.
    pub partition: Vec<String>,
    /// RELIABILITY: whether samples may be missed.
    pub reliability: ReliabilityKind,
    /// RELIABILITY's `max_blocking_time`: how long a write waits for space.
    pub max_blocking_time: Duration,
    /// TRANSPORT_PRIORITY: a hint, which has no effect.
    pub transport_priority: i32,
    /// LIFESPAN: the time after which a reader no longer returns a sample; `None`: never. The clocks of the hosts have to agree.
    pub lifespan: Option<Duration>,
    /// DESTINATION_ORDER: the order in which samples are read.
    pub destination_order: DestinationOrderKind,
    /// HISTORY: how many samples of an instance a reader holds.
    pub history: HistoryKind,
    /// RESOURCE_LIMITS: the bounds of what a reader holds.
    pub resource_limits: ResourceLimits,
    /// ENTITY_FACTORY: whether entities work from their creation. Refused unless `true`.
    pub autoenable_created_entities: bool,
    /// WRITER_DATA_LIFECYCLE: whether a writer that unregisters an instance also disposes of it.
    pub autodispose_unregistered_instances: bool,
    /// READER_DATA_LIFECYCLE: the time after which instances without writers are forgotten; `None`: when their samples have been
    /// taken. Others are refused.
    pub autopurge_nowriter_samples_delay: Option<Duration>,
    /// READER_DATA_LIFECYCLE: the same for disposed instances.
    pub autopurge_disposed_samples_delay: Option<Duration>,
}

/// The four qualities of service of Spindle §4.6. Each is a way of running a subgroup.
///
/// OMG's *volatile* means that nothing is kept for readers that come later. The paper's *volatile storage* means the opposite: samples
/// are kept, in volatile memory. Here that is [`Profile::Kept`], and `volatile` has OMG's meaning throughout.
///
/// ```
/// use squall_dds::{DurabilityKind, Profile, Qos};
///
/// let qos = Qos { durability: DurabilityKind::TransientLocal, ..Qos::ATOMIC };
/// assert_eq!(qos.profile(), Profile::Kept);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// FIFO per writer, delivered at receipt.
    Unordered,
    /// One total order, each sample after all members have it.
    Atomic,
    /// As [`Profile::Atomic`]; all members keep the samples in memory, and readers that come later get them.
    Kept,
    /// As [`Profile::Kept`], each sample after it is on the disks of all members; what was written outlives these.
    Logged,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unordered => "unordered",
            Self::Atomic => "atomic",
            Self::Kept => "kept",
            Self::Logged => "logged",
        })
    }
}

impl Qos {
    /// FIFO per writer at the lowest latency; nothing is kept. The paper's "unordered" mode.
    pub const UNORDERED: Self = Self::of(ReliabilityKind::BestEffort, DurabilityKind::Volatile);
    /// A total order with stability; nothing is kept. The paper's "atomic multicast".
    pub const ATOMIC: Self = Self::of(ReliabilityKind::Reliable, DurabilityKind::Volatile);
    /// A total order; samples are kept in memory for readers that come later. The paper's "volatile storage".
    pub const KEPT: Self = Self::of(ReliabilityKind::Reliable, DurabilityKind::Transient);
    /// A total order; samples are kept on the members' disks. The paper's "logged storage".
    pub const LOGGED: Self = Self::of(ReliabilityKind::Reliable, DurabilityKind::Persistent);

    const fn of(reliability: ReliabilityKind, durability: DurabilityKind) -> Self {
        Self {
            user_data: Vec::new(),
            topic_data: Vec::new(),
            group_data: Vec::new(),
            durability,
            durability_service: None,
            presentation: Presentation::TOPIC_ORDERED,
            deadline: None,
            latency_budget: Duration::ZERO,
            ownership: OwnershipKind::Shared,
            ownership_strength: 0,
            liveliness: LivelinessKind::Automatic,
            liveliness_lease: None,
            time_based_filter: Duration::ZERO,
            partition: Vec::new(),
            reliability,
            max_blocking_time: Duration::from_millis(100),
            transport_priority: 0,
            lifespan: None,
            destination_order: DestinationOrderKind::ByReception,
            history: HistoryKind::KeepAll,
            resource_limits: ResourceLimits::DEFAULT,
            autoenable_created_entities: true,
            autodispose_unregistered_instances: true,
            autopurge_nowriter_samples_delay: None,
            autopurge_disposed_samples_delay: None,
        }
    }

    /// Returns the profile that keeps the promises of these policies.
    #[must_use]
    pub const fn profile(&self) -> Profile {
        match (self.durability, self.reliability) {
            (DurabilityKind::Volatile, ReliabilityKind::BestEffort) => Profile::Unordered,
            (DurabilityKind::Volatile, ReliabilityKind::Reliable) => Profile::Atomic,
            (DurabilityKind::TransientLocal | DurabilityKind::Transient, _) => Profile::Kept,
            (DurabilityKind::Persistent, _) => Profile::Logged,
        }
    }
}
