//! The cluster of a run: its processes, what happens to them, and what the end must look like.

use squall_fabric::sim::{CostModel, SimConfig, SimWorld, Verdict};
use squall_fabric::{Core as _, Duration, Instant, NodeId};
use squall_protocols::admission::{JoinAnswer, JoinFailure, REMOVALS_MAX};
use squall_protocols::group::{GroupCore, GroupEnd};
use squall_protocols::membership::StopReason;

use super::plan::{JoinEvent, JoinPlan};
use super::recorder::{Recorders, ViewRecorder};
use crate::admission::{BusBody, JoinBus, JoinProcess, SimAdmission};
use crate::group::UNREACHABLE_AFTER;
use crate::run::{RunOutcome, Violation};

pub(super) struct JoinCluster {
    plan: JoinPlan,
    all: SimAdmission<Recorders>,
    /// The processes that are to start again, and when.
    restarts: Vec<(Instant, u32)>,
    /// The processes that are cut off from all others, and until when.
    cuts: Vec<(Instant, u32)>,
    /// Those that are about to leave.
    leavers: Vec<u32>,
    /// Those that have given up to join, which the plan and the connections that broke explain.
    excused: Vec<u32>,
    views: u64,
}

impl JoinCluster {
    pub(super) fn new(plan: &JoinPlan, trace_records_max: usize) -> Self {
        let config = SimConfig {
            adversary: Some(plan.adversary.clone()),
            cost: CostModel::FREE,
            unreachable_after: UNREACHABLE_AFTER,
            loss_noticed_after: Duration::from_millis(1),
            trace_records_max,
            ..SimConfig::hardware()
        };
        let world = SimWorld::new(plan.seed, config, plan.processes() + 1);
        // The last one never starts.
        let processes = plan.processes() + 1;
        let bus = JoinBus::new(plan.bus.clone(), plan.seed, processes as usize);
        let host = Recorders(plan.clone());
        let all = SimAdmission::new(host, world, bus, processes, plan.members, plan.first_view);
        Self {
            plan: plan.clone(),
            all,
            restarts: Vec::new(),
            cuts: Vec::new(),
            leavers: Vec::new(),
            excused: Vec::new(),
            views: 0,
        }
    }

    pub(super) fn drive(mut self) -> RunOutcome {
        let start = Instant::from_nanos(0);
        let mut events = self.plan.events.clone().into_iter().peekable();
        let end = start + self.plan.last_fault() + SETTLE;
        let calm = start + self.plan.last_fault();
        let mut steps = 0_u64;
        while self.all.violation.is_none() && self.all.world.now() < end {
            let next = events.peek().map(|(at, _)| start + *at);
            let restart = self.restarts.iter().map(|(at, _)| *at).min();
            let heal = self.cuts.iter().map(|(at, _)| *at).min();
            let until = [next, restart, heal, Some(end)].into_iter().flatten().min().unwrap_or(end);
            match self.all.world.next_poll(until) {
                Some(node) => self.poll_node(node),
                None if restart == Some(until) => self.restart(until),
                None if heal == Some(until) => {
                    self.cuts.retain(|(at, _)| *at > until);
                    self.partition();
                }
                None => {
                    if let Some((_, event)) = events.next_if(|_| next == Some(until)) {
                        self.strike(event);
                    }
                }
            }
            steps += 1;
            let may_be_over = steps.is_multiple_of(LOOK_EVERY) && self.all.world.now() > calm;
            if may_be_over && self.check_end().is_ok() {
                break;
            }
        }
        let violation = self.all.violation.take().or_else(|| self.check_end().err());
        RunOutcome {
            violation,
            elapsed: self.all.world.now().since(start),
            delivered: self.views,
            trace_hash: self.all.world.trace_hash(),
            trace: self.all.world.trace(),
        }
    }

    /// A turn of a node of the world.
    fn poll_node(&mut self, node: u32) {
        let place = self.all.numbers.owner(node);
        let nodes = self.all.processes[place as usize].nodes();
        if !self.all.processes[place as usize].is_up || !nodes.contains(&node) {
            return self.all.world.rest(node, false, None);
        }
        let worked = self.step(place);
        if !self.all.processes[place as usize].is_up {
            return self.all.world.rest(node, false, None);
        }
        self.note_views(place);
        self.check_ended(place);
        let next = self.all.next_message(place);
        for (node, deadline) in self.all.processes[place as usize].deadlines(next, None, None) {
            self.all.world.rest(node, worked, deadline);
        }
    }

