//! Figures of a member's part in the shards, for operators (RamCast §3.4).

use squall_fabric::NodeId;

use super::GenuineMember;

/// What a member has done in its shard, how far that is, and what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardProgress {
    /// The shard.
    pub shard: usize,
    /// Whether the member leads it, so that it gives the timestamps.
    pub leads: bool,
    /// Messages that the member has delivered in all views.
    pub delivered: u64,
    /// Messages that it has, or knows to have a timestamp of the shard, and has not delivered.
    pub pending: u64,
    /// The latest timestamp of the shard in this view that the member knows.
    pub clock: u64,
}

impl GenuineMember {
    /// Returns what this member has done in its shard; `None` if it is in none that counts.
    #[must_use]
    pub fn progress(&self) -> Option<ShardProgress> {
        let shard = self.shard.as_ref()?;
        Some(ShardProgress {
            shard: shard.shard,
            leads: self.placement.leads(self.rank),
            delivered: shard.delivered,
            pending: shard.order.pending() as u64,
            clock: shard.order.clock(),
        })
    }

    /// Returns how many messages this member has sent in all views; one that is sent again counts once.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.outbox.sent()
    }

    /// Calls `each` with each member of a shard, this one among them, and how many messages wait for it here: for the timestamp that it
    /// gives as leader, or if all timestamps are here, for its acknowledgement. Members for which none waits are left out.
    pub fn behind(&self, mut each: impl FnMut(NodeId, u64)) {
        let Some(shard) = &self.shard else { return };
        let mut counts = vec![0; self.nodes.len()];
        let quorum = self.settings.quorum;
        shard.order.count_missing(&self.placement, quorum, &shard.acknowledged, &mut counts);
        let behind = self.nodes.iter().zip(counts).filter(|(_, count)| *count > 0);
        behind.for_each(|(node, count)| each(*node, count));
    }
}
