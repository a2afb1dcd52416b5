//! A view as the rules of [`crate::ends`] see it, and its proposals as their values (Derecho §3.4).
//!
//! Each subgroup is a shard of those rules, and so is each state that a member may hold: a shard without messages, whose members are those
//! that may hold it. All members that stay keep what they have, so a shard is placed at all of them; where subgroups move, the layout says
//! when the view begins, as after any other view.

use std::sync::Arc;

use super::board::{AskingProposal, WaitingReport};
use crate::ends::{
    EndAnswer, EndAnswers, EndProposal, EndRegister, EndReport, EndValue, EndVote, EndingShard, EndingView,
    ShardKind, ShardQuorum, may_be_decided,
};
use crate::membership::agreement::live_ballot;
use crate::membership::{MEMBERS_MAX, Member, Proposal, RankSet, SenderSegment, View};
use crate::mutation;

/// The view, and what is the same in all its values.
#[derive(Debug)]
pub(super) struct WaitingValues {
    view: EndingView,
    /// The first columns of subgroups in the counts, and in the trims, with their numbers.
    segments: Vec<(usize, usize, usize)>,
    states: usize,
}

/// Durable subgroups are of this kind, too: those that wait have not restarted, and what they publish they have flushed \[T4\], so that the
/// least count is what all have on their disks. But such a subgroup is never given up (`stop.rs`, [`super::WaitingRoom`]).
const ALL_HAVE_IT: ShardKind = ShardKind { is_durable: false, quorum: ShardQuorum::All, is_timed: false };

/// Returns the kind of a subgroup. Timestamps of different views are not compared in a group, so no view has a floor for them.
const fn kind(segment: &SenderSegment) -> ShardKind {
    let quorum = if segment.may_lack() { ShardQuorum::Majority } else { ShardQuorum::All };
    ShardKind { quorum, ..ALL_HAVE_IT }
}

impl WaitingValues {
    /// `may_hold` has for each state the members that may hold it.
    pub(super) fn new(view: &View, segments: &[SenderSegment], may_hold: Vec<RankSet>) -> Self {
        let all = RankSet::all(view.members.len());
        let subgroups = segments.iter().map(|segment| EndingShard {
            kind: kind(segment),
            members: segment.ranks.iter().copied().collect(),
            whole: all,
            columns: segment.senders,
        });
        let states = may_hold.len();
        let held = may_hold.into_iter().map(|members| EndingShard {
            kind: ALL_HAVE_IT,
            members,
            whole: members,
            columns: 0,
        });
        let shards = subgroups.chain(held).collect();
        let places = |segment: &SenderSegment| (segment.counts, segment.trims, segment.senders);
        Self {
            view: EndingView { number: view.id, members: view.members.clone(), shards, floor: 0 },
            segments: segments.iter().map(places).collect(),
            states,
        }
    }

    /// Notes which states a member holds: it has said so.
    pub(super) fn note_states(&mut self, rank: usize, holds: &[u64]) {
        let states = self.view.shards[self.segments.len()..].iter_mut().enumerate();
        states
            .filter(|(state, _)| has_state(holds, *state))
            .for_each(|(_, shard)| shard.members.insert(rank));
    }

    pub(super) const fn view(&self) -> &EndingView {
        &self.view
    }

    /// Returns the layout of these rules: every shard is at all members, but for states that no member may hold.
    pub(super) fn placement(&self) -> impl Fn(&[Member]) -> Vec<RankSet> + use<> {
        let is_held: Vec<bool> = self.view.shards.iter().map(|shard| !shard.members.is_empty()).collect();
        move |members| {
            let all = RankSet::all(members.len());
            is_held.iter().map(|is_held| if *is_held { all } else { RankSet::EMPTY }).collect()
        }
    }

    /// Returns the value of a proposal. Proposals that are the same have the same value.
    fn value(&self, proposal: &Proposal) -> EndValue {
        let stay = self.view.ranks() - proposal.removed;
        // A member that violates the protocol may propose more; it is not believed (`distrust.rs`).
        let next = RankSet::all((stay.len() + proposal.joins.len()).min(MEMBERS_MAX));
        let shards = self.view.shards.len();
        let trims = self
            .segments
            .iter()
            .map(|(_, trims, senders)| proposal.trims[*trims..*trims + *senders].to_vec());
        let in_next = |holders: &RankSet| {
            let held = stay.iter().enumerate().filter(|(_, rank)| holders.contains(*rank));
            held.map(|(next, _)| next).collect::<RankSet>()
        };
        let whole = self.segments.iter().map(|_| next).chain(proposal.holders.iter().map(in_next)).collect();
        EndValue {
            trims: trims.chain((0..self.states).map(|_| Vec::new())).collect(),
            stay,
            left: RankSet::EMPTY,
            leaving: proposal.leaving,
            joins: proposal.joins.clone(),
            placement: vec![next; shards],
            whole,
            given_up: vec![false; shards],
            floor: 0,
            is_live: false,
        }
    }

