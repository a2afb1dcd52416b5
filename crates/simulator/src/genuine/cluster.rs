//! The cluster of a run: processes with their groups, which join by what ships, and what happens to them.

use std::cell::RefCell;
use std::rc::Rc;

use squall_fabric::sim::{CostModel, Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::{Core, Duration, Instant, NodeId};
use squall_protocols::admission::AdmissionSettings;
use squall_protocols::genuine::{AskForReplies, DeliveredMarks, GenuineMember, UpdateReplies};
use squall_protocols::group::{GroupCore, GroupEnd, GroupSettings, SubgroupLayout};
use squall_protocols::membership::{Membership, MembershipSettings, View};

use super::caller::{KeptAnswer, UpdateCaller};
use super::checks::{CopiedState, GenuineHistory};
use super::plan::GenuinePlan;
use super::program::{GenuineApp, GenuineLayout, Workload};
use crate::admission::{JoinBus, JoinHost, JoinProcess, SimAdmission};
use crate::run::RunOutcome;

/// After the last fault all is delivered, and all processes that live and are wanted are in one view, within this virtual time.
const SETTLE: Duration = Duration::from_millis(200);

/// The nodes do their work in fewer turns.
const STEPS_MAX: u32 = 400_000;

/// Whether a run with heartbeats is over is checked once in this number of turns.
const LOOK_EVERY: u32 = 64;

/// How often a member without the state of its shard asks for it.
const ASK_EVERY: Duration = Duration::from_micros(700);

pub(super) struct GenuineCluster {
    pub(super) plan: GenuinePlan,
    pub(super) all: SimAdmission<GenuineHost>,
    pub(super) work: Vec<ProcessWork>,
    pub(super) history: Rc<RefCell<GenuineHistory>>,
    prng: Prng,
}

pub(super) type GenuineProcess = JoinProcess<GenuineApp>;

/// What a process is to do.
pub(super) struct ProcessWork {
    pub(super) messages: Workload,
    /// By the clock of its machine, as the next one.
    joins_at: Option<Instant>,
    pub(super) leaves_at: Option<Instant>,
    /// Its group has ended, and it has closed all its connections.
    has_parted: bool,
    /// When it asks for the state of its shard, and the one that is on its way.
    wants_state_at: Option<Instant>,
    state: Option<StateUnderWay>,
    /// Its updates of the object, once it is a member.
    pub(super) caller: Option<UpdateCaller>,
}

/// A state on its way to a joiner.
struct StateUnderWay {
    arrives_at: Instant,
    /// The marks, and what is kept for callers.
    bytes: Vec<u8>,
    state: CopiedState,
}

/// The processes of a plan. The rank that each asks for is its place, which says what its shard is.
pub(super) struct GenuineHost {
    plan: GenuinePlan,
    history: Rc<RefCell<GenuineHistory>>,
}

impl JoinHost for GenuineHost {
    type Application = GenuineApp;

    fn group_settings(&self) -> (Box<dyn SubgroupLayout + Send>, GroupSettings) {
        let membership = MembershipSettings {
            suspicion_after: self.plan.group.suspicion_after,
            partition_safety: self.plan.group.partition_safety,
            states: if self.plan.settings.has_states { self.plan.shards } else { 0 },
            ..MembershipSettings::default()
        };
        let genuine = Some(self.plan.settings.clone());
        (
            Box::new(GenuineLayout::new(&self.plan)),
            GroupSettings { membership, genuine, ..GroupSettings::default() },
        )
    }

    fn admission_settings(&self) -> AdmissionSettings {
        let (candidate_life, link_life) = (Duration::from_millis(12), Duration::from_millis(40));
        AdmissionSettings { candidate_life, link_life, ..AdmissionSettings::default() }
    }

    fn rank(&self, place: u32) -> Option<u64> {
        Some(u64::from(place))
    }

    fn application(&mut self, place: u32, node: NodeId, _left: Option<GenuineApp>) -> GenuineApp {
        self.history.borrow_mut().on_node(node, place);
        let object = self.plan.homes[place as usize].filter(|_| self.plan.settings.has_states);
        GenuineApp::new(node, object, &self.history)
    }
}

impl GenuineCluster {
    pub(super) fn new(plan: &GenuinePlan, trace_records_max: usize) -> Self {
        let config = SimConfig {
            adversary: Some(plan.group.adversary.clone()),
            cost: CostModel::FREE,
            early_sight: plan.group.early_sight,
            one_sided_progress: plan.group.one_sided_progress,
            unreachable_after: plan.group.unreachable_after,
            loss_noticed_after: Duration::from_millis(1),
            rules: plan.group.rules.clone(),
            trace_records_max: if plan.counts_words { usize::MAX } else { trace_records_max },
            ..SimConfig::hardware()
        };
        let (seed, processes, members) = (plan.group.seed, plan.group.nodes(), plan.group.members);
        let world = SimWorld::new(seed, config, processes);
        let history = Rc::new(RefCell::new(GenuineHistory::new(plan)));
        let host = GenuineHost { plan: plan.clone(), history: Rc::clone(&history) };
        let bus = JoinBus::new(plan.group.bus.clone(), seed, processes as usize);
        let all = SimAdmission::new(host, world, bus, processes, members, 0);
        let work = all.processes.iter().map(|process| ProcessWork::new(plan, process)).collect();
        Self { plan: plan.clone(), all, work, history, prng: Prng::new(seed ^ 0x6e0) }
    }

    pub(super) fn run(mut self) -> RunOutcome {
        let start = Instant::from_nanos(0);
        let mut last_fault = start + self.plan.group.last_fault();
        let (mut steps, mut deaths) = (0, 0);
        while let Some(node) = self.all.world.next_poll(last_fault + SETTLE) {
            steps += 1;
            if std::mem::replace(&mut deaths, self.all.world.deaths()) != deaths && self.all.bury() {
                last_fault = last_fault.max(self.all.world.now());
            }
            self.look_at_standstill();
            self.poll_node(self.all.numbers.owner(node), node);
            if steps > STEPS_MAX && self.plan.group.suspicion_after.is_none() {
                self.all.fail("quiescence", format!("[N4] they are still busy after {STEPS_MAX} steps"));
            }
            if self.all.violation.is_some() || self.history.borrow().violation.is_some() {
                break;
            }
            // Heartbeats never end. To look at everything takes longer than many turns.
            let may_be_over = self.plan.group.suspicion_after.is_some() && steps.is_multiple_of(LOOK_EVERY);
            if may_be_over && self.all.world.now() > last_fault && self.is_settled() {
                break;
            }
        }
        let found = self.all.violation.take().or_else(|| self.history.borrow_mut().violation.take());
        let violation = found.or_else(|| self.check_end().err());
        let keeps = !self.plan.counts_words;
        RunOutcome {
            violation,
            elapsed: self.all.world.now().since(start),
            delivered: self.history.borrow().total,
            trace_hash: self.all.world.trace_hash(),
            trace: if keeps { self.all.world.trace() } else { Vec::new() },
        }
    }

    /// \[G6\] While a follower stalls, a majority of its shard delivers without it.
    fn look_at_standstill(&mut self) {
        let (Some(standstill), now) = (self.plan.standstill, self.all.world.now()) else { return };
        let mut history = self.history.borrow_mut();
        if now + standstill.bound >= standstill.end {
            history.note_sent();
        }
        if now >= standstill.end {
            let result = history.check_progress(NodeId(standstill.node));
            history.take(result);
            self.plan.standstill = None;
        }
    }

    /// A turn of a node of the world.
    fn poll_node(&mut self, place: u32, node: u32) {
        let i = place as usize;
        if !self.all.processes[i].nodes().contains(&node) {
            return self.all.world.rest(node, false, None);
        }
        let worked = self.step(place);
        let (process, work) = (&self.all.processes[i], &self.work[i]);
        let leaves_at = work.leaves_at.filter(|_| membership(process).is_some());
        let home = work.joins_at.into_iter().chain(leaves_at).min();
        let next = self.all.next_message(place);
        for (node, deadline) in process.deadlines(next, home, work.next_deadline(process)) {
            self.all.world.rest(node, worked, deadline);
        }
    }

    /// All that a process does in a turn; whether it worked.
    fn step(&mut self, place: u32) -> bool {
        let mut worked = self.start(place);
        while let Some(message) = self.all.take_next(place) {
            worked = true;
            self.all.handle_message(place, message);
        }
        worked |= self.ask_for_state(place);
        worked |= self.gather(place);
        worked |= self.poll_group(place);
        let stands_by = self.all.processes[place as usize].joiner.is_some();
        worked |= self.all.poll_joiner(place, !worked);
        let process = &self.all.processes[place as usize];
        if let Some(view) = view_id(process).filter(|_| stands_by) {
            self.history.borrow_mut().on_arrival(process.node(), view);
        }
        if self.all.processes[place as usize].is_up {
            self.all.poll_service(place);
        }
        self.all.tell(place, |process| self.history.borrow().delivered(process.node()).len());
        self.end_with_group(place);
        worked
    }

    /// A joiner begins when it is time. It knows where all others are reached.
    fn start(&mut self, place: u32) -> bool {
        let now = self.all.processes[place as usize].now();
        if self.work[place as usize].joins_at.take_if(|at| now >= *at).is_none() {
            return false;
        }
        let mut contacts: Vec<u32> = (0..self.plan.group.nodes()).filter(|other| *other != place).collect();
        self.prng.shuffle(&mut contacts);
        self.all.start(place, contacts);
        true
    }

    /// A turn of the process in its group. A member leaves, takes the state of its shard, and sends.
    fn poll_group(&mut self, place: u32) -> bool {
        let mut worked = self.all.poll_fabric(place) > 0;
        let (process, work) = (&mut self.all.processes[place as usize], &mut self.work[place as usize]);
        let (is_member, node) = (process.joiner.is_none(), process.node());
        let (home_now, now) = (process.now(), process.member_now());
        if let Some(group) = process.group.as_mut().filter(|_| is_member) {
            if work.leaves_at.take_if(|at| home_now >= *at).is_some() {
                group.leave();
            }
            let has_come = |state: &mut StateUnderWay| now >= state.arrives_at;
            if group.genuine_member().is_some_and(GenuineMember::may_take_state)
                && let Some(StateUnderWay { bytes, state, .. }) = work.state.take_if(has_come)
            {
                let mut bytes = &bytes[..];
                let marks = DeliveredMarks::decode(&mut bytes).expect("it was written here");
                self.history.borrow_mut().on_state(node, state);
                group.application().replies = UpdateReplies::decode(&mut bytes).expect("it was written here");
                group.take_shard_state(&marks);
                worked = true;
            }
            let seed = self.plan.group.seed;
            let caller = work.caller.take_if(|caller| caller.node == node);
            let caller = work.caller.insert(caller.unwrap_or_else(|| UpdateCaller::new(seed, node)));
            worked |= work.messages.send(&self.plan, group, caller, &process.fabric, &mut self.prng);
        }
        self.all.handle_events(place);
        let process = &mut self.all.processes[place as usize];
        let Some(group) = &mut process.group else { return worked };
        group.set_time_base(self.plan.time_base(place));
        worked |= group.poll(&mut process.fabric) > 0;
        if !worked && Core::<SimFabric>::look_at_all(group) {
            worked = group.poll(&mut process.fabric) > 0;
        }
        if !is_member && group.application_ref().has_heard {
            self.all
                .fail("attempts", format!("[J8] process {place} is given a message, and has not arrived"));
        }
        worked
    }

    /// A joiner that has arrived asks a member of its shard that holds the state. What that member has delivered by the time at
    /// which it is asked is in the state.
    fn ask_for_state(&mut self, place: u32) -> bool {
        let i = place as usize;
        let process = &self.all.processes[i];
        let Some(id) = lacks_state(process).map(|view| view.id) else { return false };
        let (now, asked) = (process.member_now(), self.work[i].wants_state_at);
        let at = asked.unwrap_or_else(|| now + draw_up_to(self.plan.request_max, &mut self.prng));
        self.work[i].wants_state_at = Some(at);
        if now < at {
            return false;
        }
        let gives = |other: &&GenuineProcess| {
            self.plan.homes[other.place as usize] == self.plan.homes[i]
                && holds_state(other)
                && self.all.lives(other)
                && view_id(other) >= Some(id)
        };
        let providers: Vec<&GenuineProcess> = self.all.processes.iter().filter(gives).collect();
        let state = (!providers.is_empty()).then(|| {
            let provider = providers[self.prng.index(providers.len())];
            let group = provider.group.as_ref().expect("a member");
            let marks = group.genuine_member().and_then(GenuineMember::marks).expect("a member of a shard");
            let mut bytes = Vec::new();
            marks.encode(&mut bytes);
            group.application_ref().replies.encode(&mut bytes);
            let arrives_at = now + draw_up_to(self.plan.transfer_max, &mut self.prng);
            StateUnderWay { arrives_at, bytes, state: self.history.borrow().state(provider.node()) }
        });
        let work = &mut self.work[i];
        work.wants_state_at = Some(now + ASK_EVERY);
        if work.state.is_none() {
            work.state = state;
        }
        true
    }

    /// The process asks members for the replies to its updates.
    fn gather(&mut self, place: u32) -> bool {
        let i = place as usize;
        let process = &self.all.processes[i];
        let (node, now) = (process.node(), process.member_now());
        let member = membership(process).and(process.group.as_ref()).and_then(GroupCore::genuine_member);
        let Some(member) = member else { return false };
        let Some(mut caller) = self.work[i].caller.take().filter(|caller| caller.node == node) else {
            return false;
        };
        let mut outcomes = caller.follow(member);
        outcomes.extend(caller.look(now, self.plan.shards, |asked| self.answer(process, asked)));
        self.work[i].caller = Some(caller);
        let mut history = self.history.borrow_mut();
        outcomes.iter().for_each(|(update, outcome)| history.on_outcome(node, *update, outcome));
        !outcomes.is_empty()
    }

    /// What a member answers a caller; `None` if it cannot be asked.
    fn answer(&self, caller: &GenuineProcess, asked: AskForReplies) -> Option<KeptAnswer> {
        let is_asked = |process: &&GenuineProcess| process.node() == asked.node && self.all.lives(process);
        let process = self.all.processes.iter().find(is_asked)?;
        let answers = membership(process).is_some()
            && holds_state(process)
            && !(process.place != caller.place && self.all.are_cut_off(caller, process));
        let group = process.group.as_ref().filter(|_| answers)?;
        Some(group.application_ref().replies.reply(caller.node(), asked.number).into())
    }

    /// The process ends with its group: processes that are joining lose it, too.
    fn end_with_group(&mut self, place: u32) {
        let process = &self.all.processes[place as usize];
        let Some(group) = process.group.as_ref().filter(|_| process.joiner.is_none()) else { return };
        let distrusted = group.membership().map_or(&[][..], Membership::distrusted);
        assert!(distrusted.is_empty(), "[V1], [V2] no member here writes what cannot be: {distrusted:?}");
        let Some(ended) = group.ended() else { return };
        if let GroupEnd::ShardsFailed(failure) = ended {
            self.all.fail("failure", format!("[G12] process {place} has stopped: {failure}"));
        }
        if !std::mem::replace(&mut self.work[place as usize].has_parted, true) {
            self.all.part_with_all(place);
        }
    }
}

impl ProcessWork {
    fn new(plan: &GenuinePlan, process: &GenuineProcess) -> Self {
        let (place, now) = (process.place, process.now());
        let joins_at = place.checked_sub(plan.group.members).map(|nth| now + plan.group.joins[nth as usize]);
        let leaves_at = plan.group.leaves.iter().find(|(leaver, _)| *leaver == place);
        Self {
            messages: Workload::new(plan, place),
            joins_at,
            leaves_at: leaves_at.map(|(_, at)| now + *at),
            has_parted: false,
            wants_state_at: None,
            state: None,
            caller: None,
        }
    }

    /// When a member has something to do, by its clock in the group.
    fn next_deadline(&self, process: &GenuineProcess) -> Option<Instant> {
        membership(process)?;
        // At once in a view that it has just begun: to ask for the state.
        let wants = lacks_state(process).map(|_| self.wants_state_at.unwrap_or(Instant::from_nanos(0)));
        // While the view ends, the next one is waited for.
        let member = process.group.as_ref().and_then(GroupCore::genuine_member);
        let may_take = member.is_some_and(GenuineMember::may_take_state);
        let state = self.state.as_ref().filter(|_| may_take).map(|state| state.arrives_at);
        let looks = self.caller.as_ref().and_then(UpdateCaller::next_deadline);
        [self.messages.next_deadline(), wants, state, looks].into_iter().flatten().min()
    }
}

/// Up to `max`; nothing is drawn for a plan without it.
fn draw_up_to(max: Duration, prng: &mut Prng) -> Duration {
    if max.is_zero() { max } else { Duration::from_nanos(prng.below(1 + max.as_nanos() as u64)) }
}

/// Membership of a process that is a member.
pub(super) fn membership(process: &GenuineProcess) -> Option<&Membership> {
    process.group.as_ref().filter(|_| process.joiner.is_none())?.membership()
}

pub(super) fn view_id(process: &GenuineProcess) -> Option<u64> {
    membership(process).map(|membership| membership.view().id)
}

/// The view in which a member waits for the state of its shard, if it does.
pub(super) fn lacks_state(process: &GenuineProcess) -> Option<&View> {
    let group = process.group.as_ref().filter(|group| !group.has_shard_state())?;
    group.genuine_member()?.marks().and_then(|_| membership(process)).map(Membership::view)
}

/// Whether it has the state of its shard; a joiner has none.
pub(super) fn holds_state(process: &GenuineProcess) -> bool {
    process.group.as_ref().is_some_and(GroupCore::has_shard_state)
}
