//! One member's part of one shard: the shipped cores, and the way of its updates into the group. What `squall::object` does
//! with threads is done here in turns (Derecho app. A, §3.4).

use std::collections::VecDeque;

use squall_fabric::{Instant, NodeId};
use squall_protocols::group::Succession;
use squall_protocols::membership::View;
use squall_protocols::multicast::Pull;
use squall_protocols::replica::{
    Applied, Delivery, Hindrance, Holding, Machine as _, Outbox, Outcome, Position, Queries, Replica,
    ShardAnswer, ShardView, Source, StateTransfer, TakeOver, Turn, Turns,
};

use super::history::History;
use super::list::{List, update};
use super::office::Call;
use super::plan::Plan;
use crate::run::Violation;

/// Who waits for an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    /// This member itself, for an update with this id, at this place in the history.
    Own(u64, usize),
    /// A client, for the answer to a question.
    Client(Call),
}

/// An update that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Submission {
    pub(super) source: Source,
    pub(super) id: u64,
    pub(super) waiter: Waiter,
}

/// What is to be told to somebody, by a member that has come so far.
pub(super) type Told = (Waiter, ShardAnswer, Option<Position>);

pub(super) struct Part {
    node: NodeId,
    pub(super) shard: u32,
    pub(super) replica: Replica<List>,
    outbox: Outbox<Waiter>,
    pub(super) queries: Queries<Call>,
    pub(super) transfer: StateTransfer<List>,
    pub(super) succession: Succession,
    /// Since which view this member is in the shard, as the group knows, and as the one who applies updates knows.
    seated: Option<u64>,
    pub(super) since: Option<u64>,
    turns: Turns<Pull>,
    pull: Option<Pull>,
    /// What counts when a view ends.
    pub(super) holding: Holding,
    /// What waits for room in the window.
    pub(super) queue: VecDeque<Submission>,
    /// Bytes that a newcomer keeps at most before senders wait.
    waiting_bytes_max: usize,
    has_stopped: bool,
}

impl Part {
    pub(super) fn new(node: NodeId, shard: u32, plan: &Plan) -> Self {
        Self {
            node,
            shard,
            replica: Replica::new(node, plan.settings()),
            outbox: Outbox::new(plan.message_max()),
            queries: Queries::new(plan.query_patience()),
            transfer: StateTransfer::new(plan.transfer_settings()),
            succession: Succession::default(),
            seated: None,
            since: None,
            turns: Turns::default(),
            pull: None,
            holding: Holding::default(),
            queue: VecDeque::new(),
            waiting_bytes_max: plan.waiting_bytes_max,
            has_stopped: false,
        }
    }

    /// The group installs a view.
    pub(super) fn install(&mut self, view: &View, members: Vec<NodeId>) {
        let stay = members.contains(&self.node).then(|| self.seated.unwrap_or(view.id));
        self.holding.begin_view(view.id, stay, !view.holders(self.shard).is_empty());
        self.turns.begin_view(view, members);
    }

    /// This member has come into the shard with a view.
    pub(super) const fn seat(&mut self, view: u64) {
        self.seated = Some(view);
    }

    pub(super) fn take_pull(&mut self, pull: Pull) {
        self.turns.push(pull);
    }

    /// The group says that this member is no longer in the shard.
    pub(super) const fn unseat(&mut self) {
        self.seated = None;
    }

    /// Whether an update can be sent, or waits for nothing but room.
    pub(super) const fn may_send(&self) -> bool {
        self.outbox.is_open() && !self.has_stopped
    }

    /// Sends what there is room for; returns whether anything was taken, and what was refused.
    pub(super) fn send(&mut self) -> (bool, Vec<Told>) {
        let (mut sent, mut refused) = (false, Vec::new());
        while let Some(Submission { source, id, waiter }) = self.queue.front().copied() {
            let (succession, seated) = (&mut self.succession, self.seated);
            let take_writer = || succession.take_writer().zip(seated);
            match self.outbox.submit(source, &update(id), &mut Some(waiter), take_writer) {
                Ok(()) => sent = true,
                Err(Hindrance::Full) => break,
                Err(Hindrance::NotHere) => refused.push((waiter, self.replica.refusal(), None)),
                Err(Hindrance::Ended) => refused.push((waiter, ended(), None)),
                Err(Hindrance::TooLong { .. }) => unreachable!("the scenario's updates fit"),
            }
            self.queue.pop_front();
        }
        let (succession, seated) = (&mut self.succession, self.seated);
        // What finds no room now goes with the next ones.
        let _ = self.outbox.flush(|| succession.take_writer().zip(seated));
        (sent, refused)
    }

