//! What can be chosen for membership (Derecho §2).

use squall_fabric::Duration;

/// When a part of a view may go on alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartitionSafety {
    /// With a majority of the view: two parts never go on both \[V5\]. In a view of two members the loss of one stops
    /// the other.
    #[default]
    Majority,
    /// Always. If the network parts, both parts go on, each without the other.
    Off,
}

/// Settings of a group's membership, the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipSettings {
    /// A member that shows no sign of life for this long is suspected. `None`: only what the fabric reports counts.
    pub suspicion_after: Option<Duration>,
    /// When a part of a view may go on alone.
    pub partition_safety: PartitionSafety,
    /// Subgroups with numbers below this may have a state, and views say which members hold it.
    pub states: usize,
}

impl MembershipSettings {
    /// Signs of life within one suspicion time: several may be late or lost in a queue.
    pub(super) const BEATS: u32 = 4;
}

impl Default for MembershipSettings {
    fn default() -> Self {
        Self {
            suspicion_after: Some(Duration::from_secs(2)),
            partition_safety: PartitionSafety::Majority,
            states: 0,
        }
    }
}
