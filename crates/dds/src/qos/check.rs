//! Which values of the policies are kept, and the errors for the others (OMG DDS 1.4 §2.2.3: `UNSUPPORTED` and
//! `INCONSISTENT_POLICY`).

use super::{
    DestinationOrderKind, HistoryKind, LivelinessKind, OwnershipKind, PolicyId, PresentationScope, Profile,
    Qos, ReliabilityKind,
};

squall_fabric::debug_as_text!(QosError);

/// Why an entity is not created with these policies.
///
/// ```
/// use squall_dds::{PolicyId, Qos, QosError};
///
/// let error = Qos { ownership_strength: 7, ..Qos::ATOMIC }.check().unwrap_err();
/// assert!(matches!(error, QosError::Unsupported { policy: PolicyId::OwnershipStrength, .. }));
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QosError {
    /// The value is not kept by this implementation.
    #[error("{policy}: {value} is not supported: {advice}")]
    Unsupported {
        /// The policy.
        policy: PolicyId,
        /// The value.
        value: String,
        /// What to do instead.
        advice: &'static str,
    },
    /// The value contradicts another one, or itself.
    #[error("{policy}: {value} is inconsistent: {advice}")]
    Inconsistent {
        /// The policy.
        policy: PolicyId,
        /// The value.
        value: String,
        /// What to do instead.
        advice: &'static str,
    },
}

impl QosError {
    /// Returns the policy that is refused.
    #[must_use]
    pub const fn policy(&self) -> PolicyId {
        match self {
            Self::Unsupported { policy, .. } | Self::Inconsistent { policy, .. } => *policy,
        }
    }
}

impl Qos {
    /// Checks that all policies are kept.
    ///
    /// # Errors
    /// [`QosError`] for the first one that is not.
    pub fn check(&self) -> Result<(), QosError> {
        self.check_order()?;
        self.check_times()?;
        self.check_store()?;
        self.check_bounds()
    }

    /// Checks the policies of a topic.
    pub(crate) fn check_topic(&self) -> Result<(), QosError> {
        contradict(!self.partition.is_empty(), PolicyId::Partition, || {
            (format!("{:?} for a topic", self.partition), "give it to writers and readers")
        })?;
        self.check()
    }

    fn check_order(&self) -> Result<(), QosError> {
        let is_grouped = self.presentation.scope == PresentationScope::Group;
        contradict(is_grouped && self.profile() == Profile::Unordered, PolicyId::Presentation, || {
            (
                "scope GROUP with BEST_EFFORT".into(),
                "use RELIABLE: without a total order, topics have none in common",
            )
        })?;
        refuse(self.destination_order == DestinationOrderKind::BySource, PolicyId::DestinationOrder, || {
            ("BY_SOURCE_TIMESTAMP".into(), "use BY_RECEPTION, which is the same order at all readers")
        })?;
        refuse(self.ownership == OwnershipKind::Exclusive, PolicyId::Ownership, || {
            ("EXCLUSIVE".into(), "use SHARED, and let the application choose among writers")
        })?;
        refuse(self.ownership_strength != 0, PolicyId::OwnershipStrength, || {
            (self.ownership_strength.to_string(), "leave it 0: it has a meaning for EXCLUSIVE ownership only")
        })?;
        refuse(!self.autoenable_created_entities, PolicyId::EntityFactory, || {
            ("autoenable_created_entities = false".into(), "create an entity when it is to work")
        })
    }

    fn check_times(&self) -> Result<(), QosError> {
        refuse(self.deadline.is_some(), PolicyId::Deadline, || {
            (format!("{:?}", self.deadline), "leave it out, and wait with a timeout")
        })?;
        refuse(self.liveliness != LivelinessKind::Automatic, PolicyId::Liveliness, || {
            (format!("{:?}", self.liveliness), "use AUTOMATIC: the group notices members that have gone")
        })?;
        refuse(self.liveliness_lease.is_some(), PolicyId::Liveliness, || {
            let advice = "leave it out, and set the suspicion time of the group's configuration";
            (format!("a lease of {:?}", self.liveliness_lease), advice)
        })?;
        let delays = [self.autopurge_nowriter_samples_delay, self.autopurge_disposed_samples_delay];
        refuse(delays.iter().any(Option::is_some), PolicyId::ReaderDataLifecycle, || {
            (format!("{delays:?}"), "leave the delays out: taking the samples frees their instance")
        })
    }

    fn check_store(&self) -> Result<(), QosError> {
        let keeps = self.durability > super::DurabilityKind::Volatile;
        let contradicts = keeps && self.reliability == ReliabilityKind::BestEffort;
        contradict(contradicts, PolicyId::Reliability, || {
            let value = format!("BEST_EFFORT with DURABILITY {:?}", self.durability);
            (value, "use RELIABLE: a sample that may be missed cannot be kept")
        })?;
        let Some(service) = self.durability_service else { return Ok(()) };
        contradict(!keeps, PolicyId::DurabilityService, || {
            (format!("{service:?}"), "leave it out: a VOLATILE topic keeps nothing")
        })?;
        contradict(service.is_empty(), PolicyId::DurabilityService, || {
            (format!("{service:?}"), "keep at least one sample")
        })
    }

    fn check_bounds(&self) -> Result<(), QosError> {
        let limits = &self.resource_limits;
        contradict(self.history == HistoryKind::KeepLast(0), PolicyId::History, || {
            ("KEEP_LAST 0".into(), "keep at least one sample")
        })?;
        let is_empty =
            limits.samples_max == 0 || limits.instances_max == 0 || limits.samples_per_instance_max == 0;
        contradict(is_empty, PolicyId::ResourceLimits, || (format!("{limits:?}"), "let all be at least 1"))?;
        let is_deep =
            matches!(self.history, HistoryKind::KeepLast(depth) if depth > limits.samples_per_instance_max);
        contradict(is_deep, PolicyId::History, || {
            (
                format!("{:?}", self.history),
                "raise samples_per_instance_max in RESOURCE_LIMITS, or keep fewer",
            )
        })
    }
}

fn refuse(
    is_so: bool,
    policy: PolicyId,
    why: impl FnOnce() -> (String, &'static str),
) -> Result<(), QosError> {
    fault_if(is_so, why, |value, advice| QosError::Unsupported { policy, value, advice })
}

fn contradict(
    is_so: bool,
    policy: PolicyId,
    why: impl FnOnce() -> (String, &'static str),
) -> Result<(), QosError> {
    fault_if(is_so, why, |value, advice| QosError::Inconsistent { policy, value, advice })
}

fn fault_if(
    is_so: bool,
    why: impl FnOnce() -> (String, &'static str),
    fault: impl FnOnce(String, &'static str) -> QosError,
) -> Result<(), QosError> {
    if !is_so {
        return Ok(());
    }
    let (value, advice) = why();
    Err(fault(value, advice))
}
