//! Agreement on how a view ends: propose, echo, decide, and take over from a failed leader (Derecho §3.4).

use squall_fabric::Instant;

use super::{JOINS_MAX, Membership, Proposal, RankSet, SenderSegment, Subgroups, ViewChangeStep};
use crate::coverage::{Point, reach};
use crate::ends::{Ballot, LiveTally, WaitReason};
use crate::mutation;

impl Membership {
    /// Takes one step of the agreement; returns the amount of work done.
    pub(super) fn agree<F>(&mut self, now: Instant, subgroups: &mut impl Subgroups<F>) -> usize {
        let Some(leader) = self.leader() else { return 0 };
        let mut work = match &self.voting {
            // No further vote before this one can be seen.
            Some(_) => 0,
            None if leader == self.table.rank() => self.propose(),
            None => self.echo(leader),
        };
        if let Some(echoed) = self.show_vote(subgroups) {
            let is_own = echoed == self.table.rank();
            self.steps.note(if is_own { ViewChangeStep::Proposed } else { ViewChangeStep::Echoed }, now);
            work = 1;
        }
        match self.tally(leader) {
            LiveTally::Awaited => work,
            LiveTally::Decided => {
                reach(Point::Decided);
                self.decide(leader);
                1
            }
            LiveTally::CopiesMissing => {
                reach(Point::WaitsForCopies);
                self.begin_waiting(WaitReason::CopiesMissing);
                1
            }
        }
    }

    /// Takes over the decision of another member, which may have failed by now; returns whether there is one. It is taken over when
    /// this member has what it installs \[G11\].
    pub(super) fn take_over_decision<F>(&mut self, subgroups: &mut impl Subgroups<F>) -> bool {
        for rank in self.seen.deciding.iter() {
            let decided = index(self.row.decided.load(self.table.row(rank)));
            let Some(leader) = decided.checked_sub(1).filter(|leader| *leader < self.view.members.len())
            else {
                continue;
            };
            // A member that was accused before it attached may have missed the proposal itself [S2].
            let Some(proposal) = self.load(rank, leader) else { continue };
            if !self.accepts(rank, leader, &proposal) {
                continue;
            }
            match self.echoed.clone() {
                // [V1] Two decisions, or two proposals of one leader: a member has violated the protocol.
                Some((echoed, own)) if echoed >= leader && own != proposal => {
                    self.on_contradiction(rank, leader, &own);
                    continue;
                }
                _ if !self.has_log(&proposal, subgroups) => self.awaits_log = true,
                Some((echoed, _)) if echoed >= leader => {
                    reach(Point::DecisionTakenOver);
                    self.decide(echoed);
                }
                _ if !self.row.has_place(self.echoes) => continue,
                _ => {
                    reach(Point::DecisionUnheard);
                    self.voting = None;
                    self.store(leader, proposal);
                    self.decide(leader);
                }
            }
            return true;
        }
        false
    }

    /// As leader: proposes once, when all members that stay have wedged and follow this leader. A leader that is in
    /// the cut itself resigns, even if it has proposed: it does not hear all members that stay, so it cannot know how
    /// much they have, and those that do not hear it echo nothing of it.
    fn propose(&mut self) -> usize {
        let own = self.table.rank();
        let has_proposed = self.echoed_last() > own;
        mutant!(LeadForEver if has_proposed => return 0);
        let Some(cut) = self.cut() else {
            reach(Point::CutUnclear);
            return 0;
        };
        if cut.contains(own) {
            reach(if has_proposed { Point::LeaderResignedLate } else { Point::LeaderResigned });
            self.suspected.insert(own);
            return 1;
        }
        let stay = self.all() - cut;
        if !self.suffice(self.taking_part(stay).len()) {
            self.part_as_minority(cut);
            return 1;
        }
        if self.part_without_quorum(cut) {
            return 1;
        }
        if has_proposed
            || !self.row.has_place(self.echoes)
            || !stay.iter().all(|rank| self.follows(rank, own))
        {
            return 0;
        }
        let earlier = self.earlier_proposal();
        if let Some((rank, leader, earlier)) = &earlier
            && !self.accepts(*rank, *leader, earlier)
        {
            return 1;
        }
        let proposal = match earlier {
            Some((.., mut earlier)) => {
                reach(Point::ProposedEarlier);
                mutant!(BlendProposal => earlier.removed |= cut);
                earlier
            }
            None => {
                if self.orphan(cut).is_some() {
                    self.part_without_logs(cut);
                    return 1;
                }
                reach(Point::ProposedNew);
                self.new_proposal(cut)
            }
        };
        self.voting = Some((own, proposal));
        1
    }

