//! Live members: they accuse, wedge, propose, echo and decide, with the rules that ship for members that wait beside them.

use std::sync::Arc;

use squall_protocols::ends::{
    EndAnswers, EndReport, EndValue, has_orphan, hears_too_few, leavers_spared, may_admit, may_wait, resigned,
};
use squall_protocols::membership::{Member, RankSet};

use super::plan::EndsEvent;
use super::process::{EndsMode, EndsRow};
use super::world::EndsWorld;

impl EndsWorld<'_> {
    /// Returns the row of a member as a process sees it.
    pub(super) fn row(&self, slot: usize, rank: usize) -> Option<&EndsRow> {
        let process = &self.processes[slot];
        if rank == self.rank(slot) {
            return Some(&process.row);
        }
        let row = &*process.seen[self.views[process.view].slot(rank)];
        Some(row).filter(|row| row.view == process.view as u64)
    }

    /// Returns a decision that a member of the view has written to its row.
    pub(super) fn seen_decision(&self, slot: usize) -> Option<Arc<EndValue>> {
        let members = self.views[self.processes[slot].view].view.members.len();
        (0..members).find_map(|rank| self.row(slot, rank)?.decided.clone())
    }

    /// A member waits from now on \[H2\]: it wedges first.
    pub(super) fn wait(&mut self, slot: usize, why: &str) {
        if self.processes[slot].mode != EndsMode::Live {
            return;
        }
        if !may_wait(self.processes[slot].row.answer.is_some()) {
            self.wedge(slot);
            return;
        }
        self.note(slot, || format!("waits: {why}"));
        self.tally.waits += 1;
        let process = &mut self.processes[slot];
        process.mode = EndsMode::Waits;
        process.row.waits = true;
        process.member.register.wait();
        process.post();
        self.report(slot);
        self.reach(EndsEvent::Wait, slot);
    }

    /// A member wedges: its durable logs are flushed first; then its counts are final. Returns whether it has.
    pub(super) fn wedge(&mut self, slot: usize) -> bool {
        if self.processes[slot].row.answer.is_some() {
            return true;
        }
        let is_unflushed = |shard: &usize| {
            let part = &self.processes[slot].parts[*shard];
            self.plan.shards[*shard].kind.is_durable && part.flushed != part.got
        };
        if let Some(shard) = (0..self.plan.shards.len()).find(is_unflushed) {
            self.flush_now(slot, shard);
            return false;
        }
        let answer = Arc::new(self.answer(slot));
        let process = &mut self.processes[slot];
        process.row.answer = Some(answer);
        process.post();
        self.reach(EndsEvent::Wedge, slot);
        true
    }

    /// Accuses members that are not heard; returns whether there are new ones.
    fn accuse(&mut self, slot: usize) -> bool {
        let view = self.processes[slot].view;
        let mut accused = self.processes[slot].row.accused;
        for rank in (self.views[view].view.ranks() - accused).without(self.rank(slot)).iter() {
            let other = self.views[view].slot(rank);
            let is_dead = self.sees_death(slot, rank);
            let patience = self.silence * self.jitter[slot][other] / 8;
            let is_silent = self.step > self.processes[slot].beats[other] + patience;
            let is_false = self.is_chaos && self.false_accusations > 0 && self.prng.index(400) == 0;
            self.false_accusations -= usize::from(is_false);
            let is_lost = self.processes[slot].lost.contains(rank) && self.prng.index(4) == 0;
            if is_dead || is_silent || is_false || is_lost {
                accused.insert(rank);
                self.note(slot, || format!("accuses {rank}: dead {is_dead}, silent {is_silent}"));
            }
        }
        let process = &mut self.processes[slot];
        if accused == process.row.accused {
            return false;
        }
        process.row.accused = accused;
        process.row.suspected |= accused;
        process.post();
        true
    }

    /// A process may see that a member's process has ended, or answers as another one: proof, unlike silence.
    pub(super) fn sees_death(&mut self, slot: usize, rank: usize) -> bool {
        let view = self.processes[slot].view;
        let other = self.views[view].slot(rank);
        // One that has restarted in the view before enters this one whole.
        let has_restarted = self.processes[other].is_restarted && self.processes[other].view == view;
        let is_dead = !self.is_alive(view, rank) || has_restarted;
        if self.processes[slot].dead.contains(rank) {
            return true;
        }
        let is_seen = is_dead && !self.bad[other][slot] && self.prng.index(6) == 0;
        if is_seen {
            self.processes[slot].dead.insert(rank);
        }
        is_seen
    }

    /// A live member takes a step.
    pub(super) fn live(&mut self, slot: usize) {
        if self.accuse(slot) {
            return;
        }
        if let Some(value) = self.seen_decision(slot) {
            return self.learn_end(slot, value);
        }
        let view = self.processes[slot].view;
        let all = self.views[view].view.ranks();
        let heard = all - self.processes[slot].row.accused;
        let waiting = self.waiting_members(slot) & heard;
        if hears_too_few(&self.views[view].view, heard, waiting) {
            return self.wait(slot, "it hears too few");
        }
        let gone = heard
            .iter()
            .filter(|rank| self.row(slot, *rank).is_some_and(|row| row.suspected.contains(*rank)));
        let gone = resigned(gone.collect(), waiting);
        let process = &mut self.processes[slot];
        if !gone.is_subset(&process.row.suspected) {
            process.row.suspected |= gone;
            return process.post();
        }
        let Some(leader) = (all - process.row.suspected).first() else {
            return self.wait(slot, "all have resigned");
        };
        if self.processes[slot].row.answer.is_none() {
            if self.must_wedge(slot, leader, heard) {
                self.wedge(slot);
            }
            return;
        }
        self.agree(slot, leader, heard, waiting);
    }

    /// Returns the other members of the view that wait, as far as the process knows.
    fn waiting_members(&self, slot: usize) -> RankSet {
        let process = &self.processes[slot];
        let view = &self.views[process.view].view;
        let reports = process.reports.in_view(view);
        let waits = |rank: &usize| {
            self.row(slot, *rank).is_some_and(|row| row.waits)
                || reports.get(rank).is_some_and(|report| report.waits)
        };
        (0..view.members.len()).filter(waits).collect::<RankSet>().without(self.rank(slot))
    }

    fn must_wedge(&mut self, slot: usize, leader: usize, heard: RankSet) -> bool {
        let is_disputed =
            heard.iter().any(|rank| self.row(slot, rank).is_some_and(|row| !row.accused.is_empty()));
        let is_ending = heard.iter().any(|rank| self.row(slot, rank).is_some_and(|row| row.answer.is_some()));
        if is_disputed || is_ending {
            return true;
        }
        if leader != self.rank(slot) {
            return false;
        }
        let is_idle = !self.is_chaos || self.prng.index(30) == 0;
        self.is_lonely(slot)
            || is_idle && (!self.candidates(slot, heard).is_empty() || self.can_spare(slot, heard))
    }

    /// Returns whether a leaver can be spared, as far as reports show.
    fn can_spare(&self, slot: usize, heard: RankSet) -> bool {
        let process = &self.processes[slot];
        let view = &self.views[process.view].view;
        let reports = process.reports.in_view(view);
        let answers: EndAnswers<'_> = reports
            .iter()
            .filter(|(rank, _)| heard.contains(**rank))
            .map(|(rank, report)| (*rank, &*report.answer))
            .collect();
        !leavers_spared(view, heard, &answers).is_empty()
    }

    /// Returns whether no member can hold the state of some shard any more \[A7\].
    fn is_lonely(&self, slot: usize) -> bool {
        let process = &self.processes[slot];
        let view = &self.views[process.view].view;
        let reports = process.reports.in_view(view);
        let answers: EndAnswers<'_> = reports.iter().map(|(rank, report)| (*rank, &*report.answer)).collect();
        has_orphan(view, &answers, process.dead)
    }

    /// Returns the processes that the leader admits \[H19\].
    pub(super) fn candidates(&self, slot: usize, stay: RankSet) -> Vec<Member> {
        let process = &self.processes[slot];
        let state = &self.views[process.view];
        let reports = process.reports.in_view(&state.view);
        let mut joins = Vec::new();
        for other in 0..self.processes.len() {
            let Some((node, report)) = process.latest[other].as_ref() else { continue };
            let is_fresh = self.step < process.heard[other] + self.silence;
            // What a process outside hears is by the ranks of the newest view that it knows.
            let is_current = report.newest == process.view as u64;
            let hears_it = |rank: &usize| {
                let hears = |report: &&EndReport| report.candidates.contains(node);
                *rank == self.rank(slot) || reports.get(rank).is_some_and(hears)
            };
            let hear_it: RankSet = stay.iter().filter(hears_it).collect();
            let former = |node| self.has_been_member(node);
            if is_fresh && is_current && may_admit((*node, report), stay, hear_it, former) {
                joins.push(Member { node: *node, tag: other as u64 });
            }
        }
        joins
    }
}
