//! What passes between the polling thread and the thread that applies updates to this member's part of the object in the shards
//! (RamCast §2.2).
//!
//! The polling thread appends to a queue, in the order of the shard: messages, views, and marks, which say what is delivered at that
//! place. So a state that is taken when the marks are reached has in it what they say, and nothing else.
//!
//! **Bounded**: the polling thread takes no more messages from the group than [`QUEUE_MAX`]; senders wait then. At the end of a view it
//! takes what the trims hold in addition, which is no more than the windows have. As much again may be with the thread that applies
//! it. What a joiner keeps until its state is here is not bounded, so that the others do not wait for the state: it passes through
//! the queue at once when the state holds.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_fabric::mutex::{lock, unpoisoned};
use squall_protocols::genuine::{DeliveredMarks, GenuineMember, GenuineMessage, GenuinePosition};
use squall_protocols::group::{GroupApplication, GroupCore};

use super::snapshot::Snapshot;

/// The most messages that wait to be applied.
const QUEUE_MAX: usize = 1024;

/// What the thread that applies updates has to do next.
pub(crate) enum FeedEvent {
    /// A message to the shard.
    Message { sender: NodeId, position: GenuinePosition, bytes: Vec<u8> },
    /// A view begins, with these members.
    View(Vec<NodeId>),
    /// What the shards of a view are: the members of each that counts.
    Shards(Vec<Vec<NodeId>>),
    /// The state that has arrived here holds from now on.
    TakeOver,
    /// A joiner wants the state as it is now, with these marks.
    Provide(DeliveredMarks, SyncSender<ProvidedState>),
}

/// A state for a joiner, and what goes with it.
pub(crate) struct ProvidedState {
    pub(crate) header: Vec<u8>,
    pub(crate) snapshot: Snapshot,
}

/// Shared by the polling thread, and the threads of the object.
#[derive(Default)]
pub(crate) struct ShardFeed {
    queue: Mutex<FeedQueue>,
    news: Condvar,
    /// The polling thread has a request to look at.
    has_request: AtomicBool,
    /// The object cannot continue here, so this member has to leave its group.
    has_failed: AtomicBool,
}

#[derive(Default)]
struct FeedQueue {
    events: VecDeque<FeedEvent>,
    messages: usize,
    /// The application has taken the object.
    is_open: bool,
    is_awaited: bool,
    has_ended: bool,
    /// Why the object cannot continue here.
    failure: Option<String>,
    standing: FeedStanding,
    /// Joiners that want the state.
    wanted: Vec<SyncSender<ProvidedState>>,
    /// The marks of a state that has arrived here.
    offered: Option<DeliveredMarks>,
}

/// What the polling thread knows of this member's part.
#[derive(Clone, Debug, Default)]
pub(crate) struct FeedStanding {
    pub(crate) view: u64,
    pub(crate) members: Vec<Vec<NodeId>>,
    pub(crate) has_state: bool,
}

impl std::fmt::Debug for ShardFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShardFeed")
    }
}

