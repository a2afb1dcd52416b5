//! Carries out what processes do.

use squall_fabric::{Duration, Instant};
use squall_protocols::restart::{Register, RestartAction, RestartMessage, RestartReport};

use super::live::{LiveAction, LiveMember};
use super::plan::RestartEvent;
use super::process::{ProcessActivity, SimParcel};
use super::world::RestartWorld;

impl RestartWorld<'_> {
    /// Lets a process take what has come, and carries out what it is to do.
    pub(super) fn drive(&mut self, slot: usize) {
        match &self.processes[slot].activity {
            ProcessActivity::Down => {}
            ProcessActivity::Restarting(_) => self.drive_restarter(slot),
            ProcessActivity::Live(_) => self.drive_member(slot),
        }
    }

    fn drive_restarter(&mut self, slot: usize) {
        let now = self.now;
        while let ProcessActivity::Restarting(restarter) = &mut self.processes[slot].activity {
            let Some(action) = restarter.poll_action(now) else {
                self.processes[slot].timer = restarter.next_deadline();
                return;
            };
            self.note(slot, &|| format!("{action:?}"));
            self.perform(slot, action);
        }
    }

    fn perform(&mut self, slot: usize, action: RestartAction) {
        let node = self.processes[slot].node;
        match action {
            RestartAction::WriteRegister(register) => self.write(slot, &register),
            RestartAction::FlushLog => self.begin_flush(slot),
            RestartAction::Fetch { from, request } => {
                if let ProcessActivity::Restarting(restarter) = &self.processes[slot].activity {
                    self.oracle.fetch(node, request, restarter.log().appended());
                }
                self.send(slot, from, SimParcel::Ask(request));
            }
            RestartAction::Broadcast(report) => {
                self.note_proposal(&report);
                self.broadcast(slot, &RestartMessage::Report(report));
            }
            RestartAction::Send(to, message) => self.send(slot, to, SimParcel::Restart(message)),
            RestartAction::Join(_) => {}
            RestartAction::Enter(record) => {
                self.oracle.observe(node, &record);
                self.enter(slot);
            }
        }
    }

    fn note_proposal(&mut self, report: &RestartReport) {
        if report.proposal.is_some() {
            self.count_event(RestartEvent::Propose);
        }
    }

    /// A view begins for a process that has restarted, or has joined.
    fn enter(&mut self, slot: usize) {
        let activity = std::mem::replace(&mut self.processes[slot].activity, ProcessActivity::Down);
        let ProcessActivity::Restarting(restarter) = activity else { unreachable!("a restart has ended") };
        let wishes_to_leave = self.processes[slot].wishes_to_leave;
        let member =
            LiveMember::new(self.plan.placement(), restarter.into_parts(), wishes_to_leave, self.now);
        self.enter_view(slot, &member);
        self.processes[slot].activity = ProcessActivity::Live(Box::new(member));
        self.processes[slot].timer = Some(self.now);
    }

    fn enter_view(&mut self, slot: usize, member: &LiveMember) {
        let (node, view) = (self.processes[slot].node, member.record().view.number);
        self.oracle.enter(node, view);
        self.count_event(RestartEvent::Enter);
    }

    /// Begins a write of the register, which shows what has been decided.
    fn write(&mut self, slot: usize, register: &Register) {
        let before = self.processes[slot].stored().clone();
        let node = self.processes[slot].node;
        if self.oracle.observe(node, &register.record) {
            self.count_event(RestartEvent::Decide);
        }
        if before.record.view != register.record.view {
            self.count_event(RestartEvent::Record);
        }
        if register.vote.is_some() && before.vote != register.vote {
            let is_restart = register.vote.as_ref().is_some_and(|vote| vote.ballot.is_restart());
            self.count_event(if is_restart { RestartEvent::Accept } else { RestartEvent::Echo });
        } else if before.promise < register.promise {
            self.count_event(RestartEvent::Promise);
        }
        self.begin_write(slot, register);
    }

    fn drive_member(&mut self, slot: usize) {
        self.step_member(slot);
        let ProcessActivity::Live(member) = &mut self.processes[slot].activity else { return };
        let actions = std::mem::take(&mut member.actions);
        for action in actions {
            if !matches!(action, LiveAction::Show(_) | LiveAction::Report(_) | LiveAction::Append { .. }) {
                self.note(slot, &|| format!("{action:?}"));
            }
            if self.processes[slot].live().is_none() {
                return;
            }
            self.perform_live(slot, action);
        }
    }

    fn perform_live(&mut self, slot: usize, action: LiveAction) {
        let node = self.processes[slot].node;
        let ProcessActivity::Live(member) = &self.processes[slot].activity else { return };
        match action {
            LiveAction::WriteRegister(register) => self.write(slot, &register),
            LiveAction::FlushLog => self.begin_flush(slot),
            LiveAction::Fetch(from, request) => {
                self.oracle.fetch(node, request, member.log.appended());
                self.send(slot, from, SimParcel::Ask(request));
            }
            LiveAction::Show(row) => {
                let members = member.record().view.members.clone();
                for member in members.into_iter().filter(|member| *member != node) {
                    self.send(slot, member, SimParcel::Row(row.clone()));
                }
            }
            LiveAction::Report(report) => self.broadcast(slot, &RestartMessage::Report(report)),
            LiveAction::Send(to, message) => self.send(slot, to, SimParcel::Restart(message)),
            LiveAction::Append { view, shard, count } => {
                self.processes[slot].disk.append(shard, view, count);
            }
            LiveAction::AppendCheckpoint { shard, base } => {
                let content = self.processes[slot].disk.content(shard).before(base).into_iter();
                // Of what is in the log, what counts.
                let trims = &self.oracle.trims;
                let trimmed = content.map(|(view, count)| {
                    (view, trims.get(&view).map_or(count, |trims| trims[shard].min(count)))
                });
                let content = trimmed.collect();
                self.processes[slot].disk.append_checkpoint(shard, base, content);
            }
            LiveAction::Deliver { view, shard, count } => {
                let content = self.processes[slot].disk.content(shard);
                self.delivered += 1;
                self.oracle.deliver(node, (view, shard, count), &content, member.log.appended());
                self.count_event(RestartEvent::Deliver);
                self.heal(slot, shard);
            }
            LiveAction::Decide(next) => {
                if self.oracle.observe(node, &next) {
                    self.count_event(RestartEvent::Decide);
                }
            }
            LiveAction::Enter => {
                let view = member.record().view.number;
                self.oracle.enter(node, view);
                self.count_event(RestartEvent::Enter);
            }
            LiveAction::Stop(left) => {
                // One that is put out before it could leave comes back to stay, until it is to leave again: otherwise it might come and
                // be put out in turn, without end.
                self.processes[slot].wishes_to_leave &= left.is_some();
                self.processes[slot].left_for = left.map(|end| end.next.number);
                self.crash(slot);
                let pause = Duration::from_micros(200 + self.prng.below(3_000));
                self.processes[slot].wakes_at = Some(self.now + pause);
            }
        }
    }

    /// A process that has left takes its disk along when a majority of the next view has recorded that view.
    pub(super) fn depart(&mut self) {
        for slot in 0..self.processes.len() {
            let Some(next) = self.processes[slot].left_for.filter(|_| !self.processes[slot].is_gone) else {
                continue;
            };
            let Some(view) = self.oracle.views.get(&next).cloned() else { continue };
            let has_recorded = |node| {
                let other = self.processes.iter().find(|process| process.node == node);
                other.is_some_and(|other| !other.is_gone && other.stored().view().number >= next)
            };
            let recorded = view.members.iter().filter(|node| has_recorded(**node)).count();
            if recorded >= view.majority() {
                self.note(slot, &|| "has left".into());
                let process = &mut self.processes[slot];
                (process.activity, process.is_gone, process.wakes_at) = (ProcessActivity::Down, true, None);
            }
        }
    }

    /// A log that has lost its end and has everything again.
    fn heal(&mut self, slot: usize, shard: usize) {
        if self.hurt.get(&shard) != Some(&slot) {
            return;
        }
        let Some(member) = self.processes[slot].live() else { return };
        let (view, first) = (member.record().view.number, member.record().chain.first());
        let content = self.processes[slot].disk.synced_content(shard);
        if self.oracle.has_all(shard, view, &content, first) {
            self.hurt.remove(&shard);
        }
    }

    pub(super) fn after(&self, delay: Duration) -> Instant {
        self.now + delay
    }
}
