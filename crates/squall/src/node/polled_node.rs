//! What threads that share a node need of it: [`Node`](crate::node::Node), or in explored schedules a model of one.

use std::io;
use std::time::{Duration, Instant};

use squall_transports::runner::IdleLimits;

/// A node that one thread at a time polls.
pub(crate) trait PolledNode {
    /// What its threads sleep on.
    type Bells: NodeBells;

    fn bells(&self) -> io::Result<Self::Bells>;

    /// Does all that can be done now; returns the amount of work done.
    fn poll(&mut self) -> usize;

    /// Sends and announces what was posted.
    fn flush(&mut self);

    /// Prepares to sleep: from now on peers ring. Returns the amount of work that was done instead, if there was any.
    fn begin_wait(&mut self) -> usize;

    /// Ends a sleep, if there was one, and silences what peers and the waker have rung; returns the amount of work that has been done.
    /// `polls`: looks first for what has ended it.
    fn end_wait(&mut self, polls: bool) -> usize;

    /// Returns how long to sleep at most.
    fn patience(&self) -> Option<Duration>;

    /// Returns how to wait while there is nothing to do.
    fn idle_limits(&self) -> IdleLimits;

    /// Notes that the thread let others run, after `fruitless` polls without work.
    fn yielded(&mut self, fruitless: u32);

    /// Returns whether the group has ended here.
    fn has_failed(&self) -> bool;
}

/// What the threads that share a node sleep on, outside of its lock.
pub(crate) trait NodeBells {
    fn now(&self) -> Instant;

    /// Sleeps until the node has something to do, the waker has rung, or `patience` has passed.
    fn sleep(&self, patience: Option<Duration>);

    /// Rings the waker: ends the sleep of the thread that has the turn.
    fn wake(&self);

    /// Sleeps as [`NodeBells::sleep`], for the standby thread: a call ends it, too. Takes the call.
    fn sleep_until_called(&self, patience: Option<Duration>);

    /// Waits for a call, for the standby thread, at most for `limit`. Takes the call; returns whether there was one.
    fn await_call(&self, limit: Option<Duration>) -> bool;

    /// Calls the standby thread: ends what it waits in, or what it waits in next.
    fn call(&self);
}
