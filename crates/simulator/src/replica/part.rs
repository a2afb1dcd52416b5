//! One member's part of one shard: the shipped cores, and the way of its updates into the group. What `squall::object` does
//! with threads is done here in turns (Derecho app. A, §3.4).

use std::collections::VecDeque;

use squall_fabric::{Instant, NodeId};
use squall_protocols::group::Succession;
use squall_protocols::membership::View;
use squall_protocols::multicast::Pull;
use squall_protocols::replica::{
    AppliedReply, Hindrance, Holding, Machine as _, Outbox, Queries, Replica, ShardAnswer, ShardDelivery,
    ShardEvent, ShardEvents, ShardPosition, ShardView, SnapshotOutcome, StateTransfer, UpdateOutcome,
    UpdateSource,
};

use super::bus::CallId;
use super::history::UpdateHistory;
use super::list::{AppendList, update};
use super::plan::ReplicaPlan;
use crate::run::Violation;

/// What waits for an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateWaiter {
    /// This member itself, for an update with this id, at this place in the history.
    Own(u64, usize),
    /// A client, for the answer to a question.
    Client(CallId),
}

/// An update that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Submission {
    pub(super) source: UpdateSource,
    pub(super) id: u64,
    pub(super) waiter: UpdateWaiter,
}

/// An answer, for what waits for it, from a member that has come to this position.
pub(super) type PendingReports = (UpdateWaiter, ShardAnswer, Option<ShardPosition>);

pub(super) struct ShardPart {
    node: NodeId,
    pub(super) shard: u32,
    pub(super) replica: Replica<AppendList>,
    outbox: Outbox<UpdateWaiter>,
    pub(super) queries: Queries<CallId>,
    pub(super) transfer: StateTransfer<AppendList>,
    pub(super) succession: Succession,
    /// Since which view this member is in the shard, as the group knows, and as the one who applies updates knows.
    in_shard: Option<u64>,
    pub(super) since: Option<u64>,
    events: ShardEvents<Pull>,
    pull: Option<Pull>,
    /// What counts when a view ends.
    pub(super) holding: Holding,
    /// What waits for space in the window.
    pub(super) queue: VecDeque<Submission>,
    /// Bytes that a joiner keeps at most before senders wait.
    waiting_bytes_max: usize,
    has_stopped: bool,
}

impl ShardPart {
    pub(super) fn new(node: NodeId, shard: u32, plan: &ReplicaPlan) -> Self {
        Self {
            node,
            shard,
            replica: Replica::new(node, plan.settings()),
            outbox: Outbox::new(plan.message_max()),
            queries: Queries::new(plan.query_patience()),
            transfer: StateTransfer::new(plan.transfer_settings()),
            succession: Succession::default(),
            in_shard: None,
            since: None,
            events: ShardEvents::default(),
            pull: None,
            holding: Holding::default(),
            queue: VecDeque::new(),
            waiting_bytes_max: plan.waiting_bytes_max,
            has_stopped: false,
        }
    }

    /// The group installs a view.
    pub(super) fn install(&mut self, view: &View, members: Vec<NodeId>) {
        let stay = members.contains(&self.node).then(|| self.in_shard.unwrap_or(view.id));
        self.holding.begin_view(view.id, stay, !view.holders(self.shard).is_empty());
        self.events.begin_view(view, members);
    }

    /// This member has come into the shard with a view.
    pub(super) const fn enter(&mut self, view: u64) {
        self.in_shard = Some(view);
    }

    pub(super) fn take_pull(&mut self, pull: Pull) {
        self.events.push(pull);
    }

    /// The group says that this member is no longer in the shard.
    pub(super) const fn leave(&mut self) {
        self.in_shard = None;
    }

    /// Whether an update can be sent, or waits for nothing but space.
    pub(super) const fn may_send(&self) -> bool {
        self.outbox.is_open() && !self.has_stopped
    }

    /// Sends what there is space for; returns whether anything was taken, and what was refused.
    pub(super) fn send(&mut self) -> (bool, Vec<PendingReports>) {
        let (mut sent, mut refused) = (false, Vec::new());
        while let Some(Submission { source, id, waiter }) = self.queue.front().copied() {
            let (succession, in_shard) = (&mut self.succession, self.in_shard);
            let take_writer = || succession.take_writer().zip(in_shard);
            let (update, waiter_of) = (update(id), &mut Some(waiter));
            let submitted = match source {
                UpdateSource::Own | UpdateSource::Query => {
                    self.outbox.submit_own(source, &update, waiter_of, take_writer)
                }
                _ => self.outbox.submit(source, &update, waiter_of, take_writer),
            };
            match submitted {
                Ok(()) => sent = true,
                Err(Hindrance::Full) => break,
                Err(Hindrance::NotHere) => refused.push((waiter, self.replica.refusal(), None)),
                Err(Hindrance::Ended) => refused.push((waiter, ended(), None)),
                Err(Hindrance::TooLong { .. }) => unreachable!("the scenario's updates fit"),
            }
            self.queue.pop_front();
        }
        let (succession, in_shard) = (&mut self.succession, self.in_shard);
        // What finds no space now goes with the next ones.
        let _ = self.outbox.flush(|| succession.take_writer().zip(in_shard));
        (sent, refused)
    }

