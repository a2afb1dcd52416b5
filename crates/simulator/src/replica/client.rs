//! A client outside the group: the shipped cores, one for each shard and one that knows the members (Derecho app. A:
//! external clients). What `squall::object` does with threads and streams is done here in turns.

use std::collections::BTreeMap;

use squall_fabric::sim::{Prng, SimFabric};
use squall_fabric::{Fabric as _, Instant, NodeId};
use squall_protocols::replica::{
    ClientAction, ClientSettings, Contacts, Doubt, ShardAnswer, ShardClient, ShardPosition, ShardRequest,
    Task, TaskOutcome,
};

use super::bus::{CallId, Datagram, DatagramBody};
use super::list::{ids_of, place_of, update};
use super::member::ROUND_PAUSE;
use super::shared::SharedRun;
use crate::checker::linearizable::{ListAnswer, ListDigest, ListOperation};
use crate::run::Violation;

/// Something that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// With its place in the history.
    Update(u64, usize),
    Query,
    Latest(usize),
}

/// A shard's core, and its connection.
struct Line {
    core: ShardClient<Job>,
    /// With whom, and which of the client's connections it is.
    connection: Option<(u32, u64)>,
    /// The views in which queries were asked, by call.
    asked_in: BTreeMap<u64, u64>,
}

pub(super) struct SimClient {
    pub(super) node: u32,
    fabric: SimFabric,
    shared: SharedRun,
    /// What it knows of the group: members are reached at their numbers.
    contacts: Contacts<u32>,
    lines: Vec<Line>,
    connections: u64,
    left: u64,
    next_job: Instant,
}

