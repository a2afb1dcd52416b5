//! A client of one shard: what it sends to which member, and how it handles the answers (Derecho app. A: external
//! clients).
//!
//! It runs in processes outside the group, and at members that are not in the shard. Many updates are in flight at a
//! time, in order, to one member after the other.
//!
//! **State** of a [`ShardClient`]: the tasks that are not answered yet, updates in their order and queries; the
//! *session*, by which an update counts once; the *conversation*: the member that is asked, and the call with which
//! each request was sent. A call belongs to one conversation: when that ends, answers to its calls no longer count.
//!
//! **Step order.** [`ShardClient::submit`] for each task; [`ShardClient::handle_members`] when the shard's members
//! have changed; then [`ShardClient::poll_action`] until it returns none, and again after each
//! [`ShardClient::handle_answer`] and [`ShardClient::handle_failure`], and when [`ShardClient::next_deadline`] has
//! come.
//! 1. A conversation begins with the next member in turn. Requests are sent over one connection in their order: to open a
//!    session, if there is none, then updates, numbered in the session, and at any time queries.
//! 2. An update states how many before it are open, so that members apply them in order, and know which ones are
//!    given up \[A11\].
//! 3. If the member refuses, fails, or is silent for too long, the conversation ends: requests without an answer are
//!    sent again to the next member, under the same numbers \[A3\]. After a round of failures it asks for the
//!    members, and pauses.
//! 4. If the session was forgotten, updates that were sent only in this conversation are not applied: they are sent
//!    in a new session. For updates that had been sent before, it is unknown \[A4\].
//! 5. An update without an answer in time is given up: its outcome is unknown, if it was ever sent, and its number is
//!    skipped.

use std::collections::VecDeque;
use std::sync::Arc;

use squall_fabric::{Duration, Instant, NodeId};

use super::message::{ShardAnswer, ShardRequest};
use super::mutation;
use super::sessions::OPEN_MAX;
use crate::coverage::{Point, reach};

/// The settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientSettings {
    /// The largest number of updates that are sent and not answered yet.
    pub under_way_max: usize,
    /// How long an update or a query is tried.
    pub timeout: Duration,
    /// How long a member that owes answers may be silent.
    pub silence_max: Duration,
    /// The pause between rounds of requests to all members.
    pub pause: Duration,
}

/// A task for a client.
#[derive(Clone, Debug)]
pub enum Task {
    /// Apply this update.
    Update(Arc<[u8]>),
    /// To answer this query.
    Query(Arc<[u8]>),
    /// Answer this query from a state that includes every update acknowledged to any caller before.
    Latest(Arc<[u8]>),
}

/// The outcome of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// The reply.
    Reply(Vec<u8>),
    /// It is applied, and the reply had this number of bytes, which is more than members keep.
    ReplyTooLong(u64),
    /// It may or may not be applied.
    Unknown(Doubt),
    /// It is not applied, for the reason for which the last member did not take it.
    Unreachable(String),
    /// It is not applied, and never will be, for the reason that the member gives.
    Refused(String),
    /// The shard's state is lost, which these members held last.
    Lost(Vec<NodeId>),
}

/// Why it is not known whether an update is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// There was no answer in time.
    TimeOver,
    /// The shard has forgotten the session, because too many others were opened.
    Forgotten,
    /// Members skipped it, although it was not given up, which violates \[A11\].
    PassedOver,
}

/// An action for a client's driver.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientAction<T> {
    /// Send this request to a member, after those before it. If there is no connection to that member, connect, and
    /// close the connection to another one; if that fails, call [`ShardClient::handle_failure`].
    Ask {
        /// The member.
        node: NodeId,
        /// The number by which its answer is recognised.
        call: u64,
        /// The request.
        request: ShardRequest,
    },
    /// Close the connection to this member, which is silent.
    HangUp(NodeId),
    /// Ask for the current members: none of those that are known has taken a request.
    AskForMembers,
    /// Report the outcome to the waiter.
    Done(T, TaskOutcome),
}

#[derive(Debug)]
struct Wanted<T> {
    ticket: T,
    bytes: Arc<[u8]>,
    /// For queries: whether the answer is to include all updates acknowledged before.
    is_latest: bool,
    until: Instant,
    /// The call by which it was sent in this conversation.
    call: Option<u64>,
    /// For updates: the number in the session, from 1; and whether a member of an earlier conversation may have
    /// passed it on.
    number: Option<u64>,
    is_open: bool,
}

