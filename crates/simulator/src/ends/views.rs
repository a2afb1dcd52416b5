//! From view to view: learning how one has ended, installing that, entering the next, starting again.

use std::sync::Arc;

use squall_fabric::NodeId;
use squall_protocols::ends::{
    EndRegister, EndValue, MessageFate, WaitingMember, first_suspects, lacking, message_fate,
};
use squall_protocols::membership::RankSet;

use super::plan::{EndsEvent, SLOTS_MAX};
use super::process::{EndsMode, EndsPart, EndsProcess, EndsRow, EndsUnderway};
use super::world::{EndsWorld, VIEWS_MAX, next_incarnation};

impl EndsWorld<'_> {
    /// Returns the rank of a process in its view.
    pub(super) fn rank(&self, slot: usize) -> usize {
        let process = &self.processes[slot];
        self.views[process.view].view.rank(process.node).unwrap_or(0)
    }

    /// A process learns how its view has ended.
    pub(super) fn learn_end(&mut self, slot: usize, value: Arc<EndValue>) {
        let view = self.processes[slot].view;
        if !self.processes[slot].is_in_view() || self.processes[slot].end.is_some() || view + 2 >= VIEWS_MAX {
            return;
        }
        if self.views[view].decided.as_ref() != Some(&value) {
            return self
                .fail("ends", format!("process {slot} takes over an end of view {view} that is none"));
        }
        let process = &mut self.processes[slot];
        process.newest = process.newest.max(view + 1);
        process.known.note(view as u64, value.clone());
        if process.row.decided.is_none() {
            process.row.decided = Some(value.clone());
            if !process.is_restarted {
                process.post();
            }
        }
        process.end = Some(value);
        self.install(slot);
    }

    /// The view has ended, and the process knows how: it delivers what counts and continues, when it has what it keeps.
    pub(super) fn install(&mut self, slot: usize) {
        let (view, rank) = (self.processes[slot].view, self.rank(slot));
        let Some(value) = self.processes[slot].end.clone() else { return };
        let stays = value.stay.contains(rank);
        if stays {
            self.check_held(slot, &value);
            if let Some(shard) = self.lacks(slot, &value) {
                self.fetch(slot, view, &value, shard);
                if self.lacks(slot, &value).is_some() {
                    return self.give_up_content(slot, &value);
                }
            }
        }
        if self.violation.is_some() {
            return;
        }
        let hurries = self.prng.chance(500);
        if stays || value.left.contains(rank) || hurries {
            self.deliver_counted(slot, &value);
        }
        self.keep_past(slot, &value);
        let again = self.report_fates(slot, Some(&value), stays.then_some(rank));
        if stays {
            self.enter(slot, view + 1, Some(rank));
            self.send_again(slot, &again);
        } else {
            self.step_out(slot);
            self.processes[slot].is_spared = value.left.contains(rank);
            self.processes[slot].resend = again.iter().map(|own| own.message).collect();
        }
    }

    /// Returns the first shard of which the process lacks what a value keeps.
    pub(super) fn lacks(&self, slot: usize, value: &EndValue) -> Option<usize> {
        let process = &self.processes[slot];
        let counts = self.own_counts(slot);
        lacking(&self.views[process.view].view, value, self.rank(slot), &counts, process.is_restarted)
    }

    /// Returns by shard how much of each column the process has, in a durable shard on its disk.
    pub(super) fn own_counts(&self, slot: usize) -> Vec<Vec<u64>> {
        let process = &self.processes[slot];
        let of = |(shard, part): (usize, &EndsPart)| {
            let is_durable = self.plan.shards[shard].kind.is_durable;
            self.counts(process.view, shard, if is_durable { &part.flushed } else { &part.got })
        };
        process.parts.iter().enumerate().map(of).collect()
    }

    /// A member that is kept in a shard in memory with all for quorum has what counts, without a transfer.
    fn check_held(&mut self, slot: usize, value: &EndValue) {
        let (view, rank, process) = (self.processes[slot].view, self.rank(slot), &self.processes[slot]);
        if process.is_restarted {
            return;
        }
        for (shard, has) in self.own_counts(slot).into_iter().enumerate() {
            let is_kept = self.views[view].view.kept(value, shard).contains(rank);
            let kind = self.plan.shards[shard].kind;
            let awaits = kind.is_durable || kind.quorum == squall_protocols::ends::ShardQuorum::Majority;
            if is_kept && !awaits && !value.given_up[shard] && !value.is_reached(shard, &has) {
                let trims = &value.trims[shard];
                self.fail(
                    "lost",
                    format!("process {slot} continues from view {view}: shard {shard} {has:?} of {trims:?}"),
                );
            }
        }
    }

    /// No process has what this one needs to continue, and none can have it again: it returns as another.
    fn give_up_content(&mut self, slot: usize, value: &EndValue) {
        let view = self.processes[slot].view;
        let Some(shard) = self.lacks(slot, value) else { return };
        if self.plan.shards[shard].kind.is_durable || self.is_held(slot, view, value, shard, false) {
            return;
        }
        self.note(slot, || format!("gives up: shard {shard} of view {view} is nowhere"));
        self.gone += 1;
        self.keep_past(slot, value);
        self.report_fates(slot, Some(value), None);
        self.step_out(slot);
    }

    fn deliver_counted(&mut self, slot: usize, value: &EndValue) {
        let view = self.processes[slot].view;
        for (shard, has) in self.own_counts(slot).into_iter().enumerate() {
            let part = &self.processes[slot].parts[shard];
            let is_complete = value.is_reached(shard, &has);
            if !part.is_whole || part.got.is_empty() || value.given_up[shard] || !is_complete {
                continue;
            }
            let counted: Vec<usize> =
                self.views[view].counted(shard, value).map(|(place, _)| place).collect();
            let from = part.delivered;
            for (at, place) in counted.into_iter().enumerate() {
                if place >= from {
                    self.on_delivered(slot, shard, place, at);
                    self.reach(EndsEvent::Deliver, slot);
                }
            }
            self.processes[slot].parts[shard].delivered = usize::MAX;
        }
    }

    /// What the process has of the view is kept for others \[H15\] \[H16\].
    fn keep_past(&mut self, slot: usize, value: &EndValue) {
        let view = self.processes[slot].view;
        let counts = self.own_counts(slot);
        let process = &mut self.processes[slot];
        let mut replayed = Vec::new();
        for (shard, part) in process.parts.iter().enumerate() {
            let is_durable = self.plan.shards[shard].kind.is_durable;
            let got = if is_durable { part.flushed.clone() } else { part.got.clone() };
            let is_complete = value.is_reached(shard, &counts[shard]);
            if is_durable && process.full[shard] == view && is_complete {
                process.full[shard] = view + 1;
                replayed.push(shard);
            }
            if !got.is_empty() {
                process.past.insert((view, shard), got);
            }
        }
        replayed.into_iter().for_each(|shard| self.replay(slot, view, shard));
    }

    /// Reports to the application what has become of its messages; returns those that are to be sent again.
    pub(super) fn report_fates(
        &mut self,
        slot: usize,
        value: Option<&EndValue>,
        stays: Option<usize>,
    ) -> Vec<EndsUnderway> {
        let view = self.processes[slot].view;
        let mut again = Vec::new();
        for own in std::mem::take(&mut self.processes[slot].underway) {
            let kept = |rank: usize| {
                value.is_some_and(|value| self.views[view].view.kept(value, own.shard).contains(rank))
            };
            let is_kept = stays.is_some_and(kept);
            match message_fate(value, is_kept, own.shard, own.column, own.count) {
                MessageFate::SendAgain => again.push(own),
                MessageFate::Delivered if is_kept => {}
                fate => self.on_fate(own.message, fate),
            }
        }
        again
    }

    fn send_again(&mut self, slot: usize, again: &[EndsUnderway]) {
        for own in again {
            self.send(slot, own.shard, own.message);
        }
    }

    /// A process that is not in the next view: another identity, which asks to be let in.
    pub(super) fn step_out(&mut self, slot: usize) {
        let view = self.processes[slot].view;
        self.note(slot, || format!("is not in the view after {view}"));
        let written = self.processes[slot].written(view);
        let process = &mut self.processes[slot];
        let old = std::mem::take(process);
        *process = EndsProcess {
            is_up: true,
            starts: old.starts,
            node: if old.leaves { old.node } else { next_incarnation(old.node) },
            view: old.newest,
            newest: old.newest,
            leaves: old.leaves,
            parts: vec![EndsPart::default(); old.parts.len()],
            past: old.past,
            full: old.full,
            rows: old.rows,
            visible: [written; SLOTS_MAX],
            seen: old.seen,
            heard: old.heard,
            sent_reports: old.sent_reports,
            read_reports: old.read_reports,
            latest: old.latest,
            reports: old.reports,
            known: old.known,
            ..EndsProcess::default()
        };
        process.reports.forget(old.node);
        self.report(slot);
    }

    /// A process enters a view; `from` is its rank in the view before, if it stays.
    pub(super) fn enter(&mut self, slot: usize, view: usize, from: Option<usize>) {
        if view + 2 >= VIEWS_MAX {
            return;
        }
        let (node, starts) = (self.processes[slot].node, self.processes[slot].starts);
        let Some(rank) = self.views[view].view.rank(node) else { return };
        self.note(slot, || format!("enters view {view} as {rank}, kept {from:?}"));
        if self.views[view].lived.iter().any(|(other, _)| *other == slot) {
            self.fail("ends", format!("process {slot} is twice in view {view}"));
        }
        self.views[view].lived.push((slot, starts));
        let parts = (0..self.plan.shards.len()).map(|shard| self.first_part(slot, view, rank, shard));
        let parts: Vec<EndsPart> = parts.collect();
        let suspects = self.carried_suspects(slot, view);
        let acks = parts.iter().map(|part| vec![0; part.got.len()]).collect();
        let row = EndsRow {
            view: view as u64,
            acks,
            accused: suspects.without(rank),
            suspected: suspects.without(rank),
            leaves: self.processes[slot].leaves,
            ..EndsRow::default()
        };
        let step = self.step;
        let process = &mut self.processes[slot];
        process.parts = parts;
        (process.view, process.newest) = (view, process.newest.max(view));
        (process.mode, process.is_restarted, process.end) = (EndsMode::Live, false, None);
        (process.read, process.beats) = ([0; SLOTS_MAX], [step; SLOTS_MAX]);
        (process.dead, process.lost) = (RankSet::EMPTY, RankSet::EMPTY);
        (process.member, process.row) = (WaitingMember::default(), row);
        process.post();
        for message in std::mem::take(&mut self.processes[slot].resend) {
            let shard = self.messages[message].shard;
            self.send(slot, shard, message);
        }
        self.reach(EndsEvent::Enter, slot);
        self.report(slot);
    }

    /// Returns whom a member suspects when a view begins: by the rule, none of those that it suspected before.
    fn carried_suspects(&self, slot: usize, view: usize) -> RankSet {
        let process = &self.processes[slot];
        let before = &self.views[process.view].view;
        let nodes = process.row.accused.iter().filter_map(|rank| before.members.get(rank));
        first_suspects(nodes.filter_map(|member| self.views[view].view.rank(member.node)).collect())
    }

    /// Returns what a process has of a shard when it enters a view.
    fn first_part(&mut self, slot: usize, view: usize, rank: usize, shard: usize) -> EndsPart {
        let state = &self.views[view];
        if !state.view.shards[shard].members.contains(rank) {
            return EndsPart::default();
        }
        let columns = state.view.shards[shard].columns;
        let (begins, is_named) = (state.begins[shard], state.view.shards[shard].whole.contains(rank));
        let is_durable = self.plan.shards[shard].kind.is_durable;
        let has_restarted = self.processes[slot].is_restarted;
        let process = &mut self.processes[slot];
        if begins && is_durable {
            process.full[shard] = view;
        }
        let before = process.parts.get(shard);
        let has_state = before.is_some_and(|part| part.is_whole && part.delivered == usize::MAX);
        let is_whole = begins || if is_durable { process.full[shard] >= view } else { has_state };
        // One that restarts after the decision has lost what it was named for: its next view ends for that [A7].
        if is_named && !is_whole && !is_durable && !has_restarted {
            self.fail("state", format!("view {view} names process {slot} as holder of shard {shard}"));
        }
        EndsPart { got: vec![0; columns], flushed: vec![0; columns], is_whole, ..EndsPart::default() }
    }

    /// A process starts: as the same acceptor if it was in a view and registers are on disks, else as another node.
    pub(super) fn boot(&mut self, slot: usize) {
        let old = std::mem::take(&mut self.processes[slot]);
        let is_durable = self.views[0].view.is_durable();
        let is_same = is_durable && old.mode != EndsMode::Outside;
        self.note(slot, || format!("starts, as the same acceptor: {is_same}"));
        // It hears the latest report of each other process again.
        let latest = |other: usize| self.processes[other].sent_reports.len().saturating_sub(1);
        let mut read_reports = old.read_reports;
        (0..self.processes.len())
            .for_each(|other| read_reports[other] = read_reports[other].min(latest(other)));
        let mut process = EndsProcess {
            is_up: true,
            starts: old.starts + 1,
            node: if is_same { old.node } else { next_incarnation(old.node) },
            view: old.view,
            newest: old.view,
            leaves: is_same && old.leaves,
            rows: old.rows.clone(),
            visible: old.visible,
            sent_reports: old.sent_reports.clone(),
            read_reports,
            seen: vec![super::process::no_row(); self.processes.len()],
            latest: vec![None; self.processes.len()],
            heard: [0; SLOTS_MAX],
            parts: vec![EndsPart::default(); self.plan.shards.len()],
            full: vec![0; self.plan.shards.len()],
            ..EndsProcess::default()
        };
        if is_durable {
            self.keep_disk(&mut process, &old, is_same);
        }
        if is_same {
            self.tally.restarts += 1;
            let mut register =
                EndRegister::restored(old.member.register.promise(), old.member.register.vote().cloned());
            register.wait();
            process.member = WaitingMember::restored(register);
            (process.mode, process.is_restarted) = (EndsMode::Waits, true);
            process.row = EndsRow { view: old.view as u64, ..EndsRow::default() };
            process.end = process.known.of(old.view as u64).cloned();
        }
        self.processes[slot] = process;
        self.report(slot);
    }

    /// A process that starts has what its disk had: the logs of durable shards, and how views have ended.
    fn keep_disk(&self, process: &mut EndsProcess, old: &EndsProcess, is_same: bool) {
        let is_durable = |shard: usize| self.plan.shards[shard].kind.is_durable;
        process.past = old.past.clone();
        process.past.retain(|(_, shard), _| is_durable(*shard));
        process.full = old.full.clone();
        process.known = old.known.clone();
        for (shard, part) in old.parts.iter().enumerate().filter(|_| old.mode != EndsMode::Outside) {
            let kept = if is_durable(shard) { part.flushed.clone() } else { vec![0; part.got.len()] };
            let is_whole = is_durable(shard) && process.full[shard] >= old.view && !kept.is_empty();
            if !is_same && is_durable(shard) && !kept.is_empty() {
                process.past.insert((old.view, shard), kept.clone());
            }
            process.parts[shard] =
                EndsPart { got: kept.clone(), flushed: kept, is_whole, ..EndsPart::default() };
        }
    }

    /// Returns whether a node was a member of any view \[J1\].
    pub(super) fn has_been_member(&self, node: NodeId) -> bool {
        self.views.iter().any(|state| state.view.rank(node).is_some())
    }
}
