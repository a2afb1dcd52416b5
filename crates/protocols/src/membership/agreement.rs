//! Agreement on how a view ends: propose, echo, decide, and take over from a leader that is gone (Derecho §3.4).

use squall_fabric::Instant;

use super::{JOINS_MAX, MEMBERS_MAX, Membership, Proposal, Segment, Step};
use crate::mutation::{Mutation, is_on};

impl Membership {
    /// One step of the agreement; returns the amount of work done.
    pub(super) fn agree(&mut self, now: Instant) -> usize {
        let leader = self.leader();
        let (work, step) = match leader == self.table.rank() {
            true => (self.propose(), Step::Proposed),
            false => (self.echo(leader), Step::Echoed),
        };
        if work > 0 {
            self.steps.note(step, now);
        }
        if self.all_have_echoed(leader) {
            self.decide(leader);
            return 1;
        }
        work
    }

    /// Another member, perhaps one that is gone by now, has decided.
    pub(super) fn take_over_decision(&mut self) -> bool {
        for rank in 0..self.view.members.len() {
            let decided = index(self.row.decided.load(self.table.row(rank)));
            let Some(leader) = decided.checked_sub(1).filter(|leader| *leader < self.view.members.len())
            else {
                continue;
            };
            let proposal = self.load(rank, leader);
            match &self.echoed {
                Some((later, own)) if *later > leader => {
                    assert!(*own == proposal, "[V1] two decisions: {own:?} and {proposal:?}");
                    self.decide(*later);
                }
                Some((same, own)) if *same == leader => {
                    assert!(
                        *own == proposal,
                        "[V1] two proposals of rank {leader}: {own:?} and {proposal:?}"
                    );
                    self.decide(leader);
                }
                _ => {
                    self.store(leader, proposal);
                    self.decide(leader);
                }
            }
            return true;
        }
        false
    }

    /// As leader: proposes once, when all that live have stopped and follow this leader.
    fn propose(&mut self) -> usize {
        let own = self.table.rank();
        if self.echoed_last() > own || !self.unsuspected().all(|rank| self.follows(rank, own)) {
            return 0;
        }
        let proposal = match self.earlier_proposal() {
            Some(mut earlier) => {
                if is_on(Mutation::BlendProposal) {
                    earlier.removed |= self.suspected;
                }
                earlier
            }
            None => self.new_proposal(),
        };
        self.store(own, proposal);
        1
    }

    /// Whether `rank` has wedged and will echo nobody below `leader` any more \[D1\].
    fn follows(&self, rank: usize, leader: usize) -> bool {
        let row = self.table.row(rank);
        let below = (1 << leader) - 1;
        let accepts = self.row.suspected.load(row) & below == below || is_on(Mutation::ProposeUnaccepted);
        self.row.wedged.load(row) && accepts
    }

    /// The proposal of the latest earlier leader that anybody has echoed \[D2\].
    fn earlier_proposal(&self) -> Option<Proposal> {
        if is_on(Mutation::IgnoreEarlierProposal) {
            return None;
        }
        let echoes = (0..self.view.members.len())
            .map(|rank| (index(self.row.echoed.load(self.table.row(rank))), rank));
        let (echoed, rank) = echoes.filter(|(echoed, _)| *echoed <= self.view.members.len()).max()?;
        Some(self.load(rank, echoed.checked_sub(1)?))
    }

    fn new_proposal(&self) -> Proposal {
        let leaving = |rank: &usize| self.row.leaving.load(self.table.row(*rank));
        let removed =
            self.unsuspected().filter(leaving).fold(self.suspected, |removed, rank| removed | 1 << rank);
        let stay = self.view.members.len() - removed.count_ones() as usize;
        let most = if is_on(Mutation::OneJoinPerView) { 1 } else { JOINS_MAX };
        let room = most.min(MEMBERS_MAX - stay);
        let joins = self.joins.iter().copied().take(room).collect();
        let trims = self.segments.iter().flat_map(|segment| self.trim(segment)).collect();
        Proposal { removed, joins, trims }
    }

    /// For each sender of a segment the least count of those members that live.
    fn trim(&self, segment: &Segment) -> impl Iterator<Item = u64> {
        (segment.counts..segment.counts + segment.senders).map(|i| {
            let counts =
                segment.ranks.iter().filter(|rank| !self.suspects(**rank) || is_on(Mutation::TrimWithDead));
            let counts = counts.map(|rank| self.row.counts.column(i).load(self.table.row(*rank)));
            let least = if is_on(Mutation::TrimOfOne) { counts.max() } else { counts.min() };
            least.unwrap_or(0)
        })
    }

    /// Echoes the leader's proposal, once.
    fn echo(&mut self, leader: usize) -> usize {
        let has_proposed = index(self.row.echoed.load(self.table.row(leader))) == leader + 1;
        if !has_proposed || self.echoed_last() > leader {
            return 0;
        }
        let proposal = self.load(leader, leader);
        self.store(leader, proposal);
        1
    }

    fn all_have_echoed(&self, leader: usize) -> bool {
        if is_on(Mutation::DecideAlone) {
            return self.echoed_last() == leader + 1;
        }
        self.echoed_last() == leader + 1
            && self.unsuspected().all(|rank| index(self.row.echoed.load(self.table.row(rank))) == leader + 1)
    }

    /// The proposal of `leader`, which this member has echoed, is decided.
    fn decide(&mut self, leader: usize) {
        let (echoed, proposal) = self.echoed.clone().expect("it is echoed first");
        assert_eq!(echoed, leader, "what is decided was echoed last");
        self.table.raise(self.row.decided, leader as u64 + 1);
        self.decision = Some(proposal);
    }

    fn store(&mut self, leader: usize, proposal: Proposal) {
        let words = proposal.store(self.table.own(), self.row.proposal(leader));
        self.table.append(words);
        self.table.raise(self.row.echoed, leader as u64 + 1);
        self.echoed = Some((leader, proposal));
    }

    fn load(&self, rank: usize, leader: usize) -> Proposal {
        Proposal::load(self.table.row(rank), self.row.proposal(leader), self.row.trims)
    }

    /// One more than the rank of the leader whose proposal this member has echoed last.
    fn echoed_last(&self) -> usize {
        self.echoed.as_ref().map_or(0, |(leader, _)| leader + 1)
    }
}

/// A word of a row that names a rank; what is no rank is beyond all.
fn index(word: u64) -> usize {
    usize::try_from(word).unwrap_or(usize::MAX)
}
