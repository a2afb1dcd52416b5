//! A member that waits: it follows ballots, leads one when it is its turn, and counts votes (Derecho §3.4).

use squall_fabric::Instant;

use super::club::{ClubGathering, EndSettings, LeadDue, LeadTimer, apart, club, least_majority};
use super::decision::{decided, has_content};
use super::mutation;
use super::proposal::{EndContext, EndObstacle, NextMembers, new_value};
use super::report::{EndAnswers, RankedReports};
use super::takeover::{RankedVotes, taken_over};
use super::vote::{EndProposal, EndRegister, EndVote};
use super::{Ballot, view::EndingView};
use crate::coverage::{Point, reach};
use crate::members::RankSet;

/// A ballot that a member leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndLead {
    /// Its right to propose.
    pub ballot: Ballot,
    /// What it proposes.
    pub proposal: Option<EndProposal>,
    /// Since when it leads.
    pub since: Instant,
    /// Why it has not proposed.
    pub obstacle: Option<EndObstacle>,
}

/// What a waiting member has done in a step. One step changes at most one thing, which the driver writes, if registers are on disks, and
/// reports before it takes the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitingStep {
    /// Nothing.
    Nothing,
    /// It has promised to follow a ballot.
    Promised(Ballot),
    /// It would vote for this, and lacks a part of it; the driver fetches that from any process that has it.
    Lacks(EndProposal),
    /// It has voted.
    Voted(Ballot),
    /// It leads a ballot.
    Leads(Ballot),
    /// It proposes.
    Proposes,
    /// The votes that it sees decide the end.
    Decided(EndVote),
}

/// What a waiting member has in a step, besides the reports of the others.
#[derive(Clone, Copy)]
pub struct WaitingInput<'a> {
    /// The view, the own rank, and what is known of others.
    pub context: EndContext<'a>,
    /// The present time.
    pub now: Instant,
    /// How long to wait.
    pub settings: &'a EndSettings,
    /// The members of the view of which something was heard lately, this one included.
    pub fresh: RankSet,
    /// By shard, how much this member has of each column; it grows by what it fetches.
    pub counts: &'a [Vec<u64>],
    /// Whether it has restarted in this view.
    pub is_restarted: bool,
    /// Whether it has wedged: its counts are final.
    pub is_wedged: bool,
}

/// A member in the end of its view. It is empty when the view begins.
#[derive(Clone, Debug, Default)]
pub struct WaitingMember {
    /// What it has committed itself to.
    pub register: EndRegister,
    lead: Option<EndLead>,
    timer: LeadTimer,
    /// When a step may be due although no report has changed.
    due: Option<Instant>,
    /// It knows of a later view without it: it never votes again in this one \[H17\].
    is_left_behind: bool,
}

impl WaitingMember {
    /// Returns the member with the register that was on its disk.
    #[must_use]
    pub fn restored(register: EndRegister) -> Self {
        Self { register, ..Self::default() }
    }

    /// Returns the ballot that it leads.
    #[must_use]
    pub const fn lead(&self) -> Option<&EndLead> {
        self.lead.as_ref()
    }

    /// Returns when to take the next step although no report has changed: when it is to lead, or its answers have had their time.
    #[must_use]
    pub const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The process has learned of a later view without it \[H17\].
    pub fn leave_behind(&mut self) {
        mutant!(VoteLeftBehind => return);
        self.is_left_behind = true;
        self.lead = None;
    }

    /// Takes a step: decides, promises, votes, leads or proposes, the first of these that is due. `reports` includes this member's own, as
    /// it is visible to others.
    pub fn step(&mut self, input: &WaitingInput<'_>, reports: &RankedReports<'_>) -> WaitingStep {
        let view = input.context.view;
        self.due = None;
        if let Some(vote) = decided(view, &votes(reports)) {
            return WaitingStep::Decided(vote.clone());
        }
        if self.is_left_behind {
            return WaitingStep::Nothing;
        }
        let step = self.follow(input, reports);
        if step != WaitingStep::Nothing {
            return step;
        }
        let voted = self.vote(input, reports);
        if matches!(voted, WaitingStep::Voted(_)) {
            return voted;
        }
        // What a ballot keeps may be out of reach: then another one counts on what is not.
        let step = self.start_to_lead(input, reports);
        if step != WaitingStep::Nothing {
            return step;
        }
        match self.propose(input, reports) {
            WaitingStep::Nothing => voted,
            step => step,
        }
    }

    /// Promises the highest ballot that any other member leads \[H7\].
    fn follow(&mut self, input: &WaitingInput<'_>, reports: &RankedReports<'_>) -> WaitingStep {
        let own = input.context.own;
        let others = reports.iter().filter(|(rank, _)| **rank != own);
        let Some(ballot) = others.filter_map(|(_, report)| report.lead).max() else {
            return WaitingStep::Nothing;
        };
        // The counts of the answer are final [H2].
        let is_final = input.is_wedged || mutant!(PromiseUnwedged);
        if !is_final || !self.register.follow(ballot) {
            return WaitingStep::Nothing;
        }
        if self.lead.as_ref().is_some_and(|lead| lead.ballot < ballot) {
            reach(Point::EndLeadLost);
            self.lead = None;
        }
        WaitingStep::Promised(ballot)
    }