    /// Returns the members to remove because some members do not hear each other; `None` while that is not clear.
    fn cut(&mut self) -> Option<RankSet> {
        if self.disputed.is_empty() {
            return Some(RankSet::EMPTY);
        }
        mutant!(CutAccused => return Some(self.accused));
        let reports = self.reports();
        if let Some((_, cut)) = self.judged.as_ref().filter(|(judged, _)| *judged == reports) {
            return *cut;
        }
        let cut = reports.cut(self.table.rank(), |stay| self.suffice(stay));
        self.judged = Some((reports, cut));
        cut
    }

    /// Returns whether `rank` has wedged and will not echo any leader below `leader` any more \[D1\].
    fn follows(&self, rank: usize, leader: usize) -> bool {
        let row = self.table.row(rank);
        let below = RankSet::all(leader);
        // A member that waits echoes nothing more.
        let waits = self.row.waits.load(row);
        let accepts = waits || below.is_subset(&self.row.suspected.load(row)) || mutant!(ProposeUnaccepted);
        let is_complete = self.row.wedged.contains(row, self.table.rank());
        is_complete && accepts
    }

    /// Returns the proposal of the latest earlier leader that any member has echoed \[D2\], with the rank in whose
    /// row it is, and the leader's rank.
    fn earlier_proposal(&self) -> Option<(usize, usize, Proposal)> {
        mutant!(IgnoreEarlierProposal => return None);
        let echoes = (0..self.view.members.len())
            .map(|rank| (index(self.row.echoed.load(self.table.row(rank))), rank));
        let echoes = echoes.filter(|(echoed, _)| (1..=self.view.members.len()).contains(echoed));
        // A proposal that cannot be read was missed here, and is in a row that accuses this member: no decision
        // depends on that one.
        let readable = echoes.filter_map(|(echoed, rank)| Some((echoed, rank, self.load(rank, echoed - 1)?)));
        let mut readable: Vec<(usize, usize, Proposal)> = readable.collect();
        if readable.iter().any(|(echoed, ..)| *echoed != readable[0].0) {
            reach(Point::ProposedLatest);
        }
        if self.can_be_dropped(&readable) {
            reach(Point::EchoDropped);
            readable.clear();
        }
        latest(readable.into_iter())
    }

    /// Returns whether the latest of these proposals cannot have been decided, so that this leader proposes anew: with shards of which members
    /// may lack a part, none of those that are left may have what it counts \[H12\].
    fn can_be_dropped(&self, echoes: &[(usize, usize, Proposal)]) -> bool {
        let lacks = self.is_patient() && self.segments.iter().any(SenderSegment::may_lack);
        let Some((_, leader, proposal)) = latest(echoes.iter().cloned()).filter(|_| lacks) else {
            return false;
        };
        let same = echoes.iter().filter(|(.., other)| *other == proposal).map(|(_, rank, _)| *rank);
        let stay = self.taking_part(self.heard_members());
        self.cannot_be_decided((leader, &proposal), same.collect(), stay)
    }

    fn new_proposal(&self, cut: RankSet) -> Proposal {
        let members = self.view.members.len();
        // A joiner for which there is no place takes over no state.
        let is_full = members >= self.settings.members_max;
        let (leaving, removed) = self.departures(cut, if is_full { &[] } else { &self.joins });
        let mut most = JOINS_MAX;
        mutant!(OneJoinPerView => most = 1);
        let places = most.min(self.settings.members_max.saturating_sub(members - removed.len()));
        let joins = self.joins.iter().copied().take(places).collect();
        let trims = self.segments.iter().flat_map(|segment| self.trim(segment, cut)).collect();
        Proposal { removed, leaving, joins, holders: self.holders(removed), trims }
    }

