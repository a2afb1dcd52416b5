//! Ballots: the order of those who propose how a view ends (Derecho §3.4, "Total failures").

use squall_fabric::NodeId;

/// The right to propose how a view ends. A higher one ends the right of all lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ballot {
    /// 0 while the view runs, 1 and above in restarts.
    pub round: u64,
    /// In round 0 the rank of the leader in the view, above that its node number: no two leaders have the same ballot.
    pub place: u32,
}

impl Ballot {
    /// What a member promises that begins to wait: it is above the ballots of all live leaders, and below all of those that wait \[H2\].
    pub const WAITS: Self = Self { round: 0, place: u32::MAX };

    /// The ballot of a leader with this rank while the view runs: the leaders of a live view are in the order of their ranks.
    #[must_use]
    pub const fn live(rank: u32) -> Self {
        Self { round: 0, place: rank }
    }

    /// The ballot with which `node` leads a restart, above all that it has seen \[T11\].
    #[must_use]
    pub fn above(seen: Option<Self>, node: NodeId) -> Self {
        Self { round: seen.map_or(0, |ballot| ballot.round).saturating_add(1), place: node.0 }
    }

    /// Whether it is of a restart.
    #[must_use]
    pub const fn is_restart(self) -> bool {
        self.round > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_is_above_every_live_leader_and_above_what_it_has_seen() {
        let first = Ballot::above(None, NodeId(0));
        assert!(first > Ballot::live(u32::MAX) && first.is_restart());
        let seen = Ballot { round: 7, place: 9 };
        assert!(Ballot::above(Some(seen), NodeId(2)) > seen);
    }
}
