//! The world of a run: time, connections, faults, and what the end must look like.

use std::collections::BTreeMap;

use squall_fabric::sim::{Happening, Prng, Record};
use squall_fabric::{Duration, Instant};
use squall_protocols::admission::CallFailure;
use squall_protocols::assembly::{Assembler, AssemblyAction, AssemblyAnswer, ContactList};

use super::plan::{Event, Plan, TIMEOUT};
use super::process::{Body, Conn, End, Process};
use crate::run::{Outcome, Violation};

pub(super) struct World<'a> {
    pub(super) plan: &'a Plan,
    prng: Prng,
    pub(super) now: Instant,
    pub(super) processes: Vec<Process>,
    /// The ends of each connection: the caller first.
    conns: BTreeMap<Conn, (u32, u32)>,
    conns_made: u64,
    /// What comes, and when: to which process, in which of its lives, over which connection.
    queue: BTreeMap<(Instant, u64), Delivery>,
    posted: u64,
    /// When the latest message of a connection comes at this process.
    latest: BTreeMap<(Conn, u32), Instant>,
    /// The processes that are cut off from the others.
    cut: u32,
    violation: Option<Violation>,
    pub(super) begun: u64,
    trace: Vec<Record>,
    trace_records_max: usize,
    hash: u64,
}

#[derive(Clone, Debug)]
struct Delivery {
    to: u32,
    life: u32,
    conn: Conn,
    body: Body,
}

