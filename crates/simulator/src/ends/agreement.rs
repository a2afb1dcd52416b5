//! A live member that has wedged: it proposes or echoes, and decides.

use std::collections::BTreeMap;

use squall_protocols::ends::{
    Ballot, EndAnswers, EndContext, EndObstacle, EndProposal, EndVote, Following, LiveTally, RankedVotes,
    apart, has_content, live_proposal, live_tally, may_echo,
};
use squall_protocols::membership::{Member, RankSet};

use super::plan::EndsEvent;
use super::world::{EndsWorld, place};

impl EndsWorld<'_> {
    /// A live member that has wedged takes a step of the agreement.
    pub(super) fn agree(&mut self, slot: usize, leader: usize, heard: RankSet, waiting: RankSet) {
        let own = self.rank(slot);
        let is_free = may_echo(&self.processes[slot].member.register, leader);
        let proposal = if leader == own {
            self.own_proposal(slot, heard, is_free)
        } else {
            let row = self.row(slot, leader).filter(|_| is_free && heard.contains(leader));
            let echo = row.and_then(|row| row.echo.as_ref());
            echo.filter(|echo| echo.ballot == live_ballot(leader)).map(|echo| echo.proposal.clone())
        };
        match proposal {
            Some(proposal) => self.echo(slot, leader, proposal),
            None => self.count_echoes(slot, leader, heard, waiting),
        }
    }

    /// Returns what the leader proposes, if it is time; it resigns or waits if it cannot.
    fn own_proposal(&mut self, slot: usize, heard: RankSet, is_free: bool) -> Option<EndProposal> {
        let (view, own) = (self.processes[slot].view, self.rank(slot));
        let all = self.views[view].view.ranks();
        let accused = |rank: usize| self.row(slot, rank).map_or(RankSet::EMPTY, |row| row.accused);
        let cut = (all - heard) | apart(heard, |rank| heard - accused(rank));
        if cut.contains(own) {
            let process = &mut self.processes[slot];
            if !process.row.suspected.contains(own) {
                process.row.suspected.insert(own);
                process.post();
            }
            return None;
        }
        let stay = all - cut;
        if stay.len() < self.views[view].view.majority() {
            self.wait(slot, "no majority hears each other");
            return None;
        }
        if !is_free || !stay.iter().all(|rank| self.following(slot, rank).follows(own)) {
            return None;
        }
        match self.propose_live(slot, stay) {
            Ok(proposal) => Some(proposal),
            Err(obstacle) => {
                self.wait(slot, &format!("{obstacle:?}"));
                None
            }
        }
    }

    fn propose_live(&self, slot: usize, stay: RankSet) -> Result<EndProposal, EndObstacle> {
        let process = &self.processes[slot];
        let view = &self.views[process.view].view;
        let row = |rank: usize| Some((rank, self.row(slot, rank)?));
        let all = || view.ranks().iter().filter_map(row);
        let answers = all().filter(|(rank, _)| stay.contains(*rank));
        let answers: EndAnswers<'_> =
            answers.filter_map(|(rank, row)| Some((rank, &**row.answer.as_ref()?))).collect();
        let echoes: RankedVotes<'_> =
            all().filter_map(|(rank, row)| Some((rank, row.echo.as_ref()?))).collect();
        let shards = &self.plan.shards;
        let placement = |members: &[Member]| place(shards, members);
        let context = EndContext {
            view,
            own: self.rank(slot),
            dead: process.dead,
            placement: &placement,
            gives_up_silent: false,
        };
        let mut joins = self.candidates(slot, stay);
        joins.truncate(stay.len().saturating_sub(1).max(1));
        live_proposal(&context, &answers, &echoes, joins)
    }

    fn following(&self, slot: usize, rank: usize) -> Following {
        let row = self.row(slot, rank);
        Following {
            is_wedged: row.is_some_and(|row| row.answer.is_some()),
            suspected: row.map_or(RankSet::EMPTY, |row| row.suspected),
            waits: row.is_some_and(|row| row.waits),
        }
    }

    /// A member echoes, when it holds what the value keeps.
    fn echo(&mut self, slot: usize, leader: usize, proposal: EndProposal) {
        let (view, own) = (self.processes[slot].view, self.rank(slot));
        let counts = self.own_counts(slot);
        if !has_content(&self.views[view].view, &proposal.value, own, &counts, false) {
            let Some(shard) = self.lacks(slot, &proposal.value) else { return };
            let is_reached = self.is_held(slot, view, &proposal.value, shard, true);
            if !is_reached && self.prng.index(40) == 0 {
                return self.wait(slot, "no process that it reaches has what it is to echo");
            }
            return self.fetch(slot, view, &proposal.value, shard);
        }
        self.note(slot, || format!("echoes {leader} {proposal:?}"));
        let process = &mut self.processes[slot];
        if process.member.register.vote_for(live_ballot(leader), proposal, false) {
            process.row.echo = process.member.register.vote().cloned();
            process.post();
            self.report(slot);
            self.reach(EndsEvent::Echo, slot);
        }
    }

    fn count_echoes(&mut self, slot: usize, leader: usize, heard: RankSet, waiting: RankSet) {
        let (view, own) = (self.processes[slot].view, self.rank(slot));
        let ballot = live_ballot(leader);
        let Some(vote) = self.processes[slot].row.echo.clone().filter(|echo| echo.ballot == ballot) else {
            return;
        };
        let row = |rank: usize| Some((rank, self.row(slot, rank)?.echo.as_ref()?));
        let echoes: BTreeMap<usize, &EndVote> =
            self.views[view].view.ranks().iter().filter_map(row).collect();
        let value = &vote.proposal.value;
        let can = |rank: &usize| {
            let following = Following { waits: waiting.contains(*rank), ..self.following(slot, *rank) };
            following.can_echo(leader)
        };
        let expected = heard & (value.stay | value.left);
        let expected: RankSet = expected.iter().filter(can).collect();
        match live_tally(&self.views[view].view, &vote, &echoes, expected) {
            LiveTally::Awaited => {}
            LiveTally::Decided => {
                let value = value.clone();
                self.on_decided(slot, view, &value, ballot);
            }
            LiveTally::CopiesMissing if own == leader && self.prng.index(8) == 0 => {
                self.wait(slot, "copies are missing");
            }
            LiveTally::CopiesMissing => {}
        }
    }

    /// A member that waits echoes nothing, by its register; with a mutation it may.
    pub(super) fn echo_though_waiting(&mut self, slot: usize) {
        let process = &self.processes[slot];
        if process.is_restarted || process.end.is_some() {
            return;
        }
        let all = self.views[process.view].view.ranks();
        let Some(leader) = (all - process.row.suspected).first() else { return };
        if leader == self.rank(slot) || !may_echo(&process.member.register, leader) {
            return;
        }
        let echo = self.row(slot, leader).and_then(|row| row.echo.clone());
        if let Some(echo) = echo.filter(|echo| echo.ballot == live_ballot(leader)) {
            self.echo(slot, leader, echo.proposal);
        }
    }
}

fn live_ballot(leader: usize) -> Ballot {
    Ballot::live(u32::try_from(leader).unwrap_or(u32::MAX))
}
