//! Durable delivery \[T2\] \[T4\]: when a member delivers a message, all members have it on their disks, except those that are not
//! in the next view. The checker reads the disks, and does not rely on what the members publish.

use std::collections::BTreeMap;

use squall_fabric::NodeId;
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::View;
use squall_protocols::multicast::Message;

use crate::message_disk::MessageDisk;
use crate::run::Violation;

/// The disks of all nodes, and the deliveries for which some member had not persisted the message.
#[derive(Debug, Default)]
pub(crate) struct DurableDeliveries {
    disks: BTreeMap<NodeId, MessageDisk>,
    /// The members of each view that was installed.
    views: BTreeMap<u64, Vec<NodeId>>,
    /// The members that had not persisted something that was delivered in a view, and what: they must not be in the next one.
    owed: BTreeMap<u64, Vec<(NodeId, String)>>,
}

impl DurableDeliveries {
    /// Adds the disk of a node.
    pub(crate) fn add(&mut self, node: NodeId, disk: &MessageDisk) {
        self.disks.insert(node, disk.clone());
    }

    /// Records that a view is installed.
    ///
    /// # Errors
    /// If one of its members had not persisted what was delivered in the view before.
    pub(crate) fn on_install(&mut self, view: &View) -> Result<(), Violation> {
        self.views.entry(view.id).or_insert_with(|| view.nodes());
        let owed = view.id.checked_sub(1).and_then(|before| self.owed.remove(&before)).unwrap_or_default();
        owed.into_iter().try_for_each(|(member, text)| self.judge(view.id, member, text))
    }

    /// Checks a delivery in a durable subgroup of `members`.
    ///
    /// # Errors
    /// If a member that is in the next view, or one of a view that does not end, has not persisted it.
    pub(crate) fn on_delivery(
        &mut self,
        node: NodeId,
        id: SubgroupId,
        message: &Message<'_>,
        members: &[NodeId],
    ) -> Result<(), Violation> {
        let Message { view, sequence, .. } = *message;
        for member in members {
            let persisted = self.disks.get(member).map_or(0, |disk| disk.persisted(view, id));
            if persisted > sequence {
                continue;
            }
            let text = format!(
                "[T2] {node} delivers sequence {sequence} of {id} in view {view}, of which {member} has persisted {persisted}"
            );
            if self.views.contains_key(&(view + 1)) {
                self.judge(view + 1, *member, text)?;
            } else {
                self.owed.entry(view).or_default().push((*member, text));
            }
        }
        Ok(())
    }

    fn judge(&self, next: u64, member: NodeId, text: String) -> Result<(), Violation> {
        match self.views[&next].contains(&member) {
            true => Err(Violation { checker: "durability", text }),
            false => Ok(()),
        }
    }
}
