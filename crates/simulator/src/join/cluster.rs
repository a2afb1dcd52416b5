//! The cluster of a run: its processes, their nodes in the world, what happens to them, and what the end must look like.

use std::collections::BTreeMap;

use squall_fabric::sim::{CostModel, SimConfig, SimWorld, Verdict};
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::admission::Joiner;
use squall_protocols::group::{GroupCore, GroupEnd};
use squall_protocols::membership::{Member, StopReason, View};

use super::bus::{BusBody, BusMessage, JoinBus};
use super::plan::{JoinEvent, JoinPlan};
use super::process::{JOIN_TIMEOUT, JoinProcess, joiner_settings};
use crate::group::UNREACHABLE_AFTER;
use crate::run::{RunOutcome, Violation};

pub(super) struct JoinCluster {
    pub(super) plan: JoinPlan,
    pub(super) world: SimWorld,
    pub(super) processes: Vec<JoinProcess>,
    pub(super) bus: JoinBus,
    pub(super) numbers: ProcessNumbers,
    pub(super) violation: Option<Violation>,
    /// The processes that are to start again, and when.
    restarts: Vec<(Instant, u32)>,
    views: u64,
}

/// Which process a node of the world is, and under which number it was admitted.
#[derive(Default)]
pub(super) struct ProcessNumbers {
    nodes: BTreeMap<NodeId, u32>,
    numbers: Vec<Option<NodeId>>,
    owners: Vec<u32>,
}

impl ProcessNumbers {
    /// A further node of the world is `owner`'s.
    pub(super) fn add(&mut self, owner: u32, number: Option<NodeId>) {
        if let Some(number) = number {
            let node = u32::try_from(self.owners.len()).expect("few nodes");
            assert!(self.nodes.insert(number, node).is_none(), "[J1] {number} was given before");
        }
        self.owners.push(owner);
        self.numbers.push(number);
    }

    /// The node that was admitted as `number`.
    pub(super) fn node(&self, number: NodeId) -> Option<NodeId> {
        self.nodes.get(&number).copied().map(NodeId)
    }

    pub(super) fn number(&self, node: NodeId) -> NodeId {
        self.numbers[node.0 as usize].expect("a node that was admitted")
    }

    pub(super) fn owner(&self, node: u32) -> u32 {
        self.owners[node as usize]
    }

    /// The view in the numbers of admission.
    pub(super) fn translate(&self, view: &View) -> View {
        let member = |member: &Member| Member { node: self.number(member.node), tag: member.tag };
        View { members: view.members.iter().map(member).collect(), ..view.clone() }
    }

