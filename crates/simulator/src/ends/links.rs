//! What processes read of each other: reports, and rows of their view.

use std::sync::Arc;

use squall_protocols::ends::may_depart;
use squall_protocols::membership::RankSet;

use super::process::EndsMode;
use super::world::EndsWorld;

impl EndsWorld<'_> {
    /// A process reads a report of another: the latest, or an earlier one that it has not read.
    pub(super) fn read_report(&mut self, slot: usize, other: usize) {
        let (count, at) =
            (self.processes[other].sent_reports.len(), self.processes[slot].read_reports[other]);
        let (now, step) = (self.now(), self.step);
        if at < count {
            let is_latest = self.prng.index(2) == 0 || !self.is_chaos;
            let to = if is_latest { count } else { at + 1 + self.prng.index(count - at) };
            let (node, report) = self.processes[other].sent_reports[to - 1].clone();
            let process = &mut self.processes[slot];
            process.read_reports[other] = to;
            if process.latest[other].as_ref().is_some_and(|(before, _)| *before != node)
                && let Some((before, _)) = process.latest[other].take()
            {
                process.reports.forget(before);
            }
            process.reports.take(now, node, report.clone());
            process.latest[other] = Some((node, report.clone()));
            // It has started again, and entered the view since: its memory of that is whole. A late report is corrected when its
            // death is seen again.
            let is_in = report.view == Some(process.view as u64) && !report.answer.is_restarted;
            let has_returned = is_in && report.order.0 > 0;
            if let Some(rank) = self.views[process.view].view.rank(node).filter(|_| has_returned) {
                process.dead = process.dead.without(rank);
            }
        }
        if self.processes[other].is_up {
            let is_beating = self.beats(slot, other);
            let process = &mut self.processes[slot];
            process.heard[other] = step;
            if let Some((node, _)) = &process.latest[other] {
                process.reports.hear(now, *node);
            }
            if is_beating {
                process.beats[other] = step;
            }
        }
        self.learn_from(slot, other);
    }

    /// A process learns of newer views from the latest report of another one \[H16\].
    fn learn_from(&mut self, slot: usize, other: usize) {
        let Some((_, report)) = self.processes[slot].latest[other].clone() else { return };
        let newest = usize::try_from(report.newest).unwrap_or(0).min(self.newest());
        let process = &self.processes[slot];
        if process.mode == EndsMode::Outside {
            if newest > process.view || newest == process.view && report.view.is_some() {
                self.processes[slot].newest = newest.max(self.processes[slot].newest);
                self.learn_membership(slot);
            }
            return;
        }
        if newest <= process.view || process.end.is_some() {
            return;
        }
        let view = process.view;
        self.processes[slot].newest = newest.max(self.processes[slot].newest);
        if let Some(value) = self.processes[other].known.report_to(view as u64).cloned() {
            return self.learn_end(slot, value);
        }
        let node = self.processes[slot].node;
        if self.views[newest].view.rank(node).is_none() {
            self.processes[slot].member.leave_behind();
            if self.prng.index(400) == 0 {
                self.note(slot, || format!("is left behind in view {view}, and cannot learn how it ended"));
                self.report_fates(slot, None, None);
                self.step_out(slot);
            }
        }
    }

    /// A process outside learns the newest view that it knows of; it enters it if it is a member.
    fn learn_membership(&mut self, slot: usize) {
        let (view, node) = (self.processes[slot].newest, self.processes[slot].node);
        self.processes[slot].view = view;
        if self.views[view].view.rank(node).is_some() && !self.processes[slot].leaves {
            self.enter(slot, view, None);
        }
    }

    /// A process outside asks to be let in, under another number if it was let in and removed before it knew \[J1\]; one that has left goes
    /// when all that stay have entered the next view.
    pub(super) fn ask(&mut self, slot: usize) {
        let process = &self.processes[slot];
        if process.leaves {
            let state = &self.views[process.newest.min(self.newest())];
            let ranks = state.view.ranks();
            let entered = |rank: &usize| {
                let other = state.slot(*rank);
                let report = process.latest[other].as_ref();
                report.is_some_and(|(_, report)| report.view >= Some(state.view.number))
            };
            let entered: RankSet = ranks.iter().filter(entered).collect();
            let dead = ranks.iter().filter(|rank| !self.processes[state.slot(*rank)].is_up).collect();
            let is_hasty = self.is_chaos && self.prng.index(6000) == 0;
            if may_depart(ranks, entered, dead) || is_hasty {
                self.note(slot, || "has left".into());
                let process = &mut self.processes[slot];
                (process.is_up, process.is_gone, process.wakes) = (false, true, None);
            }
            return;
        }
        let (view, node) = (self.processes[slot].view, self.processes[slot].node);
        let was_member = self.views[..view].iter().any(|state| state.view.rank(node).is_some());
        let was_removed = was_member && self.views[view].view.rank(node).is_none();
        let is_restless = self.is_chaos && self.prng.index(2000) == 0;
        if was_removed || is_restless {
            let process = &mut self.processes[slot];
            process.node = super::world::next_incarnation(process.node);
            self.report(slot);
        }
    }

    /// Returns whether a process hears another in the table of its view: that one lives and is in it, and their connection is not lost.
    fn beats(&self, slot: usize, other: usize) -> bool {
        let (process, peer) = (&self.processes[slot], &self.processes[other]);
        let Some(rank) = self.views[process.view].view.rank(peer.node).filter(|_| process.is_in_view())
        else {
            return false;
        };
        let is_there = peer.is_in_view() && peer.view == process.view && !peer.is_restarted;
        is_there && !process.lost.contains(rank) && !process.row.accused.contains(rank)
    }

    /// A process reads writes of another's row in its view, in order.
    pub(super) fn read_row(&mut self, slot: usize, other: usize) {
        let process = &self.processes[slot];
        let state = &self.views[process.view];
        let Some(rank) = (0..state.view.members.len()).find(|rank| state.slot(*rank) == other) else {
            return;
        };
        if process.lost.contains(rank) || process.row.accused.contains(rank) {
            return;
        }
        let peer = &self.processes[other];
        let written = peer.written(process.view);
        let is_same = peer.node == state.view.members[rank].node;
        let is_writing = peer.is_in_view() && is_same && !peer.is_restarted;
        let has_passed = is_same && peer.view > process.view;
        let most = if is_writing || has_passed { written } else { peer.visible[slot].min(written) };
        let at = process.read[other];
        let view = process.view;
        if at < most {
            let to = if self.prng.index(2) == 0 { most } else { at + 1 + self.prng.index(most - at) };
            let row: Arc<_> = self.processes[other].rows[view][to - 1].clone();
            let process = &mut self.processes[slot];
            process.read[other] = to;
            process.seen[other] = row;
        }
        if self.beats(slot, other) {
            let (step, now) = (self.step, self.now());
            let node = self.processes[other].node;
            let process = &mut self.processes[slot];
            (process.beats[other], process.heard[other]) = (step, step);
            process.reports.hear(now, node);
        }
    }
}
