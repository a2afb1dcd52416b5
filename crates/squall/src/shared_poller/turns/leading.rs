//! A turn: a thread that waits polls meanwhile.

#[cfg(not(all(test, shuttle)))]
use std::thread;
use std::time::Instant;

#[cfg(all(test, shuttle))]
use squall_fabric::explore::thread;

use squall_transports::runner::{IdleStep, IdleStrategy};

use super::{NodeBells, Outcome, PolledBy, PolledNode, SharedNode, Turn};

impl<N: PolledNode> SharedNode<N> {
    /// Polls until `look` returns something: this thread has the turn.
    pub(super) fn lead<R>(&self, until: Option<Instant>, look: &mut impl FnMut() -> Option<R>) -> Outcome<R> {
        let turn = Turn(self);
        let mut idle = self.turns().leader_idle;
        let outcome = self.lead_with(&mut idle, until, look);
        self.turns().leader_idle = idle;
        drop(turn);
        outcome
    }

    fn lead_with<R>(
        &self,
        idle: &mut IdleStrategy,
        until: Option<Instant>,
        look: &mut impl FnMut() -> Option<R>,
    ) -> Outcome<R> {
        let mut present = self.node();
        let (mut idle_since, mut has_waited, mut seen) = (self.bells.now(), true, None);
        idle.budget.note_work();
        loop {
            let Some(node) = &mut *present else { return self.close_turns() };
            if std::mem::take(&mut has_waited) {
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
                idle.budget.note_work();
                continue;
            }
            if node.has_failed() || self.status.is_stopping() {
                return self.close_turns();
            }
            let now = self.bells.now();
            let left = until.map(|until| until.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                node.flush();
                return Outcome::Late;
            }
            if idle.budget.fruitless() == 0 {
                idle_since = now;
            }
            idle.budget.set_limits(node.idle_limits());
            match idle.next(|| now.saturating_duration_since(idle_since)) {
                IdleStep::Spin => {
                    std::hint::spin_loop();
                    continue;
                }
                IdleStep::Yield => {
                    thread::yield_now();
                    idle.budget.note_yield(self.bells.now().saturating_duration_since(now));
                    node.yielded(idle.budget.fruitless());
                    continue;
                }
                IdleStep::Sleep => {}
            }
            if node.begin_wait() > 0 {
                self.tell(PolledBy::Waiting);
                // They may be for this thread.
                seen = None;
            } else if self.may_sleep(changes) {
                let patience = [left, node.patience()].into_iter().flatten().min();
                drop(present);
                self.bells.sleep(patience);
                self.turns().is_leader_asleep = false;
                present = self.node();
                if let Some(node) = &mut *present
                    && node.end_wait(true) > 0
                {
                    self.tell(PolledBy::Waiting);
                }
                seen = None;
            }
            idle.budget.note_sleep(self.bells.now().saturating_duration_since(now));
            has_waited = true;
        }
    }

    /// Returns whether nothing has changed since the thread that has the turn has looked; whatever changes from now on wakes it.
    fn may_sleep(&self, seen: u64) -> bool {
        let mut turns = self.turns();
        turns.is_leader_asleep = turns.changes == seen;
        turns.is_leader_asleep
    }

    /// Gives the turn to no thread any more: the standby thread has to end the group.
    fn close_turns<R>(&self) -> Outcome<R> {
        self.turns().is_over = true;
        Outcome::Over
    }
}
