//! Turns at the node: threads that wait, and the standby thread.

use std::fmt;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_transports::{Waker, wait_readable};

use super::PolledBy;
use super::attention::{Attention, Call, Crowding, GRACE, Standby};
use crate::node::Node;
use crate::status::GroupStatus;

/// What all threads share.
pub(super) struct SharedNode {
    /// `None` when the group has ended.
    node: Mutex<Option<Node>>,
    turns: Mutex<Turns>,
    /// For the standby thread, and for threads that wait while another one has the turn.
    standby: Condvar,
    others: Condvar,
    /// What `turns` says, for looks without the lock.
    is_led: AtomicBool,
    is_unattended: AtomicBool,
    may_be_brief: AtomicBool,
    /// What a node that sleeps is woken by.
    bell: OwnedFd,
    waker: Waker,
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
    /// As the thread that had the turn last has seen it.
    crowding: Crowding,
}

/// What a thread that waits has seen of the changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    changes: u64,
    moves: u64,
}

/// How a turn has ended.
pub(super) enum Outcome<R> {
    Found(R),
    Late,
    Over,
}

/// The turn of a thread, which ends when this is dropped.
struct Turn<'a>(&'a SharedNode);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.0.turns();
        let call = turns.attention.end(Instant::now);
        turns.is_leader_asleep = false;
        self.0.show(&turns);
        let has_others = turns.waiting > 0;
        drop(turns);
        if has_others {
            self.0.others.notify_all();
        }
        self.0.call(call);
    }
}

impl SharedNode {
    pub(super) fn new(node: Node, status: Arc<GroupStatus>) -> std::io::Result<Self> {
        let (bell, waker) = (node.bell()?, node.waker());
        let turns = Turns {
            attention: Attention::new(),
            changes: 0,
            moves: 0,
            waiting: 0,
            watching: 0,
            is_leader_asleep: false,
            is_over: false,
            crowding: Crowding::default(),
        };
        Ok(Self {
            node: Mutex::new(Some(node)),
            turns: Mutex::new(turns),
            standby: Condvar::new(),
            others: Condvar::new(),
            is_led: AtomicBool::new(false),
            is_unattended: AtomicBool::new(false),
            may_be_brief: AtomicBool::new(false),
            bell,
            waker,
            status,
            on_news: OnceLock::new(),
        })
    }

    pub(super) fn set_news(&self, on_news: Box<dyn Fn(PolledBy) + Send + Sync>) {
        // A second one is not expected, and the first one remains.
        let _ = self.on_news.set(on_news);
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the node. A thread that has panicked while it polled leaves a node that must not be polled any more.
    fn node(&self) -> MutexGuard<'_, Option<Node>> {
        self.node.lock().unwrap_or_else(|poisoned| {
            let mut present = poisoned.into_inner();
            *present = None;
            present
        })
    }

