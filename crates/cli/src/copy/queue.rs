//! The queue: a host receives one copy at a time, in the order in which the copies arrived.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use squall_fabric::mutex::{lock, unpoisoned};

/// The copies of a host; the first one has its turn.
#[derive(Debug, Default)]
pub(crate) struct CopyQueue {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The number and the source of each copy; at most [`WAITING_MAX`] after the first.
    copies: VecDeque<(u64, String)>,
    numbers: u64,
}

/// A copy's place in the queue, given back when dropped.
#[derive(Debug)]
pub(crate) struct QueueTicket<'t> {
    queue: &'t CopyQueue,
    number: u64,
}

/// What a copy waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopiesAhead {
    /// How many copies come first.
    pub(crate) copies: usize,
    /// The source of the one that has its turn.
    pub(crate) source: String,
}

impl CopyQueue {
    /// Adds a copy from `source` at the end; `None` if too many wait.
    pub(crate) fn queue(&self, source: &str) -> Option<QueueTicket<'_>> {
        let mut queue = self.lock();
        if queue.copies.len() > WAITING_MAX {
            return None;
        }
        queue.numbers += 1;
        let number = queue.numbers;
        queue.copies.push_back((number, source.to_owned()));
        Some(QueueTicket { queue: self, number })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

impl QueueTicket<'_> {
    /// Waits until the turn has come, for `patience` at most; returns what it still waits for then.
    pub(crate) fn wait(&self, patience: Duration) -> Option<CopiesAhead> {
        let waiting = |queue: &mut Queue| queue.ahead(self.number).is_some();
        let waited = self.queue.changed.wait_timeout_while(self.queue.lock(), patience, waiting);
        unpoisoned(waited).0.ahead(self.number)
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.queue.lock().copies.retain(|(number, _)| *number != self.number);
        self.queue.changed.notify_all();
    }
}

impl Queue {
    fn ahead(&self, number: u64) -> Option<CopiesAhead> {
        let (first, source) = self.copies.front().filter(|(first, _)| *first != number)?;
        debug_assert!(*first < number, "numbers rise in the queue");
        let copies = self.copies.iter().take_while(|(other, _)| *other != number).count();
        Some(CopiesAhead { copies, source: source.clone() })
    }
}

/// Each has a thread and a connection.
const WAITING_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// One has its turn, the others wait in the order in which they arrived, and one that ends lets the next begin.
    #[test]
    fn copies_run_in_order() {
        let queue = CopyQueue::default();
        let [a, b, c] = ["a", "b", "c"].map(|source| queue.queue(source).unwrap());
        let ahead = |copies, source: &str| Some(CopiesAhead { copies, source: source.into() });
        assert_eq!(a.wait(Duration::ZERO), None);
        assert_eq!(b.wait(Duration::ZERO), ahead(1, "a"));
        assert_eq!(c.wait(Duration::ZERO), ahead(2, "a"));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| c.wait(Duration::from_secs(60)));
            drop(b);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished(), "a has its turn still");
            drop(a);
            assert_eq!(waiting.join().unwrap(), None);
        });
    }

    #[test]
    fn the_queue_is_bounded() {
        let queue = CopyQueue::default();
        let queued: Vec<QueueTicket<'_>> = (0..=WAITING_MAX).map(|_| queue.queue("a").unwrap()).collect();
        assert!(queue.queue("b").is_none());
        drop(queued);
        assert!(queue.queue("b").is_some());
    }
}
