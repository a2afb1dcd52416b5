//! The row of a member in its view's table (Derecho §3.4, Table 1).

use std::ops::Range;

use squall_fabric::layout::Columns;
use squall_fabric::{Column, RowLayout};

use super::Proposal;

/// Where things are in each member's row.
#[derive(Clone, Debug)]
pub struct MembershipRow {
    /// Rises while the member lives, and after all else that it says here: who has seen it and no more has missed
    /// nothing.
    pub heartbeat: Column<u64>,
    /// The ranks that the member does not hear, as a set of bits. This column and the next three are adjacent: they are
    /// pushed together.
    pub accused: Column<u64>,
    /// The ranks that somebody accuses, as far as the member knows. Its own rank among them is its answer.
    pub disputed: Column<u64>,
    /// The disputed ranks whose answer the member has heard.
    pub vouched: Column<u64>,
    /// The ranks that the member follows no more: those that it accuses, and those that do not lead any more. Its own
    /// rank is among them once it has resigned.
    pub suspected: Column<u64>,
    /// The member has stalled, and does not blame those who accuse it \[V15\]. Posted before its answer.
    pub concedes: Column<bool>,
    /// The member wants to leave, and the view is to end for it: the wish is new, or others hold all that it holds.
    pub leaving: Column<bool>,
    /// The ranks whose consumers hold the member up for too long, as a set of bits.
    pub slow: Column<u64>,
    /// The states that the member holds, by their subgroups' numbers, as sets of bits; what is here once it has wedged
    /// counts.
    pub holds: Columns<u64>,
    /// How many indexes of each sender it has of the subgroups that it is in ([`SenderSegment::counts`]).
    pub counts: Columns<u64>,
    /// Not 0: the member has wedged; announces `counts`. It is the set of those ranks that have not missed them: who was
    /// accused before it attached may see this word alone \[S2\].
    pub wedged: Column<u64>,
    /// Space for the proposal of each leader, by rank.
    proposals: Vec<usize>,
    /// One more than the rank of the leader whose proposal the member has echoed last; announces it.
    pub echoed: Column<u64>,
    /// One more than the rank of the leader whose proposal is decided, and which the member has echoed.
    pub decided: Column<u64>,
    /// How many trims a proposal has.
    pub trims: usize,
    /// Of how many states a proposal says who holds them.
    pub states: usize,
    /// Words of the whole row.
    pub words: usize,
}

impl MembershipRow {
    /// The row in a view of `members` members with these segments, and with so many subgroups that may have a state; the
    /// same at all members.
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

    /// The words of what a member thinks of the others.
    #[must_use]
    pub fn opinions(&self) -> Range<usize> {
        self.accused.word()..self.suspected.word() + 1
    }

    /// Where the proposal of the leader with rank `leader` lies.
    pub(super) fn proposal(&self, leader: usize) -> usize {
        self.proposals[leader]
    }
}

/// The senders of one subgroup or shard, in the rows and in the proposals. Shards without common members share their
/// columns: each member has one of them only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderSegment {
    /// The first of its columns in [`MembershipRow::counts`].
    pub counts: usize,
    /// The first of its places in [`Proposal::trims`].
    pub trims: usize,
    /// How many senders it has.
    pub senders: usize,
    /// The ranks of its members.
    pub ranks: Vec<usize>,
}