    /// Returns the proposal of a value.
    pub(super) fn proposal(&self, value: &EndValue) -> Proposal {
        let ranks: Vec<usize> = value.stay.iter().collect();
        let before = |holders: &RankSet| holders.iter().filter_map(|next| ranks.get(next)).copied().collect();
        let is_given_up = |shard: usize| value.given_up.get(shard) == Some(&true);
        let holders = value.whole.iter().enumerate().skip(self.segments.len());
        let holders =
            holders.map(|(shard, held)| if is_given_up(shard) { RankSet::EMPTY } else { before(held) });
        let length = self.segments.iter().map(|(_, trims, senders)| trims + senders).max().unwrap_or(0);
        let mut trims = vec![0; length];
        for ((_, first, senders), of) in self.segments.iter().zip(&value.trims) {
            trims[*first..first + senders].copy_from_slice(of);
        }
        Proposal {
            removed: self.view.ranks() - value.stay,
            leaving: value.leaving,
            joins: value.joins.clone(),
            holders: holders.collect(),
            trims,
        }
    }

    /// Returns a live leader's proposal: it asks for all copies that there may be.
    fn live(&self, proposal: &Proposal) -> EndProposal {
        EndProposal::new(&self.view, self.value(proposal), &EndAnswers::new())
    }

    /// Returns what is proposed or voted for, as reports have it.
    fn end(&self, asking: &AskingProposal) -> EndProposal {
        let shards = self.view.shards.len();
        let copies = |copies: &[u64]| {
            let copies = copies.iter().map(|copies| usize::try_from(*copies).unwrap_or(usize::MAX));
            copies.chain(std::iter::repeat(0)).take(shards).collect()
        };
        EndProposal {
            value: Arc::new(self.value(&asking.proposal)),
            need: copies(&asking.need),
            carry: copies(&asking.carry),
        }
    }

    /// Returns a proposal as reports have it.
    pub(super) fn asking(&self, proposal: &EndProposal) -> AskingProposal {
        let copies = |copies: &[usize]| copies[..self.segments.len()].iter().map(|of| *of as u64).collect();
        AskingProposal {
            proposal: self.proposal(&proposal.value),
            need: copies(&proposal.need),
            carry: copies(&proposal.carry),
        }
    }

    /// Returns how the view has ended, as a report has it.
    pub(super) fn decision(&self, proposal: &Proposal) -> AskingProposal {
        let none = vec![0; self.segments.len()];
        AskingProposal { proposal: proposal.clone(), need: none.clone(), carry: none }
    }

    /// See [`Membership::cannot_be_decided`](crate::membership::Membership::cannot_be_decided).
    pub(super) fn cannot_be_decided(
        &self,
        (leader, proposal): (usize, &Proposal),
        same: RankSet,
        stay: RankSet,
    ) -> bool {
        mutant!(AdoptAnyEcho => return false);
        let vote = self.echo(leader, proposal);
        let votes = same.iter().map(|rank| (rank, &vote)).collect();
        !may_be_decided(&self.view, &vote, &votes, stay, &vote.proposal.carry)
    }

    /// Returns the register of a member that begins to wait: what it has echoed, with the rank of the leader, is its vote.
    pub(super) fn first_register(&self, echoed: Option<&(usize, Proposal)>) -> EndRegister {
        let echoed = echoed.filter(|_| !mutant!(ForgetEchoAtWait));
        let vote = echoed.map(|(leader, proposal)| self.echo(*leader, proposal));
        let mut register = EndRegister::restored(None, vote);
        register.wait();
        register
    }

    /// Returns the vote that the echo of a live leader's proposal is.
    fn echo(&self, leader: usize, proposal: &Proposal) -> EndVote {
        EndVote { ballot: live_ballot(leader), proposal: self.live(proposal), is_restarted: false }
    }

    /// Returns by shard what a member has of each column, of the counts in its row.
    pub(super) fn counts(&self, counts: &[u64]) -> Vec<Vec<u64>> {
        let of = |(first, _, senders): &(usize, usize, usize)| {
            counts.get(*first..first + senders).unwrap_or_default().to_vec()
        };
        self.segments.iter().map(of).chain((0..self.states).map(|_| Vec::new())).collect()
    }

