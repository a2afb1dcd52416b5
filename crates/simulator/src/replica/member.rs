//! A member of the group: its parts of the shards, own updates and queries, what it answers others, and how it gets the
//! state (Derecho app. A, §3.3).

use std::ops::DerefMut;
use std::rc::Rc;

use squall_fabric::sim::Prng;
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::group::{
    GroupApplication, Placement, SubgroupId, SubgroupOutlet, Succession, Unplaced,
};
use squall_protocols::membership::View;
use squall_protocols::multicast::{NoUpcall, Pull};
use squall_protocols::replica::{
    ArrivedState, Readiness, Sessions, ShardAnswer, ShardPosition, ShardRequest, ShardSnapshot,
    SnapshotOutcome, StateReply, UpdateSource,
};

use super::bus::{CallId, Datagram, DatagramBody};
use super::list::{AppendList, place_of};
use super::part::{PendingReports, ShardPart, Submission, UpdateWaiter};
use super::shared::SharedRun;
use crate::checker::linearizable::{ListAnswer, ListOperation};
use crate::group::NodeProgram;
use crate::run::Violation;

/// A question of this member for the state of a shard; it is given up at some time.
#[derive(Clone, Copy, Debug)]
struct Question {
    shard: u32,
    asked: u32,
    number: u64,
    until: Instant,
}

/// A state on its way out: it was taken when it was asked for, and its last part is written at `done_at`.
struct Giving {
    call: CallId,
    snapshot: ShardSnapshot<AppendList>,
    done_at: Instant,
}

/// All times are the world's.
pub(super) struct ReplicaMember {
    /// Its place in the plan.
    pub(super) place: u32,
    node: u32,
    shared: SharedRun,
    view: Option<View>,
    parts: Vec<ShardPart>,
    unsent: u64,
    next_own: Instant,
    next_take: Instant,
    calls: u64,
    /// For each shard at most one.
    questions: Vec<Question>,
    giving: Vec<Giving>,
    /// It holds more states than it has reported to the group.
    has_state_news: bool,
    has_arrived: bool,
    has_ended: bool,
}

impl ReplicaMember {
    pub(super) fn new(place: u32, node: NodeId, shared: &SharedRun) -> Self {
        let (plan, start) = (&shared.plan, shared.bus.borrow().now());
        Self {
            place,
            node: node.0,
            shared: shared.clone(),
            view: None,
            parts: (0..plan.shards).map(|shard| ShardPart::new(node, shard, plan)).collect(),
            unsent: plan.updates,
            next_own: start,
            next_take: start,
            calls: 0,
            questions: Vec::new(),
            giving: Vec::new(),
            has_state_news: false,
            has_arrived: false,
            has_ended: false,
        }
    }

    fn part(&mut self, shard: u32) -> &mut ShardPart {
        &mut self.parts[shard as usize]
    }

    /// Takes all datagrams that have come.
    fn take_datagrams(&mut self) -> bool {
        let mut worked = false;
        loop {
            let datagram = self.shared.bus.borrow_mut().take(self.node);
            let Some(Datagram { from, call, body }) = datagram else { return worked };
            worked = true;
            match body {
                DatagramBody::Ask(shard, request) => self.on_question(call, shard, request),
                DatagramBody::Answer { answer, snapshot, .. } => {
                    self.on_answer(from, call.number, &answer, snapshot)
                }
            }
        }
    }

    fn on_question(&mut self, call: CallId, shard: u32, request: ShardRequest) {
        let (now, waiter) = (self.shared.now(), UpdateWaiter::Client(call));
        match request {
            ShardRequest::Open => {
                self.part(shard).queue.push_back(Submission { source: UpdateSource::Opening, id: 0, waiter });
            }
            ShardRequest::Update { session: id, number, open, update } => {
                let source = UpdateSource::Session { id, number, open };
                let id = place_of(&update);
                self.part(shard).queue.push_back(Submission { source, id, waiter });
            }
            ShardRequest::Latest { .. } => {
                self.part(shard).queue.push_back(Submission { source: UpdateSource::Query, id: 0, waiter });
            }
            ShardRequest::Replies { .. } => unreachable!("updates of one shard are not multicast to several"),
            ShardRequest::Query { view, query } => {
                let part = self.part(shard);
                let at = part.replica.position();
                if let Some((call, answer)) = part.queries.ask(now, &part.replica, call, view, query) {
                    self.answer(call, answer, at, None);
                }
            }
            ShardRequest::State { .. } if self.shared.plan.hanging == Some(self.place) => {}
            ShardRequest::State { since } => {
                match self.part(shard).replica.provide_state(ShardPosition::start_of(since)) {
                    StateReply::State(snapshot) => {
                        let done_at = self.shared.pause(self.shared.plan.transfer_max);
                        self.giving.push(Giving { call, snapshot, done_at });
                    }
                    StateReply::NotYet => self.answer(call, ShardAnswer::NotYet, None, None),
                }
            }
        }
    }

