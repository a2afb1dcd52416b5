//! What the messages of a benchmark travel through: a transport, or the simulated fabric.

use clap::ValueEnum;
use serde::Serialize;

use crate::control::TransportName;

/// What the messages travel through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum BenchFabric {
    /// Shared memory
    Shm,
    /// TCP over the loopback interface
    Tcp,
    /// Shared memory, RDMA or TCP, the fastest that each pair of members has
    Auto,
    /// RDMA by verbs; see docs/verbs.md
    Verbs,
    /// The simulated fabric with the cost model of the paper's testbed, in virtual time
    Sim,
}

impl BenchFabric {
    /// Returns the transport, unless it is the simulated fabric.
    pub(super) const fn real(self) -> Option<TransportName> {
        match self {
            Self::Shm => Some(TransportName::Shm),
            Self::Tcp => Some(TransportName::Tcp),
            Self::Auto => Some(TransportName::Auto),
            Self::Verbs => Some(TransportName::Verbs),
            Self::Sim => None,
        }
    }
}
