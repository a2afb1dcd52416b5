//! The settings of membership (Derecho §2).

use squall_fabric::Duration;

use super::MEMBERS_MAX;

/// When a part of a view may continue alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartitionSafety {
    /// If it has a majority of the view, so that two parts never both continue \[V5\]. In a view of two members the
    /// loss of one stops the other.
    #[default]
    Majority,
    /// Always. If the network is partitioned, both parts continue, each without the other.
    Off,
}

/// The settings of a group's membership, the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipSettings {
    /// A member that shows no sign of life for this long is suspected. `None`: only what the fabric reports counts.
    pub suspicion_after: Option<Duration>,
    /// When a part of a view may continue alone.
    pub partition_safety: PartitionSafety,
    /// Subgroups with numbers below this may have a state, and views say which members hold it.
    pub states: usize,
    /// The most members that a view may have; at most [`MEMBERS_MAX`], and the same as that of admission.
    pub members_max: usize,
    /// The group has durable subgroups, so that votes and views come to disks before they count, and members that died may come back
    /// with them.
    pub has_register: bool,
}

impl MembershipSettings {
    /// The number of signs of life within one suspicion time: several may be late or stuck in a queue.
    pub(super) const BEATS: u32 = 4;
}

impl Default for MembershipSettings {
    fn default() -> Self {
        Self {
            suspicion_after: Some(Duration::from_secs(2)),
            partition_safety: PartitionSafety::Majority,
            states: 0,
            members_max: MEMBERS_MAX,
            has_register: false,
        }
    }
}
