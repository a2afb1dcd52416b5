//! How a subgroup fails at one member (Derecho §3.4).

use std::fmt;

use super::CorruptMemory;

/// Why a subgroup has stopped. Nothing wrong was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubgroupFailure {
    /// Memory violates the protocol [O6].
    Corrupt(CorruptMemory),
    /// The indexes of this view are used up, or a member claims that they are.
    Exhausted,
}

impl fmt::Display for SubgroupFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(corrupt) => write!(f, "{corrupt}; delivery has stopped before it: join again"),
            Self::Exhausted => f.write_str("the message numbers of this view are used up: start a new view"),
        }
    }
}

impl std::error::Error for SubgroupFailure {}
