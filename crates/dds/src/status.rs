//! Statuses of readers and writers (OMG DDS 1.4 §2.2.4.1): totals, and what is new since they were asked for last.

use crate::cache::LimitKind;
use crate::qos::{PolicyId, Qos};
use crate::sample::EndpointId;

/// SUBSCRIPTION_MATCHED and PUBLICATION_MATCHED: how many peers match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatchedStatus {
    /// How many peers have ever matched.
    pub total_count: u64,
    /// How many of these are new.
    pub total_count_change: u64,
    /// How many match now.
    pub current_count: u64,
    /// How this has changed.
    pub current_count_change: i64,
}

/// REQUESTED_INCOMPATIBLE_QOS and OFFERED_INCOMPATIBLE_QOS: how many peers do not match because of their policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IncompatibleQosStatus {
    /// How many there have been.
    pub total_count: u64,
    /// How many of these are new.
    pub total_count_change: u64,
    /// The first policy that does not match, of the latest one.
    pub last_policy: Option<PolicyId>,
    /// For each policy that does not match: with how many peers.
    pub policies: Vec<(PolicyId, u64)>,
}

/// SAMPLE_LOST and INCONSISTENT_TOPIC: how often it has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CountStatus {
    /// How often it has happened.
    pub total_count: u64,
    /// How often of these it is new.
    pub total_count_change: u64,
}

/// SAMPLE_REJECTED: how many samples came that a reader had no space for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SampleRejectedStatus {
    /// How many there have been.
    pub total_count: u64,
    /// How many of these are new.
    pub total_count_change: u64,
    /// The limit that the latest one would have exceeded.
    pub last_reason: Option<LimitKind>,
}

/// The kinds of statuses that a [`crate::Condition`] can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusKind {
    /// Peers match, or do no longer.
    Matched,
    /// A peer's policies do not match.
    IncompatibleQos,
    /// A peer's type has another name.
    InconsistentTopic,
    /// Samples were lost.
    SampleLost,
    /// Samples were rejected.
    SampleRejected,
}

/// A peer that matches, with what it carries in USER_DATA, TOPIC_DATA and GROUP_DATA.
///
/// ```
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, Qos};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-peer-{}", std::process::id()), 1);
/// let participant = DomainParticipant::builder(config).topic("bytes", Qos::ATOMIC).join()?;
/// let topic = participant.topic::<Vec<u8>>("bytes")?;
/// let reader = participant.reader(&topic, Qos::ATOMIC)?;
/// let writer = participant.writer(&topic, Qos { user_data: b"v2".to_vec(), ..Qos::ATOMIC })?;
/// writer.write(&vec![1])?;
/// reader.wait_for_data(std::time::Duration::from_secs(10))?;
/// assert_eq!(reader.matched_publications()[0].qos.user_data, b"v2");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatchedPeer {
    /// The peer.
    pub id: EndpointId,
    /// Its policies.
    pub qos: Qos,
}

impl MatchedStatus {
    pub(crate) const fn begin(&mut self) {
        self.total_count += 1;
        self.total_count_change += 1;
        self.current_count += 1;
        self.current_count_change += 1;
    }

    pub(crate) const fn end(&mut self) {
        self.current_count -= 1;
        self.current_count_change -= 1;
    }

    /// Returns the status; nothing of it is new any more.
    pub(crate) const fn report(&mut self) -> Self {
        let status = *self;
        self.total_count_change = 0;
        self.current_count_change = 0;
        status
    }

    pub(crate) const fn is_new(&self) -> bool {
        self.total_count_change > 0 || self.current_count_change != 0
    }
}

impl IncompatibleQosStatus {
    pub(crate) fn add(&mut self, policies: &[PolicyId]) {
        self.total_count += 1;
        self.total_count_change += 1;
        self.last_policy = policies.first().copied();
        for policy in policies {
            match self.policies.iter_mut().find(|(found, _)| found == policy) {
                Some((_, count)) => *count += 1,
                None => self.policies.push((*policy, 1)),
            }
        }
    }

    pub(crate) fn report(&mut self) -> Self {
        let status = self.clone();
        self.total_count_change = 0;
        status
    }
}

impl CountStatus {
    pub(crate) const fn add(&mut self, count: u64) {
        self.total_count += count;
        self.total_count_change += count;
    }

    pub(crate) const fn report(&mut self) -> Self {
        let status = *self;
        self.total_count_change = 0;
        status
    }
}

impl SampleRejectedStatus {
    pub(crate) const fn add(&mut self, reason: LimitKind) {
        self.total_count += 1;
        self.total_count_change += 1;
        self.last_reason = Some(reason);
    }

    pub(crate) const fn report(&mut self) -> Self {
        let status = *self;
        self.total_count_change = 0;
        status
    }
}