    /// A number was given to `owner`, which is a further node of the world without links.
    pub(super) fn add_spent(&mut self, world: &SimWorld, owner: u32, number: NodeId) -> u32 {
        let node = world.add_node();
        self.add(owner, Some(number));
        unlink(world, node);
        node
    }
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
        let mut numbers = ProcessNumbers::default();
        let mut processes = Vec::new();
        // The last one never starts.
        for place in 0..=plan.processes() {
            let is_first = place < plan.members;
            numbers.add(place, is_first.then_some(NodeId(place)));
            processes.push(match is_first {
                true => JoinProcess::first(place, &world, plan),
                false => JoinProcess::new(place, world.fabric(place), world.fabric(place)),
            });
        }
        (plan.members..=plan.processes()).for_each(|home| unlink(&world, home));
        let bus = JoinBus::new(plan.bus.clone(), plan.seed, processes.len());
        let (violation, restarts, views) = (None, Vec::new(), 0);
        Self { plan: plan.clone(), world, processes, bus, numbers, violation, restarts, views }
    }

    pub(super) fn drive(mut self) -> RunOutcome {
        let start = Instant::from_nanos(0);
        let mut events = self.plan.events.clone().into_iter().peekable();
        let end = start + self.plan.last_fault() + SETTLE;
        let calm = start + self.plan.last_fault();
        let mut steps = 0_u64;
        while self.violation.is_none() && self.world.now() < end {
            let next = events.peek().map(|(at, _)| start + *at);
            let restart = self.restarts.iter().map(|(at, _)| *at).min();
            let until = [next, restart, Some(end)].into_iter().flatten().min().unwrap_or(end);
            match self.world.next_poll(until) {
                Some(node) => self.poll_node(node),
                None if restart == Some(until) => self.restart(until),
                None => {
                    if let Some((_, event)) = events.next_if(|_| next == Some(until)) {
                        self.strike(event);
                    }
                }
            }
            steps += 1;
            let may_be_over = steps.is_multiple_of(LOOK_EVERY) && self.world.now() > calm;
            if may_be_over && self.check_end().is_ok() {
                break;
            }
        }
        let violation = self.violation.take().or_else(|| self.check_end().err());
        RunOutcome {
            violation,
            elapsed: self.world.now().since(start),
            delivered: self.views,
            trace_hash: self.world.trace_hash(),
            trace: self.world.trace(),
        }
    }

    pub(super) fn fail(&mut self, checker: &'static str, text: String) {
        self.violation.get_or_insert(Violation { checker, text });
    }

    /// A turn of a node of the world.
    fn poll_node(&mut self, node: u32) {
        let place = self.numbers.owner(node);
        let nodes = self.processes[place as usize].nodes();
        if !self.processes[place as usize].is_up || !nodes.contains(&node) {
            return self.world.rest(node, false, None);
        }
        let worked = self.step(place);
        if !self.processes[place as usize].is_up {
            return self.world.rest(node, false, None);
        }
        self.note_views(place);
        self.check_ended(place);
        let process = &self.processes[place as usize];
        let now = self.world.now();
        let next = self.bus.next_at(place).map(|at| at.max(now).since(now));
        for (node, deadline) in process.deadlines(next) {
            self.world.rest(node, worked, deadline);
        }
    }

    /// \[J2\] Tags are unique in each view.
    fn note_views(&mut self, place: u32) {
        let Some(group) = &mut self.processes[place as usize].group else { return };
        for view in std::mem::take(&mut group.application().views) {
            self.views += 1;
            let mut tags: Vec<u64> = view.members.iter().map(|member| member.tag).collect();
            tags.sort_unstable();
            if let Some(pair) = tags.windows(2).find(|pair| pair[0] == pair[1]) {
                let text = format!("[J2] two members of {view} have the rank {}", pair[0]);
                return self.fail("ranks", text);
            }
        }
    }

    /// A process whose group has ended starts again, unless it has left.
    fn check_ended(&mut self, place: u32) {
        let process = &self.processes[place as usize];
        let Some(ended) =
            process.group.as_ref().and_then(GroupCore::ended).filter(|_| process.joiner.is_none())
        else {
            return;
        };
        if self.plan.is_left_alone(place) {
            return self
                .fail("availability", format!("process {place} was left alone, and has stopped: {ended}"));
        }
        let has_left = ended == GroupEnd::Stopped(StopReason::Left);
        self.end(place);
        if !has_left {
            self.restarts.push((self.world.now() + RESTART_AFTER, place));
        }
    }

    fn restart(&mut self, at: Instant) {
        let due: Vec<u32> =
            self.restarts.extract_if(.., |(due, _)| *due <= at).map(|(_, place)| place).collect();
        due.into_iter().for_each(|place| self.start(place));
    }

    /// The process starts, and joins.
    fn start(&mut self, place: u32) {
        if self.processes[place as usize].is_up {
            return;
        }
        let node = self.world.add_node();
        self.numbers.add(place, None);
        unlink(&self.world, node);
        let mut process = JoinProcess::new(place, self.world.fabric(node), self.world.fabric(node));
        (process.is_up, process.started) = (true, self.world.now());
        let is_stranded = self.plan.is_stranded && place + 1 == self.plan.processes();
        let contacts = if is_stranded { vec![self.plan.processes()] } else { self.draw_contacts(place) };
        process.joiner = Some(Joiner::new(joiner_settings(), contacts, process.now()));
        process.calls = self.processes[place as usize].calls + 1;
        self.processes[place as usize] = process;
        self.world.wake(node);
    }

    /// One to three of the first members, in any order; one of them at least is left alone.
    fn draw_contacts(&self, place: u32) -> Vec<u32> {
        let members = 0..self.plan.members;
        let calm: Vec<u32> =
            members.clone().filter(|other| *other != place && !self.plan.disturbs(*other)).collect();
        let mut contacts = vec![calm[self.world.draw(|prng| prng.index(calm.len()))]];
        for other in members.filter(|other| *other != place) {
            if !contacts.contains(&other) && self.world.draw(|prng| prng.chance(400)) {
                let at = self.world.draw(|prng| prng.index(contacts.len() + 1));
                contacts.insert(at, other);
            }
        }
        contacts
    }

    /// The process ends at once, or after it has parted with all.
    pub(super) fn end(&mut self, place: u32) {
        let process = &mut self.processes[place as usize];
        process.is_up = false;
        process.nodes().into_iter().for_each(|node| self.world.crash(node));
        self.bus.clear(place);
        let now = self.world.now();
        if let Some(attempt) = process.attempt.take().filter(|_| process.joiner.is_some()) {
            let body = BusBody::Gone { number: attempt.number };
            self.bus.post(now, attempt.leader, BusMessage { from: place, call: 0, body });
            self.wake(attempt.leader);
        }
        for other in 0..self.plan.processes() {
            let caller = &self.processes[other as usize];
            let is_admitted_here =
                caller.joiner.is_some() && caller.attempt.is_some_and(|attempt| attempt.leader == place);
            if let Some(call) = caller.call.filter(|call| call.to == place || is_admitted_here) {
                let body = BusBody::Broken("the process has ended");
                self.bus.post(now, other, BusMessage { from: place, call: call.number, body });
                self.wake(other);
            }
        }
    }

    pub(super) fn wake(&self, place: u32) {
        self.processes[place as usize].nodes().into_iter().for_each(|node| self.world.wake(node));
    }

    fn strike(&mut self, event: JoinEvent) {
        match event {
            JoinEvent::Start(place) => self.start(place),
            JoinEvent::Crash(place) if self.processes[place as usize].is_up => self.end(place),
            JoinEvent::Crash(_) => {}
            JoinEvent::Pause(place, span) => {
                for node in self.processes[place as usize].nodes() {
                    self.world.strike(&Verdict::Pause { node, span });
                }
            }
            JoinEvent::Cut(place, span) => self.cut(place, span),
            JoinEvent::Leave(place) => {
                self.processes[place as usize].leaves = true;
                self.wake(place);
            }
            JoinEvent::Claim(place) => self.claim(place),
            JoinEvent::Impostor(place, times) => (0..times).for_each(|_| self.impersonate(place)),
        }
    }

    fn cut(&mut self, place: u32, span: Duration) {
        let is_its = |node: &u32| self.numbers.owner(*node) == place;
        let (own, others): (Vec<u32>, Vec<u32>) = (0..self.world.nodes()).partition(is_its);
        self.world.partition(&[own, others]);
        let heal = squall_fabric::sim::Rule {
            when: squall_fabric::sim::RuleTrigger::At(self.world.now() + span),
            what: Verdict::Heal,
        };
        self.world.add_rule(heal);
    }

    fn check_end(&self) -> Result<(), Violation> {
        let fail = |checker, text: String| Err(Violation { checker, text });
        let up = || self.processes.iter().filter(|process| process.is_up);
        let last = up().filter_map(|process| process.view()).max_by_key(|view| view.id);
        let Some(last) = last else { return fail("liveness", "no group is left".into()) };
        let mut nodes: Vec<NodeId> = last.nodes();
        nodes.sort_unstable();
        let mut present: Vec<NodeId> = up().map(|process| NodeId(process.node())).collect();
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
        let has_ended =
            |place: &u32| self.plan.is_left_alone(*place) && !self.processes[*place as usize].is_up;
        match (0..self.plan.processes()).find(has_ended) {
            Some(place) => fail("liveness", format!("[J5] process {place} has ended")),
            None => Ok(()),
        }
    }

    /// \[J7\] A joiner is over in time.
    pub(super) fn check_time(&mut self, place: u32) {
        let process = &self.processes[place as usize];
        if process.joiner.is_some() && self.world.now() > process.started + JOIN_TIMEOUT * 2 {
            self.fail("time", format!("[J7] process {place} joins for longer than it may"));
        }
    }
}

/// The node has no link with the earlier ones.
pub(super) fn unlink(world: &SimWorld, node: u32) {
    (0..node).for_each(|other| world.set_linked(other, node, false));
}

/// After the last fault all are members, and nothing is left of those who are not.
const SETTLE: Duration = Duration::from_millis(1_500);
/// A process that was excluded comes again.
const RESTART_AFTER: Duration = Duration::from_millis(1);
/// Whether a run is over is looked at once in so many turns.
const LOOK_EVERY: u64 = 64;