impl ShardFeed {
    fn queue(&self) -> MutexGuard<'_, FeedQueue> {
        lock(&self.queue)
    }

    fn push(&self, queue: &mut FeedQueue, event: FeedEvent) {
        queue.events.push_back(event);
        if std::mem::take(&mut queue.is_awaited) {
            self.news.notify_all();
        }
    }

    /// This member enters its group, with the state of its shard or without it.
    pub(crate) fn enter(&self, has_state: bool) {
        self.queue().standing.has_state = has_state;
    }

    /// The application has taken the object, so messages may come.
    pub(crate) fn open(&self) {
        self.queue().is_open = true;
    }

    /// A message is delivered.
    pub(crate) fn deliver(&self, message: &GenuineMessage<'_>) {
        let mut queue = self.queue();
        if queue.has_ended {
            return;
        }
        queue.messages += 1;
        let GenuineMessage { sender, position, bytes, .. } = *message;
        self.push(&mut queue, FeedEvent::Message { sender, position, bytes: bytes.to_vec() });
    }

    /// Returns how many messages may be delivered now; after the end all of them, which are dropped.
    pub(crate) fn space(&self) -> usize {
        let queue = self.queue();
        match *queue {
            FeedQueue { has_ended: true, .. } => usize::MAX,
            FeedQueue { is_open: true, messages, .. } => QUEUE_MAX.saturating_sub(messages),
            _ => 0,
        }
    }

    /// A view begins.
    pub(crate) fn begin_view(&self, nodes: Vec<NodeId>) {
        self.push(&mut self.queue(), FeedEvent::View(nodes));
    }

    /// Forgets an attempt to join that has failed.
    pub(crate) fn forget(&self) {
        let mut queue = self.queue();
        let is_open = queue.is_open;
        *queue = FeedQueue { is_open, ..FeedQueue::default() };
    }

    /// Takes all that is to be done; waits for `patience` if there is nothing.
    pub(crate) fn take(&self, patience: Duration) -> VecDeque<FeedEvent> {
        let mut queue = self.queue();
        if queue.events.is_empty() && !queue.has_ended {
            queue.is_awaited = true;
            queue = unpoisoned(self.news.wait_timeout(queue, patience)).0;
            queue.is_awaited = false;
        }
        queue.messages = 0;
        std::mem::take(&mut queue.events)
    }

    pub(crate) fn standing(&self) -> FeedStanding {
        self.queue().standing.clone()
    }

    /// A joiner wants the state, which goes through `to`. The caller wakes the polling thread.
    pub(crate) fn want_state(&self, to: SyncSender<ProvidedState>) {
        self.queue().wanted.push(to);
        // SYNC: pairs with the load in `poll`; the request is behind the lock.
        self.has_request.store(true, Ordering::Release);
    }

    /// A state with these marks has arrived here. The caller wakes the polling thread.
    pub(crate) fn offer(&self, marks: DeliveredMarks) {
        self.queue().offered = Some(marks);
        // SYNC: pairs with the load in `poll`; the marks are behind the lock.
        self.has_request.store(true, Ordering::Release);
    }

    /// The object cannot continue here, for this reason: this member leaves its group, as if it had died. The caller wakes the
    /// polling thread.
    pub(crate) fn fail(&self, cause: String) {
        self.queue().failure.get_or_insert(cause);
        // SYNC: pairs with the load in `failure`; the reason is behind the lock.
        self.has_failed.store(true, Ordering::Release);
    }

    /// The group has ended here, or the object has: nothing waits any more.
    pub(crate) fn end(&self) {
        let mut queue = self.queue();
        queue.has_ended = true;
        queue.events.clear();
        queue.wanted.clear();
        self.news.notify_all();
    }
}

/// The polling thread's end.
#[derive(Debug)]
pub(crate) struct FeedPoller {
    feed: Arc<ShardFeed>,
    view: Option<u64>,
}

impl FeedPoller {
    pub(crate) const fn new(feed: Arc<ShardFeed>) -> Self {
        Self { feed, view: None }
    }

    /// Looks at the view and at what the object's threads ask for; returns the amount of work done.
    #[inline]
    pub(crate) fn poll<A: GroupApplication>(&mut self, group: &mut GroupCore<A>) -> usize {
        let view = group.genuine_member().map(GenuineMember::view);
        // SYNC: pairs with the stores after a request.
        if (view.is_none() || view == self.view) && !self.feed.has_request.load(Ordering::Acquire) {
            return 0;
        }
        self.look(group, view)
    }

    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        // SYNC: pairs with the store in `ShardFeed::fail`.
        self.feed.has_failed.load(Ordering::Acquire)
    }

    /// Returns why the object cannot continue here, if it cannot.
    pub(crate) fn failure(&self) -> Option<String> {
        self.has_failed().then(|| self.feed.queue().failure.clone()).flatten()
    }

    #[cold]
    fn look<A: GroupApplication>(&mut self, group: &mut GroupCore<A>, view: Option<u64>) -> usize {
        let Some(member) = group.genuine_member() else { return 0 };
        let mut queue = self.feed.queue();
        let mut work = 0;
        if self.view != view {
            self.view = view;
            let members = member.members();
            queue.standing = FeedStanding {
                view: member.view(),
                members: members.clone(),
                has_state: group.has_shard_state(),
            };
            self.feed.push(&mut queue, FeedEvent::Shards(members));
            work += 1;
        }
        self.feed.has_request.store(false, Ordering::Relaxed);
        let marks = member.marks().filter(|_| group.has_shard_state());
        for to in std::mem::take(&mut queue.wanted) {
            // One that has no state drops the request, which reports that.
            if let Some(marks) = marks {
                self.feed.push(&mut queue, FeedEvent::Provide(marks.clone(), to));
            }
            work += 1;
        }
        let may_take = member.may_take_state() && !group.has_shard_state();
        // A second state, or one of a shard that is lost, is of no use.
        let is_of_use = member.is_in_shard() && !group.has_shard_state();
        queue.offered.take_if(|_| !is_of_use);
        if let Some(marks) = queue.offered.take_if(|_| may_take) {
            self.feed.push(&mut queue, FeedEvent::TakeOver);
            // Before the state can be taken from where it has arrived: it is not fetched once more then.
            queue.standing.has_state = true;
            // What is not in the state is delivered now.
            drop(queue);
            group.take_shard_state(&marks);
            work += 1;
        } else if queue.offered.is_some() {
            // The view is ending: the next one is waited for.
            self.feed.has_request.store(true, Ordering::Relaxed);
        }
        work
    }
}
