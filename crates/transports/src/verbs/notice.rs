//! The notification of completions: how a sleeping node learns that the device has something to report
//! (verbs: completion channel).
//!
//! A queue that is armed gives one notice, at the next completion, and none until it is armed again. A node
//! that removes a notice must therefore poll the queue *afterwards*: otherwise a completion that arrived
//! between an earlier poll and the notice would wake no one. And the node must arm the queue before it
//! sleeps, whatever it has found: the notice may be for a completion that was taken earlier, by the node
//! itself when it had armed the queue in between. A notice therefore counts as work, and a node that has
//! found work does not sleep.

/// A source from which a node takes completions.
pub(super) trait CompletionSource {
    /// Takes the completions that are available; returns their number.
    fn take(&mut self) -> usize;

    /// Takes the notices that were given; returns their number.
    fn silence(&mut self) -> usize;
}

/// Takes the notices and the completions that they announced; returns the amount of work done.
pub(super) fn heed(completing: &mut impl CompletionSource) -> usize {
    completing.silence() + completing.take()
}

/// Explores schedules of the last poll before a sleep: no completion is missed.
#[cfg(all(test, shuttle))]
mod schedules {
    use std::sync::Arc;

    use squall_fabric::atomics::{AtomicBool, AtomicUsize, Ordering::Relaxed};
    use squall_fabric::explore::{explore, finds_failure, thread};

    use super::*;

    /// A completion queue with its channel.
    #[derive(Default)]
    struct Queue {
        completions: AtomicUsize,
        taken: AtomicUsize,
        armed: AtomicBool,
        noticed: AtomicBool,
    }

    impl Queue {
        fn complete(&self, sleeper: &thread::Thread) {
            self.completions.fetch_add(1, Relaxed);
            if self.armed.swap(false, Relaxed) {
                self.noticed.store(true, Relaxed);
                sleeper.unpark();
            }
        }
    }

    impl CompletionSource for &Queue {
        fn take(&mut self) -> usize {
            let taken = self.completions.swap(0, Relaxed);
            self.taken.fetch_add(taken, Relaxed);
            taken
        }

        fn silence(&mut self) -> usize {
            usize::from(self.noticed.swap(false, Relaxed))
        }
    }

    /// Runs the steps of [`super::super::VerbsFabric`] from one sleep to the next.
    fn run(heed: fn(&mut &Queue) -> usize) {
        const COMPLETIONS: usize = 4;
        let queue = Arc::new(Queue::default());
        let (device, node) = (Arc::clone(&queue), thread::current());
        let device = thread::spawn(move || (0..COMPLETIONS).for_each(|_| device.complete(&node)));
        while queue.taken.load(Relaxed) < COMPLETIONS {
            queue.armed.store(true, Relaxed);
            let mut work = (&*queue).take();
            if queue.noticed.load(Relaxed) {
                work += heed(&mut &*queue);
            }
            while work == 0 && !queue.noticed.load(Relaxed) {
                thread::park();
            }
        }
        device.join().expect("no panic");
    }

    #[test]
    fn no_completion_is_missed() {
        explore(10_000, || run(|queue| heed(queue)));
    }

    /// Polling first and then taking the notice misses a completion that arrives between the two.
    #[test]
    fn polling_before_taking_the_notice_is_detected() {
        let look_first = |queue: &mut &Queue| {
            let taken = queue.take();
            queue.silence();
            taken
        };
        assert!(finds_failure(10_000, move || run(look_first)));
    }

    /// A node that sleeps after a notice without new completions sleeps with a queue that is not armed.
    #[test]
    fn a_notice_that_does_not_count_as_work_is_detected() {
        let look_only = |queue: &mut &Queue| {
            queue.silence();
            queue.take()
        };
        assert!(finds_failure(10_000, move || run(look_only)));
    }
}
