//! Turns at the node: threads that wait, and the standby thread.
//!
//! **What each thread sleeps on.**
//!
//! | thread | sleeps while | on | is woken by |
//! |---|---|---|---|
//! | with the turn | it finds nothing | the node's bell and waker | peers and threads that store something for the node, which is marked as parked; `notify` |
//! | behind it | another one has the turn | `others` | a poll that moved something, if it watches for that; `notify`; the end of the turn |
//! | standby, asleep | no thread has the turn, and it finds nothing | the node's bell and waker, and its calls | as the first one; the end of a turn |
//! | standby, watching | turns follow each other quickly | its calls | [`GRACE`]; `attend`; the end of a turn, when they no longer do |
//! | standby, resting | a turn is long | its calls | the end of the turn |
//!
//! **Invariant.** Whenever work can arrive, a thread polls; or a thread sleeps on the node's bell, and the node is marked as parked; or the
//! standby thread looks within [`GRACE`]; or it has been called.
//!
//! **Steps.** A thread marks the node as parked and looks once more ([`PolledNode::begin_wait`]), notes under the lock of `turns` that it
//! sleeps, unlocks the node, and sleeps. What is stored after the mark rings; what was stored before it is found by the last look. When the
//! thread continues, it locks the node, looks, and removes the mark, which silences bell and waker ([`PolledNode::end_wait`]).
//!
//! **Silencing.** Bell and waker are silenced by the thread that has the turn, or by the standby thread if none has it. Both threads may sleep
//! on them at once, and then one may silence them before the other one has woken. The thread with the turn loses nothing by that, since the
//! standby thread checks, with the node locked, that none has it; the standby thread loses nothing that the other one does not poll for. But
//! the end of the turn must reach it: that is a *call*, which only the standby thread takes back, and after that it looks at what it has to do. A
//! call follows the decision that it announces. So that decision is seen, or the call ends the next sleep.

mod leading;
mod standby;

use std::fmt;
use std::sync::{Arc, OnceLock};
#[cfg(not(all(test, shuttle)))]
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};
#[cfg(all(test, shuttle))]
use squall_fabric::explore::sync::{Mutex, MutexGuard};
use squall_fabric::mutex::unpoisoned;

use super::PolledBy;
use squall_transports::runner::{IdleLimits, IdleStrategy};

use super::attention::{Attention, GRACE};
#[cfg(all(test, shuttle))]
use super::schedules::Condvar;
use crate::node::polled_node::{NodeBells, PolledNode};
use crate::status::GroupStatus;

/// What all threads share.
pub(super) struct SharedNode<N: PolledNode> {
    /// `None` when the group has ended.
    node: Mutex<Option<N>>,
    turns: Mutex<Turns>,
    /// For threads that wait while another one has the turn.
    others: Condvar,
    /// What `turns` says, for looks without the lock.
    is_led: AtomicBool,
    is_unattended: AtomicBool,
    may_be_brief: AtomicBool,
    bells: N::Bells,
    status: Arc<GroupStatus>,
    on_news: OnceLock<Box<dyn Fn(PolledBy) + Send + Sync>>,
}

#[derive(Debug)]
struct Turns {
    attention: Attention,
    /// How often something has changed that no poll shows.
    changes: u64,
    /// How many polls have moved something.
    moves: u64,
    /// How many threads wait while another one has the turn, and how many of them for what polls move.
    waiting: usize,
    watching: usize,
    /// The thread that has the turn sleeps.
    is_leader_asleep: bool,
    /// No thread gets the turn any more.
    is_over: bool,
    /// For how long the thread that has the turn, and the standby thread, poll on.
    leader_idle: IdleStrategy,
    standby_idle: IdleStrategy,
}

/// What a thread that waits has seen of the changes.
#[derive(Clone, Copy, Debug)]
struct Seen {
    changes: u64,
    moves: u64,
}

