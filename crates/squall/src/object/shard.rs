//! One member's part of one shard: the core, and how its updates get into the group (Derecho app. A, §3.4).
//!
//! **Locks.** The core's lock is taken by the thread that applies updates, for a batch, and by threads that answer
//! queries or provide the state; the outbox's lock by threads that send. A thread that needs both takes the core's
//! first. No thread waits while it holds one of them.

use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Poll;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use squall_fabric::mutex::{lock, unless_held, unpoisoned};
use squall_fabric::window::Payload;
use squall_protocols::group::SubgroupId;
use squall_protocols::replica::{
    AppliedReply, CheckpointSchedule, Hindrance, Outbox, Queries, Readiness, Replica, ReplicaSettings,
    ShardAnswer, ShardDelivery, ShardView, StateTransfer, StateTransferSettings, UpdateOrigin, UpdateOutcome,
    UpdateSource,
};

use super::driver::ShardSubgroup;
use super::machine::{Replicated, TypedMachine};
use super::pending::ReplySender;
use super::service::RemoteCall;
use super::versions::Versions;
use super::{ObjectError, ObjectOptions, wire};
use crate::config::Retention;
use crate::handle::node_handle::NodeHandle;
use crate::shared_poller::WeakPoller;
use crate::slot::SubgroupSlot;
use crate::wait::{Waiters, block_on};

pub(super) struct Shard<T: Replicated> {
    /// Its number in the object.
    pub(super) number: usize,
    /// Its subgroup.
    pub(super) subgroup: String,
    pub(super) id: SubgroupId,
    /// Its place among the durable subgroups, if it is one.
    pub(super) durable: Option<usize>,
    /// What its log keeps for earlier versions.
    pub(super) retention: Retention,
    pub(super) slot: Arc<SubgroupSlot>,
    pub(super) link: NodeHandle,
    pub(super) options: Arc<ObjectOptions>,
    /// Of an object whose updates are applied by the threads that poll.
    pub(super) poller: Option<WeakPoller>,
    core: Mutex<ShardCore<T>>,
    /// Signals that the core's readiness may have changed.
    news: Condvar,
    /// Those that wait for the state to change.
    pub(super) changes: Waiters,
    outbox: Mutex<Outbox<ShardWaiter<T::Reply>>>,
    /// What earlier versions are made from.
    pub(super) versions: Versions<T>,
    /// Why nothing can be sent any more, if that is so.
    ended: Mutex<Option<ObjectError>>,
    /// The origin of the times of the cores.
    start: Instant,
}

/// What applies updates, and the requests that wait for it.
pub(super) struct ShardCore<T: Replicated> {
    pub(super) replica: Replica<TypedMachine<T>>,
    pub(super) queries: Queries<RemoteCall>,
    pub(super) transfer: StateTransfer<TypedMachine<T>>,
    pub(super) checkpoints: CheckpointSchedule,
}

impl<T: Replicated> ShardCore<T> {
    /// Reads the object, if it is here, and the view and the sequence number up to which all updates are applied.
    pub(super) fn read<R>(&self, read: impl FnOnce((u64, u64), &T) -> R) -> Option<R> {
        let position = self.replica.position()?;
        self.replica.machine().map(|machine| read((position.view, position.sequence), &machine.0))
    }
}

/// The caller that waits for an update.
pub(super) enum ShardWaiter<R> {
    Own(ReplySender<R>),
    Client(RemoteCall),
}

impl<R: DeserializeOwned> ShardWaiter<R> {
    fn fail(self, error: ObjectError) {
        match self {
            Self::Own(completion) => completion.complete(Err(error)),
            // The update is in no state, so another member may take it.
            Self::Client(caller) if matches!(error, ObjectError::NotDelivered) => {
                caller.answer(ShardAnswer::NotYet);
            }
            Self::Client(caller) => caller.answer(ShardAnswer::Failed(error.to_string())),
        }
    }