impl SimClient {
    pub(super) fn new(node: u32, fabric: SimFabric, shared: &SharedRun) -> Self {
        let plan = &shared.plan;
        let settings = ClientSettings {
            under_way_max: plan.client_window,
            timeout: plan.client_timeout,
            silence_max: plan.patience,
            pause: ROUND_PAUSE,
        };
        let line = |_| Line { core: ShardClient::new(settings), connection: None, asked_in: BTreeMap::new() };
        Self {
            node,
            fabric,
            shared: shared.clone(),
            // The first members.
            contacts: Contacts::new((0..plan.group.members).collect(), plan.client_period),
            lines: (0..plan.shards).map(line).collect(),
            connections: 0,
            left: plan.client_jobs,
            next_job: shared.bus.borrow().now(),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.left == 0 && self.lines.iter().all(|line| line.core.is_empty())
    }

    fn under_way(&self) -> usize {
        self.lines.iter().map(|line| line.core.len()).sum()
    }

    fn may_begin(&self) -> bool {
        self.left > 0 && self.under_way() < self.shared.plan.client_window
    }

    /// Does some of what there is to do; returns when it wants to continue, by its own clock.
    pub(super) fn step(&mut self, prng: &mut Prng) -> (bool, Option<Instant>) {
        let mut worked = self.fabric.poll(&mut |_| ()) > 0;
        worked |= self.take_datagrams(prng);
        let now = self.shared.now();
        if !self.is_done() && self.contacts.next_at() <= now {
            self.inquire();
            worked = true;
        }
        while self.may_begin() && self.next_job <= now {
            self.begin(now, prng);
            worked = true;
        }
        for shard in 0..self.lines.len() {
            worked |= self.act(shard, None, prng);
        }
        let datagrams = self.shared.bus.borrow().next_at(self.node);
        let cores = self.lines.iter().filter_map(|line| line.core.next_deadline());
        let next = self.may_begin().then_some(self.next_job);
        let inquiry = (!self.is_done()).then(|| self.contacts.next_at());
        let at = datagrams.into_iter().chain(cores).chain(next).chain(inquiry).min();
        (worked, at.map(|at| self.shared.by_clock(at, self.fabric.now())))
    }

    fn take_datagrams(&mut self, prng: &mut Prng) -> bool {
        let mut worked = false;
        loop {
            let datagram = self.shared.bus.borrow_mut().take(self.node);
            let Some(Datagram { from, call, body }) = datagram else { return worked };
            worked = true;
            let DatagramBody::Answer { view, answer, at, .. } = body else { continue };
            self.contacts.handle_view(view);
            let now = self.shared.now();
            let open = Some((from, call.connection));
            let Some(shard) = self.lines.iter().position(|line| line.connection == open) else { continue };
            if let ShardAnswer::NotYet
            | ShardAnswer::Elsewhere
            | ShardAnswer::Early
            | ShardAnswer::Failed(_) = answer
            {
                self.shared.history.borrow_mut().tally.repeated += 1;
            }
            self.lines[shard].core.handle_answer(now, call.number, answer);
            let view = self.lines[shard].asked_in.remove(&call.number);
            self.act(shard, Some((from, at, view)), prng);
        }
    }

    /// Begins something new.
    fn begin(&mut self, now: Instant, prng: &mut Prng) {
        self.left -= 1;
        self.next_job = self.shared.pause(self.shared.plan.gap_max);
        let shard = prng.index(self.lines.len());
        let core = &mut self.lines[shard].core;
        let (number, mut history) = (u32::try_from(shard).expect("few"), self.shared.history.borrow_mut());
        if prng.chance(600) {
            let id = history.id_for(self.node);
            let place = history.on_asked(number, ListOperation::Append(id), now);
            core.submit(now, Job::Update(id, place), Task::Update(update(id).into()));
        } else if prng.chance(500) {
            let place = history.on_asked(number, ListOperation::Read, now);
            core.submit(now, Job::Latest(place), Task::Latest([].into()));
        } else {
            core.submit(now, Job::Query, Task::Query([].into()));
        }
    }

    /// Does what a shard's core says; `answered`: by whom, how far that had come, and the view in which it was asked.
    fn act(
        &mut self,
        shard: usize,
        answered: Option<(u32, Option<ShardPosition>, Option<u64>)>,
        prng: &mut Prng,
    ) -> bool {
        let number = u32::try_from(shard).expect("few");
        let mut worked = false;
        loop {
            let (now, view) = (self.shared.now(), self.contacts.view());
            if self.lines[shard].core.view() != view.id || answered.is_none() {
                let members = self.shared.plan.members_of(number, view);
                self.lines[shard].core.handle_members(view.id, members);
            }
            let Some(action) = self.lines[shard].core.poll_action(now) else { return worked };
            worked = true;
            match action {
                ClientAction::Ask { node, call, request } => self.ask(shard, node.0, call, request, prng),
                ClientAction::HangUp(_) => {
                    self.contacts.handle_failure();
                    self.shared.history.borrow_mut().tally.repeated += 1;
                    self.lines[shard].connection = None;
                }
                ClientAction::AskForMembers => self.inquire(),
                ClientAction::Done(job, outcome) => self.end(number, job, outcome, answered),
            }
        }
    }

    fn ask(&mut self, shard: usize, node: u32, number: u64, request: ShardRequest, prng: &mut Prng) {
        let (lives, now) = (self.shared.bus.borrow().lives(node), self.shared.now());
        let line = &mut self.lines[shard];
        if line.connection.is_none_or(|(other, _)| other != node) {
            self.connections += 1;
            line.connection = Some((node, self.connections));
        }
        let connection = line.connection.expect("it was set").1;
        if let ShardRequest::Query { view, .. } = &request {
            line.asked_in.insert(number, *view);
        }
        let call = CallId { asker: self.node, connection, number };
        let shard = u32::try_from(shard).expect("few");
        self.shared.post(self.node, node, call, DatagramBody::Ask(shard, request));
        // The connection may break behind what was written, and it is unknown how much of that has arrived.
        if prng.chance(if lives { self.shared.plan.breaks_per_mille } else { 500 }) {
            let line = &mut self.lines[shard as usize];
            line.connection = None;
            line.core.handle_failure(now, NodeId(node), "the connection broke");
            self.contacts.handle_failure();
            self.shared.history.borrow_mut().tally.repeated += 1;
        }
    }

    /// Asks who the members are.
    fn inquire(&mut self) {
        let (now, bus) = (self.shared.now(), self.shared.bus.borrow());
        let mut answers = self.contacts.candidates().into_iter();
        let found = answers.find_map(|other| Some((other, bus.inquire(self.node, other)?)));
        match found {
            Some((other, view)) => {
                let members = view.nodes().into_iter().map(|node| (node, node.0)).collect();
                self.contacts.handle_members(now, NodeId(other), view.clone(), members);
            }
            None => self.contacts.handle_silence(now),
        }
    }

    /// A job is over.
    fn end(
        &self,
        shard: u32,
        job: Job,
        outcome: TaskOutcome,
        answered: Option<(u32, Option<ShardPosition>, Option<u64>)>,
    ) {
        let fail = |text: String| Err(Violation { checker: "objects", text });
        let mut history = self.shared.history.borrow_mut();
        let result = match (job, outcome) {
            (Job::Update(id, place), TaskOutcome::Reply(reply)) => {
                let (by, at, _) = answered.expect("a reply is an answer");
                let at = at.expect("a member that replies holds the state");
                history.on_answered(shard, place, ListAnswer::Place(place_of(&reply)), self.shared.now());
                history.on_reply(id, shard, place_of(&reply), (by, at), self.node)
            }
            (Job::Query, TaskOutcome::Reply(reply)) => {
                let (by, at, view) = answered.expect("a reply is an answer");
                let (at, view) =
                    (at.expect("a member that replies holds the state"), view.expect("it was asked"));
                history.on_answer(shard, view, (by, at), self.node, &ids_of(&reply))
            }
            (Job::Latest(place), TaskOutcome::Reply(reply)) => {
                let answer = ListAnswer::All(ListDigest::of(&ids_of(&reply)));
                history.on_answered(shard, place, answer, self.shared.now());
                history.tally.latest += 1;
                Ok(())
            }
            (_, TaskOutcome::Lost(_)) => Ok(()),
            (_, TaskOutcome::Unknown(Doubt::TimeOver) | TaskOutcome::Unreachable(_))
                if self.should_be_served() =>
            {
                let view = self.contacts.view().id;
                fail(format!("[A10] node {} gives up {job:?}: it knows view {view}", self.node))
            }
            (Job::Update(..), TaskOutcome::Unknown(Doubt::TimeOver | Doubt::Forgotten)) => {
                history.tally.unknown += 1;
                Ok(())
            }
            (Job::Update(id, place), TaskOutcome::Unreachable(_)) => {
                history.deny(shard, id, place);
                Ok(())
            }
            (Job::Query | Job::Latest(_), TaskOutcome::Unreachable(_)) => Ok(()),
            (job, outcome) => fail(format!("[A11] node {} gets {outcome:?} for {job:?}", self.node)),
        };
        drop(history);
        self.shared.check(result);
    }

    /// Whether there is always a member that this client can reach, and that serves it.
    fn should_be_served(&self) -> bool {
        self.shared.plan.is_replaced && self.shared.bus.borrow().has_members(self.node)
    }
}
