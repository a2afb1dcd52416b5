//! Own updates whose outcome is open: the sending side of a replica (Derecho §3.4: what becomes of a message whose view
//! ends).

use std::collections::VecDeque;

use super::UpdateOrigin;
use super::mutation;

/// What has become of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateOutcome<R> {
    /// It is applied here, and by all who go on; this is the reply of this member.
    Delivered(R),
    /// It is in no state and never will be: it can be sent again [A4].
    NotDelivered,
    /// This member was removed or has stopped while the update was under way: the others may apply it, or not.
    Unknown,
}

/// Own updates in the order in which they were sent, which is the order in which they come back \[V7\].
///
/// **Law.** [`UnderWay::begin`] when the replica holds the state; [`UnderWay::send`] before a message is committed, under
/// the same lock; [`UnderWay::deliver`] for each own message; [`UnderWay::leave`] when this member has left the shard and
/// all of its last view there is delivered; [`UnderWay::stop`] when it has left the group.
#[derive(Debug)]
pub struct UnderWay<T> {
    /// The view in which this member has come into the shard, while it may send.
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
    /// This member holds the state, and has been in the shard since view `since`.
    pub const fn begin(&mut self, since: u64) {
        self.since = Some(since);
    }

    /// Since which view this member is in the shard, if it may send [A6]. A window that belongs to another stay must not
    /// be used: what is sent there would be told to be not delivered at the end of this one.
    #[must_use]
    pub const fn since(&self) -> Option<u64> {
        self.since
    }

    /// A number for an own update.
    pub const fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// An update is about to be committed; `waiting` waits for its outcome.
    ///
    /// # Panics
    /// If this member may not send.
    pub fn send(&mut self, origin: UpdateOrigin, waiting: T) {
        assert!(self.since.is_some(), "[A6] an update is sent by a member that does not hold the state");
        self.sent.push_back((origin, waiting));
    }

    /// Whether no outcome is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// An own message is delivered; returns who waits for it.
    ///
    /// # Panics
    /// If it is not the oldest: the group promises order.
    pub fn deliver(&mut self, origin: UpdateOrigin) -> T {
        let (expected, waiting) = self.sent.pop_front().expect("what is delivered was sent");
        assert_eq!(expected, origin, "[V7] own updates come back in order");
        waiting
    }

    /// This member has left the shard: what has not come is in no state. Returns who waits, and the outcome.
    pub fn leave<R>(&mut self) -> Vec<(T, UpdateOutcome<R>)> {
        self.end(|| UpdateOutcome::NotDelivered)
    }

    /// This member has left the group, or was removed. Returns who waits, and the outcome.
    pub fn stop<R>(&mut self) -> Vec<(T, UpdateOutcome<R>)> {
        mutant!(DenyUnknown => return self.leave());
        self.end(|| UpdateOutcome::Unknown)
    }

    fn end<R>(&mut self, outcome: impl Fn() -> UpdateOutcome<R>) -> Vec<(T, UpdateOutcome<R>)> {
        self.since = None;
        self.sent.drain(..).map(|(_, waiting)| (waiting, outcome())).collect()
    }
}