    fn answer(
        &self,
        call: CallId,
        answer: ShardAnswer,
        at: Option<ShardPosition>,
        snapshot: Option<ShardSnapshot<AppendList>>,
    ) {
        let view = self.view.as_ref().map_or(0, |view| view.id);
        self.shared.post(self.node, call.asker, call, DatagramBody::Answer { view, answer, at, snapshot });
    }

    /// Reports what a client or this member waited for.
    fn report(&mut self, shard: u32, (waiter, answer, at): PendingReports) {
        let (id, place) = match waiter {
            UpdateWaiter::Client(call) => return self.answer(call, answer, at, None),
            UpdateWaiter::Own(id, place) => (id, place),
        };
        let mut history = self.shared.history.borrow_mut();
        match (answer, at) {
            (ShardAnswer::Reply(reply), Some(at)) => {
                let acknowledged = history.on_reply(id, shard, place_of(&reply), (self.node, at), self.node);
                self.shared.check(acknowledged);
                history.on_answered(shard, place, ListAnswer::Place(place_of(&reply)), self.shared.now());
            }
            (ShardAnswer::Failed(_), _) => history.tally.unknown += 1,
            // Not here, not now, not any more.
            _ => history.deny(shard, id, place),
        }
    }

    /// Answers that can be given now: to queries, and states whose last part is written.
    fn send_answers(&mut self, now: Instant) -> bool {
        let mut answers = Vec::new();
        for part in &mut self.parts {
            let at = part.replica.position();
            answers.extend(part.queries.poll(now, &part.replica).into_iter().map(|answer| (answer, at)));
        }
        let due: Vec<Giving> = self.giving.extract_if(.., |giving| giving.done_at <= now).collect();
        let worked = !answers.is_empty() || !due.is_empty();
        for ((call, answer), at) in answers {
            self.answer(call, answer, at, None);
        }
        for Giving { call, snapshot, .. } in due {
            let (position, sessions) = (snapshot.position, snapshot.sessions.clone());
            self.answer(call, ShardAnswer::State { position, sessions, bytes: None }, None, Some(snapshot));
        }
        worked
    }

    fn on_answer(
        &mut self,
        from: u32,
        number: u64,
        answer: &ShardAnswer,
        snapshot: Option<ShardSnapshot<AppendList>>,
    ) {
        let is_it = |question: &Question| question.number == number && question.asked == from;
        let Some(place) = self.questions.iter().position(is_it) else { return };
        let Question { shard, .. } = self.questions.swap_remove(place);
        let now = self.shared.now();
        let transfer = &mut self.part(shard).transfer;
        match (answer, snapshot) {
            (ShardAnswer::State { position, sessions, .. }, Some(snapshot)) => {
                match Sessions::decode(sessions) {
                    Ok(sessions) => {
                        let (position, machine) = (*position, snapshot.snapshot);
                        transfer.handle_state(ArrivedState { position, sessions, machine });
                    }
                    Err(error) => {
                        self.shared.check(Err(Violation { checker: "objects", text: error.to_string() }));
                    }
                }
            }
            _ => transfer.handle_refusal(now),
        }
    }

    /// States that have come, now or while the view was changing.
    fn take_over(&mut self, now: Instant) -> bool {
        let mut worked = false;
        for part in &mut self.parts {
            let taken = part.take_over(now);
            worked |= taken.is_some();
            if taken == Some(SnapshotOutcome::Taken) {
                self.shared.history.borrow_mut().tally.transfers += 1;
                self.has_state_news = true;
            }
        }
        worked
    }

    /// Own updates, and a look at the own state.
    fn act(&mut self, now: Instant, prng: &mut Prng) -> bool {
        if now < self.next_own || self.unsent == 0 || self.has_ended || self.view.is_none() {
            return false;
        }
        self.next_own = self.shared.pause(self.shared.plan.gap_max);
        let shard = u32::try_from(prng.index(self.parts.len())).expect("few");
        self.unsent -= 1;
        if prng.chance(300) {
            let view = self.view.as_ref().expect("it was looked at").id;
            self.ask_own(shard, view);
            return true;
        }
        if self.parts[shard as usize].may_send() {
            let (now, mut history) = (self.shared.now(), self.shared.history.borrow_mut());
            let id = history.id();
            let place = history.on_asked(shard, ListOperation::Append(id), now);
            drop(history);
            let own = Submission { source: UpdateSource::Own, id, waiter: UpdateWaiter::Own(id, place) };
            self.part(shard).queue.push_back(own);
        }
        true
    }