    /// Takes up to `batch` messages, or begins the next view; whether there was anything.
    pub(super) fn turn(
        &mut self,
        batch: u64,
        history: &mut History,
        told: &mut Vec<Told>,
    ) -> Result<bool, Violation> {
        self.outbox.drop_closed();
        // Asked before looking, so that what was delivered until then is not missed.
        let closed = self.pull.as_ref().is_none_or(Pull::is_closed);
        if self.take_messages(batch, closed, history, told)? {
            return Ok(true);
        }
        if !closed {
            return Ok(false);
        }
        match self.turns.pop() {
            Some(Turn::Messages(pull)) => self.pull = Some(pull),
            Some(Turn::View(view, members)) => {
                self.pull = None;
                told.extend(self.begin_view(&view, members));
            }
            None => return Ok(false),
        }
        Ok(true)
    }

    fn take_messages(
        &mut self,
        batch: u64,
        closed: bool,
        history: &mut History,
        told: &mut Vec<Told>,
    ) -> Result<bool, Violation> {
        let Some(pull) = &mut self.pull else { return Ok(false) };
        let mut taken = 0;
        // Of an ended view all is taken: see the same place in `squall::object`.
        while taken < batch && (closed || self.replica.bytes_waiting() <= self.waiting_bytes_max) {
            // What is corrupt ends the group, which the cluster sees.
            let Ok(Some(message)) = pull.next_message() else { break };
            let (view, sender, sequence, bytes) =
                (message.view, message.sender, message.sequence, message.bytes);
            history.on_delivery(self.shard, Position { view, sequence: sequence + 1 }, bytes)?;
            let outbox = &mut self.outbox;
            let mut own = Vec::new();
            let message = Delivery { view, sender, sequence, bytes };
            self.replica
                .deliver(message, |origin, applied| own.push((outbox.deliver(origin), answer(applied))));
            let at = self.replica.position();
            told.extend(own.into_iter().map(|(waiter, answer)| (waiter, answer, at)));
            taken += 1;
        }
        pull.release();
        Ok(taken > 0)
    }

    fn begin_view(&mut self, view: &View, members: Vec<NodeId>) -> Vec<Told> {
        let is_in = members.contains(&self.node);
        self.since = if is_in { self.since.or(Some(view.id)) } else { None };
        let holders = view.holders(self.shard);
        let view = ShardView { id: view.id, group: view.nodes(), members, holders };
        self.replica.begin_view(view, List::default);
        let stays = self.replica.may_send_since().is_some();
        let left = if stays { Vec::new() } else { self.outbox.leave() };
        self.permit();
        left.into_iter().map(|waiter| (waiter, ShardAnswer::NotYet, None)).collect()
    }

    fn permit(&mut self) {
        if let Some(since) = self.replica.may_send_since() {
            self.outbox.begin(since);
        }
    }

    /// Takes over a state that has come, if the view lets it.
    pub(super) fn take_over(&mut self, now: Instant) -> Option<TakeOver> {
        let holding = &mut self.holding;
        let taken = self.transfer.poll_take_over(now, &mut self.replica, |since| holding.hold(since));
        self.permit();
        taken
    }

    /// The group has ended here, and all that came is taken.
    pub(super) fn stop(&mut self) -> Vec<Told> {
        if std::mem::replace(&mut self.has_stopped, true) {
            return Vec::new();
        }
        let (outcomes, queued) = (self.outbox.stop(), self.queue.drain(..));
        let told = outcomes.into_iter().map(|(waiter, outcome)| match outcome {
            Outcome::NotDelivered => (waiter, ShardAnswer::NotYet, None),
            _ => (waiter, ended(), None),
        });
        let queries = self.queries.end().into_iter().map(|call| (Waiter::Client(call), ended(), None));
        told.chain(queued.map(|next| (next.waiter, ShardAnswer::NotYet, None))).chain(queries).collect()
    }

    /// What it waits for, in words.
    pub(super) fn is_waiting_for(&self) -> Option<&'static str> {
        match () {
            () if self.replica.is_waiting() => Some("for the state"),
            () if !self.turns.is_empty() => Some("for the end of a view"),
            () if !self.queue.is_empty() => Some("for room in the window"),
            () if !self.outbox.is_empty() => Some("for the outcome of its updates"),
            () => None,
        }
    }
}

fn ended() -> ShardAnswer {
    ShardAnswer::Failed("the group has ended here".into())
}

fn answer(applied: Applied<u64>) -> ShardAnswer {
    match applied {
        Applied::Reply(place) => ShardAnswer::Reply(List::encode(&place)),
        Applied::Session(answer) => answer.into(),
        Applied::Query(reply) => ShardAnswer::Reply(reply),
    }
}
