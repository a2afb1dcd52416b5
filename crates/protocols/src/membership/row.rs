//! The row of a member in its view's table (Derecho §3.4, Table 1).

use std::ops::Range;

use squall_fabric::layout::Columns;
use squall_fabric::{Column, RowLayout};

use super::Proposal;

/// The layout of each member's row.
#[derive(Clone, Debug)]
pub struct MembershipRow {
    /// Rises while the member lives, and after everything else that it writes here: a reader that finds it unchanged
    /// has missed nothing.
    pub heartbeat: Column<u64>,
    /// The ranks that the member does not hear, as a bit set. This column and the next three are adjacent, since they
    /// are pushed together.
    pub accused: Column<u64>,
    /// The ranks that any member accuses, as far as this member knows. Its own rank in the set is its answer.
    pub disputed: Column<u64>,
    /// The disputed ranks whose answer the member has heard.
    pub vouched: Column<u64>,
    /// The ranks that the member no longer follows: those that it accuses, and those that no longer lead. Its own
    /// rank is in the set once it has resigned.
    pub suspected: Column<u64>,
    /// The member has stalled, and does not blame the members that accuse it \[V15\]. Posted before its answer.
    pub concedes: Column<bool>,
    /// The member wishes to leave, and the view is to end for that: the wish is new, or others hold every state that
    /// it holds.
    pub leaving: Column<bool>,
    /// The ranks whose consumers hold the member up for too long, as a bit set.
    pub slow: Column<u64>,
    /// The view is on the member's disk, and so is everything of earlier views that counts in its durable subgroups \[T19\].
    pub whole: Column<bool>,
    /// The states that the member holds, by their subgroups' numbers, as bit sets; the value once it has wedged
    /// counts.
    pub holds: Columns<u64>,
    /// How many indexes of each sender it has, in the subgroups that it is in ([`SenderSegment::counts`]).
    pub counts: Columns<u64>,
    /// Not 0: the member has wedged; announces `counts`. It is the set of the ranks that have not missed them: a
    /// reader that was accused before it attached may see only this word \[S2\].
    pub wedged: Column<u64>,
    /// Space for the proposal of each leader, by rank.
    proposals: Vec<usize>,
    /// One more than the rank of the leader whose proposal the member has echoed last; announces it.
    pub echoed: Column<u64>,
    /// One more than the rank of the leader whose proposal is decided, and which the member has echoed.
    pub decided: Column<u64>,
    /// The number of trims of a proposal.
    pub trims: usize,
    /// The number of states whose holders a proposal lists.
    pub states: usize,
    /// The number of words of the whole row.
    pub words: usize,
}

impl MembershipRow {
    /// Returns the row's layout in a view of `members` members with these segments, and with `states` subgroups that
    /// may have a state; it is the same at all members.
    #[must_use]
    pub fn new(members: usize, segments: &[SenderSegment], states: usize) -> Self {
        let counts = segments.iter().map(|segment| segment.counts + segment.senders).max().unwrap_or(0);
        let trims = segments.iter().map(|segment| segment.senders).sum();
        let mut layout = RowLayout::new();
        let heartbeat = layout.column();
        let opinions = layout.list(4);
        let [accused, disputed, vouched, suspected] = [0, 1, 2, 3].map(|i| opinions.column(i));
        let (leaving, slow) = (layout.column(), layout.column());
        let (holds, counts) = (layout.list(states.div_ceil(64)), layout.list(counts));
        let wedged = layout.column();
        let proposals = (0..members).map(|_| layout.block(Proposal::words(trims, states))).collect();
        let (echoed, decided, concedes) = (layout.column(), layout.column(), layout.column());
        let whole = layout.column();
        let words = layout.words();
        Self {
            heartbeat,
            accused,
            disputed,
            vouched,
            suspected,
            concedes,
            leaving,
            slow,
            whole,
            holds,
            counts,
            wedged,
            proposals,
            echoed,
            decided,
            trims,
            states,
            words,
        }
    }

    /// Returns the words of a member's opinions of the others.
    #[must_use]
    pub fn opinions(&self) -> Range<usize> {
        self.accused.word()..self.suspected.word() + 1
    }

    /// Returns the first word of the proposal of the leader with rank `leader`.
    pub(super) fn proposal(&self, leader: usize) -> usize {
        self.proposals[leader]
    }
}

/// The senders of one subgroup or shard, in the rows and in the proposals. Shards without common members share
/// columns, since each member is in only one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderSegment {
    /// The first of its columns in [`MembershipRow::counts`].
    pub counts: usize,
    /// The first of its indices in [`Proposal::trims`].
    pub trims: usize,
    /// The number of its senders.
    pub senders: usize,
    /// The ranks of its members.
    pub ranks: Vec<usize>,
    /// The subgroup's number, if it is durable: then the view cannot end without a member that has its log \[T5\].
    pub durable: Option<u32>,
    /// At least this many of its members have what any of them has delivered: all, or in a shard also a majority \[G10\].
    /// `0 <= quorum <= ranks.len()`, if there are members.
    pub quorum: usize,
}

impl SenderSegment {
    /// Returns whether a member may lack what others have delivered, so that it gets it from them when the view ends \[G11\].
    pub(super) const fn may_lack(&self) -> bool {
        self.quorum < self.ranks.len()
    }

    /// Returns how many of its members are among `lost`, if these may be all that have what was delivered: then the view cannot end
    /// \[G10\].
    pub(super) fn lost_quorum(&self, lost: u64) -> Option<usize> {
        let count = self.ranks.iter().filter(|rank| lost >> **rank & 1 == 1).count();
        (self.may_lack() && count >= self.quorum).then_some(count)
    }
}
