//! What happens at a bridge, and the queue in which it waits for the application.
//!
//! The queue is bounded, so that an application that does not read it costs no memory: of the failures of a topic, one of each kind is
//! queued in [`EVENT_PERIOD`], with the number of those that were left out. One that says that nothing more is forwarded is always queued.

use std::collections::{HashMap, VecDeque};
use std::mem::{Discriminant, discriminant};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::ForwardError;
use crate::settings::Direction;

/// What happens at a bridge.
///
/// ```
/// use squall_dds_bridge::{BridgeEvent, Direction};
///
/// let event = BridgeEvent::Peers { topic: "chatter".into(), direction: Direction::Out, now: 0, before: 1 };
/// assert!(event.to_string().contains("the last reader has gone"));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum BridgeEvent {
    /// Peers of the RTPS domain have come or gone: readers ([`Direction::Out`]) or writers ([`Direction::In`]).
    Peers {
        /// The topic's name in the Squall domain.
        topic: String,
        /// For which way of samples.
        direction: Direction,
        /// How many match now.
        now: usize,
        /// How many did before.
        before: usize,
    },
    /// A sample was not forwarded, or, if [`ForwardError::is_end`] says so, none will be any more.
    Failed {
        /// The topic's name in the Squall domain.
        topic: String,
        /// What is wrong.
        error: ForwardError,
        /// How many failures of this kind came since the last one that was reported, and were not.
        left_out: u64,
    },
}

impl std::fmt::Display for BridgeEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Peers { topic, direction, now, before } => {
                let peer = if *direction == Direction::Out { "reader" } else { "writer" };
                match (now, before) {
                    (0, 1..) => write!(f, "topic `{topic}`: the last {peer} has gone from the RTPS domain"),
                    (now, _) => write!(f, "topic `{topic}`: {now} {peer}s in the RTPS domain"),
                }
            }
            Self::Failed { topic, error, left_out: 0 } => write!(f, "topic `{topic}`: {error}"),
            Self::Failed { topic, error, left_out } => {
                write!(f, "topic `{topic}`: {error} (and {left_out} times more since the last report)")
            }
        }
    }
}

/// How many samples of a topic a bridge has forwarded.
///
/// ```
/// assert_eq!(squall_dds_bridge::ForwardCounts::default().dropped, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardCounts {
    /// Into the Squall domain.
    pub into_squall: u64,
    /// Into the RTPS domain.
    pub into_rtps: u64,
    /// Neither, because of an error, or since they did not come from the RTPS domain.
    pub dropped: u64,
}

/// The events that the application has not taken.
#[derive(Debug, Default)]
pub(crate) struct BridgeEventQueue {
    state: Mutex<BridgeEventState>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct BridgeEventState {
    events: VecDeque<BridgeEvent>,
    /// By topics, and kinds of errors.
    failures: HashMap<(String, Discriminant<ForwardError>), FailureCount>,
}

#[derive(Debug, Default)]
struct FailureCount {
    last: Option<Instant>,
    left_out: u64,
}

impl BridgeEventQueue {
    pub(crate) fn push(&self, event: BridgeEvent) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.events.len() < EVENTS_MAX {
            state.events.push_back(event);
            self.came.notify_one();
        }
    }

    pub(crate) fn push_failure(&self, topic: &str, error: ForwardError) {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = state.events.len() >= EVENTS_MAX;
        let count = state.failures.entry((topic.into(), discriminant(&error))).or_default();
        let is_soon = count.last.is_some_and(|last| now < last + EVENT_PERIOD);
        if (is_full || is_soon) && !error.is_end() {
            count.left_out += 1;
            return;
        }
        let left_out = std::mem::take(&mut count.left_out);
        count.last = Some(now);
        state.events.push_back(BridgeEvent::Failed { topic: topic.into(), error, left_out });
        self.came.notify_one();
    }

    pub(crate) fn next(&self, timeout: Duration) -> Option<BridgeEvent> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.came.wait_timeout_while(state, timeout, |state| state.events.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.events.pop_front()
    }
}

/// Between two failures of one kind in a topic that are reported.
const EVENT_PERIOD: Duration = Duration::from_secs(1);
const EVENTS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::FormError;

    fn failures(queue: &BridgeEventQueue) -> Vec<(String, u64)> {
        let next = || queue.next(Duration::ZERO);
        let of = |event| match event {
            BridgeEvent::Failed { topic, left_out, .. } => (topic, left_out),
            event => panic!("{event}"),
        };
        std::iter::from_fn(next).map(of).collect()
    }

    #[test]
    fn failures_of_one_kind_are_reported_once_in_a_while() {
        let queue = BridgeEventQueue::default();
        for _ in 0..5 {
            queue.push_failure("a", ForwardError::Missed(1));
        }
        queue.push_failure("a", FormError::NotText.into());
        queue.push_failure("b", ForwardError::Missed(1));
        queue.push_failure("a", ForwardError::Panicked);
        queue.push_failure("a", ForwardError::Panicked);
        assert_eq!(failures(&queue), ["a", "a", "b", "a", "a"].map(|topic| (topic.into(), 0)));
        // As if the time had passed.
        queue.state.lock().unwrap().failures.values_mut().for_each(|count| count.last = None);
        queue.push_failure("a", ForwardError::Missed(1));
        assert_eq!(failures(&queue), [("a".into(), 4)]);
    }

    #[test]
    fn the_queue_is_bounded_except_for_the_end() {
        let queue = BridgeEventQueue::default();
        for now in 0..2 * EVENTS_MAX {
            queue.push(BridgeEvent::Peers { topic: "a".into(), direction: Direction::In, now, before: 0 });
        }
        queue.push_failure("a", ForwardError::Missed(1));
        queue.push_failure("a", ForwardError::Panicked);
        assert_eq!(queue.state.lock().unwrap().events.len(), EVENTS_MAX + 1);
    }
}