impl<T> Wanted<T> {
    /// Notes that the conversation has ended.
    fn unsend(&mut self) {
        self.is_open |= self.call.take().is_some();
    }
}

#[derive(Clone, Copy, Debug)]
enum Session {
    None,
    /// It was requested by this call.
    Opening(u64),
    Open {
        id: u64,
        /// The next number to assign.
        next: u64,
    },
}

/// A client of one shard, see the module's documentation; `T` stands for the waiter of a task.
#[derive(Debug)]
pub struct ShardClient<T> {
    settings: ClientSettings,
    view: u64,
    members: Vec<NodeId>,
    updates: VecDeque<Wanted<T>>,
    queries: VecDeque<Wanted<T>>,
    session: Session,
    /// The member of the current conversation.
    asked: Option<NodeId>,
    /// The member of the previous conversation.
    left: Option<NodeId>,
    /// When it last sent an answer, or was first asked.
    heard: Instant,
    calls: u64,
    /// The number of the next member, counted cyclically.
    next_member: usize,
    failures: usize,
    /// No member is asked before this time.
    paused_until: Option<Instant>,
    wants_members: bool,
    /// Why the last member did not take a request.
    cause: String,
    actions: VecDeque<ClientAction<T>>,
}

impl<T> ShardClient<T> {
    /// Returns a client that knows no member yet.
    #[must_use]
    pub fn new(settings: ClientSettings) -> Self {
        Self {
            settings,
            view: 0,
            members: Vec::new(),
            updates: VecDeque::new(),
            queries: VecDeque::new(),
            session: Session::None,
            asked: None,
            left: None,
            heard: Instant::from_nanos(0),
            calls: 0,
            next_member: 0,
            failures: 0,
            paused_until: None,
            wants_members: false,
            cause: "the shard has no members".into(),
            actions: VecDeque::new(),
        }
    }

    /// Returns the number of tasks without an outcome.
    #[must_use]
    pub fn len(&self) -> usize {
        self.updates.len() + self.queries.len()
    }

    /// Returns whether there is no task without an outcome.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the view whose members it uses.
    #[must_use]
    pub const fn view(&self) -> u64 {
        self.view
    }

    /// Sets the shard's members in a view, as far as they are known.
    pub fn handle_members(&mut self, view: u64, members: Vec<NodeId>) {
        (self.view, self.members) = (view, members);
    }

    /// Takes a task; its outcome is reported with `ticket`.
    pub fn submit(&mut self, now: Instant, ticket: T, task: Task) {
        let until = now + self.settings.timeout;
        let is_latest = matches!(task, Task::Latest(_)) && !mutant!(AskOutOfOrder);
        let (queue, bytes) = match task {
            Task::Update(bytes) => (&mut self.updates, bytes),
            Task::Query(bytes) | Task::Latest(bytes) => (&mut self.queries, bytes),
        };
        queue.push_back(Wanted { ticket, bytes, is_latest, until, call: None, number: None, is_open: false });
    }

    /// Returns the next action.
    pub fn poll_action(&mut self, now: Instant) -> Option<ClientAction<T>> {
        self.expire(now);
        self.listen(now);
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if self.is_empty() {
            return None;
        }
        if std::mem::take(&mut self.wants_members) {
            return Some(ClientAction::AskForMembers);
        }
        if self.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        self.paused_until = None;
        let Some(node) = self.asked.or_else(|| self.next_member()) else {
            self.end_conversation(now);
            return None;
        };
        let (call, request) = self.next_request()?;
        if self.asked.replace(node).is_none() || !self.is_owed_but(call) {
            self.heard = now;
        }
        Some(ClientAction::Ask { node, call, request })
    }

    /// Returns the next member in turn, but not the one that has just failed if there is another.
    fn next_member(&self) -> Option<NodeId> {
        let first = self.next_member.checked_rem(self.members.len())?;
        let mut order = self.members[first..].iter().chain(&self.members[..first]).copied();
        order.find(|node| self.left != Some(*node)).or_else(|| self.members.first().copied())
    }

    /// Returns whether the member owes an answer to another call.
    fn is_owed_but(&self, call: u64) -> bool {
        let calls = self.updates.iter().chain(&self.queries).filter_map(|wanted| wanted.call);
        calls.chain(self.opening()).any(|other| other != call)
    }

