//! What the application's handles need of the node: its number, its status, and how to wake it (Spindle §2.4).

use std::sync::Arc;

use squall_fabric::{Fabric as _, NodeId};
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
}

impl NodeHandle {
    pub(crate) fn new(node: &Node) -> Self {
        let (status, waker) = (Arc::clone(&node.stack.status), node.stack.fabric.waker());
        let log = node.stack.lender.as_ref().map(LogLender::borrower);
        Self { node: node.stack.fabric.node(), status, waker, log }
    }
}