    /// All that a process does in a turn; whether it worked.
    fn step(&mut self, place: u32) -> bool {
        let mut worked = false;
        while let Some(message) = self.all.take_next(place) {
            worked = true;
            let has_reported = self.all.handle_message(place, message);
            if has_reported && self.plan.leader_ends && place == 0 {
                self.end(place);
            }
        }
        if !self.all.processes[place as usize].is_up {
            return worked;
        }
        worked |= self.poll_group(place) > 0;
        worked |= self.all.poll_joiner(place, !worked);
        for (place, failure) in std::mem::take(&mut self.all.given_up) {
            self.on_given_up(place, &failure);
        }
        self.all.poll_service(place);
        let delivered = |process: &JoinProcess<ViewRecorder>| {
            process.group.as_ref().map_or(0, |group| group.application_ref().delivered.get() as usize)
        };
        self.all.tell(place, delivered);
        worked
    }

    fn poll_group(&mut self, place: u32) -> usize {
        if let Some(group) = &mut self.all.processes[place as usize].group
            && self.leavers.extract_if(.., |leaver| *leaver == place).count() > 0
        {
            group.leave();
        }
        let mut worked = self.all.poll_fabric(place);
        self.all.handle_events(place);
        let process = &mut self.all.processes[place as usize];
        let Some(group) = &mut process.group else { return 0 };
        worked += usize::from(group.application().send());
        let before = group.application_ref().delivered.get();
        worked += group.poll(&mut process.fabric);
        let has_taken = process.joiner.is_some() && group.application_ref().delivered.get() > before;
        if has_taken {
            self.all.fail("attempts", format!("[J8] process {place} takes messages, and has not arrived"));
        }
        worked
    }

    fn on_given_up(&mut self, place: u32, failure: &JoinFailure) {
        let is_stranded = self.plan.is_stranded && place + 1 == self.plan.processes();
        let expected = self.plan.removals(place) + self.all.processes[place as usize].links_broken;
        if is_stranded || (matches!(failure, JoinFailure::Removed(_)) && expected > REMOVALS_MAX) {
            self.excused.push(place);
            return self.end(place);
        }
        self.all.fail("liveness", format!("[J5] process {place} has given up to join: {failure:?}"));
    }

    /// A process asks the leader for the rank of the member at `place` \[J2\].
    fn claim(&mut self, place: u32) {
        let all = &mut self.all;
        let Some(view) = all.processes[place as usize].view().cloned() else { return };
        let member = view.members.iter().find(|member| all.numbers.owner(member.node.0) == place);
        let Some(rank) = member.map(|member| member.tag) else { return };
        let leader = all.numbers.owner(view.members[0].node.0);
        let BusBody::Answer(JoinAnswer::Admit(admitted)) = all.answer(leader, Some(rank)) else { return };
        let leads = all.processes[leader as usize].view();
        if leads.is_some_and(|view| view.members.iter().any(|member| member.tag == rank)) {
            all.fail("ranks", format!("[J2] a process is admitted with rank {rank}, which a member has"));
        }
        let spent = all.add_spent(place, admitted.node);
        all.world.crash(spent);
        if let Some(service) = &mut all.processes[leader as usize].service {
            service.handle_gone(admitted.node);
        }
    }

    /// A stranger links with the member under the number of a candidate, or one that is given soon.
    fn impersonate(&mut self, place: u32) {
        let all = &mut self.all;
        let candidates = all.processes.iter().filter_map(|process| process.service.as_ref()?.candidate());
        let guess = all.processes[place as usize].view().map_or(0, |view| view.id + 1) * 64;
        let number = candidates.max().unwrap_or(NodeId(u32::try_from(guess).expect("few views")));
        // Where it says that it is reached does not matter: no process calls it before it is a member.
        all.take_link(place, place, number);
        all.wake(place);
    }

    /// \[J2\] Tags are unique in each view.
    fn note_views(&mut self, place: u32) {
        let Some(group) = &mut self.all.processes[place as usize].group else { return };
        for view in std::mem::take(&mut group.application().views) {
            self.views += 1;
            let mut tags: Vec<u64> = view.members.iter().map(|member| member.tag).collect();
            tags.sort_unstable();
            if let Some(pair) = tags.windows(2).find(|pair| pair[0] == pair[1]) {
                let text = format!("[J2] two members of {view} have the rank {}", pair[0]);
                return self.all.fail("ranks", text);
            }
        }
    }

    /// A process whose group has ended starts again, unless it has left.
    fn check_ended(&mut self, place: u32) {
        let process = &self.all.processes[place as usize];
        let Some(ended) =
            process.group.as_ref().and_then(GroupCore::ended).filter(|_| process.joiner.is_none())
        else {
            return;
        };
        if self.plan.is_left_alone(place) {
            return self
                .all
                .fail("availability", format!("process {place} was left alone, and has stopped: {ended}"));
        }
        let has_left = ended == GroupEnd::Stopped(StopReason::Left);
        self.end(place);
        if !has_left {
            self.restarts.push((self.all.world.now() + RESTART_AFTER, place));
        }
    }

    fn restart(&mut self, at: Instant) {
        let due: Vec<u32> =
            self.restarts.extract_if(.., |(due, _)| *due <= at).map(|(_, place)| place).collect();
        due.into_iter().for_each(|place| self.start(place));
    }