    /// Returns a durable subgroup all of whose members are in the cut: no other knows what was delivered there \[T5\].
    pub(super) fn orphan(&self, cut: RankSet) -> Option<u32> {
        mutant!(TrimOrphan => return None);
        let is_gone = |segment: &&SenderSegment| segment.ranks.iter().all(|rank| cut.contains(*rank));
        self.segments.iter().filter(is_gone).find_map(|segment| segment.durable)
    }

    /// Returns for each sender of a segment how much counts. Of `quorum` members that have what was delivered, those in the cut may be
    /// some: so it is what as many of the others have as must be left of these \[G10\]. Where all have it, that is the least count.
    fn trim(&self, segment: &SenderSegment, cut: RankSet) -> impl Iterator<Item = u64> {
        (segment.counts..segment.counts + segment.senders).map(move |i| {
            let stays = |rank: &&usize| !cut.contains(**rank) || mutant!(TrimWithDead);
            let counts = segment.ranks.iter().filter(stays);
            let mut counts: Vec<u64> =
                counts.map(|rank| self.row.counts.column(i).load(self.table.row(*rank))).collect();
            counts.sort_unstable_by(|a, b| b.cmp(a));
            mutant!(TrimOfOne => return counts.first().copied().unwrap_or(0));
            let lost = segment.ranks.len() - counts.len();
            let mut left = segment.quorum.saturating_sub(lost).max(1);
            mutant!(TrimTooHigh if segment.may_lack() => left = (left - 1).max(1));
            counts.get(left - 1).copied().unwrap_or(0)
        })
    }

    /// Echoes the leader's proposal, once.
    fn echo(&mut self, leader: usize) -> usize {
        let has_proposed = index(self.row.echoed.load(self.table.row(leader))) == leader + 1;
        if !has_proposed || self.echoed_last() > leader || !self.row.has_place(self.echoes) {
            return 0;
        }
        let Some(proposal) = self.load(leader, leader) else { return 0 };
        if !self.accepts(leader, leader, &proposal) {
            return 1;
        }
        if self.echoed.is_some() {
            reach(Point::EchoedAgain);
        }
        self.voting = Some((leader, proposal));
        1
    }

    /// Shows the echo of the proposal for which this member votes, once the vote is on its disk \[T6\]; returns the rank of the
    /// leader.
    fn show_vote<F>(&mut self, subgroups: &mut impl Subgroups<F>) -> Option<usize> {
        let (leader, proposal) = self.voting.as_ref()?;
        if !self.has_log(proposal, subgroups) {
            return None;
        }
        if !subgroups.vote(&self.view, &self.segments, live_ballot(*leader), proposal) {
            reach(Point::VoteUnderWay);
            return None;
        }
        let (leader, proposal) = self.voting.take()?;
        self.store(leader, proposal);
        Some(leader)
    }

    /// Returns whether this member has what the trims of a proposal hold, or is removed by it against its wish: then it does not need
    /// that \[G11\].
    pub(super) fn has_log<F>(&self, proposal: &Proposal, subgroups: &mut impl Subgroups<F>) -> bool {
        let own = self.table.rank();
        let is_cut = proposal.removes(own) && !self.wishes_to_leave(own);
        is_cut || subgroups.has_log(proposal)
    }

    /// Returns the leader for which this member votes: a later leader that saw it suspected would take it that no echo follows, and
    /// may not know of the vote, which a restart may find on the disk \[T6\].
    pub(super) fn withheld(&self) -> RankSet {
        mutant!(SuspectBeforeVote => return RankSet::EMPTY);
        self.voting.as_ref().map_or(RankSet::EMPTY, |(leader, _)| RankSet::of(*leader))
    }