/// How a turn has ended.
enum Outcome<R> {
    Found(R),
    Late,
    Over,
}

/// The turn of a thread, which ends when this is dropped.
struct Turn<'a, N: PolledNode>(&'a SharedNode<N>);

impl<N: PolledNode> Drop for Turn<'_, N> {
    fn drop(&mut self) {
        let mut turns = self.0.turns();
        let calls = turns.attention.end(|| self.0.bells.now());
        turns.is_leader_asleep = false;
        self.0.show(&turns);
        let has_others = turns.waiting > 0;
        drop(turns);
        if has_others {
            self.0.others.notify_all();
        }
        if calls {
            self.0.bells.call();
        }
    }
}

impl<N: PolledNode> SharedNode<N> {
    pub(super) fn new(node: N, status: Arc<GroupStatus>) -> std::io::Result<Self> {
        let bells = node.bells()?;
        let turns = Turns {
            attention: Attention::new(),
            changes: 0,
            moves: 0,
            waiting: 0,
            watching: 0,
            is_leader_asleep: false,
            is_over: false,
            leader_idle: IdleStrategy::new(IdleLimits::PARK),
            standby_idle: IdleStrategy::new(IdleLimits::PARK),
        };
        Ok(Self {
            node: Mutex::new(Some(node)),
            turns: Mutex::new(turns),
            others: Condvar::new(),
            is_led: AtomicBool::new(false),
            is_unattended: AtomicBool::new(false),
            may_be_brief: AtomicBool::new(false),
            bells,
            status,
            on_news: OnceLock::new(),
        })
    }

    pub(super) fn set_news(&self, on_news: Box<dyn Fn(PolledBy) + Send + Sync>) {
        // A second one is not expected, and the first one remains.
        let _ = self.on_news.set(on_news);
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        unpoisoned(self.turns.lock())
    }