    /// Returns a member's report as the rules take it.
    pub(super) fn report(&self, report: WaitingReport) -> EndReport {
        let holds = |state: usize| has_state(&report.holds, state);
        let whole = self.segments.iter().map(|_| true).chain((0..self.states).map(holds));
        let vote = report.vote.as_ref().map(|(ballot, proposal)| EndVote {
            ballot: *ballot,
            proposal: self.end(proposal),
            is_restarted: false,
        });
        let answer = EndAnswer {
            counts: self.counts(&report.counts),
            whole: whole.collect(),
            hears: report.hears,
            vote,
            ..EndAnswer::default()
        };
        EndReport {
            order: (0, report.number),
            view: Some(self.view.number),
            newest: self.view.number,
            waits: true,
            answer: Arc::new(answer),
            promise: report.promise,
            lead: report.lead,
            proposal: report
                .proposal
                .as_ref()
                .filter(|_| !report.has_ended)
                .map(|proposal| self.end(proposal)),
            ..EndReport::default()
        }
    }
}

fn has_state(holds: &[u64], state: usize) -> bool {
    holds.get(state / 64).is_some_and(|word| word >> (state % 64) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use squall_fabric::NodeId;

    use super::*;
    use crate::ends::{Ballot, EndContext, NextMembers, new_value, taken_over};

    /// Two shards of a subgroup that share columns of counts, and two states, of which one is known to be held.
    fn values() -> WaitingValues {
        let member = |node: u32| Member { node: NodeId(node), tag: node.into() };
        let view = View::first((0..3).map(member).collect());
        let segment = |trims, senders, ranks: &[usize]| SenderSegment {
            counts: 0,
            trims,
            senders,
            ranks: ranks.to_vec(),
            durable: None,
            quorum: ranks.len(),
        };
        WaitingValues::new(
            &view,
            &[segment(0, 2, &[0, 1]), segment(2, 1, &[2])],
            vec![RankSet::of(1), RankSet::EMPTY],
        )
    }

    fn report(number: u64, counts: &[u64], holds: u64) -> WaitingReport {
        let hears = RankSet::all(3);
        WaitingReport {
            number,
            hears,
            holds: vec![holds],
            counts: counts.to_vec(),
            ..WaitingReport::default()
        }
    }

    #[test]
    fn a_proposal_is_the_same_after_it_was_a_value() {
        let values = values();
        let proposal = Proposal {
            removed: RankSet::of(0),
            leaving: RankSet::of(2),
            joins: vec![Member { node: NodeId(9), tag: 9 }],
            holders: vec![RankSet::of(2), RankSet::EMPTY],
            trims: vec![4, 5, 6],
        };
        assert_eq!(values.proposal(&values.value(&proposal)), proposal);
        let asking = values.asking(&values.live(&proposal));
        assert_eq!(values.echo(1, &proposal).proposal, values.end(&asking));
    }

    fn context<'a>(
        values: &'a WaitingValues,
        placement: &'a dyn Fn(&[Member]) -> Vec<RankSet>,
    ) -> EndContext<'a> {
        EndContext { view: values.view(), own: 0, dead: RankSet::EMPTY, placement, gives_up_silent: false }
    }

    /// A live leader has proposed to continue without the first member, and may have decided that with the echo of the second, when both
    /// lose each other: those that wait end the view as it proposed, though the first member is here.
    #[test]
    fn what_was_echoed_before_the_wait_is_taken_over() {
        let values = values();
        let proposal = Proposal {
            removed: RankSet::of(0),
            leaving: RankSet::EMPTY,
            joins: Vec::new(),
            holders: vec![RankSet::EMPTY; 2],
            trims: vec![1, 1, 1],
        };
        let takes_over = || {
            let echoed = values.first_register(Some(&(2, proposal.clone())));
            assert_eq!(echoed.promise(), Some(Ballot::WAITS), "it echoes no live leader any more");
            let vote = echoed.vote().map(|vote| (vote.ballot, values.asking(&vote.proposal)));
            let reports = [report(1, &[1, 1], 0), WaitingReport { vote, ..report(1, &[1, 1], 0) }];
            let reports = reports.map(|report| values.report(report));
            let answers = reports.iter().enumerate().map(|(rank, report)| (rank, &*report.answer)).collect();
            let placement = values.placement();
            taken_over(&context(&values, &placement), &answers).map(|taken| values.proposal(&taken.value))
        };
        assert_eq!(takes_over(), Some(proposal.clone()));
        assert_eq!(mutation::with(mutation::GroupMutation::ForgetEchoAtWait, takes_over), None);
    }

    /// Of a shard of three two count. The first member has proposed to continue without the second and dies, and only the third, which is not
    /// kept, has echoed that: the second cannot have decided it, and it may be that no member that is left has what it counts.
    #[test]
    fn an_echo_that_cannot_have_been_decided_is_dropped() {
        let member = |node: u32| Member { node: NodeId(node), tag: 0 };
        let view = View::first((0..5).map(member).collect());
        let segment =
            SenderSegment { counts: 0, trims: 0, senders: 1, ranks: vec![0, 1, 2], durable: None, quorum: 2 };
        let values = WaitingValues::new(&view, &[segment], Vec::new());
        let set = |ranks: &[usize]| ranks.iter().copied().collect::<RankSet>();
        let proposal = |removed: &[usize]| Proposal {
            removed: set(removed),
            leaving: RankSet::EMPTY,
            joins: Vec::new(),
            holders: Vec::new(),
            trims: vec![9],
        };
        let dropped = |removed: &[usize], same: &[usize], stay: &[usize]| {
            values.cannot_be_decided((0, &proposal(removed)), set(same), set(stay))
        };
        let dead_leader = || dropped(&[2], &[0, 2, 3], &[1, 2, 3, 4]);
        assert!(dead_leader(), "of those that it keeps in the shard only the dead one may have voted");
        assert!(!mutation::with(mutation::GroupMutation::AdoptAnyEcho, dead_leader));
        assert!(!dropped(&[2], &[0, 1, 3], &[1, 2, 3, 4]), "two copies, and a majority");
        assert!(!dropped(&[2], &[0, 3], &[2, 3, 4]), "the second is not heard");
        assert!(dropped(&[2], &[0, 1], &[1, 2, 3, 4]), "no majority");
    }

    /// Whatever a row says can be read: a proposal is checked before it is believed.
    #[test]
    fn nonsense_is_read_without_a_panic() {
        let values = values();
        let mut prng = squall_fabric::sim::Prng::new(7);
        for _ in 0..200 {
            let mut set = || RankSet::from_words((0..16).map(|_| prng.draw()).collect::<Vec<_>>());
            let (removed, leaving, holders) = (set(), set(), vec![set(), set()]);
            let join = |node| Member { node: NodeId(node), tag: 0 };
            let joins = (0..16).map(join).collect();
            let trims = (0..3).map(|_| prng.draw()).collect();
            let proposal = Proposal { removed, leaving, joins, holders, trims };
            let proposal = AskingProposal { proposal, need: vec![u64::MAX, 1], carry: vec![0, prng.draw()] };
            let ballot = Ballot { round: u64::MAX, place: u32::MAX };
            let said = WaitingReport {
                hears: removed,
                vote: Some((ballot, proposal.clone())),
                proposal: Some(proposal),
                ..report(1, &[prng.draw(), 0], u64::MAX)
            };
            let read = values.report(said);
            let vote = read.answer.vote.as_ref().expect("it has one");
            assert!(values.proposal(&vote.proposal.value).removed.is_subset(&RankSet::all(3)));
        }
        assert!(Ballot::above(Some(Ballot { round: u64::MAX, place: 0 }), NodeId(1)).is_restart());
    }

    /// What a member that has reported holds is held, even if no other knew of it before; what no member may hold is not.
    #[test]
    fn a_new_value_keeps_what_all_have_and_the_states() {
        let mut values = values();
        let said = [report(1, &[7, 3], 0), report(1, &[5, 4], 0b01), report(1, &[8, 0], 0b10)];
        said.iter().enumerate().for_each(|(rank, report)| values.note_states(rank, &report.holds));
        let reports = said.map(|report| values.report(report));
        let answers = reports.iter().enumerate().map(|(rank, report)| (rank, &*report.answer)).collect();
        let placement = values.placement();
        let context = context(&values, &placement);
        let next = NextMembers { keep: RankSet::all(3), ..NextMembers::default() };
        let value = new_value(&context, &answers, next).expect("all are here");
        let proposal = values.proposal(&value);
        assert_eq!((proposal.removed, proposal.trims.as_slice()), (RankSet::EMPTY, &[5, 3, 8][..]));
        assert_eq!(proposal.holders, [RankSet::of(1), RankSet::of(2)]);
        assert_eq!(values.proposal(&values.value(&proposal)), proposal);
        // The only holder of a state is silent: it is waited for, and then given up.
        let two = reports.iter().enumerate().take(2).map(|(rank, report)| (rank, &*report.answer)).collect();
        let next = || NextMembers { keep: RankSet::all(2), ..NextMembers::default() };
        assert!(new_value(&context, &two, next()).is_err());
        let late = EndContext { gives_up_silent: true, ..context };
        let value = new_value(&late, &two, next()).expect("the time has passed");
        assert_eq!(values.proposal(&value).holders, [RankSet::of(1), RankSet::EMPTY]);
    }
}
