//! The world of a run: time, messages, disks, and what happens to processes.

use std::collections::BTreeMap;

use squall_fabric::sim::{Happening, Prng, TraceRecord};
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::membership::RankSet;
use squall_protocols::restart::{
    DurableView, FetchAnswer, FetchRequest, FlushedLog, LogStart, Register, RegisterWriter, RestartMessage,
    RestartSettings, Restarter,
};

use super::checks::{RestartOracle, RestartRemains};
use super::disk::{CheckpointContent, ProcessDisk};
use super::live::{LiveContext, LiveMember};
use super::plan::{RestartEvent, RestartPlan};
use super::process::{ProcessActivity, SimParcel, SimProcess};
use crate::run::RunOutcome;

pub(super) struct RestartWorld<'a> {
    pub(super) plan: &'a RestartPlan,
    pub(super) prng: Prng,
    pub(super) now: Instant,
    pub(super) processes: Vec<SimProcess>,
    pub(super) oracle: RestartOracle,
    queue: BTreeMap<(Instant, u64), QueuedStep>,
    posted: u64,
    pub(super) is_calm: bool,
    false_accusations: u32,
    /// Processes that are cut off from the others.
    pub(super) cut: u32,
    /// Events since the last strike.
    pub(super) events: BTreeMap<RestartEvent, u32>,
    /// By shard, the process whose log has lost its end, until it is whole again.
    pub(super) hurt: BTreeMap<usize, usize>,
    pub(super) hurts: u32,
    pub(super) delivered: u64,
    trace: Vec<TraceRecord>,
    trace_records_max: usize,
    hash: u64,
}

/// What happens at a time, in one life of a process.
#[derive(Clone, Debug)]
struct QueuedStep {
    to: usize,
    life: u32,
    what: StepKind,
}

#[derive(Clone, Debug)]
enum StepKind {
    Parcel(NodeId, SimParcel),
    Written,
    Flushed,
}

impl<'a> RestartWorld<'a> {
    pub(super) fn new(plan: &'a RestartPlan, trace_records_max: usize) -> Self {
        let mut world = Self::empty(plan, trace_records_max);
        let members = (0..plan.members).map(node).collect();
        let first = plan.placement().view(0, members);
        world.processes = (0..plan.processes).map(|slot| world.first_process(slot, &first)).collect();
        let record = world.processes[0].stored().record.clone();
        world.oracle.observe(NodeId(0), &record);
        world
    }

    fn empty(plan: &'a RestartPlan, trace_records_max: usize) -> Self {
        assert!(plan.processes < u32::BITS as usize, "sets of {} processes in one word", plan.processes);
        Self {
            plan,
            prng: Prng::new(plan.seed ^ 0x1e57),
            now: Instant::from_nanos(0),
            processes: Vec::new(),
            oracle: RestartOracle::default(),
            queue: BTreeMap::new(),
            posted: 0,
            is_calm: false,
            false_accusations: plan.false_accusations,
            cut: 0,
            events: BTreeMap::new(),
            hurt: BTreeMap::new(),
            hurts: 0,
            delivered: 0,
            trace: Vec::new(),
            trace_records_max,
            hash: 0,
        }
    }

    /// The world in which processes that have all died come back, with what is on their disks.
    pub(super) fn resume(plan: &'a RestartPlan, remains: &RestartRemains, trace_records_max: usize) -> Self {
        let mut world = Self::empty(plan, trace_records_max);
        world.oracle.recall(remains);
        for (register, log) in &remains.disks {
            let mut disk = ProcessDisk::new(register);
            for shard in 0..plan.shards {
                if let Some(begin) = remains.begin_of(register, shard) {
                    disk.append_checkpoint(shard, begin, remains.before(begin, shard));
                }
            }
            for ((view, shard), count) in log {
                disk.append(*shard, *view, *count);
            }
            disk.begin_flush();
            disk.end_flush();
            world.oracle.observe(register.node, &register.record);
            let wakes_at = Some(world.now + Duration::from_micros(world.prng.below(3_000)));
            world.processes.push(SimProcess { wakes_at, ..SimProcess::down(register.node, disk) });
        }
        world
    }