    /// Locks the node. A thread that has panicked while it polled leaves a node that must not be polled any more.
    fn node(&self) -> MutexGuard<'_, Option<N>> {
        self.node.lock().unwrap_or_else(|poisoned| {
            let mut present = poisoned.into_inner();
            *present = None;
            present
        })
    }

    /// Locks the node, if no other thread has it.
    fn try_node(&self) -> Option<MutexGuard<'_, Option<N>>> {
        self.node.try_lock().ok()
    }

    /// Shows what others look at without the lock. A look that comes too early costs [`GRACE`].
    fn show(&self, turns: &Turns) {
        self.is_led.store(turns.attention.is_led(), Ordering::Relaxed);
        self.is_unattended.store(turns.attention.is_unattended(), Ordering::Relaxed);
        self.may_be_brief.store(turns.attention.may_be_brief() && !turns.is_over, Ordering::Relaxed);
    }

    fn tell(&self, by: PolledBy) {
        if let Some(on_news) = self.on_news.get() {
            on_news(by);
        }
        let mut turns = self.turns();
        turns.moves += 1;
        let has_others = turns.watching > 0;
        drop(turns);
        if has_others {
            self.others.notify_all();
        }
    }

    fn changes(&self) -> u64 {
        self.turns().changes
    }

    /// Returns how often something has changed: what a thread that waits has seen when it looks after that.
    fn seen(&self) -> Seen {
        let turns = self.turns();
        Seen { changes: turns.changes, moves: turns.moves }
    }

    pub(super) fn notify(&self) {
        let mut turns = self.turns();
        turns.changes += 1;
        let (has_others, wakes) = (turns.waiting > 0, std::mem::take(&mut turns.is_leader_asleep));
        drop(turns);
        if has_others {
            self.others.notify_all();
        }
        if wakes {
            self.bells.wake();
        }
    }

    fn begin(&self) -> bool {
        let mut turns = self.turns();
        let begins = !turns.is_over && turns.attention.begin(|| self.bells.now());
        self.show(&turns);
        begins
    }

    pub(super) fn is_led(&self) -> bool {
        self.is_led.load(Ordering::Relaxed)
    }

    fn begin_visit(&self) -> bool {
        if !self.is_unattended.load(Ordering::Relaxed) {
            return false;
        }
        let mut turns = self.turns();
        let begins = !turns.is_over && turns.attention.begin_visit(|| self.bells.now());
        self.show(&turns);
        begins
    }

    fn begin_briefly(&self) -> bool {
        if !self.may_be_brief.load(Ordering::Relaxed) {
            return false;
        }
        let mut turns = self.turns();
        let begins = !turns.is_over && turns.attention.begin_briefly(|| self.bells.now());
        self.show(&turns);
        begins
    }

    /// Passes on what this thread has just sent, if no other thread is about to.
    pub(super) fn pass_on(&self) {
        if !(self.begin_briefly() && self.poll_once()) {
            self.attend();
        }
    }

    /// Polls once, if no other thread does or is about to.
    pub(super) fn visit(&self) {
        if self.begin_visit() {
            self.poll_once();
        }
    }

    /// Polls once, if no thread has the turn; the standby thread gives way.
    pub(super) fn relieve(&self) {
        if self.begin() {
            let _turn = Turn(self);
            self.poll_node(&mut self.node());
        }
    }

    /// Polls once and ends the turn, which this thread has; returns false if there is nothing to poll.
    fn poll_once(&self) -> bool {
        let _turn = Turn(self);
        self.try_node().is_some_and(|mut present| self.poll_node(&mut present))
    }

    fn poll_node(&self, present: &mut Option<N>) -> bool {
        let Some(node) = present else { return false };
        if node.poll() > 0 {
            self.tell(PolledBy::Waiting);
        }
        node.flush();
        true
    }

    pub(super) fn attend(&self) {
        if self.is_unattended.load(Ordering::Relaxed) {
            let mut turns = self.turns();
            let calls = turns.attention.attend();
            self.show(&turns);
            drop(turns);
            if calls {
                self.bells.call();
            }
        }
    }

    /// Waits until `look` returns something, at most for `limit`, and polls meanwhile. `watches`: for what polls move, too.
    pub(super) fn wait<R>(
        &self,
        limit: Duration,
        watches: bool,
        mut look: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        let mut deadline = None;
        loop {
            let seen = self.seen();
            if let Some(found) = look() {
                return Some(found);
            }
            if limit.is_zero() {
                return None;
            }
            let until = *deadline.get_or_insert_with(|| self.bells.now().checked_add(limit));
            if self.begin() {
                match self.lead(until, &mut look) {
                    Outcome::Found(found) => return Some(found),
                    Outcome::Late => return look(),
                    Outcome::Over => {}
                }
            } else if !self.wait_behind(seen, watches, until) {
                return look();
            }
        }
    }

    /// Waits until something changes, or the thread that has the turn ends it; returns whether there is time left.
    fn wait_behind(&self, seen: Seen, watches: bool, until: Option<Instant>) -> bool {
        let left = until.map_or(LONG, |until| until.saturating_duration_since(self.bells.now()));
        if left.is_zero() {
            return false;
        }
        let mut turns = self.turns();
        turns.waiting += 1;
        turns.watching += usize::from(watches);
        let waited = self.others.wait_timeout_while(turns, left.min(LONG), |turns| {
            let is_news = turns.changes != seen.changes || watches && turns.moves != seen.moves;
            !is_news && (turns.attention.is_led() || turns.is_over)
        });
        let mut turns = unpoisoned(waited).0;
        turns.waiting -= 1;
        turns.watching -= usize::from(watches);
        true
    }
}

impl<N: PolledNode> fmt::Debug for SharedNode<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedNode").field("turns", &*self.turns()).finish_non_exhaustive()
    }
}

/// What a wait without end waits at a time.
const LONG: Duration = Duration::from_secs(60);
