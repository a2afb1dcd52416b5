//! What the application's handles need of the node: its number, its status, and how to wake it (Spindle §2.4).

use std::sync::Arc;

use squall_fabric::{Duration, Instant, NodeId};
use squall_transports::Waker;

use crate::durable::LogBorrower;
use crate::status::GroupStatus;

/// What the application's handles share with the node.
#[derive(Clone, Debug)]
pub(crate) struct NodeHandle {
    pub(crate) node: NodeId,
    pub(crate) status: Arc<GroupStatus>,
    pub(crate) waker: Waker,
    /// The log of the durable subgroups, if there are any.
    pub(crate) log: Option<LogBorrower>,
    pub(crate) clock: MemberClock,
}

/// The clock of the member's transport, for threads that do not have the transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberClock {
    origin: std::time::Instant,
}

impl MemberClock {
    /// Returns the clock of a transport that shows `now`. It counts from the transport's start, and is monotonic, as this one is.
    pub(crate) fn showing(now: Instant) -> Self {
        let (passed, now) = (Duration::from_nanos(now.as_nanos()), std::time::Instant::now());
        Self { origin: now.checked_sub(passed).unwrap_or(now) }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