    /// A process before anything has failed: a member is live in the first view, the others wait to join.
    fn first_process(&mut self, slot: usize, first: &DurableView) -> SimProcess {
        let is_member = slot < self.plan.members;
        let none = DurableView { shards: vec![RankSet::EMPTY; self.plan.shards], ..DurableView::default() };
        let register = Register::new(1, node(slot), if is_member { first.clone() } else { none });
        let disk = ProcessDisk::new(&register);
        let mut process = SimProcess { timer: Some(self.now), ..SimProcess::down(node(slot), disk) };
        if is_member {
            self.oracle.enter(process.node, 0);
            let parts =
                (RegisterWriter::new(register), FlushedLog::new(process.disk.state(self.plan.shards)));
            let member = LiveMember::new(self.plan.placement(), parts, false, self.now);
            process.activity = ProcessActivity::Live(Box::new(member));
        } else {
            process.wakes_at = Some(self.now + Duration::from_micros(self.prng.below(30_000)));
        }
        process
    }

    pub(super) fn run(mut self) -> RunOutcome {
        self.go_through_plan();
        self.settle();
        let elapsed = self.now.since(Instant::from_nanos(0));
        RunOutcome {
            violation: self.oracle.violation,
            elapsed,
            delivered: self.delivered,
            trace_hash: self.hash,
            trace: self.trace,
        }
    }

    pub(super) fn note(&mut self, node: usize, text: &dyn Fn() -> String) {
        self.hash = (self.hash.rotate_left(5) ^ self.now.as_nanos() ^ node as u64)
            .wrapping_mul(0x517c_c1b7_2722_0a95);
        if self.trace_records_max > 0 {
            if self.trace.len() == self.trace_records_max {
                self.trace.remove(0);
            }
            let node = u32::try_from(node).expect("few processes");
            self.trace.push(TraceRecord { at_ns: self.now.as_nanos(), node, what: Happening::Note(text()) });
        }
    }

    pub(super) fn count_event(&mut self, event: RestartEvent) {
        *self.events.entry(event).or_default() += 1;
    }

    /// Lets time pass until `until`, or until `is_over` says so.
    pub(super) fn pass(&mut self, until: Instant, mut is_over: impl FnMut(&mut Self) -> bool) {
        let mut steps = 0;
        while self.oracle.violation.is_none() {
            let message = self.queue.first_key_value().map(|((at, _), _)| *at);
            let due = |process: &SimProcess| if process.is_up() { process.timer } else { process.wakes_at };
            let timers = self.processes.iter().enumerate().filter_map(|(slot, own)| Some((due(own)?, slot)));
            let timer = timers.min();
            let next = message.into_iter().chain(timer.map(|(at, _)| at)).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            steps = if next > self.now { 0 } else { steps + 1 };
            if steps > STEPS_MAX {
                self.oracle.fail("time", "time does not advance".into());
            }
            self.now = self.now.max(next);
            if message == Some(next) {
                let step = self.queue.pop_first().expect("seen above").1;
                self.take(step);
            } else if let Some((_, slot)) = timer {
                self.wake(slot);
            }
            if is_over(self) {
                return;
            }
        }
        if self.oracle.violation.is_none() {
            self.now = self.now.max(until);
        }
    }

    fn wake(&mut self, slot: usize) {
        if !self.processes[slot].is_up() {
            self.boot(slot);
        }
        self.drive(slot);
    }

    fn boot(&mut self, slot: usize) {
        let process = &mut self.processes[slot];
        process.wakes_at = None;
        if process.is_gone {
            return;
        }
        process.lives += 1;
        let register = process.stored().clone();
        let state = process.disk.state(self.plan.shards);
        let is_damaged = process.disk.is_damaged;
        let restarter =
            Restarter::new(SETTINGS, self.plan.placement(), register, state, is_damaged, self.now);
        process.activity = ProcessActivity::Restarting(Box::new(restarter));
        self.note(slot, &|| "starts".into());
    }

    fn take(&mut self, step: QueuedStep) {
        let QueuedStep { to, life, what } = step;
        let process = &mut self.processes[to];
        if !process.is_up() || process.lives != life && !matches!(what, StepKind::Parcel(..)) {
            return;
        }
        match what {
            StepKind::Parcel(from, parcel) => self.receive(to, from, parcel),
            StepKind::Written => self.on_written(to),
            StepKind::Flushed => {
                process.disk.end_flush();
                match &mut process.activity {
                    ProcessActivity::Restarting(restarter) => restarter.handle_log_flushed(),
                    ProcessActivity::Live(member) => member.log.handle_flushed(),
                    ProcessActivity::Down => {}
                }
                self.count_event(RestartEvent::Flushed);
            }
        }
        // A member looks at what has come when it polls the next time.
        if self.processes[to].live().is_none() {
            self.drive(to);
        }
    }

