//! Why a member stops (Derecho §2).

/// Why a member has stopped permanently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The others suspect this member, or have continued without it \[V4\].
    Excluded,
    /// Too many members of the view are gone: the rest is not a majority \[V5\].
    Minority {
        /// The number of members that are gone.
        lost: usize,
        /// The number of members of the view.
        members: usize,
    },
    /// It has left, as it wished.
    Left,
}

impl std::error::Error for StopReason {}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Excluded => f.write_str(
                "the other members have continued without this one, which they considered dead: join again",
            ),
            Self::Minority { lost, members } => write!(
                f,
                "{lost} of {members} members are gone, so the rest is not a majority and must not continue alone: \
                 start them again, or set partition_safety = \"off\" if the network cannot be partitioned"
            ),
            Self::Left => f.write_str("this member has left the group"),
        }
    }
}
