//! The standby thread: it polls while no thread has the turn.

#[cfg(not(all(test, shuttle)))]
use std::thread;

use squall_fabric::atomics::Ordering;
#[cfg(all(test, shuttle))]
use squall_fabric::explore::thread;
use squall_transports::runner::{IdleStep, IdleStrategy};

use super::{GRACE, MutexGuard, NodeBells, PolledBy, PolledNode, SharedNode};
use crate::shared_poller::attention::Standby;

impl<N: PolledNode> SharedNode<N> {
    /// What the standby thread does.
    pub(in crate::shared_poller) fn stand_by(&self) {
        while self.await_duty() && self.poll_for_all() {}
        self.turns().is_over = true;
        let node = self.node().take();
        drop(node);
        self.tell(PolledBy::NoThread);
        self.notify();
    }

    /// Waits until the standby thread has to poll; returns false if it never has to again.
    fn await_duty(&self) -> bool {
        loop {
            let turns = self.turns();
            if turns.is_over || self.status.is_stopping() {
                return false;
            }
            let look = match turns.attention.standby() {
                Standby::Polling | Standby::Asleep => return true,
                Standby::Watching => Some(GRACE),
                Standby::Resting => None,
            };
            drop(turns);
            if !self.bells.await_call(look) && look.is_some() {
                let mut turns = self.turns();
                turns.attention.watched();
                self.show(&turns);
            }
        }
    }

    /// Polls until a thread has the turn; returns false if the group has ended.
    fn poll_for_all(&self) -> bool {
        let mut idle = self.turns().standby_idle;
        let polls_again = self.poll_for_all_with(&mut idle);
        self.turns().standby_idle = idle;
        polls_again
    }

    fn poll_for_all_with(&self, idle: &mut IdleStrategy) -> bool {
        let mut idle_since = self.bells.now();
        idle.budget.note_work();
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
                idle.budget.note_work();
                continue;
            }
            if node.has_failed() || self.status.is_stopping() {
                return false;
            }
            let now = self.bells.now();
            if idle.budget.fruitless() == 0 {
                idle_since = now;
            }
            idle.budget.set_limits(node.idle_limits());
            match idle.next(|| now.saturating_duration_since(idle_since)) {
                IdleStep::Spin => std::hint::spin_loop(),
                IdleStep::Yield => {
                    node.yielded(idle.budget.fruitless());
                    drop(present);
                    thread::yield_now();
                    idle.budget.note_yield(self.bells.now().saturating_duration_since(now));
                }
                IdleStep::Sleep => {
                    if node.begin_wait() > 0 {
                        self.tell(PolledBy::Standby);
                        node.end_wait(false);
                    } else if !self.doze(present) {
                        return true;
                    }
                    idle.budget.note_sleep(self.bells.now().saturating_duration_since(now));
                }
            }
        }
    }

    /// Sleeps as a node does; returns whether the standby thread polls again.
    fn doze(&self, mut present: MutexGuard<'_, Option<N>>) -> bool {
        let Some(node) = &mut *present else { return true };
        let patience = node.patience();
        let mut turns = self.turns();
        if turns.attention.fall_asleep() {
            self.show(&turns);
            drop((turns, present));
            self.bells.sleep_until_called(patience);
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
