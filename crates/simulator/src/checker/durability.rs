//! Durable delivery \[T2\] \[T4\]: when a member delivers a message, all members have it on their disks, except those that are not
//! in the next view. Durable views \[T5\]–\[T8\]: when a member installs a view, a majority of the one before has a vote for it on
//! disk, or the view itself; all registers tell the same of how a view has ended; and what was delivered in it counts \[P1\]. The
//! checker reads the disks, and does not rely on what the members publish.

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::NodeId;
use squall_protocols::group::SubgroupId;
use squall_protocols::membership::View;
use squall_protocols::multicast::Message;
use squall_protocols::restart::Register;

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
    /// The durable subgroups, in the order in which registers have them.
    shards: Vec<SubgroupId>,
    /// How many sequences of a subgroup some member has delivered in a view.
    delivered: BTreeMap<(u64, SubgroupId), u64>,
    /// How many sequences of each shard count, of each view that has ended, and the first node that had that on its disk.
    ends: BTreeMap<u64, (Vec<u64>, NodeId)>,
    /// Which node has had which view on its disk.
    recorded: BTreeSet<(u64, NodeId)>,
}

impl DurableDeliveries {
    /// Adds the disk of a node.
    pub(crate) fn add(&mut self, node: NodeId, disk: &MessageDisk) {
        self.disks.insert(node, disk.clone());
    }

    /// Returns how many sequences of a subgroup some member has delivered in a view.
    pub(crate) const fn delivered(&self) -> &BTreeMap<(u64, SubgroupId), u64> {
        &self.delivered
    }

    /// Returns the views that nodes have had on their disks.
    pub(crate) const fn recorded(&self) -> &BTreeSet<(u64, NodeId)> {
        &self.recorded
    }

    /// Returns the members of each view that was installed.
    pub(crate) const fn views(&self) -> &BTreeMap<u64, Vec<NodeId>> {
        &self.views
    }

    /// Returns how the views have ended of which registers say so, with the trim of each shard.
    pub(crate) fn ends(&self) -> BTreeMap<u64, Vec<u64>> {
        self.ends.iter().map(|(view, (trims, _))| (*view, trims.clone())).collect()
    }

    /// Names the durable subgroups, in the order in which registers have them.
    pub(crate) fn expect_shards(&mut self, shards: Vec<SubgroupId>) {
        self.shards = shards;
    }

    /// Records that a view is installed.
    ///
    /// # Errors
    /// If one of its members had not persisted what was delivered in the view before, or the view could be forgotten.
    pub(crate) fn on_install(&mut self, view: &View) -> Result<(), Violation> {
        if !self.shards.is_empty() && !self.views.contains_key(&view.id) {
            self.check_votes(view)?;
        }
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
        let delivered = self.delivered.entry((view, id)).or_default();
        *delivered = (*delivered).max(sequence + 1);
        self.check_end(view)?;
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

    /// Records that a register is on the disk of `node`.
    ///
    /// # Errors
    /// If it differs from others in how a view has ended, or something that was delivered in that view does not count.
    pub(crate) fn on_recorded(&mut self, node: NodeId, register: &Register) -> Result<(), Violation> {
        if !register.view().members.is_empty() {
            self.recorded.insert((register.view().number, node));
        }
        let chain = &register.record.chain;
        for view in chain.first()..chain.end() {
            let trims =
                (0..self.shards.len()).map(|shard| chain.trim_of(view, shard).expect("a view of the list"));
            let trims: Vec<u64> = trims.collect();
            let (known, first) = self.ends.entry(view).or_insert_with(|| (trims.clone(), node));
            if *known != trims {
                let text =
                    format!("[T7] view {view} has ended with {trims:?} says {node}, {first} says {known:?}");
                return Err(Violation { checker: "durability", text });
            }
            self.check_end(view)?;
        }
        Ok(())
    }

    /// \[P1\] What was delivered in a view counts.
    fn check_end(&self, view: u64) -> Result<(), Violation> {
        let Some((trims, node)) = self.ends.get(&view) else { return Ok(()) };
        for (id, trim) in self.shards.iter().zip(trims) {
            let delivered = self.delivered.get(&(view, *id)).copied().unwrap_or(0);
            if delivered > *trim {
                let text = format!(
                    "[P1] {delivered} sequences of {id} were delivered in view {view}, and {trim} count, says {node}"
                );
                return Err(Violation { checker: "durability", text });
            }
        }
        Ok(())
    }

    /// \[T6\] \[T7\] If all processes died now, a majority of the view before would know of this one.
    fn check_votes(&self, view: &View) -> Result<(), Violation> {
        let Some(before) = view.id.checked_sub(1).and_then(|before| self.views.get(&before)) else {
            return Ok(());
        };
        let knows = |node: &&NodeId| {
            let register = self.disks.get(node).and_then(MessageDisk::register);
            register.is_some_and(|register| {
                let vote = register.vote.as_ref().map(|vote| &vote.end.next);
                let is_for_it =
                    vote.is_some_and(|next| next.number == view.id && next.members == view.nodes());
                register.view().number >= view.id && !register.view().members.is_empty() || is_for_it
            })
        };
        let known = before.iter().filter(knows).count();
        if 2 * known > before.len() {
            return Ok(());
        }
        let text =
            format!("[T6] {known} of {} members have {view} on disk when it is installed", before.len());
        Err(Violation { checker: "durability", text })
    }

    fn judge(&self, next: u64, member: NodeId, text: String) -> Result<(), Violation> {
        match self.views[&next].contains(&member) {
            true => Err(Violation { checker: "durability", text }),
            false => Ok(()),
        }
    }
}
