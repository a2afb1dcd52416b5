//! Whom a newcomer asks for the state (Derecho §2: joining).

use std::collections::BTreeSet;

use squall_fabric::NodeId;

use super::ShardView;
use super::mutation::{Mutation, is_on};

/// A newcomer's questions in one view.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Who has nothing, as they said in this view or later.
    refused: BTreeSet<NodeId>,
    /// How many have been asked.
    asked: usize,
}

impl Search {
    /// A view begins: who had nothing before may have it now, and who had it may be gone.
    pub(super) fn begin_view(&mut self) {
        if !is_on(Mutation::KeepRefusals) {
            self.refused.clear();
        }
    }

    pub(super) fn refuse(&mut self, node: NodeId) {
        self.refused.insert(node);
    }

    /// Whom `own` asks next: members of the shard in turn, then the rest of the group, some of whom may have left the
    /// shard. `None` if all have refused.
    pub(super) fn next(&mut self, view: &ShardView, own: NodeId) -> Option<NodeId> {
        let outside = view.group.iter().filter(|node| !view.members.contains(node));
        let others = view.members.iter().chain(outside).copied().filter(|node| *node != own);
        let open: Vec<NodeId> = others.filter(|node| !self.refused.contains(node)).collect();
        let next = open.get(self.asked.checked_rem(open.len())?).copied();
        self.asked += 1;
        next
    }

    /// Whether nobody is left who may have the state [A7].
    pub(super) fn is_lost(&self, view: &ShardView, own: NodeId) -> bool {
        view.group.iter().all(|node| *node == own || self.refused.contains(node))
    }
}