    /// A query of this member to itself.
    fn ask_own(&mut self, shard: u32, view: u64) {
        let replica = &self.parts[shard as usize].replica;
        if replica.readiness(view) == Readiness::Ready {
            let (list, at) = (replica.machine().expect("it is ready"), replica.position().expect("as well"));
            let mut history = self.shared.history.borrow_mut();
            self.shared.check(history.on_answer(shard, view, (self.node, at), self.node, list.ids()));
        }
    }

    fn send_updates(&mut self) -> bool {
        let mut worked = false;
        for shard in 0..self.shared.plan.shards {
            let (sent, refused) = self.part(shard).send();
            worked |= sent || !refused.is_empty();
            refused.into_iter().for_each(|reports| self.report(shard, reports));
        }
        worked
    }

    /// Takes messages and views.
    fn take(&mut self, now: Instant, prng: &mut Prng) -> bool {
        if now < self.next_take {
            return false;
        }
        let mut worked = false;
        for shard in 0..self.shared.plan.shards {
            let mut reports = Vec::new();
            let history = Rc::clone(&self.shared.history);
            let part = self.part(shard);
            match part.step(1 + prng.below(8), &mut history.borrow_mut(), &mut reports) {
                Ok(taken) => worked |= taken,
                Err(violation) => self.shared.check(Err(violation)),
            }
            reports.into_iter().for_each(|reports| self.report(shard, reports));
        }
        if worked {
            self.next_take = self.shared.pause(self.shared.plan.take_pause_max);
            self.check_states();
        } else if self.has_ended {
            self.stop();
        }
        worked
    }

    fn stop(&mut self) {
        for shard in 0..self.shared.plan.shards {
            let reports = self.part(shard).stop();
            reports.into_iter().for_each(|reports| self.report(shard, reports));
        }
    }

    fn check_states(&self) {
        let history = self.shared.history.borrow();
        for part in &self.parts {
            if let (Some(list), Some(at)) = (part.replica.machine(), part.replica.position()) {
                self.shared.check(history.on_state(self.node, part.shard, at, list.ids()));
            }
        }
    }

    /// Says which states it has, and whether it takes any for lost.
    fn take_stock(&self) {
        let mut history = self.shared.history.borrow_mut();
        let bus = self.shared.bus.borrow();
        for part in &self.parts {
            let replica = &part.replica;
            let (view, lives) = (replica.view(), |node: u32| bus.lives(node));
            let holds = replica.position().is_some();
            self.shared.check(history.on_standing(self.node, part.shard, holds, view, lives));
            if let (Readiness::Lost, Some(view)) = (replica.readiness(0), view) {
                self.shared.check(history.on_loss(self.node, part.shard, view, lives));
            }
        }
    }

    /// Asks for the states that this member needs.
    fn ask(&mut self, now: Instant) -> bool {
        let mut worked = self.give_up(now);
        for shard in 0..self.shared.plan.shards {
            if self.has_ended {
                break;
            }
            let part = &mut self.parts[shard as usize];
            let Some(ask) = part.transfer.poll_ask(now, &mut part.replica) else { continue };
            self.calls += 1;
            let (number, until, asked) = (self.calls, self.shared.pause(ask.silence), ask.node.0);
            self.questions.push(Question { shard, asked, number, until });
            let call = CallId { asker: self.node, connection: number, number };
            let request = ShardRequest::State { since: ask.since.view };
            self.shared.post(self.node, asked, call, DatagramBody::Ask(shard, request));
            worked = true;
        }
        worked
    }

    /// Gives up questions that are not answered.
    fn give_up(&mut self, now: Instant) -> bool {
        let over: Vec<Question> = self.questions.extract_if(.., |question| question.until <= now).collect();
        for Question { shard, asked, .. } in &over {
            let part = self.part(*shard);
            part.transfer.handle_silence(now);
            if part.replica.is_waiting() && !self.shared.bus.borrow().lives(*asked) {
                self.shared.history.borrow_mut().tally.interrupted += 1;
            }
        }
        !over.is_empty()
    }
}

impl ReplicaMember {
    /// Whether it holds the state of a shard, if it is in it.
    pub(super) fn holds(&self, shard: u32) -> Option<bool> {
        let part = &self.parts[shard as usize];
        part.since.map(|_| part.replica.position().is_some())
    }

    /// What it waits for, in words.
    pub(super) fn is_waiting_for(&self, is_stuck: impl Fn(u32) -> bool) -> Option<String> {
        if self.parts.iter().any(|part| !part.queries.is_empty()) {
            return Some("it owes answers to queries".into());
        }
        let parts = self.parts.iter().filter(|part| !is_stuck(part.shard));
        parts.into_iter().find_map(|part| Some(format!("shard {}: {}", part.shard, part.is_waiting_for()?)))
    }
}

