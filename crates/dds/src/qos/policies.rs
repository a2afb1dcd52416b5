//! The values of the policies (OMG DDS 1.4 §2.2.3).

use std::fmt;

use serde::{Deserialize, Serialize};

/// The names of all policies.
///
/// ```
/// use squall_dds::PolicyId;
///
/// assert_eq!(PolicyId::ALL.len(), 22);
/// assert_eq!(PolicyId::Durability.to_string(), "DURABILITY");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "these are the names of the specification")]
pub enum PolicyId {
    UserData,
    TopicData,
    GroupData,
    Durability,
    DurabilityService,
    Presentation,
    Deadline,
    LatencyBudget,
    Ownership,
    OwnershipStrength,
    Liveliness,
    TimeBasedFilter,
    Partition,
    Reliability,
    TransportPriority,
    Lifespan,
    DestinationOrder,
    History,
    ResourceLimits,
    EntityFactory,
    WriterDataLifecycle,
    ReaderDataLifecycle,
}

impl PolicyId {
    /// All of them, in the order of the specification.
    pub const ALL: [Self; 22] = [
        Self::UserData,
        Self::TopicData,
        Self::GroupData,
        Self::Durability,
        Self::DurabilityService,
        Self::Presentation,
        Self::Deadline,
        Self::LatencyBudget,
        Self::Ownership,
        Self::OwnershipStrength,
        Self::Liveliness,
        Self::TimeBasedFilter,
        Self::Partition,
        Self::Reliability,
        Self::TransportPriority,
        Self::Lifespan,
        Self::DestinationOrder,
        Self::History,
        Self::ResourceLimits,
        Self::EntityFactory,
        Self::WriterDataLifecycle,
        Self::ReaderDataLifecycle,
    ];
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = String::new();
        for c in format!("{self:?}").chars() {
            if c.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(c.to_ascii_uppercase());
        }
        f.write_str(&name)
    }
}

/// What readers that come later get (DURABILITY). Each kind includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DurabilityKind {
    /// Nothing.
    Volatile,
    /// What their writer has kept. Here all members keep it, as for [`DurabilityKind::Transient`].
    TransientLocal,
    /// What was kept in memory, even if its writer has gone.
    Transient,
    /// What is on disk, even if all members have gone meanwhile.
    Persistent,
}

/// What is kept for readers that come later (DURABILITY_SERVICE), the same at all participants. Of the specification's other limits,
/// instances and samples of one instance are bounded by `samples_max` alone, and `service_cleanup_delay` is infinite: an instance that
/// was disposed of stays in the history.
///
/// ```
/// use squall_dds::{DurabilityService, HistoryKind, Qos};
///
/// let latest = DurabilityService { history: HistoryKind::KeepLast(1), ..DurabilityService::EVERYTHING };
/// Qos { durability_service: Some(latest), ..Qos::KEPT }.check()?;
/// # Ok::<(), squall_dds::QosError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurabilityService {
    /// How many samples of each instance.
    pub history: HistoryKind,
    /// How many samples of all instances. A write that would exceed this is refused.
    pub samples_max: usize,
}

impl DurabilityService {
    /// The default bound of [`DurabilityService::samples_max`]: a topic's history is in the memory of every member.
    pub const KEPT_SAMPLES_MAX: usize = 65_536;
    /// All samples, up to that bound.
    pub const EVERYTHING: Self = Self { history: HistoryKind::KeepAll, samples_max: Self::KEPT_SAMPLES_MAX };

    /// Returns whether the topic keeps nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.samples_max == 0 || self.history == HistoryKind::KeepLast(0)
    }
}

/// How far the order of samples extends (PRESENTATION).
///
/// ```
/// use squall_dds::{Presentation, PresentationScope, Qos};
///
/// let by_instance = Presentation { scope: PresentationScope::Instance, ..Presentation::TOPIC_ORDERED };
/// assert!(Qos::ATOMIC.incompatible(&Qos { presentation: by_instance, ..Qos::ATOMIC }).is_empty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presentation {
    /// The scope of the other two.
    pub scope: PresentationScope,
    /// Coherent sets appear together ([`crate::TopicPublisher::coherent_changes`]).
    pub coherent_access: bool,
    /// Samples appear in their order.
    pub ordered_access: bool,
}

