//! What the end of a run must look like (RamCast §2.2, Derecho §3.4).

use squall_fabric::NodeId;
use squall_fabric::sim::{Rule, Verdict};
use squall_protocols::admission::JoinFailure;
use squall_protocols::genuine::QuorumRule;
use squall_protocols::group::{GroupCore, GroupEnd};
use squall_protocols::membership::{MembershipState, StopReason};

use super::cluster::{GenuineCluster, GenuineProcess, holds_state, lacks_state, membership, view_id};
use crate::run::Violation;

/// Whether a member waits for a majority of its view.
fn waits(process: &GenuineProcess) -> bool {
    membership(process).is_some_and(|membership| membership.waits().is_some())
}

impl GenuineCluster {
    pub(super) fn is_settled(&self) -> bool {
        !self.all.processes.iter().any(|process| self.all.lives(process) && waits(process))
            && self.check_one_view().is_ok()
            && self.check_leavers().is_ok()
            && self.check_complete().is_ok()
            && self.going().all(|process| self.has_sent_all(process) || view_id(process).is_none())
    }

    pub(super) fn check_end(&self) -> Result<(), Violation> {
        let history = self.history.borrow();
        history.check_prefixes()?;
        history.check_acyclic()?;
        if self.plan.counts_words {
            history.check_words(&self.all.world.trace())?;
        }
        drop(history);
        self.check_stops()?;
        self.check_one_view()?;
        self.check_leavers()?;
        self.check_complete()?;
        self.check_healthy()?;
        self.check_kept()
    }

    /// \[V17\] After an outage of all paths all members that live are in one view.
    fn check_kept(&self) -> Result<(), Violation> {
        let is_kept = |process: &GenuineProcess| {
            let view = membership(process).map(|membership| membership.view().members.len());
            self.ended(process).is_none() && !waits(process) && view == Some(self.all.processes.len())
        };
        match self.all.processes.iter().find(|process| self.plan.keeps_all && !is_kept(process)) {
            Some(process) => {
                let text = format!("[V17] process {} is not in a view of all", process.place);
                Err(Violation { checker: "outage", text })
            }
            None => Ok(()),
        }
    }

    /// Processes that live, and have neither stopped nor given up to join, nor wait for a majority that may never come.
    fn going(&self) -> impl Iterator<Item = &GenuineProcess> {
        let has_ended = |process: &GenuineProcess| {
            self.ended(process).is_some() || waits(process) || self.given_up(process.place).is_some()
        };
        self.all.processes.iter().filter(move |process| self.all.lives(process) && !has_ended(process))
    }

    /// How the group has ended at a process that was a member.
    fn ended(&self, process: &GenuineProcess) -> Option<GroupEnd> {
        process.group.as_ref().filter(|_| process.joiner.is_none()).and_then(GroupCore::ended)
    }

    fn given_up(&self, place: u32) -> Option<&JoinFailure> {
        self.all.given_up.iter().find(|(other, _)| *other == place).map(|(_, failure)| failure)
    }

    fn has_sent_all(&self, process: &GenuineProcess) -> bool {
        self.work[process.place as usize].messages.is_done()
    }

    /// All that members of the last view have sent is delivered, in all shards that have a member with their state.
    fn check_complete(&self) -> Result<(), Violation> {
        if let Some(process) = self.going().find(|process| lacks_state(process).is_some()) {
            let text = format!("[G14] process {} still waits for the state of its shard", process.place);
            return Err(Violation { checker: "liveness", text });
        }
        let members = self.going().filter(|process| view_id(process).is_some());
        let members: Vec<&GenuineProcess> = members.collect();
        let present: Vec<NodeId> = members.iter().map(|process| process.node()).collect();
        self.history.borrow().check_complete(&present)?;
        let open = |process: &GenuineProcess| {
            let caller = self.work[process.place as usize].caller.as_ref();
            caller.map_or(0, |caller| caller.gathering.open())
        };
        if let Some(process) = members.iter().find(|process| open(process) > 0) {
            let text =
                format!("[G19] process {} waits for replies to {} updates", process.place, open(process));
            return Err(Violation { checker: "liveness", text });
        }
        let owes = |process: &&&GenuineProcess| {
            let member = process.group.as_ref().and_then(GroupCore::genuine_member);
            member.is_some_and(|member| member.under_way() > 0)
        };
        match members.iter().find(owes) {
            Some(process) => {
                let text =
                    format!("[G8] [G17] process {} waits for a message that is settled", process.place);
                Err(Violation { checker: "liveness", text })
            }
            None => Ok(()),
        }
    }

