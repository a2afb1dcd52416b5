//! The notice of completions: how a node that sleeps learns that the device has something to tell (verbs: completion
//! channel).
//!
//! A queue that is armed gives one notice, at the next completion, and none before it is armed again. So whoever takes a
//! notice away must look at the queue *afterwards*: a completion that came between an earlier look and the notice would
//! wake nobody. And it must arm the queue before it sleeps, whatever it has found: the notice may be of a completion that
//! was taken before, by a node that had armed the queue in between. A notice therefore counts as work, and a node that has
//! found work does not sleep.

/// What a node takes completions from.
pub(super) trait CompletionSource {
    /// Takes the completions that are there; returns their number.
    fn take(&mut self) -> usize;

    /// Takes the notices that were given; returns their number.
    fn silence(&mut self) -> usize;
}

/// Takes the notices and what they told of; returns the amount of work done.
pub(super) fn heed(completing: &mut impl CompletionSource) -> usize {
    completing.silence() + completing.take()
}

/// The last look before a sleep, in explored schedules: no completion is missed.
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

    /// The steps of [`super::super::VerbsFabric`] from one sleep to the next.
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

    /// To look first and then to take the notice loses what comes between.
    #[test]
    fn a_look_before_the_notice_is_found() {
        let look_first = |queue: &mut &Queue| {
            let taken = queue.take();
            queue.silence();
            taken
        };
        assert!(finds_failure(10_000, move || run(look_first)));
    }

    /// To sleep after a notice of nothing new is to sleep with a queue that is not armed.
    #[test]
    fn a_notice_that_is_no_work_is_found() {
        let look_only = |queue: &mut &Queue| {
            queue.silence();
            queue.take()
        };
        assert!(finds_failure(10_000, move || run(look_only)));
    }
}
