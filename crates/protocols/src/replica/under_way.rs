//! This member's updates whose outcome is open: the sending side of a replica (Derecho §3.4: the fate of messages
//! when a view ends).

use std::collections::VecDeque;

use super::UpdateOrigin;
use super::mutation;

/// The outcome of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateOutcome<R> {
    /// It is applied here, and by all members that continue; this is this member's reply.
    Delivered(R),
    /// It is in no state and never will be: it can be sent again [A4].
    NotDelivered,
    /// This member was removed or has stopped while the update was in flight: the others may or may not apply it.
    Unknown,
}

/// This member's updates in the order in which they were sent, which is the order in which they are delivered \[V7\].
///
/// **Law.** [`UnderWay::begin`] when the replica holds the state; [`UnderWay::send`] before a message is committed,
/// under the same lock; [`UnderWay::deliver`] for each message of this member; [`UnderWay::leave`] when this member
/// has left the shard and all of its last view there is delivered; [`UnderWay::stop`] when it has left the group.
#[derive(Debug)]
pub struct UnderWay<T> {
    /// The view in which this member has entered the shard, while it may send.
    since: Option<u64>,
    sent: VecDeque<(UpdateOrigin, T)>,
    next: u64,
}

impl<T> Default for UnderWay<T> {
    fn default() -> Self {
        Self { since: None, sent: VecDeque::new(), next: 0 }
    }
}

impl<T> UnderWay<T> {
    /// Notes that this member holds the state, and has been in the shard since view `since`.
    pub const fn begin(&mut self, since: u64) {
        self.since = Some(since);
    }

    /// Returns the view since which this member has been in the shard, if it may send [A6]. A window that belongs to
    /// another stay must not be used: messages sent there would be reported as not delivered at the end of this one.
    #[must_use]
    pub const fn since(&self) -> Option<u64> {
        self.since
    }

    /// Returns a new number for an update of this member.
    pub const fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Notes that an update is about to be committed; `waiting` waits for its outcome.
    ///
    /// # Panics
    /// If this member may not send.
    pub fn send(&mut self, origin: UpdateOrigin, waiting: T) {
        assert!(self.since.is_some(), "[A6] an update is sent by a member that does not hold the state");
        self.sent.push_back((origin, waiting));
    }

    /// Returns whether no outcome is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Notes that an update of this member is delivered; returns its waiter.
    ///
    /// # Panics
    /// If it is not the oldest: the group guarantees order.
    pub fn deliver(&mut self, origin: UpdateOrigin) -> T {
        let (expected, waiting) = self.sent.pop_front().expect("what is delivered was sent");
        assert_eq!(expected, origin, "[V7] a member's updates are delivered in order");
        waiting
    }

    /// Notes that this member has left the shard: updates that were not delivered are in no state. Returns the
    /// waiters and the outcome.
    pub fn leave<R>(&mut self) -> Vec<(T, UpdateOutcome<R>)> {
        self.end(|| UpdateOutcome::NotDelivered)
    }

    /// Notes that this member has left the group, or was removed. Returns the waiters and the outcome.
    pub fn stop<R>(&mut self) -> Vec<(T, UpdateOutcome<R>)> {
        mutant!(DenyUnknown => return self.leave());
        self.end(|| UpdateOutcome::Unknown)
    }

    fn end<R>(&mut self, outcome: impl Fn() -> UpdateOutcome<R>) -> Vec<(T, UpdateOutcome<R>)> {
        self.since = None;
        self.sent.drain(..).map(|(_, waiting)| (waiting, outcome())).collect()
    }
}