    fn on_written(&mut self, to: usize) {
        let process = &mut self.processes[to];
        process.disk.end_write();
        if process.stored().damaged_in.is_some() {
            process.disk.is_damaged = false;
        }
        match &mut process.activity {
            ProcessActivity::Restarting(restarter) => restarter.handle_register_written(),
            ProcessActivity::Live(member) => member.file.handle_written(),
            ProcessActivity::Down => {}
        }
        self.count_event(RestartEvent::Written);
    }

    fn receive(&mut self, to: usize, from: NodeId, parcel: SimParcel) {
        let now = self.now;
        match parcel {
            SimParcel::Restart(message) => match &mut self.processes[to].activity {
                ProcessActivity::Restarting(restarter) => restarter.handle_message(now, from, message),
                ProcessActivity::Live(member) => member.handle_message(now, from, message),
                ProcessActivity::Down => {}
            },
            SimParcel::Row(row) => {
                if let ProcessActivity::Live(member) = &mut self.processes[to].activity {
                    member.handle_row(now, from, *row);
                }
            }
            SimParcel::Ask(request) => {
                if self.plan.deaf >> to & 1 == 1 && !self.is_calm {
                    return self.refuse(to, from, request);
                }
                let answer = self.processes[to].answer(request);
                let trims = self.processes[to].stored().missing_trims(request);
                if let Some(trims) = trims.filter(|_| answer == FetchAnswer::Nothing) {
                    return self.send(to, from, SimParcel::Trims(request, trims));
                }
                let base = match answer {
                    FetchAnswer::Checkpoint(base) => base,
                    _ => LogStart::default(),
                };
                let content = self.processes[to].disk.content(request.shard()).before(base);
                self.send(to, from, SimParcel::Answer(request, answer, content));
            }
            SimParcel::Trims(request, message) => match &mut self.processes[to].activity {
                ProcessActivity::Restarting(restarter) => {
                    restarter.handle_fetched(now, from, request, FetchAnswer::Nothing);
                    restarter.handle_message(now, from, message);
                }
                ProcessActivity::Live(member) => member.handle_trims(now, from, request, message),
                ProcessActivity::Down => {}
            },
            SimParcel::Answer(request, answer, content) => {
                self.note(to, &|| format!("gets {answer:?} from {from} for {request:?}"));
                let counts = match &mut self.processes[to].activity {
                    ProcessActivity::Restarting(restarter) => {
                        restarter.handle_fetched(now, from, request, answer)
                    }
                    ProcessActivity::Live(member) => member.handle_fetched(now, from, request, answer),
                    ProcessActivity::Down => false,
                };
                if counts {
                    self.append_fetched(to, request, answer, content);
                }
                self.count_event(RestartEvent::Fetched);
            }
        }
    }

    /// A process whose log cannot be read says that it has nothing, or says nothing.
    fn refuse(&mut self, slot: usize, from: NodeId, request: FetchRequest) {
        if self.prng.chance(500) {
            self.send(slot, from, SimParcel::Answer(request, FetchAnswer::Nothing, [].into()));
        }
    }

    fn append_fetched(
        &mut self,
        to: usize,
        request: FetchRequest,
        answer: FetchAnswer,
        content: CheckpointContent,
    ) {
        let node = self.processes[to].node;
        let disk = &mut self.processes[to].disk;
        match (request, answer) {
            (FetchRequest::Records { shard, view, from, to }, FetchAnswer::Records(count)) => {
                let held = disk.content(shard).count(view);
                if held != from {
                    let text = format!("[T17] {node} appends {from}..{count} of view {view} behind {held}");
                    self.oracle.fail("only what is missing", text);
                }
                disk.append(shard, view, count.min(to));
            }
            (request, FetchAnswer::Checkpoint(base)) => {
                disk.append_checkpoint(request.shard(), base, content);
            }
            _ => {}
        }
    }

