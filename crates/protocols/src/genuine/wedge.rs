//! The end of a view: wedge, count, and what the trims hold (beside RamCast §3.5, which has rounds instead) \[G9\]–\[G13\].

use std::collections::VecDeque;

use squall_fabric::{Fabric, NodeId};

use super::marks::DeliveredMarks;
use super::mutation;
use super::outbox::BacklogMessage;
use super::shard::{ShardMember, position};
use super::{GenuineFailure, GenuineMember, GenuineMessage, QuorumRule};
use crate::coverage::{Point, reach};

/// What a view leaves to the next one: nothing of clocks, timestamps or messages that are not delivered, but for those of this
/// member \[G1\] \[G13\].
#[derive(Debug, Default)]
pub struct GenuineCarryover {
    pub(super) marks: DeliveredMarks,
    /// Messages that this member has delivered.
    pub(super) delivered: u64,
    pub(super) backlog: VecDeque<BacklogMessage>,
    /// The number of this member's next message \[G2\].
    pub(super) number: u64,
}

impl GenuineMember {
    /// Freezes the rows of `member`, which is suspected. From the first suspicion on the view only ends, so nothing is written for a
    /// member that may never read it.
    pub fn freeze<F: Fabric>(&mut self, fabric: &mut F, member: NodeId) {
        let rank = self.nodes.iter().position(|node| *node == member).expect("a member of the view");
        self.table.freeze(fabric, rank);
        self.table.excuse(member);
        self.frozen.insert(rank);
        self.stop();
    }

    /// Ends the view; returns the own shard, if there is one, and what this member counts of it: one more than the acknowledgement,
    /// since 0 in a proposal is a shard of which no member was counted \[G10\].
    pub fn wedge(&mut self) -> Option<(usize, u64)> {
        self.stop();
        let ShardMember { shard, order, .. } = self.shard.as_ref()?;
        let count = 1 + order.reach() + u64::from(mutant!(CountTooMuch));
        if self.settings.quorum == QuorumRule::Majority {
            self.table.raise(*shard, self.row.closed, count);
        }
        Some((*shard, count))
    }

    /// Returns the own shard, if the application has its state here: [`GenuineSettings::has_states`](super::GenuineSettings).
    #[must_use]
    pub fn held_state(&self) -> Option<usize> {
        self.shard.as_ref().filter(|shard| shard.has_state).map(|shard| shard.shard)
    }

    /// Returns the own shard, if the application is to have its state here and does not have it yet.
    #[must_use]
    pub fn lacked_state(&self) -> Option<usize> {
        let lacks = |shard: &&ShardMember| self.settings.has_states && !shard.has_state;
        self.shard.as_ref().filter(lacks).map(|shard| shard.shard)
    }

    /// Nothing is sent, sequenced, acknowledged or delivered any more in this view \[G9\].
    fn stop(&mut self) {
        self.is_wedged = true;
        self.outbox.close();
    }

    /// Whether all that the trims hold is here. A member that others took for dead may lack a part, or its shard may have no
    /// trim.
    #[must_use]
    pub fn covers(&self, trims: &[u64]) -> bool {
        let counts = |shard: &ShardMember| (1..=1 + shard.order.reach()).contains(&trims[shard.shard]);
        self.shard.as_ref().is_none_or(counts)
    }

    /// Ends the view as decided, after which this member only sends others what they lack of the log ([`GenuineMember::serve`]): delivers what the trims hold, in its order, and returns what goes into the next view
    /// \[G12\] \[G13\]. `trims` is by shard, each one more than a timestamp, or 0 for a shard none of whose members was counted.
    ///
    /// # Errors
    /// [`GenuineFailure`] if what the trims hold is not here.
    ///
    /// # Panics
    /// If this member's log does not reach the trim of its shard \[G11\].
    pub fn finish(
        &mut self,
        trims: &[u64],
        mut deliver: impl FnMut(GenuineMessage<'_>),
    ) -> Result<GenuineCarryover, GenuineFailure> {
        self.stop();
        let (mut marks, mut delivered) = (DeliveredMarks::default(), 0);
        if let Some(shard) = &mut self.shard {
            let (reaches, trim) = (shard.order.reach(), trims[shard.shard]);
            assert!(trim <= 1 + reaches, "[G11] the log is complete up to {reaches}, the trim is {trim} - 1");
            let bounds: Vec<Option<u64>> = trims.iter().map(|trim| trim.checked_sub(1)).collect();
            if bounds.contains(&None) {
                reach(Point::GenuineShardLost);
            }
            let held = shard.order.held(&bounds).map_err(|(writer, number)| GenuineFailure::Incomplete {
                sender: self.nodes[writer],
                number,
            })?;
            if !held.is_empty() {
                reach(Point::GenuineFlushed);
            }
            if shard.order.has_more_than(held.len()) {
                reach(Point::GenuineOut);
            }
            for (key, last) in held {
                shard.deliver(key, position(self.view, last), &self.nodes, &mut deliver);
            }
            (marks, delivered) = (std::mem::take(&mut shard.marks), shard.delivered);
        }
        let (backlog, number) = self.outbox.end();
        Ok(GenuineCarryover { marks, delivered, backlog, number })
    }
}
