//! What one thread at a time looks after, without others waiting for it.
//!
//! **Invariant.** What was there when [`Attended::attend`] was called is seen by a look that began after the call: by the thread that has called,
//! or by one that had it at that moment. A thread that locks it by [`Attended::lock`] keeps that by looking again when
//! [`Attended::take_missed`] says so.

use std::fmt;
#[cfg(not(shuttle))]
use std::sync::{Mutex, MutexGuard};

use squall_fabric::atomics::{AtomicBool, Ordering};
#[cfg(shuttle)]
use squall_fabric::explore::sync::{Mutex, MutexGuard};
use squall_fabric::mutex::{unless_held, unpoisoned};

/// Something that threads look at as soon as there may be something new.
pub(crate) struct Attended<T> {
    inner: Mutex<T>,
    /// Whether a thread has found it with another one, which looks again after it has given it back.
    was_missed: AtomicBool,
}

impl<T> Attended<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { inner: Mutex::new(inner), was_missed: AtomicBool::new(false) }
    }

    /// Waits for it, and locks it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        unpoisoned(self.inner.lock())
    }

    /// Returns whether a thread has found it with another one; the thread that has given it back asks.
    pub(crate) fn take_missed(&self) -> bool {
        // SYNC: the later one of this exchange and that in `attend` sees what happened before the other one: this thread sees what is new,
        // or that thread sees that it has been given back.
        self.was_missed.swap(false, Ordering::AcqRel)
    }

    /// Locks it, unless another thread has it.
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        unless_held(self.inner.try_lock())
    }

    /// Looks at it; if another thread has it, that one looks once more, and this one does not wait.
    pub(crate) fn attend(&self, mut look: impl FnMut(&mut T)) {
        loop {
            if let Some(mut inner) = self.try_lock() {
                look(&mut inner);
                drop(inner);
                if !self.take_missed() {
                    return;
                }
            // SYNC: see `take_missed`. If it says that nothing was missed before, the other thread may already have given it back.
            } else if self.was_missed.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}

impl<T> fmt::Debug for Attended<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attended").finish_non_exhaustive()
    }
}

#[cfg(all(test, shuttle))]
mod schedules {
    use std::sync::Arc;

    use squall_fabric::atomics::AtomicU64;
    use squall_fabric::explore::{explore, finds_failure, thread};

    use super::*;

    /// Two threads put something there and attend to it, and one locks it; nothing is left when they have ended.
    fn run(locks: fn(&Attended<u64>, &AtomicU64)) {
        let (attended, put) = (Arc::new(Attended::new(0)), Arc::new(AtomicU64::new(0)));
        let putting = (0..2).map(|_| {
            let (attended, put) = (Arc::clone(&attended), Arc::clone(&put));
            thread::spawn(move || {
                for _ in 0..2 {
                    put.fetch_add(1, Ordering::Relaxed);
                    attended.attend(|seen| *seen = put.load(Ordering::Relaxed));
                }
            })
        });
        let threads: Vec<_> = putting.collect();
        for _ in 0..2 {
            locks(&attended, &put);
        }
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        assert_eq!(*attended.lock(), 4, "something was left");
    }

    fn look(attended: &Attended<u64>, put: &AtomicU64) {
        let mut seen = attended.lock();
        *seen = put.load(Ordering::Relaxed);
    }

    #[test]
    fn nothing_is_left() {
        explore(3000, || {
            run(|attended, put| {
                look(attended, put);
                while attended.take_missed() {
                    look(attended, put);
                }
            });
        });
    }

    #[test]
    fn one_that_does_not_look_again_leaves_something() {
        assert!(finds_failure(3000, || run(look)));
    }
}
