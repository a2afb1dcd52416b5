//! The thread that applies an object's updates, so that slow updates never hold up the polling thread (Derecho app.
//! A). Objects whose updates are short may have them applied by threads that poll instead ([`Object::apply_delivered`]): then this thread does
//! what is left, such as views, states and queries that wait.
//!
//! **Invariant.** What was delivered and is not applied is found by the next thread that polls and sees something move, or this thread has
//! been woken since it looked last.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use squall_fabric::mutex::lock;
use squall_protocols::group::SubgroupId;
use squall_protocols::multicast::Pull;
use squall_protocols::replica::{ShardDelivery, ShardEvent, ShardView};
use squall_transports::log;

use super::machine::Replicated;
use super::remote::{Directory, RemoteShards};
use super::service::ObjectService;
use super::shard::{Shard, ShardCore};
use super::versions::{FirstState, Versions};
use super::{Object, ObjectError, ObjectOptions, checkpoint, recovery, transfer};
use crate::config::{Config, Retention};
use crate::handle::node_handle::NodeHandle;
use crate::slot::SubgroupSlot;
use crate::status::GroupStatus;
use crate::wait::{Awaited, Waiters, block_for};

/// What a shard needs of its subgroup.
pub(crate) struct ShardSubgroup {
    pub(crate) subgroup: String,
    pub(crate) id: SubgroupId,
    pub(crate) slot: Arc<SubgroupSlot>,
    /// Its place among the durable subgroups, if it is one.
    pub(crate) durable: Option<usize>,
    /// The length of the longest message in bytes.
    pub(crate) message_max: usize,
    /// After how many bytes of messages a checkpoint is written.
    pub(crate) checkpoint_bytes: u64,
    /// What its log keeps for earlier versions.
    pub(crate) retention: Retention,
}

/// Starts an object at this member: `places` are the subgroups of its shards.
pub(crate) fn start<T: Replicated>(
    name: &str,
    places: Vec<ShardSubgroup>,
    config: &Arc<Config>,
    link: &NodeHandle,
    service: &ObjectService,
    first: impl Fn() -> T + Send + 'static,
    mut options: ObjectOptions,
) -> std::io::Result<Object<T>> {
    // The object does not keep the node, whose upcalls have the object.
    let poller = options.poller.take().map(|poller| poller.downgrade());
    let (options, is_served) = (Arc::new(options), poller.is_some());
    let subgroups = places.iter().map(|place| place.subgroup.clone()).collect();
    let directory = Arc::new(Directory::of_member(config, link, name, subgroups, options.timeout));
    let shards = places.into_iter().enumerate();
    let first: FirstState<T> = Arc::new(Mutex::new(Box::new(first)));
    let shards: Arc<[_]> = shards
        .map(|(number, place)| {
            let transfer = transfer::settings(&directory);
            let versions = Versions::new(Arc::clone(&first));
            let (link, options, poller) = (link.clone(), Arc::clone(&options), poller.clone());
            Arc::new(Shard::<T>::new(number, place, link, options, poller, transfer, versions))
        })
        .collect();
    for shard in &*shards {
        shard.slot.use_for_object();
    }
    link.status.set_state_news();
    link.waker.wake();
    service.add(name, Arc::clone(&shards));
    let lanes = shards.iter().map(|shard| Lane { shard: Arc::clone(shard), pull: None, held: 0 }).collect();
    let applier = Arc::new(Applier { lanes: Mutex::new(lanes), left: Waiters::default() });
    let (status, of_thread) = (Arc::clone(&link.status), Arc::clone(&applier));
    let of_driver = Arc::clone(&directory);
    let driver = Driver { applier: of_thread, directory: of_driver, status, options, is_served };
    std::thread::Builder::new().name(format!("squall {name}")).spawn(move || driver.run())?;
    Ok(Object { shards, remote: Arc::new(RemoteShards::new(directory)), applier })
}

struct Driver<T: Replicated> {
    applier: Arc<Applier<T>>,
    directory: Arc<Directory>,
    status: Arc<GroupStatus>,
    options: Arc<ObjectOptions>,
    /// Whether the threads that poll apply updates.
    is_served: bool,
}

/// The deliveries of all shards, for the thread that takes them.
pub(super) struct Applier<T: Replicated> {
    lanes: Mutex<Vec<Lane<T>>>,
    /// The object's thread, while it waits: another thread has left something for it.
    left: Waiters,
}

/// One shard's deliveries.
struct Lane<T: Replicated> {
    shard: Arc<Shard<T>>,
    /// The receiving end of the current view.
    pull: Option<Pull>,
    /// The number of messages taken and not yet released.
    held: usize,
}