    /// Returns whether a majority has echoed the leader's proposal, and so have all members that can be expected to:
    /// not those that it removes, nor, where a majority makes a decision safe, those that no longer follow this
    /// leader. Members that lack what their shard counts are waited for, in groups whose members can wait: of each such shard two that stay
    /// in it have to have echoed, or its only one \[H13\].
    fn tally(&self, leader: usize) -> LiveTally {
        let Some((_, proposal)) = self.echoed.as_ref().filter(|(echoed, _)| *echoed == leader) else {
            return LiveTally::Awaited;
        };
        mutant!(DecideAlone => return LiveTally::Decided);
        let has_echoed = |rank: usize| index(self.row.echoed.load(self.table.row(rank))) == leader + 1;
        let can_echo = |rank: usize| {
            let row = self.table.row(rank);
            let is_cut = proposal.removes(rank) && !self.wishes_to_leave(rank);
            let follows = !self.row.suspected.contains(row, leader) && !self.row.waits.load(row);
            !is_cut && (follows || !self.needs_majority())
        };
        let echoes: RankSet = (0..self.view.members.len()).filter(|rank| has_echoed(*rank)).collect();
        if !self.suffice(echoes.len())
            || !self.heard_members().iter().all(|rank| has_echoed(rank) || !can_echo(rank))
        {
            return LiveTally::Awaited;
        }
        let has_copies = |segment: &SenderSegment| segment.has_copies(echoes, proposal.removed);
        match self.is_patient() && !self.segments.iter().all(has_copies) {
            true => LiveTally::CopiesMissing,
            false => LiveTally::Decided,
        }
    }

    /// Decides the proposal of `leader`, which this member has echoed.
    fn decide(&mut self, leader: usize) {
        let (echoed, mut proposal) = self.echoed.clone().expect("a proposal is echoed before it is decided");
        assert_eq!(echoed, leader, "what is decided was echoed last");
        self.table.raise(self.row.decided, leader as u64 + 1);
        mutant!(HoldersOfOneMember => proposal.holders = self.holders(proposal.removed));
        self.decision = Some(proposal);
    }

    fn store(&mut self, leader: usize, proposal: Proposal) {
        let place = self.row.proposal(self.echoes);
        let words = proposal.store(self.table.own(), place, leader, self.view.members.len());
        self.echoes += 1;
        self.table.append(words);
        self.table.raise(self.row.echoed, leader as u64 + 1);
        self.echoed = Some((leader, proposal));
    }

    /// Returns the proposal of `leader` in the row of `rank`, if it has arrived here.
    pub(super) fn load(&self, rank: usize, leader: usize) -> Option<Proposal> {
        self.row.load_proposal(self.table.row(rank), leader)
    }

    /// Returns one more than the rank of the leader whose proposal this member has echoed last, or 0.
    pub(super) fn echoed_last(&self) -> usize {
        self.echoed.as_ref().map_or(0, |(leader, _)| leader + 1)
    }
}

/// Returns the proposal of the latest leader \[D2\], with the rank of a member that has echoed it, and the leader's
/// rank. `echoes` has for each proposal one more than the rank of its leader, and the rank of a member that has
/// echoed it.
fn latest(echoes: impl Iterator<Item = (usize, usize, Proposal)>) -> Option<(usize, usize, Proposal)> {
    let key = |(echoed, rank, _): &(usize, usize, Proposal)| (*echoed, *rank);
    let taken = |(echoed, rank, proposal)| (rank, echoed - 1, proposal);
    mutant!(TakeEarliestProposal => return echoes.min_by_key(key).map(taken));
    echoes.max_by_key(key).map(taken)
}

/// Returns the ballot of a live leader.
pub(super) fn live_ballot(leader: usize) -> Ballot {
    Ballot::live(u32::try_from(leader).unwrap_or(u32::MAX - 1))
}

/// Converts a word of a row to a rank; a word that is too large becomes greater than all ranks.
fn index(word: u64) -> usize {
    usize::try_from(word).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation;

    fn removal(removed: u64) -> Proposal {
        let removed = RankSet::from_bits(removed);
        Proposal {
            removed,
            leaving: RankSet::EMPTY,
            joins: Vec::new(),
            holders: Vec::new(),
            trims: Vec::new(),
        }
    }

    /// A leader dies when the third member has its proposal and the second has not; then the second dies when its own
    /// proposal is decided and no other member knows that: what was decided has to be taken over, not what was
    /// proposed before. To reach this in the simulator takes three deaths, each at one of a few posts.
    #[test]
    fn the_proposal_of_the_latest_leader_is_taken_over() {
        let echoes = || [(1, 2, removal(0b1)), (2, 1, removal(0b101)), (2, 3, removal(0b101))].into_iter();
        assert_eq!(latest(echoes()), Some((3, 1, removal(0b101))));
        assert_eq!(latest(std::iter::empty()), None);
        let caught = || latest(echoes()) != Some((3, 1, removal(0b101)));
        assert!(mutation::with(mutation::Mutation::TakeEarliestProposal, caught));
    }
}
