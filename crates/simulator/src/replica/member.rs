//! A member of the group: its parts of the shards, own updates and queries, what it answers others, and how it gets the
//! state (Derecho app. A, §3.3).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::DerefMut;
use std::rc::Rc;

use squall_fabric::sim::Prng;
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::group::{Application, Outlet, Placement, SubgroupId, Succession, Unplaced};
use squall_protocols::membership::View;
use squall_protocols::multicast::{NoUpcall, Pull};
use squall_protocols::replica::{Gift, Give, Readiness, Settings, TakeOver};

use super::desk::{Desk, Giving, Query};
use super::history::History;
use super::list::List;
use super::office::{Answer, Body, Letter, Office, What};
use super::part::{From, Part, Submission, Waiter};
use super::plan::Plan;
use crate::group::{Program, Watch};
use crate::run::Violation;

/// What all processes of a run share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) plan: Rc<Plan>,
    pub(super) watch: Rc<RefCell<Watch>>,
    pub(super) history: Rc<RefCell<History>>,
    pub(super) office: Rc<RefCell<Office>>,
}

impl Shared {
    pub(super) fn check(&self, result: Result<(), Violation>) {
        self.watch.borrow_mut().take(result);
    }

    pub(super) fn post(&self, from: u32, to: u32, call: u64, body: Body) {
        self.office.borrow_mut().post(from, to, call, body);
    }

    /// The world's time.
    pub(super) fn now(&self) -> Instant {
        self.office.borrow().now()
    }

    /// A point of the world's time, at most so far from now.
    pub(super) fn pause(&self, most: Duration) -> Instant {
        let mut office = self.office.borrow_mut();
        let pause = office.pause(most);
        office.now() + pause
    }

    /// A point of the world's time by the clock of a node, at which it is `now`.
    pub(super) fn by_clock(&self, at: Instant, now: Instant) -> Instant {
        now + at.since(self.office.borrow().now().min(at))
    }
}

/// A question that this member has asked for a shard.
#[derive(Clone, Copy, Debug)]
struct Question {
    shard: u32,
    asked: u32,
    call: u64,
    until: Instant,
}

/// All times are the world's.
pub(super) struct Member {
    node: u32,
    shared: Shared,
    view: Option<View>,
    parts: Vec<Part>,
    unsent: u64,
    next_own: Instant,
    next_take: Instant,
    calls: u64,
    /// For each shard at most one.
    questions: Vec<Question>,
    next_question: BTreeMap<u32, Instant>,
    /// How long the next pause between two questions may be.
    pauses: BTreeMap<u32, Duration>,
    desk: Desk,
    /// It holds more states than the group has been told.
    has_state_news: bool,
    has_ended: bool,
}

impl Member {
    pub(super) fn new(node: NodeId, shared: &Shared) -> Self {
        let plan = &shared.plan;
        let settings = Settings { sessions_max: plan.sessions_max, ..Settings::default() };
        let part = |shard| Part::new(node, shard, settings, plan.waiting_bytes_max);
        let start = shared.office.borrow().now();
        Self {
            node: node.0,
            shared: shared.clone(),
            view: None,
            parts: (0..plan.shards).map(part).collect(),
            unsent: plan.updates,
            next_own: start,
            next_take: start,
            calls: 0,
            questions: Vec::new(),
            next_question: BTreeMap::new(),
            pauses: BTreeMap::new(),
            desk: Desk::default(),
            has_state_news: false,
            has_ended: false,
        }
    }

    fn part(&mut self, shard: u32) -> &mut Part {
        &mut self.parts[shard as usize]
    }

    /// Takes all letters that have come.
    fn take_letters(&mut self) -> bool {
        let mut worked = false;
        loop {
            let letter = self.shared.office.borrow_mut().take(self.node);
            let Some(Letter { from, call, body }) = letter else { return worked };
            worked = true;
            match body {
                Body::Ask(shard, what) => self.on_question(from, call, shard, what),
                Body::Answer(_, answer) => self.on_answer(call, answer),
            }
        }
    }

    fn on_question(&mut self, asker: u32, call: u64, shard: u32, what: What) {
        let waiter = Waiter::Client { node: asker, call };
        let answer = match what {
            What::Open => {
                return self.part(shard).queue.push_back(Submission { from: From::Opening, id: 0, waiter });
            }
            What::Update { session: id, number, id: update } => {
                let from = From::Session { id, number };
                return self.part(shard).queue.push_back(Submission { from, id: update, waiter });
            }
            What::Query { view } => {
                let until = self.shared.pause(QUERY_PATIENCE);
                return self.desk.queries.push_back(Query { shard, view, asker, call, until });
            }
            What::State { .. } if self.shared.plan.hanging == Some(self.node) => return,
            What::State { since } => match self.part(shard).replica.give(since) {
                Give::State(gift) => {
                    let done_at = self.shared.pause(self.shared.plan.transfer_max);
                    return self.desk.giving.push(Giving { to: asker, call, gift, done_at });
                }
                Give::NotYet => Answer::NotYet,
            },
        };
        self.answer(asker, call, answer);
    }