    /// Votes for the proposal of the highest ballot, when it has what the value keeps \[H14\].
    fn vote(&mut self, input: &WaitingInput<'_>, reports: &RankedReports<'_>) -> WaitingStep {
        let own = input.context.own;
        let others = reports.iter().filter(|(rank, _)| **rank != own);
        let others = others.filter_map(|(_, report)| Some((report.lead?, report.proposal.as_ref()?)));
        let lead = self.lead.as_ref().and_then(|lead| Some((lead.ballot, lead.proposal.as_ref()?)));
        let proposals = others.chain(lead);
        let chosen = match mutant!(BreakPromise) {
            true => proposals.min_by_key(|(ballot, _)| *ballot),
            false => proposals.max_by_key(|(ballot, _)| *ballot),
        };
        let Some((ballot, proposal)) = chosen.filter(|(ballot, _)| self.register.may_vote(*ballot)) else {
            return WaitingStep::Nothing;
        };
        let proposal = proposal.clone();
        let view = input.context.view;
        if !has_content(view, &proposal.value, own, input.counts, input.is_restarted) {
            return WaitingStep::Lacks(proposal);
        }
        self.register.vote_for(ballot, proposal, input.is_restarted);
        WaitingStep::Voted(ballot)
    }

    /// Leads, if it is this member's turn \[H6\].
    fn start_to_lead(&mut self, input: &WaitingInput<'_>, reports: &RankedReports<'_>) -> WaitingStep {
        let (view, own) = (input.context.view, input.context.own);
        let seen = reports.values().filter_map(|report| report.highest()).max().max(self.register.promise());
        let club = club(reports, input.fresh & view.ranks());
        let has_majority = club.len() >= least_majority(view) && club.contains(own);
        // Those that come back are gathered again, before any of them is left out.
        if self.lead.take_if(|lead| !has_majority && lead.proposal.is_none()).is_some() {
            reach(Point::EndLeadLost);
        }
        if self.lead.as_ref().is_some_and(|lead| Some(lead.ballot) >= seen) {
            return WaitingStep::Nothing;
        }
        let living = view.ranks() - input.context.dead;
        let gathering = ClubGathering { view, living, own, club };
        let due = self.timer.due(input.now, input.settings, &gathering, seen);
        let is_final = input.is_wedged || mutant!(PromiseUnwedged);
        if let LeadDue::At(at) = due {
            self.due = Some(at);
        }
        if due != LeadDue::Now || !is_final {
            return WaitingStep::Nothing;
        }
        reach(Point::EndBallotLed);
        let ballot = Ballot::above(seen, view.members[own].node);
        self.register.follow(ballot);
        self.timer.lead();
        self.lead = Some(EndLead { ballot, proposal: None, since: input.now, obstacle: None });
        WaitingStep::Leads(ballot)
    }

    /// Proposes, when a majority has promised \[H8\], and all others that are heard have, or have had their time.
    fn propose(&mut self, input: &WaitingInput<'_>, reports: &RankedReports<'_>) -> WaitingStep {
        let (view, own) = (input.context.view, input.context.own);
        let promise = self.register.promise();
        let Some(lead) = self.lead.as_mut() else { return WaitingStep::Nothing };
        if lead.proposal.is_some() || promise != Some(lead.ballot) {
            return WaitingStep::Nothing;
        }
        let has_promised = |(_, report): &(&usize, &&super::EndReport)| report.promise == promise;
        let promised = reports.iter().filter(has_promised);
        let answers: EndAnswers<'_> = promised.map(|(rank, report)| (*rank, &*report.answer)).collect();
        let heard = input.fresh & reports.keys().copied().collect();
        let promised: RankSet = answers.keys().copied().collect();
        let patient_until = lead.since + input.settings.silence;
        let is_early = !heard.is_subset(&promised) && input.now < patient_until;
        if is_early {
            self.due = Some(patient_until);
        }
        if promised.len() < least_majority(view) || !promised.contains(own) || is_early {
            return WaitingStep::Nothing;
        }
        let mut context = input.context;
        let patient = input.settings.lost_shard_after;
        context.gives_up_silent = patient.is_some_and(|after| input.now >= lead.since + after);
        let taken = taken_over(&context, &answers).map(Ok);
        let proposal = taken.unwrap_or_else(|| {
            let next = next_members(view, own, &answers);
            new_value(&context, &answers, next).map(|value| EndProposal::new(view, value, &answers))
        });
        match proposal {
            Ok(proposal) => {
                reach(Point::EndProposed);
                lead.proposal = Some(proposal);
                WaitingStep::Proposes
            }
            Err(obstacle) => {
                lead.obstacle = Some(obstacle);
                let gives_up_at = patient.map(|after| lead.since + after);
                self.due = gives_up_at.filter(|at| input.now < *at).or(self.due);
                WaitingStep::Nothing
            }
        }
    }
}

/// Returns the members that a waiting leader keeps \[H9\]: those that have promised, less a least set without which they hear each other, if
/// that leaves a majority with the leader.
fn next_members(view: &EndingView, own: usize, answers: &EndAnswers<'_>) -> NextMembers {
    let promised = answers.keys().copied().collect::<RankSet>() & view.ranks();
    let keep = promised - apart(promised, |rank| answers[&rank].hears);
    let is_enough = keep.len() >= least_majority(view) && keep.contains(own);
    NextMembers { keep: if is_enough { keep } else { promised }, ..NextMembers::default() }
}

/// Returns the votes of reports, by rank.
#[must_use]
pub fn votes<'a>(reports: &RankedReports<'a>) -> RankedVotes<'a> {
    let votes = reports.iter().filter_map(|(rank, report)| Some((*rank, report.answer.vote.as_ref()?)));
    votes.collect()
}
