//! Why a member stops (Derecho §2).

/// Why a member has stopped for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The others suspect this member, or have gone on without it \[V4\].
    Excluded,
    /// Too many members of the view are gone: what is left is no majority \[V5\].
    Minority {
        /// How many are gone.
        lost: usize,
        /// How many the view has.
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
                "the other members have gone on without this one, which they took for dead: join again",
            ),
            Self::Minority { lost, members } => write!(
                f,
                "{lost} of {members} members are gone, so what is left is no majority and must not go on alone: \
                 start them again, or set partition_safety = \"off\" if the network cannot part"
            ),
            Self::Left => f.write_str("this member has left the group"),
        }
    }
}
