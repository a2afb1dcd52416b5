//! The order in which a joiner asks state providers (Derecho §2: joining).

use squall_fabric::NodeId;

use super::ShardView;
use super::mutation;
use crate::coverage::{Point, reach};

/// A joiner's search for the state.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// How many providers have been asked.
    asked: usize,
}

impl Search {
    /// Returns the member that `own` asks next: the members of the shard in turn, first those that hold the state
    /// according to the view, then those that may have got it since. So a provider that hangs does not keep a joiner
    /// from asking another.
    pub(super) fn next(&mut self, view: &ShardView, own: NodeId) -> Option<NodeId> {
        let others = || view.members.iter().copied().filter(|node| *node != own);
        let (holders, rest): (Vec<NodeId>, Vec<NodeId>) =
            others().partition(|node| view.holders.contains(node));
        let order: Vec<NodeId> = holders.into_iter().chain(rest).collect();
        let next = order.get(self.asked.checked_rem(order.len())?).copied();
        if self.asked > 0 {
            reach(Point::StateAskedAgain);
        }
        self.asked += usize::from(!mutant!(AskTheSame));
        next
    }
}