    /// Takes up to `batch` messages, or begins the next view; whether there was anything.
    pub(super) fn step(
        &mut self,
        batch: u64,
        history: &mut UpdateHistory,
        reports: &mut Vec<PendingReports>,
    ) -> Result<bool, Violation> {
        self.outbox.drop_closed();
        // Asked before looking, so that what was delivered until then is not missed.
        let closed = self.pull.as_ref().is_none_or(Pull::is_closed);
        if self.take_messages(batch, closed, history, reports)? {
            return Ok(true);
        }
        if !closed {
            return Ok(false);
        }
        match self.events.pop() {
            Some(ShardEvent::Messages(pull)) => self.pull = Some(pull),
            Some(ShardEvent::View(view, members)) => {
                self.pull = None;
                reports.extend(self.begin_view(&view, members));
            }
            None => return Ok(false),
        }
        Ok(true)
    }

    fn take_messages(
        &mut self,
        batch: u64,
        closed: bool,
        history: &mut UpdateHistory,
        reports: &mut Vec<PendingReports>,
    ) -> Result<bool, Violation> {
        let Some(pull) = &mut self.pull else { return Ok(false) };
        let mut taken = 0;
        // Of an ended view all is taken: see the same place in `squall::object`.
        while taken < batch && (closed || self.replica.bytes_waiting() <= self.waiting_bytes_max) {
            // What is corrupt ends the group, which the cluster sees.
            let Ok(Some(message)) = pull.next_message() else { break };
            let (view, sender, sequence, bytes) =
                (message.view, message.sender, message.sequence, message.bytes);
            history.on_delivery(self.shard, ShardPosition { view, sequence: sequence + 1 }, bytes)?;
            let outbox = &mut self.outbox;
            let mut own = Vec::new();
            let message = ShardDelivery { view, sender, sequence, bytes };
            self.replica
                .deliver(message, |origin, applied| own.push((outbox.deliver(origin), answer(applied))));
            let at = self.replica.position();
            reports.extend(own.into_iter().map(|(waiter, answer)| (waiter, answer, at)));
            taken += 1;
        }
        pull.release();
        Ok(taken > 0)
    }

    fn begin_view(&mut self, view: &View, members: Vec<NodeId>) -> Vec<PendingReports> {
        let is_in = members.contains(&self.node);
        self.since = if is_in { self.since.or(Some(view.id)) } else { None };
        let holders = view.holders(self.shard);
        let view = ShardView { id: view.id, group: view.nodes(), members, holders, is_first: view.id == 0 };
        self.replica.begin_view(view, AppendList::default);
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
    pub(super) fn take_over(&mut self, now: Instant) -> Option<SnapshotOutcome> {
        let holding = &mut self.holding;
        let taken = self.transfer.poll_take_over(now, &mut self.replica, |since| holding.hold(since));
        self.permit();
        taken
    }

    /// The group has ended here, and all that came is taken.
    pub(super) fn stop(&mut self) -> Vec<PendingReports> {
        if std::mem::replace(&mut self.has_stopped, true) {
            return Vec::new();
        }
        let (outcomes, queued) = (self.outbox.stop(), self.queue.drain(..));
        let reports = outcomes.into_iter().map(|(waiter, outcome)| match outcome {
            UpdateOutcome::NotDelivered => (waiter, ShardAnswer::NotYet, None),
            _ => (waiter, ended(), None),
        });
        let queries = self.queries.end().into_iter().map(|call| (UpdateWaiter::Client(call), ended(), None));
        reports.chain(queued.map(|next| (next.waiter, ShardAnswer::NotYet, None))).chain(queries).collect()
    }

    /// What it waits for, in words.
    pub(super) fn is_waiting_for(&self) -> Option<&'static str> {
        match () {
            () if self.replica.is_waiting() => Some("for the state"),
            () if !self.events.is_empty() => Some("for the end of a view"),
            () if !self.queue.is_empty() => Some("for space in the window"),
            () if !self.outbox.is_empty() => Some("for the outcome of its updates"),
            () => None,
        }
    }
}

fn ended() -> ShardAnswer {
    ShardAnswer::Failed("the group has ended here".into())
}

fn answer(applied: AppliedReply<u64>) -> ShardAnswer {
    match applied {
        AppliedReply::Reply(place) => ShardAnswer::Reply(AppendList::encode(&place)),
        AppliedReply::Session(answer) => answer.into(),
        AppliedReply::Query(reply) => ShardAnswer::Reply(reply),
    }
}
