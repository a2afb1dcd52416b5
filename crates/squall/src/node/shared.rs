//! What a node that threads share needs: to sleep outside of its lock.

use std::os::fd::OwnedFd;
use std::time::Duration;

use squall_fabric::Fabric as _;
use squall_transports::runner::{Driven as _, IdleLimits, LOOK_AT_ALL};
use squall_transports::{TransportFabric as _, Waker};

use super::Node;

impl Node {
    /// Returns a descriptor that is readable when a peer has something for a node that is about to sleep.
    pub(crate) fn bell(&self) -> std::io::Result<OwnedFd> {
        self.stack.fabric.readiness().0.try_clone_to_owned()
    }

    pub(crate) fn waker(&self) -> Waker {
        self.stack.fabric.waker()
    }

    /// Returns how to wait while there is nothing to do.
    pub(crate) fn idle_limits(&self) -> IdleLimits {
        self.stack.idle_limits()
    }

    /// Prepares to sleep: from now on peers ring. Returns the amount of work that was done instead, if there was any.
    pub(crate) fn begin_wait(&mut self) -> usize {
        self.stack.fabric.prepare_park();
        self.stack.look_at_all();
        let work = self.poll();
        if work > 0 {
            return work;
        }
        // What this poll has posted must not wait as long as the node sleeps, and it may complete at once.
        self.stack.fabric.flush();
        self.stack.look_at_all();
        self.poll()
    }

    /// Returns how long to sleep at most.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let (_, patience) = self.stack.fabric.readiness();
        let now = self.stack.fabric.now();
        let deadline = self.stack.next_deadline().map(|deadline| deadline.since(now));
        [patience, deadline].into_iter().flatten().min()
    }

    /// Ends a sleep, if there was one; returns the amount of work that has been done. `polls`: looks first for what has ended it.
    pub(crate) fn end_wait(&mut self, polls: bool) -> usize {
        let work = if polls { self.poll() } else { 0 };
        self.stack.fabric.unpark();
        work
    }

    /// Notes that the thread let others run, after `fruitless` polls without work.
    pub(crate) fn yielded(&mut self, fruitless: u32) {
        self.stack.fabric.yielded();
        if fruitless.is_multiple_of(LOOK_AT_ALL) {
            self.stack.look_at_all();
        }
    }

    /// Sends and announces what was posted.
    pub(crate) fn flush(&mut self) {
        self.stack.fabric.flush();
    }
}
