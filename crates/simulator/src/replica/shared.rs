//! What all processes of a run share: the plan, what the checkers know, and the bus (Derecho §3.4, app. A).

use std::cell::RefCell;
use std::rc::Rc;

use squall_fabric::{Duration, Instant};

use super::bus::{CallId, DatagramBody, MessageBus};
use super::history::UpdateHistory;
use super::plan::ReplicaPlan;
use crate::group::RunChecks;
use crate::run::Violation;

/// What all processes of a run share.
#[derive(Clone)]
pub(super) struct SharedRun {
    pub(super) plan: Rc<ReplicaPlan>,
    pub(super) watch: Rc<RefCell<RunChecks>>,
    pub(super) history: Rc<RefCell<UpdateHistory>>,
    pub(super) bus: Rc<RefCell<MessageBus>>,
}

impl SharedRun {
    pub(super) fn check(&self, result: Result<(), Violation>) {
        self.watch.borrow_mut().take(result);
    }

    pub(super) fn post(&self, from: u32, to: u32, call: CallId, body: DatagramBody) {
        self.bus.borrow_mut().post(from, to, call, body);
    }

    /// The world's time.
    pub(super) fn now(&self) -> Instant {
        self.bus.borrow().now()
    }

    /// A point of the world's time, at most so far from now.
    pub(super) fn pause(&self, most: Duration) -> Instant {
        let mut bus = self.bus.borrow_mut();
        let pause = bus.pause(most);
        bus.now() + pause
    }

    /// A point of the world's time by the clock of a node, at which it is `now`.
    pub(super) fn by_clock(&self, at: Instant, now: Instant) -> Instant {
        now + at.since(self.bus.borrow().now().min(at))
    }
}
