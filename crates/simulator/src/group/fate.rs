//! What has become of a node at the end of a run (Derecho §2).

use squall_protocols::group::{GroupCore, GroupEnd};
use squall_protocols::membership::View;

use super::cluster::{GroupCluster, NodeProcess};
use super::program::{GroupScene, waits};

/// What has become of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeFate {
    /// It has crashed.
    Dead,
    /// It waits for its first view.
    Waiting,
    /// It waits for a majority of its view.
    LacksMajority,
    /// It is in this view.
    Member(View),
    /// Its group has ended.
    Ended(GroupEnd),
}

impl NodeFate {
    /// Whether `nodes`, in ascending order, are in one view of just them.
    ///
    /// # Errors
    /// The first of `nodes` that is not.
    pub fn expect_together(fates: &[Self], nodes: &[u32]) -> Result<(), u32> {
        let is_in = |node: &u32| match &fates[*node as usize] {
            Self::Member(view) => {
                let mut members: Vec<u32> = view.members.iter().map(|member| member.node.0).collect();
                members.sort_unstable();
                members == nodes
            }
            _ => false,
        };
        nodes.iter().find(|node| !is_in(node)).map_or(Ok(()), |missing| Err(*missing))
    }
}

impl<S: GroupScene> GroupCluster<S> {
    /// What has become of each node, with its view in the places of nodes.
    pub(crate) fn fates(&self) -> Vec<NodeFate> {
        let fate = |process: &NodeProcess<S>| {
            let group = process.group.as_ref().filter(|_| process.joiner.is_none());
            match (group.and_then(GroupCore::ended), group.and_then(GroupCore::membership)) {
                _ if !self.all.lives(process) => NodeFate::Dead,
                (Some(ended), _) => NodeFate::Ended(ended),
                (None, Some(_)) if waits(process) => NodeFate::LacksMajority,
                (None, Some(membership)) => NodeFate::Member(self.all.numbers.places(membership.view())),
                (None, None) => NodeFate::Waiting,
            }
        };
        self.all.processes.iter().map(fate).collect()
    }
}
