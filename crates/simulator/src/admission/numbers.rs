//! Which process a node of the world is, and under which number it was admitted (Derecho §3.3).

use std::collections::BTreeMap;

use squall_fabric::NodeId;
use squall_fabric::sim::SimWorld;
use squall_protocols::membership::{Member, View};

/// The nodes of all processes.
#[derive(Default)]
pub(crate) struct ProcessNumbers {
    nodes: BTreeMap<NodeId, u32>,
    /// The place of each node's process, and its number.
    owners: BTreeMap<u32, (u32, Option<NodeId>)>,
}

impl ProcessNumbers {
    /// `node` of the world is `owner`'s.
    pub(crate) fn add(&mut self, node: u32, owner: u32, number: Option<NodeId>) {
        if let Some(number) = number {
            assert!(self.nodes.insert(number, node).is_none(), "[J1] {number} was given before");
        }
        self.owners.insert(node, (owner, number));
    }

    /// The node that was admitted as `number`.
    pub(crate) fn node(&self, number: NodeId) -> Option<NodeId> {
        self.nodes.get(&number).copied().map(NodeId)
    }

    pub(crate) fn number(&self, node: NodeId) -> NodeId {
        self.owners[&node.0].1.expect("a node that was admitted")
    }

    pub(crate) fn owner(&self, node: u32) -> u32 {
        self.owners[&node].0
    }

    /// As [`ProcessNumbers::owner`], if it is a process of these.
    pub(crate) fn owner_of(&self, node: u32) -> Option<u32> {
        self.owners.get(&node).map(|(owner, _)| *owner)
    }

    /// The view in the numbers of admission.
    pub(crate) fn translate(&self, view: &View) -> View {
        rename(view, |node| self.number(node))
    }

    /// The view in the places of processes.
    pub(crate) fn places(&self, view: &View) -> View {
        rename(view, |node| NodeId(self.owner(node.0)))
    }

    /// A number was given to `owner`, which is a further node on the machine `home` of the world, without links.
    pub(super) fn add_spent(&mut self, world: &SimWorld, owner: u32, home: u32, number: NodeId) -> u32 {
        let node = world.add_node_at(home);
        self.add(node, owner, Some(number));
        unlink(world, node);
        node
    }
}

fn rename(view: &View, name: impl Fn(NodeId) -> NodeId) -> View {
    let member = |member: &Member| Member { node: name(member.node), tag: member.tag };
    View { members: view.members.iter().map(member).collect(), ..view.clone() }
}

/// The node has no link with the earlier ones.
pub(super) fn unlink(world: &SimWorld, node: u32) {
    (0..node).for_each(|other| world.set_linked(other, node, false));
}