impl Presentation {
    /// The samples of a topic are read in its order.
    pub const TOPIC_ORDERED: Self =
        Self { scope: PresentationScope::Topic, coherent_access: false, ordered_access: true };
    /// The samples of several topics are read in one order, and their coherent sets appear together.
    pub const GROUP_COHERENT: Self =
        Self { scope: PresentationScope::Group, coherent_access: true, ordered_access: true };
}

/// The scope of [`Presentation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PresentationScope {
    /// Each instance by itself.
    Instance,
    /// All instances of a topic.
    Topic,
    /// Topics that were created at run time with this scope and are kept, or are not ([`crate::TopicSubscriber`]).
    Group,
}

/// Whether several writers may update an instance (OWNERSHIP).
///
/// ```
/// use squall_dds::{OwnershipKind, Qos};
///
/// assert!(Qos { ownership: OwnershipKind::Exclusive, ..Qos::ATOMIC }.check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnershipKind {
    /// They may.
    Shared,
    /// Only the strongest counts. Refused.
    Exclusive,
}

/// How readers learn that a writer has gone (LIVELINESS). Each kind includes the ones before it.
///
/// ```
/// use squall_dds::{LivelinessKind, Qos};
///
/// assert!(Qos { liveliness: LivelinessKind::ManualByTopic, ..Qos::ATOMIC }.check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LivelinessKind {
    /// By the views of the group.
    Automatic,
    /// Refused.
    ManualByParticipant,
    /// Refused.
    ManualByTopic,
}

/// Whether samples may be missed (RELIABILITY).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ReliabilityKind {
    /// A reader that is full rejects samples.
    BestEffort,
    /// A reader that is full holds up its writers. In a topic that has a history it takes the samples later.
    Reliable,
}

/// The order in which samples are read (DESTINATION_ORDER). Each kind includes the ones before it.
///
/// ```
/// use squall_dds::{DestinationOrderKind, Qos};
///
/// assert!(Qos { destination_order: DestinationOrderKind::BySource, ..Qos::ATOMIC }.check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DestinationOrderKind {
    /// The order of delivery: the same at all readers, except in [`super::Profile::Unordered`].
    ByReception,
    /// The order of the writers' clocks. Refused.
    BySource,
}

/// How many samples of an instance are held (HISTORY).
///
/// ```
/// use squall_dds::{HistoryKind, Qos};
///
/// Qos { history: HistoryKind::KeepLast(1), ..Qos::UNORDERED }.check()?;
/// # Ok::<(), squall_dds::QosError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HistoryKind {
    /// The latest ones, at least one; a new sample replaces the oldest.
    KeepLast(usize),
    /// All of them, until they are taken or [`ResourceLimits`] are reached.
    KeepAll,
}

/// The bounds of what a reader holds (RESOURCE_LIMITS).
///
/// ```
/// use squall_dds::{Qos, ResourceLimits};
///
/// let small = ResourceLimits { samples_max: 8, ..ResourceLimits::DEFAULT };
/// Qos { resource_limits: small, ..Qos::ATOMIC }.check()?;
/// # Ok::<(), squall_dds::QosError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Samples of all instances. Changes of an instance's state are held in addition, one for each instance.
    pub samples_max: usize,
    /// Instances. A sample of a further one is rejected, in all profiles, since only the application can free instances.
    pub instances_max: usize,
    /// Samples of one instance.
    pub samples_per_instance_max: usize,
}

impl ResourceLimits {
    /// A reader's default: everything is bounded.
    pub const DEFAULT: Self =
        Self { samples_max: 65_536, instances_max: 65_536, samples_per_instance_max: 65_536 };
}
