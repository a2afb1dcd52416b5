//! The world of a run: time, connections and faults.

use std::collections::BTreeMap;

use squall_fabric::sim::{Happening, Prng, TraceRecord};
use squall_fabric::{Duration, Instant};
use squall_protocols::admission::CallFailure;
use squall_protocols::assembly::{Assembler, AssemblyAction, AssemblyAnswer, ContactList};

use super::plan::{AssemblyEvent, AssemblyPlan, TIMEOUT};
use super::process::{AssemblyBody, AssemblyProcess, ConnectionId, ProcessEnd};
use crate::run::{RunOutcome, Violation};

pub(super) struct AssemblyWorld<'a> {
    pub(super) plan: &'a AssemblyPlan,
    prng: Prng,
    pub(super) now: Instant,
    pub(super) processes: Vec<AssemblyProcess>,
    /// The ends of each connection, the caller first.
    connections: BTreeMap<ConnectionId, (u32, u32)>,
    connections_made: u64,
    /// The messages in flight, by arrival time.
    queue: BTreeMap<(Instant, u64), QueuedBody>,
    posted: u64,
    /// When the latest message of a connection arrives at this process.
    latest: BTreeMap<(ConnectionId, u32), Instant>,
    /// The processes that are cut off from the others.
    cut: u32,
    violation: Option<Violation>,
    pub(super) begun: u64,
    trace: Vec<TraceRecord>,
    trace_records_max: usize,
    hash: u64,
}

#[derive(Clone, Debug)]
struct QueuedBody {
    to: u32,
    life: u32,
    connection: ConnectionId,
    body: AssemblyBody,
}

impl<'a> AssemblyWorld<'a> {
    pub(super) fn new(plan: &'a AssemblyPlan, trace_records_max: usize) -> Self {
        assert!(plan.processes() < u32::BITS, "sets of {} processes in one word", plan.processes());
        Self {
            plan,
            prng: Prng::new(plan.seed ^ 0x77),
            now: Instant::from_nanos(0),
            processes: (0..plan.processes()).map(|_| AssemblyProcess::new()).collect(),
            connections: BTreeMap::new(),
            connections_made: 0,
            queue: BTreeMap::new(),
            posted: 0,
            latest: BTreeMap::new(),
            cut: 0,
            violation: None,
            begun: 0,
            trace: Vec::new(),
            trace_records_max,
            hash: 0,
        }
    }

    pub(super) fn run(mut self) -> RunOutcome {
        let mut events = self.plan.events.iter().peekable();
        let calm = Instant::from_nanos(0) + self.plan.last_fault() + CALM;
        let (end, mut is_checked, mut steps) = (calm + TIMEOUT * 2, false, 0);
        while self.violation.is_none() {
            let event = events.peek().map(|(at, _)| Instant::from_nanos(0) + *at);
            let message = self.queue.first_key_value().map(|((at, _), _)| *at);
            let timer = (0..self.plan.processes()).filter_map(|process| self.timer(process)).min();
            let Some(next) = event.into_iter().chain(message).chain(timer).min().filter(|next| *next <= end)
            else {
                break;
            };
            if next > calm && !std::mem::replace(&mut is_checked, true) {
                self.check_calm();
            }
            steps = if next > self.now { 0 } else { steps + 1 };
            if steps > ACTIONS_MAX {
                self.fail("liveness", "time does not advance: an expired deadline has no effect".into());
            }
            self.now = self.now.max(next);
            if event == Some(next) {
                self.strike(events.next().expect("peeked").1);
            } else if message == Some(next) {
                let delivery = self.queue.pop_first().expect("seen above").1;
                self.deliver(delivery);
            } else {
                let due = (0..self.plan.processes()).find(|process| self.timer(*process) == Some(next));
                self.drive(due.expect("seen above"));
            }
        }
        if self.violation.is_none() {
            self.check_end();
        }
        let elapsed = self.now.since(Instant::from_nanos(0));
        let (violation, delivered) = (self.violation, self.begun);
        RunOutcome { violation, elapsed, delivered, trace_hash: self.hash, trace: self.trace }
    }

    fn note(&mut self, node: u32, text: &dyn Fn() -> String) {
        self.hash = (self.hash.rotate_left(5) ^ self.now.as_nanos() ^ u64::from(node))
            .wrapping_mul(0x517c_c1b7_2722_0a95);
        if self.trace_records_max > 0 {
            if self.trace.len() == self.trace_records_max {
                self.trace.remove(0);
            }
            self.trace.push(TraceRecord { at_ns: self.now.as_nanos(), node, what: Happening::Note(text()) });
        }
    }

