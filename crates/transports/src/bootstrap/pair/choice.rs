//! Which transport a pair uses: the wish of the caller, and the listener's answer.

use super::super::message::{BootstrapAnswer, PairWish, Refusal};
use super::super::{Address, BootstrapError};
use crate::{Transport, shm};

impl Transport {
    /// Returns whether this end may use shared memory, and can.
    ///
    /// # Errors
    /// Returns an error if it must, and cannot.
    pub(super) fn shares_memory(self) -> Result<bool, BootstrapError> {
        match self {
            Self::Auto => Ok(shm::check_or_warn().is_ok()),
            Self::Shm => shm::check().map(|()| true).map_err(|why| BootstrapError::Plan(why.to_string())),
            Self::Tcp | Self::Verbs => Ok(false),
        }
    }

    /// Checks that this end can use the Unix socket at `address`, over which there is only shared memory.
    pub(super) fn check_unix(self, address: &Address) -> Result<(), BootstrapError> {
        match self {
            Self::Auto | Self::Shm => Self::Shm.shares_memory().map(drop),
            Self::Tcp | Self::Verbs => {
                Err(BootstrapError::Plan(format!("{address} is not a TCP address: write `host:port`")))
            }
        }
    }

    /// Returns the wish of a caller with this choice at a TCP address; calls `would_use_rdma` only if it
    /// matters.
    pub(super) fn wish(self, would_use_rdma: impl FnOnce() -> bool) -> PairWish {
        match self {
            Self::Auto if would_use_rdma() => PairWish::RdmaIfYouToo,
            Self::Auto => PairWish::Any,
            Self::Shm | Self::Tcp => PairWish::Stream,
            Self::Verbs => PairWish::Rdma,
        }
    }

    /// Returns the answer of a listener with this choice to a wish that arrives by TCP. Only where it
    /// matters, it calls `has_rdma`, or `would_use_rdma` for callers that do not require RDMA.
    pub(super) fn answer(
        self,
        wish: PairWish,
        has_rdma: impl FnOnce() -> bool,
        would_use_rdma: impl FnOnce() -> bool,
    ) -> BootstrapAnswer {
        match (self, wish) {
            (Self::Verbs, PairWish::Rdma | PairWish::Any | PairWish::RdmaIfYouToo) => {
                BootstrapAnswer::AcceptedByRdma
            }
            (Self::Verbs, PairWish::Stream) => BootstrapAnswer::Refused(Refusal::RdmaOnly),
            (Self::Auto, PairWish::Rdma) if has_rdma() => BootstrapAnswer::AcceptedByRdma,
            (Self::Auto, PairWish::RdmaIfYouToo) if would_use_rdma() => BootstrapAnswer::AcceptedByRdma,
            (_, PairWish::Rdma) => BootstrapAnswer::Refused(Refusal::NoRdma),
            (_, PairWish::Stream | PairWish::Any | PairWish::RdmaIfYouToo) => BootstrapAnswer::Accepted,
        }
    }
}
