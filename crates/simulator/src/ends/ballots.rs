//! Members that wait, and the reports of all: the driver of [`WaitingMember`].

use std::sync::Arc;

use squall_fabric::Instant;
use squall_protocols::ends::{
    EndAnswer, EndContext, EndReport, EndSettings, MessageFate, NoWayBack, WaitingInput, WaitingStep,
    joins_ballots, no_way_back,
};
use squall_protocols::membership::RankSet;

use super::plan::EndsEvent;
use super::process::{EndsMode, EndsPart, EndsProcess};
use super::world::{EndsWorld, place};

impl EndsWorld<'_> {
    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(self.step)
    }

    /// A process reports, if anything has changed.
    pub(super) fn report(&mut self, slot: usize) {
        let process = &self.processes[slot];
        let report = self.own_report(slot);
        let is_same = process.sent_reports.last().is_some_and(|(node, last)| {
            *node == process.node && EndReport { order: last.order, ..report.clone() } == **last
        });
        if is_same {
            return;
        }
        let order = (process.starts, process.sent_reports.len() as u64);
        let report = Arc::new(EndReport { order, ..report });
        let (now, node) = (self.now(), process.node);
        let process = &mut self.processes[slot];
        process.sent_reports.push((node, report.clone()));
        process.reports.take(now, node, report);
    }

    fn own_report(&self, slot: usize) -> EndReport {
        let process = &self.processes[slot];
        let view = &self.views[process.view].view;
        let is_heard = |other: &usize| *other == slot || self.step < process.heard[*other] + self.silence;
        let hears = |rank: &usize| is_heard(&self.views[process.view].slot(*rank));
        let hears: RankSet = (0..view.members.len()).filter(hears).collect();
        let register = &process.member.register;
        let lead = process.member.lead();
        let is_in = process.mode != EndsMode::Outside;
        let outside = EndAnswer { leaves: process.leaves, ..EndAnswer::default() };
        let mut answer = if is_in { self.answer(slot) } else { outside };
        (answer.hears, answer.vote) = (hears, register.vote().cloned());
        EndReport {
            order: (0, 0),
            view: is_in.then_some(process.view as u64),
            newest: process.newest as u64,
            waits: process.mode == EndsMode::Waits,
            candidates: self.candidates_heard(slot),
            answer: Arc::new(answer),
            promise: register.promise(),
            lead: lead.map(|lead| lead.ballot),
            proposal: lead.and_then(|lead| lead.proposal.clone()),
        }
    }

    /// Returns the processes in no view from which a process has a fresh report.
    fn candidates_heard(&self, slot: usize) -> Vec<squall_fabric::NodeId> {
        let process = &self.processes[slot];
        let is_fresh = |other: &usize| self.step < process.heard[*other] + self.silence;
        let fresh = (0..self.processes.len()).filter(is_fresh);
        let latest = fresh.filter_map(|other| process.latest[other].as_ref());
        latest.filter(|(_, report)| report.view.is_none()).map(|(node, _)| *node).collect()
    }

    /// What a process has now; it is final when it has wedged.
    pub(super) fn answer(&self, slot: usize) -> EndAnswer {
        let process = &self.processes[slot];
        let whole = |part: &EndsPart| part.is_whole;
        EndAnswer {
            counts: self.own_counts(slot),
            whole: process.parts.iter().map(whole).collect(),
            is_restarted: process.is_restarted,
            leaves: process.leaves,
            ..EndAnswer::default()
        }
    }

    /// A member of a view takes a step in its end by ballot; a live one joins a ballot that is led.
    pub(super) fn ballots(&mut self, slot: usize) {
        if self.processes[slot].mode == EndsMode::Live {
            let process = &self.processes[slot];
            let reports = process.reports.in_view(&self.views[process.view].view);
            let rank = self.rank(slot);
            let led = reports
                .iter()
                .filter(|(other, _)| **other != rank)
                .filter_map(|(_, report)| report.lead)
                .max();
            if joins_ballots(led) {
                self.wait(slot, "a ballot is led");
            }
            return;
        }
        if let Some(value) = self.seen_decision(slot) {
            return self.learn_end(slot, value);
        }
        let members = self.views[self.processes[slot].view].view.members.len();
        let rank = self.prng.index(members);
        if rank != self.rank(slot) {
            self.sees_death(slot, rank);
        }
        self.echo_though_waiting(slot);
        if !self.processes[slot].is_restarted && self.prng.index(40) == 0 {
            self.wedge(slot);
        }
        let step = self.waiting_step(slot);
        match step {
            WaitingStep::Nothing => self.end_without_way_back(slot),
            WaitingStep::Lacks(proposal) => {
                let view = self.processes[slot].view;
                if let Some(shard) = self.lacks(slot, &proposal.value) {
                    self.fetch(slot, view, &proposal.value, shard);
                }
            }
            WaitingStep::Decided(vote) => {
                let view = self.processes[slot].view;
                self.on_decided(slot, view, &vote.proposal.value, vote.ballot);
            }
            WaitingStep::Promised(_) | WaitingStep::Leads(_) => self.reach_after(slot, EndsEvent::Promise),
            WaitingStep::Voted(_) => self.reach_after(slot, EndsEvent::Accept),
            WaitingStep::Proposes => self.reach_after(slot, EndsEvent::Propose),
        }
    }

    fn reach_after(&mut self, slot: usize, event: EndsEvent) {
        self.note(slot, || format!("{event:?}"));
        self.report(slot);
        self.reach(event, slot);
    }

    fn waiting_step(&mut self, slot: usize) -> WaitingStep {
        let (rank, counts) = (self.rank(slot), self.own_counts(slot));
        let (now, settings) = (self.now(), self.settings());
        let mut process: EndsProcess = std::mem::take(&mut self.processes[slot]);
        let view = &self.views[process.view].view;
        let fresh = process.reports.heard(view, now, settings.silence).with(rank);
        let shards = &self.plan.shards;
        let placement = |members: &[squall_protocols::membership::Member]| place(shards, members);
        let input = WaitingInput {
            context: EndContext {
                view,
                own: rank,
                dead: process.dead,
                placement: &placement,
                gives_up_silent: false,
            },
            now,
            settings: &settings,
            fresh,
            counts: &counts,
            is_restarted: process.is_restarted,
            is_wedged: process.is_restarted || process.row.answer.is_some(),
        };
        let reports = process.reports.in_view(view);
        let step = process.member.step(&input, &reports);
        self.processes[slot] = process;
        step
    }

    pub(super) fn settings(&self) -> EndSettings {
        let unit = squall_fabric::Duration::from_nanos(self.silence);
        let is_impatient = self.is_chaos && self.plan.is_impatient;
        EndSettings {
            silence: unit,
            gather: unit,
            patience: if is_impatient { unit / 8 } else { unit },
            lost_shard_after: self.plan.gives_up_silent.then_some(unit * 2),
        }
    }

    /// A member that knows that no end is possible ends \[H18\].
    fn end_without_way_back(&mut self, slot: usize) {
        let process = &self.processes[slot];
        let view = process.view;
        let state = &self.views[view].view;
        let reports = process.reports.in_view(state);
        let restarted = reports.iter().filter(|(_, report)| report.answer.is_restarted);
        let restarted: RankSet = restarted.map(|(rank, _)| *rank).collect();
        let fresh = process.reports.heard(state, self.now(), self.settings().silence);
        let silent = state.ranks() - fresh.with(self.rank(slot));
        let Some(why) = no_way_back(state, process.dead, restarted, silent) else { return };
        if process.is_restarted {
            return;
        }
        let gone = self.truly_dead(view) | self.truly_restarted(view);
        let is_true = match why {
            NoWayBack::Majority(_) => 2 * self.truly_dead(view).len() >= state.members.len(),
            NoWayBack::Quorum(shard, _) => {
                2 * (state.shards[shard].members & gone).len() > state.shards[shard].members.len()
            }
        };
        self.note(slot, || format!("ends: {why:?}"));
        self.tally.ended += 1;
        if !is_true {
            return self.fail("healthy", format!("process {slot} ends in view {view}: {why:?}"));
        }
        self.ended += 1;
        let underway = std::mem::take(&mut self.processes[slot].underway);
        underway.iter().for_each(|own| self.on_fate(own.message, MessageFate::Unknown));
        let process = &mut self.processes[slot];
        process.is_up = false;
        // Where registers are on disks, it starts again, without the memory that stood in the way.
        let may_return = self.views[view].view.is_durable();
        (process.is_gone, process.wakes) = (!may_return, may_return.then_some(self.step + self.silence));
    }

    fn truly_dead(&self, view: usize) -> RankSet {
        let ranks = 0..self.views[view].view.members.len();
        ranks.filter(|rank| !self.is_alive(view, *rank)).collect()
    }

    fn truly_restarted(&self, view: usize) -> RankSet {
        let state = &self.views[view];
        let is_restarted = |rank: &usize| {
            let slot = state.slot(*rank);
            let lived = state.lived.iter().find(|(other, _)| *other == slot);
            lived.is_some_and(|(_, starts)| *starts < self.processes[slot].starts)
        };
        (0..state.view.members.len()).filter(is_restarted).collect()
    }
}