    fn answer(&self, asker: u32, call: u64, answer: Answer) {
        let view = self.view.as_ref().map_or(0, |view| view.id);
        self.shared.post(self.node, asker, call, Body::Answer(view, answer));
    }

    /// What somebody waited for is known.
    fn tell(&mut self, waiter: Waiter, shard: u32, answer: Answer) {
        let id = match waiter {
            Waiter::Client { node, call } => return self.answer(node, call, answer),
            Waiter::Own(id) => id,
        };
        let mut history = self.shared.history.borrow_mut();
        match answer {
            Answer::Applied(place, at) => {
                let said = history.on_reply(id, shard, place, (self.node, at), self.node);
                self.shared.check(said);
            }
            Answer::Failed => history.tally.unknown += 1,
            // Not here, not now, not any more.
            _ => history.deny(id),
        }
    }

    fn on_answer(&mut self, call: u64, answer: Answer) {
        let Some(place) = self.questions.iter().position(|question| question.call == call) else { return };
        let Question { shard, .. } = self.questions.swap_remove(place);
        self.pause(shard);
        if let Answer::State(gift) = answer {
            self.take_over(shard, gift);
        }
    }

    /// A state has come, now or while the view was changing.
    fn take_over(&mut self, shard: u32, gift: Gift<List>) -> bool {
        match self.part(shard).take_over(gift) {
            Ok(Some(TakeOver::Taken)) => {
                self.shared.history.borrow_mut().tally.transfers += 1;
                self.pauses.remove(&shard);
                self.has_state_news = true;
            }
            Ok(Some(TakeOver::NotWanted)) => {}
            Ok(None) => return false,
            Err(error) => {
                self.shared.check(Err(Violation { checker: "objects", text: error.to_string() }));
            }
        }
        true
    }

    /// States that came while the view was changing.
    fn take_over_late(&mut self) -> bool {
        let mut worked = false;
        for shard in 0..self.shared.plan.shards {
            if let Some(gift) = self.part(shard).late.take() {
                worked |= self.take_over(shard, gift);
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
            let id = self.shared.history.borrow_mut().id();
            let own = Submission { from: From::Own, id, waiter: Waiter::Own(id) };
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
            self.shared.check(history.on_answer(shard, view, (self.node, at), self.node, list));
        }
    }

    fn send_updates(&mut self) -> bool {
        let mut worked = false;
        for shard in 0..self.shared.plan.shards {
            let (sent, refused) = self.part(shard).send();
            worked |= sent || !refused.is_empty();
            refused.into_iter().for_each(|(waiter, why)| self.tell(waiter, shard, why));
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
            let mut told = Vec::new();
            let history = Rc::clone(&self.shared.history);
            let part = self.part(shard);
            match part.turn(1 + prng.below(8), &mut history.borrow_mut(), &mut told) {
                Ok(taken) => worked |= taken,
                Err(violation) => self.shared.check(Err(violation)),
            }
            told.into_iter().for_each(|(waiter, answer)| self.tell(waiter, shard, answer));
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
            let told = self.part(shard).stop();
            told.into_iter().for_each(|(waiter, answer)| self.tell(waiter, shard, answer));
        }
    }

    fn check_states(&self) {
        let history = self.shared.history.borrow();
        for part in &self.parts {
            if let (Some(list), Some(at)) = (part.replica.machine(), part.replica.position()) {
                self.shared.check(history.on_state(self.node, part.shard, at, list));
            }
        }
    }

    /// Says which states it has, and whether it takes any for lost.
    fn take_stock(&self) {
        let mut history = self.shared.history.borrow_mut();
        let office = self.shared.office.borrow();
        for part in &self.parts {
            let replica = &part.replica;
            let (view, lives) = (replica.view(), |node: u32| office.lives(node));
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
            let is_open = self.questions.iter().any(|question| question.shard == shard);
            let next = self.next_question.get(&shard);
            if is_open || self.has_ended || next.is_some_and(|next| now < *next) {
                continue;
            }
            let part = &mut self.parts[shard as usize];
            if part.late.is_some() {
                continue;
            }
            let Some((NodeId(asked), since)) = part.replica.ask() else { continue };
            self.calls += 1;
            let (call, until) = (self.calls, self.shared.pause(self.shared.plan.patience));
            self.questions.push(Question { shard, asked, call, until });
            self.shared.post(self.node, asked, call, Body::Ask(shard, What::State { since }));
            worked = true;
        }
        worked
    }

    /// Waits before the next question. Pauses grow, as in `squall::object`.
    fn pause(&mut self, shard: u32) {
        let most = self.pauses.entry(shard).or_insert(ASK_PAUSE);
        let next = self.shared.pause(*most);
        *most = (*most * 2).min(ASK_PAUSE_MAX);
        self.next_question.insert(shard, next);
    }

    /// Gives up questions that are not answered.
    fn give_up(&mut self, now: Instant) -> bool {
        let over: Vec<Question> = self.questions.extract_if(.., |question| question.until <= now).collect();
        for Question { shard, asked, .. } in &over {
            self.pause(*shard);
            let part = self.part(*shard);
            if part.replica.is_waiting() && !self.shared.office.borrow().lives(*asked) {
                self.shared.history.borrow_mut().tally.interrupted += 1;
            }
        }
        !over.is_empty()
    }
}

impl Member {
    /// Whether it holds the state of a shard, if it is in it.
    pub(super) fn holds(&self, shard: u32) -> Option<bool> {
        let part = &self.parts[shard as usize];
        part.since.map(|_| part.replica.position().is_some())
    }

