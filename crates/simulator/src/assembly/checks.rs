//! Checks of the end of each process, and of the run.

use std::collections::BTreeMap;

use squall_fabric::NodeId;
use squall_protocols::assembly::{AssembledGroup, AssemblyFailure, ContactList, LinkConnection};

use super::plan::TIMEOUT;
use super::process::{AssemblyProcess, ConnectionId, ProcessEnd};
use super::world::AssemblyWorld;

impl AssemblyWorld<'_> {
    pub(super) fn begin(&mut self, process: u32, assembled: AssembledGroup<u32>) {
        let own = self.process(process);
        let connection = |(node, link): (&NodeId, &LinkConnection)| {
            let connection = match link {
                LinkConnection::Visitor(visitor) => {
                    own.visitors.get(visitor).or(own.links.get(visitor)).copied()
                }
                LinkConnection::Called => own.called.get(node).copied(),
                LinkConnection::Coordinator => own.coordinator,
            };
            (*node, connection.expect("the connection of each link is known"))
        };
        let links: BTreeMap<NodeId, ConnectionId> = assembled.links.iter().map(connection).collect();
        if links.len() + 1 != self.plan.members as usize {
            return self.fail("links", format!("[Q2] process {process} begins with {} links", links.len()));
        }
        if self.plan.ranks[process as usize].is_some_and(|rank| rank != assembled.node.0) {
            self.fail("ranks", format!("[Q3] process {process} has the rank {}", assembled.node));
        }
        self.begun += 1;
        self.finish(process, ProcessEnd::Begun { assembled, links });
        self.check_agreement(process);
    }

    /// \[Q1\], \[Q2\] Checks that the process agrees with all that have begun.
    fn check_agreement(&mut self, process: u32) {
        let Some(ProcessEnd::Begun { assembled, links }) = self.process(process).end.clone() else { return };
        for other in 0..self.plan.processes() {
            let Some(ProcessEnd::Begun { assembled: theirs, links: their_links }) =
                &self.processes[other as usize].end
            else {
                continue;
            };
            if theirs.roster.session != assembled.roster.session {
                if !self.plan.starts_again() {
                    let text = format!("[Q1] processes {process} and {other} have begun different groups");
                    return self.fail("one group", text);
                }
                continue;
            }
            let is_same = theirs.roster == assembled.roster
                && (other == process || theirs.node != assembled.node)
                && (other == process || their_links.get(&assembled.node) == links.get(&theirs.node));
            if !is_same {
                let text = format!("[Q2] {process} and {other} disagree: {assembled:?} {theirs:?}");
                return self.fail("roster", text);
            }
        }
    }

    pub(super) fn finish(&mut self, process: u32, end: ProcessEnd) {
        self.process(process).end = Some(end);
    }

    /// \[Q6\] A process gives up only at its deadline, or when it has lost its coordinator and cannot know whether
    /// the others have begun.
    pub(super) fn give_up(&mut self, process: u32, failure: &AssemblyFailure<u32>) {
        let is_late = self.now >= self.processes[process as usize].started + TIMEOUT;
        if !is_late && !matches!(failure, AssemblyFailure::CoordinatorLost(_)) {
            self.fail("availability", format!("[Q6] process {process} gives up: {failure:?}"));
        }
        self.finish(process, ProcessEnd::Failed(format!("{failure:?}")));
        self.end(process);
    }

    /// \[Q5\] Checks the state some time after the last fault.
    pub(super) fn check_calm(&mut self) {
        let is_up = |own: &u32| self.processes[*own as usize].runs(self.now);
        let up: Vec<u32> = (0..self.plan.processes()).filter(is_up).collect();
        let (waiting, over): (Vec<u32>, Vec<u32>) =
            up.iter().partition(|own| self.processes[**own as usize].end.is_none());
        let begun: Vec<u32> =
            over.into_iter().filter(|own| self.processes[*own as usize].has_begun()).collect();
        // Processes that have reported to a coordinator that stalls cannot know whether the others have begun.
        let waiting: Vec<u32> =
            waiting.into_iter().filter(|own| !self.processes[*own as usize].has_reported).collect();
        let list = ContactList::new((0..self.plan.contacts).collect(), None);
        let contacts = waiting.iter().filter(|own| **own < self.plan.contacts);
        // At most as many of them as there are members can assemble.
        let places: Vec<usize> = contacts.map(|own| *own as usize).take(self.plan.members as usize).collect();
        // The waiting processes could assemble, or could ask one that has begun.
        let can_assemble =
            waiting.len() >= self.plan.members as usize && list.is_quorum(&places, self.plan.members);
        if can_assemble {
            return self.fail("liveness", format!("[Q5] {waiting:?} wait, although they could begin"));
        }
        let knows_it = |own: &&u32| begun.iter().any(|other| *other < self.plan.contacts && other != *own);
        if let Some(own) = waiting.iter().find(knows_it) {
            self.fail("liveness", format!("[Q5] process {own} waits, although {begun:?} have begun"));
        }
    }

    /// \[Q6\] Checks that all processes have ended, some time after their deadlines.
    pub(super) fn check_end(&mut self) {
        let waits = |process: &&AssemblyProcess| process.runs(self.now) && process.end.is_none();
        if let Some(process) = self.processes.iter().position(|process| waits(&process)) {
            self.fail("time", format!("[Q6] process {process} has not ended"));
        }
    }
}