    pub(super) fn fail(&mut self, checker: &'static str, text: String) {
        self.violation.get_or_insert(Violation { checker, text });
    }

    pub(super) fn process(&mut self, process: u32) -> &mut AssemblyProcess {
        &mut self.processes[process as usize]
    }

    /// Returns when a process is polled if no message comes before.
    fn timer(&self, process: u32) -> Option<Instant> {
        let process = &self.processes[process as usize];
        let assembler = process.assembler.as_ref().filter(|_| process.end.is_none());
        let held = (!process.held.is_empty()).then_some(process.halted_until);
        let due = assembler.and_then(Assembler::next_deadline).into_iter().chain(held).min()?;
        Some(due.max(process.halted_until).max(self.now))
    }

    fn strike(&mut self, event: AssemblyEvent) {
        let named = match event {
            AssemblyEvent::Start(process)
            | AssemblyEvent::Crash(process)
            | AssemblyEvent::Halt(process, _) => process,
            AssemblyEvent::Cut(_) => 0,
        };
        self.note(named, &|| format!("{event:?}"));
        match event {
            AssemblyEvent::Start(process) => self.start(process),
            AssemblyEvent::Crash(process) => self.end(process),
            AssemblyEvent::Halt(process, _) if !self.process(process).is_up => {}
            AssemblyEvent::Halt(process, span) => {
                let until = self.now + span;
                self.process(process).halted_until = self.process(process).halted_until.max(until);
            }
            AssemblyEvent::Cut(set) => {
                self.cut = set;
                let parted = |(_, ends): &(&ConnectionId, &(u32, u32))| self.is_cut(ends.0, ends.1);
                let parted: Vec<ConnectionId> =
                    self.connections.iter().filter(parted).map(|(connection, _)| *connection).collect();
                parted.into_iter().for_each(|connection| self.close(connection, None));
            }
        }
    }

    fn is_cut(&self, a: u32, b: u32) -> bool {
        self.cut >> a & 1 != self.cut >> b & 1
    }

    fn start(&mut self, process: u32) {
        if self.process(process).is_up {
            return;
        }
        let lives = self.process(process).lives + 1;
        let own = (process < self.plan.contacts).then_some(process as usize);
        let contacts = ContactList::new((0..self.plan.contacts).collect(), own);
        let assembler = Assembler::new(self.plan.settings(process, lives), contacts, process, self.now);
        let (assembler, started) = (Some(assembler), self.now);
        *self.process(process) =
            AssemblyProcess { is_up: true, lives, started, assembler, ..AssemblyProcess::new() };
        self.drive(process);
    }

    pub(super) fn end(&mut self, process: u32) {
        if !self.process(process).is_up {
            return;
        }
        self.process(process).is_up = false;
        self.process(process).assembler = None;
        for connection in self.process(process).conns() {
            self.close(connection, Some(process));
        }
    }

    /// Closes a connection on behalf of a process, or of the network (`None`). Messages in flight still arrive,
    /// unless the network closes it.
    fn close(&mut self, connection: ConnectionId, by: Option<u32>) {
        let Some((a, b)) = self.connections.remove(&connection) else { return };
        if by.is_none() {
            self.queue.retain(|_, delivery| delivery.connection != connection);
        }
        for end in [a, b].into_iter().filter(|end| Some(*end) != by) {
            self.post(connection, end, AssemblyBody::Closed);
        }
    }

    /// Posts a message on a connection, after the earlier ones.
    fn post(&mut self, connection: ConnectionId, to: u32, body: AssemblyBody) {
        let delay = Duration::from_nanos(1 + self.prng.below(self.plan.delay_max.as_nanos() as u64 + 1));
        let after = self.latest.get(&(connection, to)).map_or(self.now, |at| *at + Duration::from_nanos(1));
        let at = (self.now + delay).max(after);
        self.latest.insert((connection, to), at);
        self.post_at(at, connection, to, body);
    }

    fn post_at(&mut self, at: Instant, connection: ConnectionId, to: u32, body: AssemblyBody) {
        let life = self.processes[to as usize].lives;
        self.posted += 1;
        self.queue.insert((at, self.posted), QueuedBody { to, life, connection, body });
    }