    fn answer(self, answer: AppliedReply<Option<R>>) {
        match (self, answer) {
            (Self::Own(completion), AppliedReply::Reply(reply)) => {
                let unread = || ObjectError::Form("the members cannot read the update".into());
                completion.complete(reply.ok_or_else(unread));
            }
            (Self::Client(caller), AppliedReply::Session(answer)) => caller.answer(answer.into()),
            (Self::Own(completion), AppliedReply::Query(reply)) => {
                completion.complete(wire::decode_reply(&reply))
            }
            (Self::Client(caller), AppliedReply::Query(reply)) => caller.answer(ShardAnswer::Reply(reply)),
            _ => unreachable!("the answer is of the kind of its origin"),
        }
    }
}

/// A request of this member that other members are asked for \[A17\].
pub(super) struct Elsewhere<T: Replicated>(Arc<Shard<T>>);

impl<T: Replicated> Drop for Elsewhere<T> {
    fn drop(&mut self) {
        if lock(&self.0.outbox).note_returned() {
            self.0.link.status.window_space.notify();
        }
    }
}

/// Why an update was not sent.
pub(super) enum RefusedUpdate {
    /// This member is not in the shard, or has no state yet: a member that has it should be asked.
    NotHere,
    Error(ObjectError),
}

impl<T: Replicated> Shard<T> {
    pub(super) fn new(
        number: usize,
        ShardSubgroup { subgroup, id, slot, durable, message_max, checkpoint_bytes, retention }: ShardSubgroup,
        link: NodeHandle,
        options: Arc<ObjectOptions>,
        poller: Option<WeakPoller>,
        transfer: StateTransferSettings,
        versions: Versions<T>,
    ) -> Self {
        let core = ShardCore {
            replica: Replica::new(link.node, SETTINGS),
            queries: Queries::new(QUERY_PATIENCE),
            transfer: StateTransfer::new(transfer),
            checkpoints: CheckpointSchedule::new(checkpoint_bytes),
        };
        let (core, outbox) = (Mutex::new(core), Mutex::new(Outbox::new(message_max)));
        let (news, changes) = (Condvar::new(), Waiters::default());
        let (ended, start) = (Mutex::default(), Instant::now());
        Self {
            number,
            subgroup,
            id,
            durable,
            retention,
            slot,
            link,
            options,
            poller,
            core,
            news,
            changes,
            outbox,
            versions,
            ended,
            start,
        }
    }

    /// Returns the current time by the clock of the cores.
    pub(super) fn now(&self) -> squall_fabric::Instant {
        squall_fabric::Instant::from_nanos(0) + self.start.elapsed()
    }