    const fn opening(&self) -> Option<u64> {
        match self.session {
            Session::Opening(call) => Some(call),
            _ => None,
        }
    }

    fn next_request(&mut self) -> Option<(u64, ShardRequest)> {
        let call = self.calls + 1;
        let request = self.next_query(call).or_else(|| self.next_update(call))?;
        self.calls = call;
        Some((call, request))
    }

    fn next_query(&mut self, call: u64) -> Option<ShardRequest> {
        let query = self.queries.iter_mut().find(|query| query.call.is_none())?;
        query.call = Some(call);
        let (view, bytes) = (self.view, Arc::clone(&query.bytes));
        Some(match query.is_latest {
            true => ShardRequest::Latest { query: bytes },
            false => ShardRequest::Query { view, query: bytes },
        })
    }

    fn next_update(&mut self, call: u64) -> Option<ShardRequest> {
        let first = self.updates.front()?;
        let (session, next) = match &mut self.session {
            Session::None => {
                self.session = Session::Opening(call);
                return Some(ShardRequest::Open);
            }
            Session::Opening(_) => return None,
            Session::Open { id, next } => (*id, next),
        };
        let oldest = first.number.unwrap_or(*next);
        let most = self.settings.under_way_max.clamp(1, OPEN_MAX as usize);
        let place = self.updates.iter().take(most).position(|update| update.call.is_none())?;
        let update = &mut self.updates[place];
        let number = update.number.unwrap_or(*next);
        *next = (*next).max(number + 1);
        (update.call, update.number) = (Some(call), Some(number));
        if place > 0 {
            reach(Point::UpdatesUnderWay);
        }
        let mut open = u32::try_from(number - oldest).unwrap_or(OPEN_MAX);
        mutant!(SkipUnanswered => open = 0);
        Some(ShardRequest::Update { session, number, open, update: Arc::clone(&update.bytes) })
    }

    /// Gives up tasks without an answer in time.
    fn expire(&mut self, now: Instant) {
        for queue in [&mut self.updates, &mut self.queries] {
            // The oldest expires first, because all are tried for the same time.
            while let Some(first) = queue.pop_front_if(|first| first.until <= now) {
                let may_be_applied = first.number.is_some() && (first.is_open || first.call.is_some());
                let outcome = if may_be_applied && !mutant!(DenySent) {
                    reach(Point::UpdateGivenUp);
                    TaskOutcome::Unknown(Doubt::TimeOver)
                } else {
                    TaskOutcome::Unreachable(self.cause.clone())
                };
                self.actions.push_back(ClientAction::Done(first.ticket, outcome));
            }
        }
    }

    /// Ends a conversation in which the member is silent for too long.
    fn listen(&mut self, now: Instant) {
        if let Some(node) = self.asked
            && self.is_owed_but(0)
            && now >= self.heard + self.settings.silence_max
        {
            reach(Point::MemberSilent);
            self.actions.push_back(ClientAction::HangUp(node));
            self.cause = format!("{node} did not answer in time");
            self.end_conversation(now);
        }
    }

    /// Ends the conversation: requests that were sent and not answered are sent to the next member.
    fn end_conversation(&mut self, now: Instant) {
        self.left = self.asked.take();
        if let Session::Opening(_) = self.session {
            self.session = Session::None;
        }
        self.updates.iter_mut().chain(&mut self.queries).for_each(Wanted::unsend);
        reach(Point::MemberChanged);
        self.next_member += 1;
        self.failures += 1;
        if self.failures.is_multiple_of(self.members.len().max(1)) {
            self.wants_members = true;
            self.paused_until = Some(now + self.settings.pause);
        }
    }

    /// Notes that the connection to a member has failed, or could not be made, and why.
    pub fn handle_failure(&mut self, now: Instant, node: NodeId, why: &str) {
        if self.asked == Some(node) {
            self.cause = format!("{node}: {why}");
            self.end_conversation(now);
        }
    }

    /// Sets the reason why no member can be asked, for tasks that expire now.
    pub fn set_cause(&mut self, cause: String) {
        self.cause = cause;
    }