impl GroupApplication for ReplicaMember {
    type Deliver = NoUpcall;

    fn outlet(&mut self, id: SubgroupId) -> SubgroupOutlet<NoUpcall> {
        let view = self.view.as_ref().expect("it is installed first").id;
        self.part(id.0).enter(view);
        SubgroupOutlet::Pull
    }

    fn install(&mut self, view: &View, placements: &[Placement], _unplaced: &[Unplaced]) {
        let result = self.shared.watch.borrow_mut().views.on_install(NodeId(self.node), view, placements);
        self.shared.check(result);
        if self.has_arrived {
            self.shared.bus.borrow_mut().announce(self.node, view);
        }
        for part in &mut self.parts {
            let placement = placements.iter().find(|placement| placement.id.0 == part.shard);
            part.install(view, placement.map_or_else(Vec::new, |placement| placement.members.clone()));
        }
        self.view = Some(view.clone());
        self.has_state_news = true;
    }

    fn succession(&mut self, id: SubgroupId) -> impl DerefMut<Target = Succession> {
        &mut self.part(id.0).succession
    }

    fn take_pull(&mut self, id: SubgroupId, pull: Pull) {
        self.part(id.0).take_pull(pull);
    }

    fn has_state_news(&self) -> bool {
        self.has_state_news
    }

    fn take_state_news(&mut self) -> bool {
        std::mem::take(&mut self.has_state_news)
    }

    fn holds(&self, id: SubgroupId) -> bool {
        self.parts[id.0 as usize].holding.holds()
    }

    fn seal(&mut self, id: SubgroupId) -> bool {
        self.part(id.0).holding.seal()
    }

    fn leave_subgroup(&mut self, id: SubgroupId, _deliver: Option<NoUpcall>) {
        self.part(id.0).leave();
    }
}

impl NodeProgram for ReplicaMember {
    fn come_as(&mut self, node: NodeId) {
        *self = Self::new(self.place, node, &self.shared.clone());
    }

    fn arrive(&mut self) {
        self.has_arrived = true;
        if let Some(view) = &self.view {
            self.shared.bus.borrow_mut().announce(self.node, view);
        }
    }

    fn send(&mut self, _now: Instant, prng: &mut Prng) -> bool {
        let now = self.shared.now();
        let mut worked = self.take_datagrams();
        if worked {
            self.take_stock();
        }
        worked |= self.act(now, prng);
        self.send_updates() | worked
    }

    fn consume(&mut self, _now: Instant, prng: &mut Prng) -> bool {
        let now = self.shared.now();
        let mut worked = self.take(now, prng);
        worked |= self.send_answers(now);
        worked |= self.take_over(now);
        worked |= self.ask(now);
        if worked {
            self.take_stock();
        }
        worked
    }

    fn end(&mut self) {
        self.has_ended = true;
        self.shared.bus.borrow_mut().withdraw(self.node);
        let plan = &self.shared.plan.group;
        // A member that is taken for dead while it leaves also reports that it has left.
        let leaves = plan.leaves.iter().any(|(leaver, _)| *leaver == self.place);
        let has_left = leaves && !plan.has_false_suspicion();
        let group = self.view.as_ref().map_or_else(Vec::new, View::nodes);
        let bus = self.shared.bus.borrow();
        self.shared.history.borrow_mut().on_end(self.node, has_left, &group, |node| bus.lives(node));
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let world = self.shared.now();
        let datagrams = self.shared.bus.borrow().next_at(self.node);
        let own = Some(self.next_own).filter(|_| self.unsent > 0 && !self.has_ended && self.view.is_some());
        let take = Some(self.next_take).filter(|next| *next > world);
        let questions = self.questions.iter().map(|question| question.until);
        let giving = self.giving.iter().map(|giving| giving.done_at);
        let queries = self.parts.iter().filter_map(|part| part.queries.next_deadline());
        let waits = self.parts.iter().filter(|part| part.replica.is_waiting() && !self.has_ended);
        let ask = waits.filter_map(|part| part.transfer.next_deadline()).filter(|next| *next > world);
        let all = datagrams.into_iter().chain(own).chain(take).chain(questions).chain(giving);
        all.chain(queries).chain(ask).min().map(|at| self.shared.by_clock(at, now))
    }

    fn is_done(&self) -> bool {
        self.unsent == 0 && self.is_waiting_for(|_| false).is_none()
    }
}

/// Between a client's rounds of questions.
pub(super) const ROUND_PAUSE: Duration = Duration::from_micros(300);