    /// What it waits for, in words.
    pub(super) fn is_waiting_for(&self, is_stuck: impl Fn(u32) -> bool) -> Option<String> {
        if !self.desk.queries.is_empty() {
            return Some("it owes answers to queries".into());
        }
        let parts = self.parts.iter().filter(|part| !is_stuck(part.shard));
        parts.into_iter().find_map(|part| Some(format!("shard {}: {}", part.shard, part.is_waiting_for()?)))
    }
}

impl Application for Member {
    type Deliver = NoUpcall;

    fn outlet(&mut self, id: SubgroupId) -> Outlet<NoUpcall> {
        let view = self.view.as_ref().expect("it is installed first").id;
        self.part(id.0).seat(view);
        Outlet::Pull
    }

    fn install(&mut self, view: &View, placements: &[Placement], _unplaced: &[Unplaced]) {
        let result = self.shared.watch.borrow_mut().views.on_install(NodeId(self.node), view, placements);
        self.shared.check(result);
        self.shared.office.borrow_mut().announce(self.node, view);
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
        self.part(id.0).unseat();
    }
}

impl Program for Member {
    fn send(&mut self, _now: Instant, prng: &mut Prng) -> bool {
        let now = self.shared.now();
        let mut worked = self.take_letters();
        if worked {
            self.take_stock();
        }
        worked |= self.act(now, prng);
        self.send_updates() | worked
    }

    fn consume(&mut self, _now: Instant, prng: &mut Prng) -> bool {
        let now = self.shared.now();
        let mut worked = self.take(now, prng);
        let answers = self.desk.answers(now, &self.parts);
        worked |= !answers.is_empty();
        answers.into_iter().for_each(|(asker, call, answer)| self.answer(asker, call, answer));
        worked |= self.take_over_late();
        worked |= self.ask(now);
        if worked {
            self.take_stock();
        }
        worked
    }

    fn end(&mut self) {
        self.has_ended = true;
        self.shared.office.borrow_mut().withdraw(self.node);
        let plan = &self.shared.plan.group;
        // Who is taken for dead on its way out says that it has left, too.
        let leaves = plan.leaves.iter().any(|(leaver, _)| *leaver == self.node);
        let has_left = leaves && !plan.has_false_suspicion();
        let group = self.view.as_ref().map_or_else(Vec::new, View::nodes);
        let office = self.shared.office.borrow();
        self.shared.history.borrow_mut().on_end(self.node, has_left, &group, |node| office.lives(node));
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let world = self.shared.now();
        let letters = self.shared.office.borrow().next_at(self.node);
        let own = Some(self.next_own).filter(|_| self.unsent > 0 && !self.has_ended && self.view.is_some());
        let take = Some(self.next_take).filter(|next| *next > world);
        let questions = self.questions.iter().map(|question| question.until);
        let wants = |part: &&Part| part.replica.is_waiting() && part.late.is_none();
        let is_open = |part: &&Part| self.questions.iter().any(|question| question.shard == part.shard);
        let next = |part: &Part| self.next_question.get(&part.shard).copied().unwrap_or(world);
        let ask = self.parts.iter().filter(|_| !self.has_ended).filter(wants).filter(|part| !is_open(part));
        let ask = ask.map(next).filter(|next| *next > world);
        let all = letters.into_iter().chain(own).chain(take).chain(questions).chain(ask);
        all.chain(self.desk.next_at()).min().map(|at| self.shared.by_clock(at, now))
    }

    fn is_done(&self) -> bool {
        self.unsent == 0 && self.is_waiting_for(|_| false).is_none()
    }
}

/// How long a query waits for this member to come to the asker's view, at most.
const QUERY_PATIENCE: Duration = Duration::from_micros(300);
/// Between two questions about a shard.
const ASK_PAUSE: Duration = Duration::from_micros(100);
const ASK_PAUSE_MAX: Duration = Duration::from_micros(6_400);
