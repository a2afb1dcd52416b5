//! A value: one complete answer to the question how a view ends (Derecho §3.4).

use super::view::EndingView;
use crate::members::{Member, RankSet};

/// How a view ends: what counts of each shard, and everything that the members of the next view have to agree on when it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndValue {
    /// By shard, how much of each of its columns counts \[H9\].
    pub trims: Vec<Vec<u64>>,
    /// The members that are in the next view, by rank.
    pub stay: RankSet,
    /// The members that leave with this end, as they wished.
    pub left: RankSet,
    /// The members that wish to leave and stay, because no other member holds a state of theirs \[A9\].
    pub leaving: RankSet,
    /// The members that are new.
    pub joins: Vec<Member>,
    /// By shard, its members in the next view, by their ranks there.
    pub placement: Vec<RankSet>,
    /// By shard, those that hold its state in the next view from its beginning, by their ranks there: the holders of \[A8\], and in
    /// durable shards those that are whole \[K11\] \[K17\].
    pub whole: Vec<RankSet>,
    /// By shard, whether its state is given up, so that it begins anew \[A7\].
    pub given_up: Vec<bool>,
    /// The floor of the next view's clocks \[K6\].
    pub floor: u64,
    /// Whether a live leader has proposed it, and not one that waits.
    pub is_live: bool,
}

impl EndValue {
    /// Returns the members of the next view.
    #[must_use]
    pub fn members(&self, view: &EndingView) -> Vec<Member> {
        let stay = self.stay.iter().filter_map(|rank| view.members.get(rank)).copied();
        stay.chain(self.joins.iter().copied()).collect()
    }

    /// Returns whether a member counts on what `counts` are short of: whether these counts reach the trims of a shard.
    #[must_use]
    pub fn is_reached(&self, shard: usize, counts: &[u64]) -> bool {
        let trims = self.trims.get(shard).map_or(&[][..], Vec::as_slice);
        trims.iter().enumerate().all(|(i, trim)| counts.get(i).copied().unwrap_or(0) >= *trim)
    }
}
