//! A client outside the group: it asks any member, follows the view, and sends an update again until it is answered, as
//! `squall::object::Client` does (Derecho app. A: external clients).

use std::collections::BTreeMap;

use squall_fabric::sim::{Prng, SimFabric};
use squall_fabric::{Duration, Fabric as _, Instant, NodeId};
use squall_protocols::replica::Contacts;

use super::member::Shared;
use super::office::{Answer, Body, Letter, What};
use crate::run::Violation;

/// Something that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Update(u64),
    Query,
}

/// A task under way.
#[derive(Clone, Copy, Debug)]
struct Job {
    shard: u32,
    task: Task,
    /// When it is given up.
    until: Instant,
    /// Whether a member may have passed it on without having answered.
    is_open: bool,
    /// Who is asked at the moment, in which view, and until when; or when the next one is.
    asked: Option<(u32, u64, Instant)>,
    next: Instant,
}

pub(super) struct Client {
    pub(super) node: u32,
    fabric: SimFabric,
    shared: Shared,
    /// What it knows of the group: members are reached at their numbers.
    contacts: Contacts<u32>,
    /// Session and number of its last update, by shard.
    sessions: BTreeMap<u32, (u64, u64)>,
    job: Option<Job>,
    left: u64,
    next_job: Instant,
    calls: u64,
    turn: usize,
    failures: usize,
}

impl Client {
    pub(super) fn new(node: u32, fabric: SimFabric, shared: &Shared) -> Self {
        let (left, next_job) = (shared.plan.client_jobs, shared.office.borrow().now());
        Self {
            node,
            fabric,
            shared: shared.clone(),
            // The first members.
            contacts: Contacts::new((0..shared.plan.group.members).collect(), shared.plan.client_period),
            sessions: BTreeMap::new(),
            job: None,
            left,
            next_job,
            calls: 0,
            turn: 0,
            failures: 0,
        }
    }

    pub(super) const fn is_done(&self) -> bool {
        self.left == 0 && self.job.is_none()
    }

    /// Does some of what there is to do; says when it wants to go on, by its own clock.
    pub(super) fn turn(&mut self, prng: &mut Prng) -> (bool, Option<Instant>) {
        let mut worked = self.fabric.poll(&mut |_| ()) > 0;
        worked |= self.take_letters();
        worked |= self.act(prng);
        let letters = self.shared.office.borrow().next_at(self.node);
        let job = self.job.map(|job| job.asked.map_or(job.next, |(_, _, until)| until).min(job.until));
        let next = (self.job.is_none() && self.left > 0).then_some(self.next_job);
        let inquiry = (!self.is_done()).then(|| self.contacts.next_at());
        let at = letters.into_iter().chain(job).chain(next).chain(inquiry).min();
        (worked, at.map(|at| self.shared.by_clock(at, self.fabric.now())))
    }

    fn take_letters(&mut self) -> bool {
        let mut worked = false;
        loop {
            let letter = self.shared.office.borrow_mut().take(self.node);
            let Some(Letter { from, call, body }) = letter else { return worked };
            worked = true;
            let Body::Answer(view, answer) = body else { continue };
            self.contacts.handle_view(view);
            if let Some(job) = self.job
                && call == self.calls
                && job.asked.is_some()
            {
                self.on_answer(from, answer, job);
            }
        }
    }

    fn act(&mut self, prng: &mut Prng) -> bool {
        let now = self.shared.now();
        if !self.is_done() && self.contacts.next_at() <= now {
            self.inquire();
            return true;
        }
        let Some(mut job) = self.job else { return self.begin(now, prng) };
        match job.asked {
            _ if now >= job.until => self.give_up(job),
            // The connection breaks, or nothing is heard of it.
            Some((_, _, until)) if now >= until => {
                job.is_open = true;
                self.fail(job);
            }
            None if now >= job.next => self.ask(job),
            _ => return false,
        }
        true
    }

    fn begin(&mut self, now: Instant, prng: &mut Prng) -> bool {
        if self.left == 0 || now < self.next_job {
            return false;
        }
        self.left -= 1;
        let shard = u32::try_from(prng.below(u64::from(self.shared.plan.shards))).expect("few");
        let task =
            if prng.chance(700) { Task::Update(self.shared.history.borrow_mut().id()) } else { Task::Query };
        let until = now + self.shared.plan.client_timeout;
        self.job = Some(Job { shard, task, until, is_open: false, asked: None, next: now });
        true
    }