    /// Handles a member's answer to a call.
    pub fn handle_answer(&mut self, now: Instant, call: u64, answer: ShardAnswer) {
        if self.opening() == Some(call) {
            return self.handle_opened(now, answer);
        }
        let has_call = |wanted: &Wanted<T>| wanted.call == Some(call);
        if let Some(place) = self.queries.iter().position(has_call) {
            return self.handle_query_answer(now, place, answer);
        }
        let Some(place) = self.updates.iter().position(has_call) else { return };
        self.heard = now;
        let outcome = match answer {
            ShardAnswer::Reply(reply) => TaskOutcome::Reply(reply),
            ShardAnswer::ReplyTooLong(bytes) => TaskOutcome::ReplyTooLong(bytes),
            ShardAnswer::Overtaken => TaskOutcome::Unknown(Doubt::PassedOver),
            ShardAnswer::Refused(why) => TaskOutcome::Refused(why),
            ShardAnswer::Forgotten => return self.forget_session(place),
            answer => {
                if !matches!(answer, ShardAnswer::Failed(_)) {
                    // It was not applied by this call.
                    self.updates[place].call = None;
                }
                return self.handle_rest(now, answer);
            }
        };
        self.failures = 0;
        let update = self.updates.remove(place).expect("it was found");
        self.actions.push_back(ClientAction::Done(update.ticket, outcome));
    }

    fn handle_opened(&mut self, now: Instant, answer: ShardAnswer) {
        self.heard = now;
        match answer {
            ShardAnswer::Opened(id) => {
                self.failures = 0;
                self.session = Session::Open { id, next: 1 };
            }
            answer => self.handle_rest(now, answer),
        }
    }

    fn handle_query_answer(&mut self, now: Instant, place: usize, answer: ShardAnswer) {
        self.heard = now;
        let outcome = match answer {
            ShardAnswer::Reply(reply) => TaskOutcome::Reply(reply),
            ShardAnswer::Refused(why) => TaskOutcome::Refused(why),
            answer => return self.handle_rest(now, answer),
        };
        self.failures = 0;
        let query = self.queries.remove(place).expect("it was found");
        self.actions.push_back(ClientAction::Done(query.ticket, outcome));
    }

    /// Handles the answer that the session was forgotten when the update at `place` arrived. Nothing of the session
    /// is applied from then on, so neither are the updates that were sent after it.
    fn forget_session(&mut self, place: usize) {
        self.failures = 0;
        self.session = Session::None;
        // Updates that were sent before it in this conversation arrived before it, and have no answer yet.
        self.updates.iter_mut().take(place).for_each(Wanted::unsend);
        for mut update in std::mem::take(&mut self.updates) {
            if update.is_open && !mutant!(SendAgainInNewSession) {
                let outcome = TaskOutcome::Unknown(Doubt::Forgotten);
                self.actions.push_back(ClientAction::Done(update.ticket, outcome));
                continue;
            }
            if update.number.is_some() {
                reach(Point::SentInNewSession);
            }
            (update.call, update.number, update.is_open) = (None, None, false);
            self.updates.push_back(update);
        }
    }

    /// Handles an answer of a member that has not done what was asked.
    fn handle_rest(&mut self, now: Instant, answer: ShardAnswer) {
        let node = self.asked.map_or_else(String::new, |node| node.to_string());
        self.cause = match answer {
            ShardAnswer::Lost(holders) => {
                let all = self.updates.drain(..).chain(self.queries.drain(..));
                let done =
                    all.map(|wanted| ClientAction::Done(wanted.ticket, TaskOutcome::Lost(holders.clone())));
                self.actions.extend(done);
                return;
            }
            ShardAnswer::NotYet => format!("{node} has no state yet"),
            ShardAnswer::Elsewhere => format!("{node} is not in the shard"),
            ShardAnswer::Early => format!("{node} lacks an earlier update"),
            ShardAnswer::Failed(why) => format!("{node}: {why}"),
            answer => {
                format!("{node} sent an unexpected answer, {answer:?}: run the same release everywhere")
            }
        };
        self.end_conversation(now);
    }

    /// Returns when [`ShardClient::poll_action`] has to be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let ends = [&self.updates, &self.queries].into_iter().filter_map(VecDeque::front);
        let ends = ends.map(|first| first.until);
        let silence = self.asked.filter(|_| self.is_owed_but(0));
        let silence = silence.map(|_| self.heard + self.settings.silence_max);
        ends.chain(silence).chain(self.paused_until.filter(|_| !self.is_empty())).min()
    }
}

#[cfg(test)]
mod tests;