    pub(super) fn core(&self) -> MutexGuard<'_, ShardCore<T>> {
        lock(&self.core)
    }

    /// Locks the core, if no other thread has it.
    pub(super) fn try_core(&self) -> Option<MutexGuard<'_, ShardCore<T>>> {
        unless_held(self.core.try_lock())
    }

    /// Sends an update or query of this member, whose `length` bytes `write` writes; waits while the window is full, or earlier ones are elsewhere.
    /// If it is refused, `write` is not taken.
    pub(super) fn submit_own<W: FnOnce(&mut Payload<'_>)>(
        &self,
        source: UpdateSource,
        length: usize,
        write: &mut Option<W>,
        completion: ReplySender<T::Reply>,
    ) -> Result<(), (RefusedUpdate, ReplySender<T::Reply>)> {
        let mut is_sent = false;
        let submitted = self.submit_with(ShardWaiter::Own(completion), |outbox, waiter| {
            let result = outbox.submit_own_written(source, length, write, waiter, || self.slot.take_writer());
            is_sent = outbox.has_sent_all();
            result
        });
        let refused = match submitted {
            Ok(()) if is_sent => {
                self.link.waker.wake();
                return Ok(());
            }
            Ok(()) => {
                self.flush();
                return Ok(());
            }
            Err(refused) => refused,
        };
        let ShardWaiter::Own(completion) = refused.1 else {
            unreachable!("the waiter was this member's own")
        };
        let refused = match refused.0 {
            Hindrance::TooLong { bytes_max } => {
                RefusedUpdate::Error(ObjectError::TooLong { bytes: length, bytes_max })
            }
            Hindrance::Ended => RefusedUpdate::Error(self.end().unwrap_or(ObjectError::Stopped)),
            Hindrance::NotHere | Hindrance::Full => RefusedUpdate::NotHere,
        };
        Err((refused, completion))
    }

    /// Queues an update, which [`Shard::flush`] sends; waits while there is no space for it.
    pub(super) fn submit(
        &self,
        source: UpdateSource,
        update: &[u8],
        waiter: ShardWaiter<T::Reply>,
    ) -> Result<(), (Hindrance, ShardWaiter<T::Reply>)> {
        self.submit_with(waiter, |outbox, waiter| {
            outbox.submit(source, update, waiter, || self.slot.take_writer())
        })
    }

    fn submit_with(
        &self,
        waiter: ShardWaiter<T::Reply>,
        mut submit: impl FnMut(
            &mut Outbox<ShardWaiter<T::Reply>>,
            &mut Option<ShardWaiter<T::Reply>>,
        ) -> Result<(), Hindrance>,
    ) -> Result<(), (Hindrance, ShardWaiter<T::Reply>)> {
        let mut waiter = Some(waiter);
        let mut submit = || submit(&mut lock(&self.outbox), &mut waiter);
        let result = self.with_space(&mut submit);
        match (result, waiter) {
            (Err(hindrance), Some(waiter)) => Err((hindrance, waiter)),
            _ => Ok(()),
        }
    }

    /// Notes that other members are asked for a request of this one, until the value that is returned is dropped.
    pub(super) fn note_elsewhere(self: &Arc<Self>) -> Elsewhere<T> {
        lock(&self.outbox).note_elsewhere();
        Elsewhere(Arc::clone(self))
    }

    /// Sends what was submitted; waits while the window is full.
    pub(super) fn flush(&self) {
        // If an update can no longer be sent here, the thread that applies updates reports that to its waiter.
        let _ = self.with_space(&mut || lock(&self.outbox).flush(|| self.slot.take_writer()));
        self.link.waker.wake();
    }

    /// Calls `act`, and again whenever there may be space, until it succeeds or fails for good.
    fn with_space(&self, act: &mut dyn FnMut() -> Result<(), Hindrance>) -> Result<(), Hindrance> {
        let mut attempt = || match act() {
            Err(Hindrance::Full) => {
                // The polling thread continues with the old window when no thread holds it any more.
                self.link.waker.wake();
                None
            }
            result => Some(result),
        };
        if let Some(result) = attempt() {
            return result;
        }
        if let Some(poller) = self.poller.as_ref().and_then(WeakPoller::upgrade) {
            loop {
                if let Some(result) = poller.wait_until(LOOK, &mut attempt) {
                    return result;
                }
            }
        }
        block_on(poll_fn(|context| {
            if let Some(result) = attempt() {
                return Poll::Ready(result);
            }
            self.link.status.window_space.register(context.waker());
            attempt().map_or(Poll::Pending, Poll::Ready)
        }))
    }

    /// Answers a query if this member can. Not fuzzed: the query's type is the application's.
    pub(super) fn query_here(&self, query: &[u8]) -> Option<Result<T::Reply, ObjectError>> {
        let core = self.core();
        let machine = core.replica.machine();
        let machine = machine.filter(|_| core.replica.readiness(self.view_id()) == Readiness::Ready)?;
        Some(postcard::from_bytes(query).map(|query| machine.0.query(query)).map_err(Into::into))
    }

    pub(super) fn view_id(&self) -> u64 {
        self.link.status.view_id()
    }

    /// Waits until this member has the state, or finds that it is not to have it, until `deadline`.
    pub(super) fn wait_ready(&self, deadline: Instant) -> Result<(), ObjectError> {
        let mut core = self.core();
        loop {
            if let Some(ended) = self.end() {
                return Err(ended);
            }
            let shard = self.number;
            match core.replica.readiness(self.view_id()) {
                Readiness::Ready | Readiness::Elsewhere => return Ok(()),
                Readiness::Lost => {
                    let holders = core.replica.last_holders().to_vec();
                    return Err(ObjectError::StateLost { shard, holders });
                }
                Readiness::NotYet => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let cause = "the state has not arrived in time".into();
                return Err(ObjectError::Unreachable { shard, cause });
            }
            let waited = self.news.wait_timeout(core, left);
            core = unpoisoned(waited).0;
        }
    }

    /// Returns why this shard has ended here, if it has.
    pub(super) fn end(&self) -> Option<ObjectError> {
        lock(&self.ended).clone()
    }

    /// Takes a message; called by the thread that applies updates, which holds the core.
    pub(super) fn deliver(&self, core: &mut ShardCore<T>, message: ShardDelivery<'_>) {
        core.checkpoints.note(message.bytes.len());
        core.replica.deliver(message, |origin: UpdateOrigin, answer| {
            let waiter = lock(&self.outbox).deliver(origin);
            waiter.answer(answer);
        });
    }

    /// Begins the next view.
    pub(super) fn begin_view(&self, view: ShardView) {
        let mut core = self.core();
        core.replica.begin_view(view, || TypedMachine(self.versions.first()));
        let mut outbox = lock(&self.outbox);
        if outbox.drop_closed() {
            self.link.waker.wake();
        }
        let stays = core.replica.may_send_since().is_some();
        let left = if stays { Vec::new() } else { outbox.leave() };
        drop(outbox);
        self.permit(&core.replica);
        drop(core);
        self.notify();
        left.into_iter().for_each(|waiter| waiter.fail(ObjectError::NotDelivered));
        if !stays {
            // No space will become available to those that wait for it here.
            self.link.status.window_space.notify();
        }
    }

    /// Lets this member send, if it has the state, and shows whether it has.
    pub(super) fn permit(&self, replica: &Replica<TypedMachine<T>>) {
        self.slot.note_state(replica.position().is_some());
        if let Some(since) = replica.may_send_since() {
            lock(&self.outbox).begin(since);
        }
    }

    /// Wakes waiters, since the core has the state now, or knows that it is lost.
    pub(super) fn notify(&self) {
        self.news.notify_all();
        self.changes.notify();
    }

    /// Ends the shard here, and fails all that waits.
    pub(super) fn stop(&self, error: &ObjectError) {
        lock(&self.ended).get_or_insert_with(|| error.clone());
        let outcomes = lock(&self.outbox).stop();
        for (waiter, outcome) in outcomes {
            match outcome {
                UpdateOutcome::NotDelivered => waiter.fail(ObjectError::NotDelivered),
                UpdateOutcome::Unknown | UpdateOutcome::Delivered(()) => waiter.fail(ObjectError::Unknown),
            }
        }
        let mut core = self.core();
        let asked = core.queries.end();
        drop(core);
        asked.into_iter().for_each(|caller| caller.answer(ShardAnswer::Failed(error.to_string())));
        self.notify();
        self.link.status.window_space.notify();
    }
}

/// The same at all members, or their states would diverge.
pub(super) const SETTINGS: ReplicaSettings = ReplicaSettings::DEFAULT;
/// How often a thread that waits for space, and polls, looks at what no poll shows.
const LOOK: Duration = Duration::from_millis(10);
/// How long a query waits for this member to reach the caller's view.
const QUERY_PATIENCE: Duration = Duration::from_millis(200);

impl<T: Replicated> std::fmt::Debug for Shard<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard").field("subgroup", &self.subgroup).finish_non_exhaustive()
    }
}
