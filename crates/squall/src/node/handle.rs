//! What the application's handles need of the node: its number, its status, and how to wake it (Spindle §2.4).

use std::sync::Arc;

use squall_fabric::{Duration, Fabric as _, Instant, NodeId};
use squall_transports::{TransportFabric as _, Waker};

use super::Node;
use crate::durable::{LogBorrower, LogLender};
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
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl NodeHandle {
    pub(crate) fn new(node: &Node) -> Self {
        let (status, waker) = (Arc::clone(&node.stack.status), node.stack.fabric.waker());
        let log = node.stack.lender.as_ref().map(LogLender::borrower);
        // The transport's clock counts from its start, and is monotonic, as this one is.
        let now = std::time::Instant::now();
        let passed = Duration::from_nanos(node.stack.fabric.now().as_nanos());
        let clock = MemberClock { origin: now.checked_sub(passed).unwrap_or(now) };
        Self { node: node.stack.fabric.node(), status, waker, log, clock }
    }
}