impl<'a> World<'a> {
    pub(super) fn new(plan: &'a Plan, trace_records_max: usize) -> Self {
        Self {
            plan,
            prng: Prng::new(plan.seed ^ 0x77),
            now: Instant::from_nanos(0),
            processes: (0..plan.processes()).map(|_| Process::new()).collect(),
            conns: BTreeMap::new(),
            conns_made: 0,
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

    pub(super) fn run(mut self) -> Outcome {
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
                self.fail(
                    "liveness",
                    "time does not advance: a deadline that is over leads to nothing".into(),
                );
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
        Outcome { violation, elapsed, delivered, trace_hash: self.hash, trace: self.trace }
    }

    fn note(&mut self, node: u32, text: &dyn Fn() -> String) {
        self.hash = (self.hash.rotate_left(5) ^ self.now.as_nanos() ^ u64::from(node))
            .wrapping_mul(0x517c_c1b7_2722_0a95);
        if self.trace_records_max > 0 {
            if self.trace.len() == self.trace_records_max {
                self.trace.remove(0);
            }
            self.trace.push(Record { at_ns: self.now.as_nanos(), node, what: Happening::Note(text()) });
        }
    }

    pub(super) fn fail(&mut self, checker: &'static str, text: String) {
        self.violation.get_or_insert(Violation { checker, text });
    }

    pub(super) fn process(&mut self, process: u32) -> &mut Process {
        &mut self.processes[process as usize]
    }

    /// When a process is to be polled, whatever comes before.
    fn timer(&self, process: u32) -> Option<Instant> {
        let process = &self.processes[process as usize];
        let assembler = process.assembler.as_ref().filter(|_| process.end.is_none());
        let held = (!process.held.is_empty()).then_some(process.halted_until);
        let due = assembler.and_then(Assembler::next_deadline).into_iter().chain(held).min()?;
        Some(due.max(process.halted_until).max(self.now))
    }

    fn strike(&mut self, event: Event) {
        let named = match event {
            Event::Start(process) | Event::Crash(process) | Event::Halt(process, _) => process,
            Event::Cut(_) => 0,
        };
        self.note(named, &|| format!("{event:?}"));
        match event {
            Event::Start(process) => self.start(process),
            Event::Crash(process) => self.end(process),
            Event::Halt(process, _) if !self.process(process).is_up => {}
            Event::Halt(process, span) => {
                let until = self.now + span;
                self.process(process).halted_until = self.process(process).halted_until.max(until);
            }
            Event::Cut(set) => {
                self.cut = set;
                let parted = |(_, ends): &(&Conn, &(u32, u32))| self.is_cut(ends.0, ends.1);
                let parted: Vec<Conn> = self.conns.iter().filter(parted).map(|(conn, _)| *conn).collect();
                parted.into_iter().for_each(|conn| self.close(conn, None));
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
        *self.process(process) = Process { is_up: true, lives, started, assembler, ..Process::new() };
        self.drive(process);
    }

    pub(super) fn end(&mut self, process: u32) {
        if !self.process(process).is_up {
            return;
        }
        self.process(process).is_up = false;
        self.process(process).assembler = None;
        for conn in self.process(process).conns() {
            self.close(conn, Some(process));
        }
    }

    /// A process closes a connection, or the network does: what is on its way still comes, unless the network does.
    fn close(&mut self, conn: Conn, by: Option<u32>) {
        let Some((a, b)) = self.conns.remove(&conn) else { return };
        if by.is_none() {
            self.queue.retain(|_, delivery| delivery.conn != conn);
        }
        for end in [a, b].into_iter().filter(|end| Some(*end) != by) {
            self.post(conn, end, Body::Closed);
        }
    }

    /// Posts a message on a connection, behind those before it.
    fn post(&mut self, conn: Conn, to: u32, body: Body) {
        let delay = Duration::from_nanos(1 + self.prng.below(self.plan.delay_max.as_nanos() as u64 + 1));
        let after = self.latest.get(&(conn, to)).map_or(self.now, |at| *at + Duration::from_nanos(1));
        let at = (self.now + delay).max(after);
        self.latest.insert((conn, to), at);
        self.post_at(at, conn, to, body);
    }

    fn post_at(&mut self, at: Instant, conn: Conn, to: u32, body: Body) {
        let life = self.processes[to as usize].lives;
        self.posted += 1;
        self.queue.insert((at, self.posted), Delivery { to, life, conn, body });
    }

    /// A message to the other end of a connection that stands.
    fn send(&mut self, conn: Conn, from: u32, body: Body) {
        if let Some((a, b)) = self.conns.get(&conn).copied() {
            self.post(conn, if a == from { b } else { a }, body);
        }
    }

    /// Calls another process, which may not run, or be halted.
    fn call(&mut self, from: u32, to: u32, patience: Duration, until: Instant, body: Body) -> Conn {
        self.conns_made += 1;
        let conn = Conn(self.conns_made);
        let target = &self.processes[to as usize];
        let is_silent = self.now < target.halted_until || self.is_cut(from, to);
        if !target.is_up || is_silent || from == to {
            let after = if is_silent { patience } else { Duration::from_micros(10) };
            self.post_at((self.now + after).min(until), conn, from, Body::Unheard);
            return conn;
        }
        self.conns.insert(conn, (from, to));
        self.post(conn, to, body);
        self.post_at(until, conn, from, Body::Late);
        conn
    }

    fn deliver(&mut self, delivery: Delivery) {
        let Delivery { to, life, conn, body } = delivery;
        let now = self.now;
        let process = self.process(to);
        if !process.is_up || process.lives != life {
            return;
        }
        if now < process.halted_until {
            return process.held.push((conn, body));
        }
        self.take_held(to);
        self.take(to, conn, body);
        self.drive(to);
    }

    /// What has come while the process was halted.
    fn take_held(&mut self, process: u32) {
        for (conn, body) in std::mem::take(&mut self.process(process).held) {
            self.take(process, conn, body);
            self.act(process);
        }
    }

    fn take(&mut self, to: u32, conn: Conn, body: Body) {
        if !matches!(body, Body::Late) {
            self.note(to, &|| format!("{conn:?} {body:?}"));
        }
        let now = self.now;
        let process = &mut self.processes[to as usize];
        let is_call = process.call.is_some_and(|(call, _)| call == conn);
        let has_begun = process.has_begun();
        let Some(assembler) = process.assembler.as_mut().filter(|_| process.end.is_none()) else {
            // A group that runs, or a process that has ended.
            if matches!(body, Body::Claim(_) | Body::Link { .. }) {
                let answer = if has_begun {
                    AssemblyAnswer::Running
                } else {
                    AssemblyAnswer::Later("it joins".into())
                };
                self.send(conn, to, Body::Answer(answer));
            }
            return;
        };
        match body {
            Body::Claim(claim) => {
                let visitor = process.visitor(conn, false);
                process.assembler.as_mut().expect("seen above").handle_claim(now, visitor, claim);
            }
            Body::Link { session, node } => {
                let visitor = process.visitor(conn, true);
                process.assembler.as_mut().expect("seen above").handle_link(visitor, session, node);
            }
            Body::Answer(AssemblyAnswer::Refused(refusal)) if is_call => {
                assembler.handle_failure(now, CallFailure::Again(format!("{refusal:?}")));
            }
            Body::Answer(answer) if is_call => assembler.handle_answer(now, answer),
            Body::Linked if is_call => assembler.handle_linked(now),
            Body::Notice(notice) if process.coordinator == Some(conn) => assembler.handle_notice(now, notice),
            Body::Report(session) => {
                if let Some(visitor) = process.visitor_of(conn) {
                    process.assembler.as_mut().expect("seen above").handle_report(visitor, session);
                }
            }
            Body::Unheard if is_call => {
                process.call = None;
                assembler.handle_failure(now, CallFailure::Unheard("no process listens there".into()));
            }
            Body::Closed | Body::Late if is_call => {
                process.call = None;
                assembler.handle_failure(now, CallFailure::Again("the connection has ended".into()));
                self.close(conn, Some(to));
            }
            Body::Closed if process.coordinator == Some(conn) => {
                process.coordinator = None;
                assembler.handle_coordinator_lost(now);
            }
            Body::Closed => {
                if let Some(visitor) = process.visitor_of(conn) {
                    process.visitors.remove(&visitor);
                    process.assembler.as_mut().expect("seen above").handle_lost(now, visitor);
                }
            }
            _ => {}
        }
    }

    /// Lets a process take what has come, and carries out what it is to do.
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
        self.fail("liveness", format!("process {process} never rests"));
    }

    fn perform(&mut self, process: u32, action: AssemblyAction<u32>) {
        match action {
            AssemblyAction::Ask { contact, patience, until } => {
                let claim = self.process(process).assembler.as_ref().expect("it acts").claim();
                let conn = self.call(process, contact, patience, until, Body::Claim(claim));
                self.process(process).call = Some((conn, None));
            }
            AssemblyAction::Link { session, own, node, address, until } => {
                let patience = until.since(self.now);
                let conn = self.call(process, address, patience, until, Body::Link { session, node: own });
                self.process(process).call = Some((conn, Some(node)));
            }
            AssemblyAction::Keep => match self.process(process).call.take().expect("a call") {
                (conn, None) => self.process(process).coordinator = Some(conn),
                (conn, Some(node)) => {
                    self.process(process).called.insert(node, conn);
                }
            },
            AssemblyAction::Discard => {
                if let Some((conn, _)) = self.process(process).call.take() {
                    self.close(conn, Some(process));
                }
            }
            AssemblyAction::CloseLinks => {
                self.process(process).has_reported = false;
                let called = std::mem::take(&mut self.process(process).called);
                let visitors = std::mem::take(&mut self.process(process).visitors);
                called
                    .into_values()
                    .chain(visitors.into_values())
                    .for_each(|conn| self.close(conn, Some(process)));
            }
            AssemblyAction::Leave => {
                if let Some(conn) = self.process(process).coordinator.take() {
                    self.close(conn, Some(process));
                }
            }
            AssemblyAction::Progress(_) => {}
            AssemblyAction::Begin(assembled) => self.begin(process, assembled),
            AssemblyAction::Join(_) => self.finish(process, End::Joined),
            AssemblyAction::GiveUp(failure) => self.give_up(process, &failure),
            action => self.speak(process, action),
        }
    }

    /// Carries out what sends something over a connection that stands.
    fn speak(&mut self, process: u32, action: AssemblyAction<u32>) {
        match action {
            AssemblyAction::Answer(visitor, answer) => {
                let own = self.process(process);
                let stays = answer == AssemblyAnswer::Accepted;
                let conn = match stays {
                    true => own.visitors.get(&visitor).copied(),
                    false => own.visitors.remove(&visitor).or_else(|| own.links.remove(&visitor)),
                };
                if let Some(conn) = conn {
                    self.send(conn, process, Body::Answer(answer));
                }
            }
            AssemblyAction::TakeLink(visitor) => {
                let conn = self.process(process).links[&visitor];
                self.send(conn, process, Body::Linked);
            }
            AssemblyAction::Notify(visitor, notice) => {
                if let Some(conn) = self.process(process).visitors.get(&visitor).copied() {
                    self.send(conn, process, Body::Notice(notice));
                }
            }
            AssemblyAction::Close(visitor) => {
                if let Some(conn) = self.process(process).visitors.remove(&visitor) {
                    self.close(conn, Some(process));
                }
            }
            AssemblyAction::Report { session } => {
                self.process(process).has_reported = true;
                let conn = self.process(process).coordinator;
                if let Some(conn) = conn {
                    self.send(conn, process, Body::Report(session));
                }
            }
            _ => unreachable!("an action of another kind"),
        }
    }
}

/// This long after the last fault, all that can be done is done.
const CALM: Duration = Duration::from_millis(140);
/// More than any process does at one moment.
const ACTIONS_MAX: u32 = 10_000;