    /// Asks the next member of the shard.
    fn ask(&mut self, mut job: Job) {
        let members = self.members(job.shard);
        if members.is_empty() {
            return self.fail(job);
        }
        let asked = members[self.turn % members.len()].0;
        let view = self.contacts.view().id;
        let what = match (job.task, self.sessions.get(&job.shard)) {
            (Task::Query, _) => What::Query { view },
            (Task::Update(_), None) => What::Open,
            (Task::Update(id), Some((session, last))) => {
                What::Update { session: *session, number: last + 1, id }
            }
        };
        self.calls += 1;
        job.asked = Some((asked, view, self.shared.pause(self.shared.plan.patience)));
        self.job = Some(job);
        self.shared.post(self.node, asked, self.calls, Body::Ask(job.shard, what));
    }

    fn members(&self, shard: u32) -> Vec<NodeId> {
        self.shared.plan.members_of(shard, self.contacts.view())
    }

    /// Asks who the members are.
    fn inquire(&mut self) {
        let (now, office) = (self.shared.now(), self.shared.office.borrow());
        let mut answers = self.contacts.candidates().into_iter();
        let found = answers.find_map(|other| Some((other, office.inquire(self.node, other)?)));
        match found {
            Some((other, view)) => {
                let members = view.nodes().into_iter().map(|node| (node, node.0)).collect();
                self.contacts.handle_members(now, NodeId(other), view.clone(), members);
            }
            None => self.contacts.handle_silence(now),
        }
    }

    fn on_answer(&mut self, by: u32, answer: Answer, mut job: Job) {
        let Job { shard, task, .. } = job;
        let (_, view, _) = job.asked.take().expect("it was looked at");
        match (answer, task) {
            (Answer::NotYet | Answer::Elsewhere, _) => self.fail(job),
            (Answer::Failed, _) => {
                job.is_open = true;
                self.fail(job);
            }
            (Answer::Lost, _) => self.end(job),
            (Answer::Opened(session), Task::Update(_)) => {
                self.sessions.insert(shard, (session, 0));
                job.next = self.shared.now();
                self.job = Some(job);
            }
            (Answer::Applied(place, at), Task::Update(id)) => {
                let mut history = self.shared.history.borrow_mut();
                self.shared.check(history.on_reply(id, shard, place, (by, at), self.node));
                drop(history);
                self.end(job);
            }
            (Answer::Forgotten, Task::Update(_)) => {
                self.sessions.remove(&shard);
                if job.is_open {
                    self.give_up(job);
                } else {
                    job.next = self.shared.now();
                    self.job = Some(job);
                }
            }
            (Answer::List(list, at), Task::Query) => {
                let mut history = self.shared.history.borrow_mut();
                self.shared.check(history.on_answer(shard, view, (by, at), self.node, &list));
                drop(history);
                self.end(job);
            }
            (answer, task) => {
                let text = format!("[A3] node {by} answers {answer:?} to {task:?} of node {}", self.node);
                self.shared.check(Err(Violation { checker: "objects", text }));
            }
        }
    }

    /// Goes on to the next member; after the last one it finds out how the group is now.
    fn fail(&mut self, mut job: Job) {
        self.turn += 1;
        self.failures += 1;
        self.shared.history.borrow_mut().tally.repeated += 1;
        (job.asked, job.next) = (None, self.shared.now());
        if self.failures.is_multiple_of(self.members(job.shard).len().max(1)) {
            self.inquire();
            job.next = self.shared.pause(ROUND_PAUSE);
        }
        self.job = Some(job);
    }

    /// Nobody answers in time.
    fn give_up(&mut self, job: Job) {
        if self.shared.plan.is_replaced && self.shared.office.borrow().has_members(self.node) {
            let (view, node) = (self.contacts.view().id, self.node);
            let text = format!("[A10] node {node} gives up {job:?}: it knows view {view}");
            self.shared.check(Err(Violation { checker: "objects", text }));
        }
        let mut history = self.shared.history.borrow_mut();
        match job.task {
            Task::Update(_) if job.is_open => history.tally.unknown += 1,
            // Nobody has ever passed it on.
            Task::Update(id) if job.asked.is_none() => history.deny(id),
            _ => {}
        }
        drop(history);
        self.end(job);
    }

    /// It is over. Whatever has become of the update, its number is spent.
    fn end(&mut self, job: Job) {
        if let (Task::Update(_), Some((_, last))) = (job.task, self.sessions.get_mut(&job.shard)) {
            *last += 1;
        }
        self.job = None;
        self.next_job = self.shared.pause(self.shared.plan.gap_max);
    }
}

/// Between rounds of questions.
const ROUND_PAUSE: Duration = Duration::from_micros(300);