    /// Sends a message to the other end of an open connection.
    fn send(&mut self, connection: ConnectionId, from: u32, body: AssemblyBody) {
        if let Some((a, b)) = self.connections.get(&connection).copied() {
            self.post(connection, if a == from { b } else { a }, body);
        }
    }

    /// Calls another process, which may be down or halted.
    fn call(
        &mut self,
        from: u32,
        to: u32,
        patience: Duration,
        until: Instant,
        body: AssemblyBody,
    ) -> ConnectionId {
        self.connections_made += 1;
        let connection = ConnectionId(self.connections_made);
        let target = &self.processes[to as usize];
        let is_silent = self.now < target.halted_until || self.is_cut(from, to);
        if !target.is_up || is_silent || from == to {
            let after = if is_silent { patience } else { Duration::from_micros(10) };
            self.post_at((self.now + after).min(until), connection, from, AssemblyBody::Unheard);
            return connection;
        }
        self.connections.insert(connection, (from, to));
        self.post(connection, to, body);
        self.post_at(until, connection, from, AssemblyBody::Late);
        connection
    }

    fn deliver(&mut self, delivery: QueuedBody) {
        let QueuedBody { to, life, connection, body } = delivery;
        let now = self.now;
        let process = self.process(to);
        if !process.is_up || process.lives != life {
            return;
        }
        if now < process.halted_until {
            return process.held.push((connection, body));
        }
        self.take_held(to);
        self.take(to, connection, body);
        self.drive(to);
    }

    /// Handles the messages that arrived while the process was halted.
    fn take_held(&mut self, process: u32) {
        for (connection, body) in std::mem::take(&mut self.process(process).held) {
            self.take(process, connection, body);
            self.act(process);
        }
    }

    fn take(&mut self, to: u32, connection: ConnectionId, body: AssemblyBody) {
        if !matches!(body, AssemblyBody::Late) {
            self.note(to, &|| format!("{connection:?} {body:?}"));
        }
        let now = self.now;
        let process = &mut self.processes[to as usize];
        let is_call = process.call.is_some_and(|(call, _)| call == connection);
        let has_begun = process.has_begun();
        let Some(assembler) = process.assembler.as_mut().filter(|_| process.end.is_none()) else {
            // The process is in a running group, or has ended.
            if matches!(body, AssemblyBody::Claim(_) | AssemblyBody::Link { .. }) {
                let answer = if has_begun {
                    AssemblyAnswer::Running
                } else {
                    AssemblyAnswer::Later("it is joining a group".into())
                };
                self.send(connection, to, AssemblyBody::Answer(answer));
            }
            return;
        };
        match body {
            AssemblyBody::Claim(claim) => {
                let visitor = process.visitor(connection, false);
                process.assembler.as_mut().expect("seen above").handle_claim(now, visitor, claim);
            }
            AssemblyBody::Link { session, node } => {
                let visitor = process.visitor(connection, true);
                process.assembler.as_mut().expect("seen above").handle_link(visitor, session, node);
            }
            AssemblyBody::Answer(AssemblyAnswer::Refused(refusal)) if is_call => {
                assembler.handle_failure(now, CallFailure::Again(format!("{refusal:?}")));
            }
            AssemblyBody::Answer(answer) if is_call => assembler.handle_answer(now, answer),
            AssemblyBody::Linked if is_call => assembler.handle_linked(now),
            AssemblyBody::Notice(notice) if process.coordinator == Some(connection) => {
                assembler.handle_notice(now, notice)
            }
            AssemblyBody::Report(session) => {
                if let Some(visitor) = process.visitor_of(connection) {
                    process.assembler.as_mut().expect("seen above").handle_report(visitor, session);
                }
            }
            AssemblyBody::Unheard if is_call => {
                process.call = None;
                assembler.handle_failure(now, CallFailure::Unheard("no process listens there".into()));
            }
            AssemblyBody::Closed | AssemblyBody::Late if is_call => {
                process.call = None;
                assembler.handle_failure(now, CallFailure::Again("the connection has ended".into()));
                self.close(connection, Some(to));
            }
            AssemblyBody::Closed if process.coordinator == Some(connection) => {
                process.coordinator = None;
                assembler.handle_coordinator_lost(now);
            }
            AssemblyBody::Closed => {
                if let Some(visitor) = process.visitor_of(connection) {
                    process.visitors.remove(&visitor);
                    process.assembler.as_mut().expect("seen above").handle_lost(now, visitor);
                }
            }
            _ => {}
        }
    }