    /// The process starts, and joins.
    fn start(&mut self, place: u32) {
        if self.all.processes[place as usize].is_up {
            return;
        }
        self.leavers.retain(|leaver| *leaver != place);
        self.all.renew_home(place);
        let is_stranded = self.plan.is_stranded && place + 1 == self.plan.processes();
        let contacts = if is_stranded { vec![self.plan.processes()] } else { self.draw_contacts(place) };
        self.all.start(place, contacts);
    }

    /// One to three of the first members, in any order; one of them at least is left alone.
    fn draw_contacts(&self, place: u32) -> Vec<u32> {
        let members = 0..self.plan.members;
        let calm: Vec<u32> =
            members.clone().filter(|other| *other != place && !self.plan.disturbs(*other)).collect();
        let mut contacts = vec![calm[self.all.world.draw(|prng| prng.index(calm.len()))]];
        for other in members.filter(|other| *other != place) {
            if !contacts.contains(&other) && self.all.world.draw(|prng| prng.chance(400)) {
                let at = self.all.world.draw(|prng| prng.index(contacts.len() + 1));
                contacts.insert(at, other);
            }
        }
        contacts
    }

    /// The process ends at once, or after it has parted with all.
    fn end(&mut self, place: u32) {
        self.all.processes[place as usize].nodes().into_iter().for_each(|node| self.all.world.crash(node));
        self.all.hang_up(place);
    }

    fn strike(&mut self, event: JoinEvent) {
        match event {
            JoinEvent::Start(place) => self.start(place),
            JoinEvent::Crash(place) if self.all.processes[place as usize].is_up => self.end(place),
            JoinEvent::Crash(_) => {}
            JoinEvent::Pause(place, span) => {
                for node in self.all.processes[place as usize].nodes() {
                    self.all.world.strike(&Verdict::Pause { node, span });
                }
            }
            JoinEvent::Cut(place, span) => {
                self.cuts.push((self.all.world.now() + span, place));
                self.partition();
            }
            JoinEvent::Leave(place) => {
                self.leavers.push(place);
                self.all.wake(place);
            }
            JoinEvent::Claim(place) => self.claim(place),
            JoinEvent::Impostor(place, times) => (0..times).for_each(|_| self.impersonate(place)),
        }
    }

    /// Cuts the processes that are to be cut off now from all others, and joins these.
    fn partition(&mut self) {
        let mut cut: Vec<u32> = self.cuts.iter().map(|(_, place)| *place).collect();
        cut.sort_unstable();
        cut.dedup();
        let nodes_of = |place: &u32| {
            (0..self.all.world.nodes()).filter(|node| self.all.numbers.owner(*node) == *place).collect()
        };
        let groups: Vec<Vec<u32>> = cut.iter().map(nodes_of).collect();
        self.all.world.partition(&groups);
    }

    fn check_end(&self) -> Result<(), Violation> {
        let fail = |checker, text: String| Err(Violation { checker, text });
        let up = || self.all.processes.iter().filter(|process| process.is_up);
        let last = up().filter_map(|process| process.view()).max_by_key(|view| view.id);
        let Some(last) = last else { return fail("liveness", "no group is left".into()) };
        let mut nodes: Vec<NodeId> = last.nodes();
        nodes.sort_unstable();
        let mut present: Vec<NodeId> = up().map(|process| process.node()).collect();
        present.sort_unstable();
        for process in up() {
            let place = process.place;
            let is_in = process.joiner.is_none() && process.view().is_some_and(|view| view.id == last.id);
            if !is_in || !process.group.as_ref().is_some_and(GroupCore::is_ready) {
                return fail("liveness", format!("[J5] process {place} is not a member of {last}"));
            }
            let service = process.service.as_ref().expect("a member");
            if service.links() > 0 || service.candidate().is_some() || service.roster().len() != nodes.len() {
                let text = format!(
                    "[J4] process {place} has {} links without a member, the candidate {:?}, and {} processes in its roster in {last}",
                    service.links(),
                    service.candidate(),
                    service.roster().len()
                );
                return fail("leaks", text);
            }
        }
        let restarting = !self.restarts.is_empty();
        if nodes != present || restarting {
            return fail("liveness", format!("[J5] {present:?} live, and the last view is {last}"));
        }
        let has_ended = |place: &u32| {
            let must_stay = self.plan.is_left_alone(*place) && !self.excused.contains(place);
            must_stay && !self.all.processes[*place as usize].is_up
        };
        match (0..self.plan.processes()).find(has_ended) {
            Some(place) => fail("liveness", format!("[J5] process {place} has ended")),
            None => Ok(()),
        }
    }
}

/// Within this time after the last fault all are members, and nothing is left of processes that are not.
const SETTLE: Duration = Duration::from_millis(1_500);
/// A process that was excluded rejoins after this time.
const RESTART_AFTER: Duration = Duration::from_millis(1);
/// Whether a run is over is checked once in this number of turns.
const LOOK_EVERY: u64 = 64;