    /// Locks the node, if no other thread has it.
    fn try_node(&self) -> Option<MutexGuard<'_, Option<Node>>> {
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
    pub(super) fn seen(&self) -> Seen {
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
            self.waker.ring();
        }
    }

    pub(super) fn begin(&self) -> bool {
        let mut turns = self.turns();
        let begins = !turns.is_over && turns.attention.begin(Instant::now);
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
        let begins = !turns.is_over && turns.attention.begin_visit(Instant::now);
        self.show(&turns);
        begins
    }

    fn begin_briefly(&self) -> bool {
        if !self.may_be_brief.load(Ordering::Relaxed) {
            return false;
        }
        let mut turns = self.turns();
        let begins = !turns.is_over && turns.attention.begin_briefly(Instant::now);
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

    fn poll_node(&self, present: &mut Option<Node>) -> bool {
        let Some(node) = present else { return false };
        if node.poll() > 0 {
            self.tell(PolledBy::Waiting);
        }
        node.flush();
        true
    }

    /// What the standby thread does.
    pub(super) fn stand_by(&self) {
        while self.await_duty() && self.poll_for_all() {}
        self.turns().is_over = true;
        let node = self.node().take();
        drop(node);
        self.tell(PolledBy::NoThread);
        self.notify();
    }

    pub(super) fn attend(&self) {
        if self.is_unattended.load(Ordering::Relaxed) {
            let mut turns = self.turns();
            let call = turns.attention.attend();
            self.show(&turns);
            drop(turns);
            self.call(call);
        }
    }

    fn call(&self, call: Call) {
        match call {
            Call::NoThread => {}
            Call::Bell => self.waker.ring(),
            Call::Standby => self.standby.notify_one(),
        }
    }

    /// Polls until `look` returns something: this thread has the turn.
    pub(super) fn lead<R>(&self, until: Option<Instant>, look: &mut impl FnMut() -> Option<R>) -> Outcome<R> {
        let turn = Turn(self);
        let mut crowding = self.turns().crowding;
        let outcome = self.lead_with(&mut crowding, until, look);
        self.turns().crowding = crowding;
        drop(turn);
        outcome
    }

    fn lead_with<R>(
        &self,
        crowding: &mut Crowding,
        until: Option<Instant>,
        look: &mut impl FnMut() -> Option<R>,
    ) -> Outcome<R> {
        let mut present = self.node();
        let (mut fruitless, mut seen) = (0u32, None);
        loop {
            let Some(node) = &mut *present else { return self.close_turns() };
            if fruitless == 0 {
                node.end_wait(false);
            }
            let changes = self.changes();
            let work = node.poll();
            if work > 0 {
                self.tell(PolledBy::Waiting);
            }
            if (work > 0 || seen != Some(changes))
                && let Some(found) = look()
            {
                node.flush();
                return Outcome::Found(found);
            }
            seen = Some(changes);
            if work > 0 {
                fruitless = 1;
                continue;
            }
            if node.failure().is_some() || self.status.is_stopping() {
                return self.close_turns();
            }
            fruitless = fruitless.saturating_add(1);
            let limits = node.idle_limits();
            if fruitless <= limits.spins {
                std::hint::spin_loop();
                continue;
            }
            let now = Instant::now();
            let left = until.map(|until| until.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                node.flush();
                return Outcome::Late;
            }
            if fruitless - limits.spins <= limits.yields && !crowding.is_crowded() {
                thread::yield_now();
                crowding.note_yield(now.elapsed());
                node.yielded(fruitless);
                continue;
            }
            crowding.note_sleep();
            if node.begin_wait() > 0 {
                self.tell(PolledBy::Waiting);
                // They may be for this thread.
                seen = None;
            } else if self.may_sleep(changes) {
                let patience = [left, node.patience()].into_iter().flatten().min();
                drop(present);
                self.sleep(patience);
                self.turns().is_leader_asleep = false;
                present = self.node();
                if let Some(node) = &mut *present
                    && node.end_wait(true) > 0
                {
                    self.tell(PolledBy::Waiting);
                }
                seen = None;
            }
            fruitless = 0;
        }
    }

    /// Returns whether nothing has changed since the thread that has the turn has looked; whatever changes from now on wakes it.
    fn may_sleep(&self, seen: u64) -> bool {
        let mut turns = self.turns();
        turns.is_leader_asleep = turns.changes == seen;
        turns.is_leader_asleep
    }

    fn sleep(&self, patience: Option<Duration>) {
        // An error is no reason to stop polling; without sleep it only takes more time of the processor.
        let _ = wait_readable(&[self.bell.as_fd(), self.waker.doorbell()], patience);
    }

    /// Gives the turn to no thread any more: the standby thread has to end the group.
    fn close_turns<R>(&self) -> Outcome<R> {
        self.turns().is_over = true;
        Outcome::Over
    }

    /// Waits until something changes, or the thread that has the turn ends it; returns whether there is time left.
    pub(super) fn wait_behind(&self, seen: Seen, watches: bool, until: Option<Instant>) -> bool {
        let left = until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
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
        let mut turns = waited.unwrap_or_else(PoisonError::into_inner).0;
        turns.waiting -= 1;
        turns.watching -= usize::from(watches);
        true
    }

    /// Waits until the standby thread has to poll; returns false if it never has to again.
    fn await_duty(&self) -> bool {
        let mut turns = self.turns();
        loop {
            if turns.is_over || self.status.is_stopping() {
                return false;
            }
            match turns.attention.standby() {
                Standby::Polling | Standby::Asleep => return true,
                Standby::Watching => {
                    let waited = self.standby.wait_timeout(turns, GRACE);
                    let (after, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
                    turns = after;
                    if outcome.timed_out() {
                        turns.attention.watched();
                        self.show(&turns);
                    }
                }
                Standby::Resting => {
                    turns = self.standby.wait(turns).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Polls until a thread has the turn; returns false if the group has ended.
    fn poll_for_all(&self) -> bool {
        let mut fruitless = 0u32;
        loop {
            let mut present = self.node();
            if self.is_led.load(Ordering::Relaxed) {
                drop(present);
                let mut turns = self.turns();
                if turns.attention.is_led() {
                    turns.attention.give_way();
                    self.show(&turns);
                    return true;
                }
                continue;
            }
            let Some(node) = &mut *present else { return false };
            if node.poll() > 0 {
                self.tell(PolledBy::Standby);
                fruitless = 0;
                continue;
            }
            if node.failure().is_some() || self.status.is_stopping() {
                return false;
            }
            fruitless = fruitless.saturating_add(1);
            let limits = node.idle_limits();
            if fruitless <= limits.spins {
                std::hint::spin_loop();
            } else if fruitless - limits.spins <= limits.yields {
                node.yielded(fruitless);
                drop(present);
                thread::yield_now();
            } else {
                fruitless = limits.spins;
                if node.begin_wait() > 0 {
                    self.tell(PolledBy::Standby);
                    node.end_wait(false);
                } else if !self.doze(present) {
                    return true;
                }
            }
        }
    }

    /// Sleeps as a node does; returns whether the standby thread polls again.
    fn doze(&self, mut present: MutexGuard<'_, Option<Node>>) -> bool {
        let Some(node) = &mut *present else { return true };
        let patience = node.patience();
        let mut turns = self.turns();
        if turns.attention.fall_asleep() {
            self.show(&turns);
            drop((turns, present));
            self.sleep(patience);
            turns = self.turns();
            turns.attention.wake_up();
        } else {
            drop(present);
        }
        self.show(&turns);
        let polls = turns.attention.standby() == Standby::Polling;
        drop(turns);
        let mut present = self.node();
        // A thread that has the turn may sleep, and has asked to be woken.
        if !self.is_led.load(Ordering::Relaxed)
            && let Some(node) = &mut *present
            && node.end_wait(true) > 0
        {
            self.tell(PolledBy::Standby);
        }
        polls
    }
}

impl fmt::Debug for SharedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedNode").field("turns", &*self.turns()).finish_non_exhaustive()
    }
}

/// What a wait without end waits at a time.
const LONG: Duration = Duration::from_secs(60);