    /// Lets a process handle its messages, and carries out its actions.
    fn drive(&mut self, process: u32) {
        if self.now >= self.processes[process as usize].halted_until {
            self.take_held(process);
            self.act(process);
        }
    }

    fn act(&mut self, process: u32) {
        let now = self.now;
        for _ in 0..ACTIONS_MAX {
            let own = &mut self.processes[process as usize];
            let assembler = own.assembler.as_mut().filter(|_| own.end.is_none());
            let Some(action) = assembler.and_then(|assembler| assembler.poll_action(now)) else { return };
            self.note(process, &|| format!("{action:?}"));
            self.perform(process, action);
        }
        self.fail("liveness", format!("process {process} has actions without end"));
    }

    fn perform(&mut self, process: u32, action: AssemblyAction<u32>) {
        match action {
            AssemblyAction::Ask { contact, patience, until } => {
                let claim = self.process(process).assembler.as_ref().expect("it acts").claim();
                let connection = self.call(process, contact, patience, until, AssemblyBody::Claim(claim));
                self.process(process).call = Some((connection, None));
            }
            AssemblyAction::Link { session, own, node, address, until } => {
                let patience = until.since(self.now);
                let connection =
                    self.call(process, address, patience, until, AssemblyBody::Link { session, node: own });
                self.process(process).call = Some((connection, Some(node)));
            }
            AssemblyAction::Keep => match self.process(process).call.take().expect("a call") {
                (connection, None) => self.process(process).coordinator = Some(connection),
                (connection, Some(node)) => {
                    self.process(process).called.insert(node, connection);
                }
            },
            AssemblyAction::Discard => {
                if let Some((connection, _)) = self.process(process).call.take() {
                    self.close(connection, Some(process));
                }
            }
            AssemblyAction::CloseLinks => {
                self.process(process).has_reported = false;
                let called = std::mem::take(&mut self.process(process).called);
                let visitors = std::mem::take(&mut self.process(process).visitors);
                called
                    .into_values()
                    .chain(visitors.into_values())
                    .for_each(|connection| self.close(connection, Some(process)));
            }
            AssemblyAction::Leave => {
                if let Some(connection) = self.process(process).coordinator.take() {
                    self.close(connection, Some(process));
                }
            }
            AssemblyAction::Progress(_) => {}
            AssemblyAction::Begin(assembled) => self.begin(process, assembled),
            AssemblyAction::Join(_) => self.finish(process, ProcessEnd::Joined),
            AssemblyAction::GiveUp(failure) => self.give_up(process, &failure),
            action => self.speak(process, action),
        }
    }

    /// Carries out an action that sends a message over an open connection, or closes one.
    fn speak(&mut self, process: u32, action: AssemblyAction<u32>) {
        match action {
            AssemblyAction::Answer(visitor, answer) => {
                let own = self.process(process);
                let stays = answer == AssemblyAnswer::Accepted;
                let connection = match stays {
                    true => own.visitors.get(&visitor).copied(),
                    false => own.visitors.remove(&visitor).or_else(|| own.links.remove(&visitor)),
                };
                if let Some(connection) = connection {
                    self.send(connection, process, AssemblyBody::Answer(answer));
                }
            }
            AssemblyAction::TakeLink(visitor) => {
                let connection = self.process(process).links[&visitor];
                self.send(connection, process, AssemblyBody::Linked);
            }
            AssemblyAction::Notify(visitor, notice) => {
                if let Some(connection) = self.process(process).visitors.get(&visitor).copied() {
                    self.send(connection, process, AssemblyBody::Notice(notice));
                }
            }
            AssemblyAction::Close(visitor) => {
                if let Some(connection) = self.process(process).visitors.remove(&visitor) {
                    self.close(connection, Some(process));
                }
            }
            AssemblyAction::Report { session } => {
                self.process(process).has_reported = true;
                let connection = self.process(process).coordinator;
                if let Some(connection) = connection {
                    self.send(connection, process, AssemblyBody::Report(session));
                }
            }
            _ => unreachable!("the caller handles all other actions"),
        }
    }
}

/// The time after the last fault by which the processes have done everything that they can.
const CALM: Duration = Duration::from_millis(140);
/// More actions than any process performs at one moment.
const ACTIONS_MAX: u32 = 10_000;