    /// Sends a parcel, which may be lost, late or there twice.
    pub(super) fn send(&mut self, from: usize, to: NodeId, parcel: SimParcel) {
        let Some(slot) = self.processes.iter().position(|process| process.node == to) else { return };
        let is_cut = self.cut >> from & 1 != self.cut >> slot & 1;
        if slot == from || self.processes[slot].is_gone || is_cut {
            return;
        }
        let [lost, twice] = if self.is_calm { [0, 0] } else { self.plan.lossy };
        if self.prng.chance(lost) {
            return;
        }
        let copies = 1 + u32::from(self.prng.chance(twice));
        let slow = self.plan.slow.iter().find(|(a, b, _)| (*a, *b) == (from, slot) && !self.is_calm);
        let most = self.plan.delay_max * slow.map_or(1, |(.., factor)| *factor);
        let sender = self.processes[from].node;
        for _ in 0..copies {
            let most = u64::try_from(most.as_nanos()).expect("short");
            let delay = Duration::from_nanos(5_000 + self.prng.below(most));
            let life = self.processes[slot].lives;
            self.post(delay, slot, life, StepKind::Parcel(sender, parcel.clone()));
        }
    }

    pub(super) fn broadcast(&mut self, from: usize, message: &RestartMessage) {
        let nodes: Vec<NodeId> = self.processes.iter().map(|process| process.node).collect();
        for node in nodes {
            self.send(from, node, SimParcel::Restart(message.clone()));
        }
    }

    fn post(&mut self, delay: Duration, to: usize, life: u32, what: StepKind) {
        self.posted += 1;
        self.queue.insert((self.now + delay, self.posted), QueuedStep { to, life, what });
    }

    pub(super) fn begin_write(&mut self, slot: usize, register: &Register) {
        self.processes[slot].disk.begin_write(register.encode());
        self.post_disk(slot, 0, StepKind::Written);
    }

    pub(super) fn begin_flush(&mut self, slot: usize) {
        self.processes[slot].disk.begin_flush();
        self.post_disk(slot, 1, StepKind::Flushed);
    }

    fn post_disk(&mut self, slot: usize, file: usize, what: StepKind) {
        let factor = if self.is_calm { 1 } else { u64::from(self.plan.disks[slot][file]) };
        let delay = Duration::from_nanos((20_000 + self.prng.below(80_000)) * factor);
        let life = self.processes[slot].lives;
        self.post(delay, slot, life, what);
    }

    /// The process dies; what of its disk was not synced may be lost.
    pub(super) fn crash(&mut self, slot: usize) {
        self.note(slot, &|| "dies".into());
        let process = &mut self.processes[slot];
        process.activity = ProcessActivity::Down;
        process.disk.crash(&mut self.prng);
    }

    /// Lets a live member look at what has come.
    pub(super) fn step_member(&mut self, slot: usize) {
        let Self { plan, prng, now, processes, oracle, false_accusations, is_calm, .. } = self;
        let process = &mut processes[slot];
        let ProcessActivity::Live(member) = &mut process.activity else { return };
        member.wishes_to_leave = process.wishes_to_leave;
        let view = member.record().view.number;
        let node = process.node;
        for shard in member.record().view.shards_of(node) {
            let sent = oracle.sent.entry((view, shard)).or_default();
            if *sent < plan.messages_max
                && prng.chance(if *is_calm { 100 } else { 250 })
                && member.is_running()
            {
                *sent += 1;
            }
        }
        let sent = (0..plan.shards).map(|shard| oracle.sent.get(&(view, shard)).copied().unwrap_or(0));
        let mut context = LiveContext {
            now: *now,
            is_calm: *is_calm,
            sent: sent.collect(),
            false_accusations,
            compacts: plan.compacts,
            prng,
        };
        member.step(&mut context);
        let pause = Duration::from_micros(100 + prng.below(400));
        process.timer = Some(*now + pause);
    }
}

/// The node that a process is until it loses its register.
pub(super) fn node(slot: usize) -> NodeId {
    NodeId(u32::try_from(slot).expect("few processes"))
}

const SETTINGS: RestartSettings = RestartSettings {
    report_every: Duration::from_millis(1),
    silence: Duration::from_millis(5),
    gather: Duration::from_millis(2),
    patience: Duration::from_millis(3),
    fetch: Duration::from_millis(1),
    avoid: Duration::from_millis(6),
    base: Duration::from_micros(500),
};
/// More than happens at one moment.
const STEPS_MAX: u32 = 20_000;