impl<T: Replicated> Drop for Driver<T> {
    /// Stops the shards, however the thread ends, so that no caller waits forever.
    fn drop(&mut self) {
        let error = self.status.failure().map_or(ObjectError::Stopped, ObjectError::Group);
        self.applier.lanes().iter().for_each(|lane| lane.shard.stop(&error));
    }
}

impl<T: Replicated> Applier<T> {
    fn lanes(&self) -> MutexGuard<'_, Vec<Lane<T>>> {
        lock(&self.lanes)
    }

    /// Applies updates that were delivered, on a thread that polls: those that need no waiting. Wakes the object's thread for the rest. Returns
    /// whether there were any.
    pub(super) fn apply_delivered(&self) -> bool {
        let Ok(mut lanes) = self.lanes.try_lock() else {
            // That thread may have looked before.
            self.left.notify();
            return false;
        };
        let outcomes = lanes.iter_mut().map(Lane::apply_delivered);
        let (applied, left) = outcomes.fold((false, false), |all, each| (all.0 | each.0, all.1 | each.1));
        drop(lanes);
        if left {
            self.left.notify();
        }
        applied
    }
}

impl<T: Replicated> Driver<T> {
    fn run(self) {
        loop {
            let (deadline, now) = (self.next_deadline(), self.now());
            let patience = deadline.zip(now).map_or(PATIENCE_MAX, |(deadline, now)| deadline.since(now));
            let mut has_slept = false;
            let step = poll_fn(|context| {
                if has_slept {
                    // What woke this thread may have moved the deadline.
                    return Poll::Ready(true);
                }
                if !self.step() {
                    self.status.messages.register_for(context.waker(), self.awaited());
                    if self.is_served {
                        self.applier.left.register(context.waker());
                    }
                    // Read before the last check, so that nothing is missed that was delivered before the failure.
                    let ended = self.status.failure().is_some();
                    if !self.step() {
                        if ended {
                            return Poll::Ready(false);
                        }
                        // A step may have set an earlier deadline.
                        has_slept = self.next_deadline() == deadline;
                        return if has_slept { Poll::Pending } else { Poll::Ready(true) };
                    }
                }
                Poll::Ready(true)
            });
            // If the time has run out, there is something to do.
            let continues = block_for(step, patience).unwrap_or(true);
            if !continues {
                return;
            }
        }
    }

    fn now(&self) -> Option<squall_fabric::Instant> {
        self.applier.lanes().first().map(|lane| lane.shard.now())
    }

    /// Returns what wakes this thread, besides views, queries and states. Threads that poll an object that is served wake it themselves.
    fn awaited(&self) -> Awaited {
        if self.is_served {
            return Awaited::Pulls(Vec::new());
        }
        let lanes = self.applier.lanes();
        let pulls = lanes.iter().map(|lane| lane.pull.as_ref().map(Pull::watch));
        pulls.collect::<Option<_>>().map_or(Awaited::Any, Awaited::Pulls)
    }

    /// Returns the latest time at which there is something to do, whatever comes.
    fn next_deadline(&self) -> Option<squall_fabric::Instant> {
        self.applier.lanes().iter().filter_map(Lane::next_deadline).min()
    }

    /// Does some of the work that is due; returns whether there was any.
    fn step(&self) -> bool {
        let (mut worked, mut applied) = (false, false);
        for lane in &mut *self.applier.lanes() {
            let step = lane.step(&self.directory);
            (worked, applied) = (worked | step.worked, applied | step.applied);
        }
        if applied {
            (self.options.on_applied)();
        }
        worked
    }
}

/// What a step has done.
struct LaneStep {
    worked: bool,
    /// Whether the state has changed.
    applied: bool,
}

impl<T: Replicated> Lane<T> {
    fn step(&mut self, directory: &Arc<Directory>) -> LaneStep {
        let answered = self.answer_queries();
        let taken = transfer::tend(&self.shard, directory);
        let delivered = self.take();
        // Also if another thread has applied what makes it due.
        checkpoint::tend(&self.shard);
        LaneStep { worked: delivered || answered || taken, applied: delivered || taken }
    }

    /// Applies updates of the present view, if the state is here. Returns whether there were any, and whether the object's thread has
    /// something to do.
    fn apply_delivered(&mut self) -> (bool, bool) {
        let is_here = self.pull.as_ref().is_some_and(|pull| !pull.is_closed());
        let is_ready = |core: &ShardCore<T>| core.queries.is_empty() && core.replica.position().is_some();
        if !(is_here && self.shard.try_core().is_some_and(|core| is_ready(&core))) {
            return (false, true);
        }
        let batches = (0..BATCHES_MAX).take_while(|_| self.take_messages(false)).count();
        let is_checkpoint_due = || {
            self.shard.durable.is_some() && self.shard.try_core().is_none_or(|core| core.checkpoints.is_due())
        };
        (batches > 0, batches == BATCHES_MAX || is_checkpoint_due())
    }