    /// \[V10\] The healthy members are in the last view, and have sent all.
    fn check_healthy(&self) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation { checker: "availability", text });
        for place in self.healthy() {
            let process = &self.all.processes[place as usize];
            if view_id(process).is_none() {
                return fail(format!("[V10] process {place} is healthy and is not in the last view"));
            }
            if !self.has_sent_all(process) {
                return fail(format!("[V10] process {place} is healthy and cannot send"));
            }
        }
        Ok(())
    }

    /// The processes that have to end in one view together.
    fn healthy(&self) -> Vec<u32> {
        let process = |place: u32| &self.all.processes[place as usize];
        let mut healthy = self.plan.group.healthy(|place| !self.all.lives(process(place)));
        healthy.retain(|place| !self.is_shut_out(process(*place)));
        if self.may_lose_quorum(&healthy) { Vec::new() } else { healthy }
    }

    /// \[G10\] Whether a shard may have lost a majority of its members in some view, which ends the group: two of three, where these
    /// may be what is left of five.
    fn may_lose_quorum(&self, healthy: &[u32]) -> bool {
        let may_lose = |shard: usize| {
            let members =
                (0..self.plan.group.nodes()).filter(|place| self.plan.homes[*place as usize] == Some(shard));
            let members: Vec<u32> = members.collect();
            members.len() > 2 && members.iter().filter(|place| !healthy.contains(place)).count() > 1
        };
        self.plan.settings.quorum == QuorumRule::Majority && (0..self.plan.shards).any(may_lose)
    }

    /// A joiner that cannot reach a member cannot join, nor one of whose shard no member has the state \[G14\]: the shard may have
    /// members, which have joined and then lost all that held it.
    fn is_shut_out(&self, process: &GenuineProcess) -> bool {
        let mut members = self.going().filter(|member| view_id(member).is_some());
        let is_cut_off = members.any(|member| self.all.are_cut_off(process, member));
        let has_no_state = self.plan.settings.has_states && !self.is_held_elsewhere(process);
        view_id(process).is_none() && (is_cut_off || has_no_state)
    }

    /// Whether another member of the process's shard holds its state.
    fn is_held_elsewhere(&self, process: &GenuineProcess) -> bool {
        let home = |process: &GenuineProcess| self.plan.homes[process.place as usize];
        let holds = |other: &GenuineProcess| {
            other.place != process.place
                && home(other) == home(process)
                && view_id(other).is_some()
                && holds_state(other)
        };
        self.going().any(holds)
    }

    /// \[V13\] Members that wished to leave have left.
    fn check_leavers(&self) -> Result<(), Violation> {
        let wished = |process: &&GenuineProcess| {
            let place = process.place;
            let leaves = self.plan.group.leaves.iter().any(|(leaver, _)| *leaver == place);
            let has_wished = leaves && self.work[place as usize].leaves_at.is_none();
            // A member that alone holds a state stays.
            let is_needed = self.plan.settings.has_states
                && holds_state(process)
                && self.plan.homes[place as usize].is_some()
                && !self.is_held_elsewhere(process);
            has_wished && view_id(process).is_some() && !is_needed
        };
        match self.going().find(wished) {
            Some(process) => {
                let (place, view) = (process.place, view_id(process));
                let text = format!("[V13] process {place} wished to leave, and is in view {view:?}");
                Err(Violation { checker: "liveness", text })
            }
            None => Ok(()),
        }
    }

    /// \[V8\] All processes that live and have not stopped are in one view, of just them, in which messages flow.
    fn check_one_view(&self) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation { checker: "liveness", text });
        let Some(last) = self.going().filter_map(view_id).max() else { return Ok(()) };
        for process in self.going().filter(|process| !self.is_shut_out(process)) {
            let place = process.place;
            let Some(membership) = membership(process) else {
                return fail(format!("[V8] process {place} still waits to join view {last}"));
            };
            let (view, state) = (membership.view(), membership.state());
            if view.id != last || state != MembershipState::Normal {
                return fail(format!(
                    "[V8] process {place} is in {view}, {state:?}; the last view is {last}"
                ));
            }
            let is_going = |node: NodeId| {
                let waiting = self.all.processes.iter().filter(|other| self.all.lives(other) && waits(other));
                self.going().chain(waiting).any(|other| other.node() == node)
            };
            if let Some(gone) = view.nodes().into_iter().find(|node| !is_going(*node)) {
                return fail(format!("[V8] process {place} is in {view}, although {gone} has stopped"));
            }
        }
        Ok(())
    }

    /// Processes that have stopped, or given up to join, had a reason.
    fn check_stops(&self) -> Result<(), Violation> {
        let breaks = |rule: &Rule| matches!(rule.what, Verdict::Break { .. });
        let is_sure = !self.plan.group.has_false_suspicion() && !self.plan.group.rules.iter().any(breaks);
        let healthy = self.healthy();
        for process in self.all.processes.iter().filter(|process| self.all.lives(process)) {
            let place = process.place;
            if let Some(failure) = self.given_up(place) {
                let may_be_removed = !is_sure && !healthy.contains(&place);
                if !(matches!(failure, JoinFailure::Removed(_)) && may_be_removed) {
                    let text = format!("[J5] process {place} has given up to join: {failure:?}");
                    return Err(Violation { checker: "liveness", text });
                }
            }
            if waits(process) && (healthy.contains(&place) || is_sure && self.plan.group.crashes() == 0) {
                let text = format!("[V17] process {place} waits for a majority, of the healthy {healthy:?}");
                return Err(Violation { checker: "availability", text });
            }
            let Some(ended) = self.ended(process) else { continue };
            let leaves = self.plan.group.leaves.iter().any(|(leaver, _)| *leaver == place);
            let is_fine = match ended {
                GroupEnd::Stopped(StopReason::Left) => leaves,
                GroupEnd::Stopped(StopReason::Minority { .. }) => !is_sure || self.plan.group.crashes() > 0,
                GroupEnd::Stopped(StopReason::Excluded) => !is_sure,
                GroupEnd::Stopped(StopReason::QuorumLost { lost, members }) => {
                    let is_majority = self.plan.settings.quorum == QuorumRule::Majority && 2 * lost > members;
                    is_majority && (!is_sure || self.plan.group.crashes() > 0)
                }
                GroupEnd::Stopped(StopReason::LogsGone { .. }) => false,
                GroupEnd::NobodyLeft => true,
                GroupEnd::Failed(..) | GroupEnd::ShardsFailed(_) => false,
            };
            if !is_fine {
                let text = format!("[V5] process {place} has stopped without a reason: {ended}");
                return Err(Violation { checker: "liveness", text });
            }
            if healthy.contains(&place) {
                let text =
                    format!("[V10] process {place} has stopped, one of the healthy {healthy:?}: {ended}");
                return Err(Violation { checker: "availability", text });
            }
        }
        Ok(())
    }
}