    /// Answers queries that have waited for a view or a state; returns whether there were any.
    fn answer_queries(&self) -> bool {
        let mut core = self.shard.core();
        if core.queries.is_empty() {
            return false;
        }
        let ShardCore { replica, queries, .. } = &mut *core;
        let answers = queries.poll(self.shard.now(), replica);
        drop(core);
        let any = !answers.is_empty();
        answers.into_iter().for_each(|(caller, answer)| caller.answer(answer));
        any
    }

    /// Returns the latest time at which there is something to do.
    fn next_deadline(&self) -> Option<squall_fabric::Instant> {
        let core = self.shard.core();
        let transfer = core.transfer.next_deadline().filter(|_| core.replica.is_waiting());
        core.queries.next_deadline().into_iter().chain(transfer).min()
    }

    /// Takes some messages, or the next view.
    fn take(&mut self) -> bool {
        // Read before the last check, so that nothing is missed that was delivered before the failure.
        let closed = self.pull.as_ref().is_none_or(Pull::is_closed);
        if self.take_messages(closed) {
            return true;
        }
        if !closed {
            return false;
        }
        match self.shard.slot.take_event() {
            Some(ShardEvent::Messages(pull)) => self.pull = Some(pull),
            Some(ShardEvent::View(view, members)) => {
                self.pull = None;
                let begins_again = self.shard.slot.begins_again_in(view.id);
                let is_durable = self.shard.durable.is_some();
                if begins_again && is_durable && !recovery::recover(&self.shard) {
                    // The group has ended here, which is found at the next step.
                    return false;
                }
                if begins_again && !is_durable {
                    let (subgroup, view) = (&self.shard.subgroup, view.id);
                    log::warn!(%subgroup, view, "the group has begun again from its logs, and this object is in memory: it begins with nothing");
                }
                let is_first = view.id == 0 || (begins_again && !is_durable);
                let (group, holders) = (view.nodes(), view.holders(self.shard.id.0));
                self.shard.begin_view(ShardView { id: view.id, group, members, holders, is_first });
            }
            None => return false,
        }
        true
    }

    /// Takes a batch of messages; returns whether there were any. A joiner takes no more than it may keep until the
    /// state arrives. From a view that has ended, however, it takes all the rest, which is in memory anyway: it has
    /// to reach the next view, or it would forever ask members that are gone.
    fn take_messages(&mut self, closed: bool) -> bool {
        let Some(pull) = &mut self.pull else { return false };
        let mut core = self.shard.core();
        let mut taken = 0;
        // A corrupt message ends the subgroup elsewhere; here it is as if there were no more messages.
        while taken < BATCH
            && (closed || core.replica.bytes_waiting() <= self.shard.options.waiting_bytes_max)
        {
            let Ok(Some(message)) = pull.next_message() else { break };
            let (view, sender, sequence, bytes) =
                (message.view, message.sender, message.sequence, message.bytes);
            self.shard.deliver(&mut core, ShardDelivery { view, sender, sequence, bytes });
            taken += 1;
        }
        drop(core);
        if taken > 0 {
            self.shard.changes.notify();
        }
        self.held += taken;
        // Messages of an earlier view that are skipped take space as well.
        if self.held >= RELEASE_EVERY || (taken < BATCH && pull.owes_release()) {
            pull.release();
            self.held = 0;
            self.shard.link.waker.wake();
        }
        taken > 0
    }
}

impl<T: Replicated> fmt::Debug for Applier<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applier").field("left", &self.left).finish_non_exhaustive()
    }
}

/// How long the thread sleeps when no deadline is set.
const PATIENCE_MAX: Duration = Duration::from_secs(60);
/// How many batches of updates a thread that polls applies at a time.
const BATCHES_MAX: usize = 16;
/// The number of updates that are applied before queries are answered.
const BATCH: usize = 64;
/// Messages are released after this number at the latest.
const RELEASE_EVERY: usize = 32;

/// Returns the subgroups of the shards of `name`, in the order of the shards.
pub(crate) fn shards_of<'a, V>(name: &str, subgroups: &'a BTreeMap<String, V>) -> Vec<&'a str> {
    if let Some((name, _)) = subgroups.get_key_value(name) {
        return vec![name];
    }
    let shard = |number: usize| subgroups.get_key_value(&format!("{name}/{number}")).map(|(name, _)| &**name);
    (0..).map_while(shard).collect()
}
