//! Waiting for the polling thread: threads that block and tasks that await share one mechanism.
//!
//! A thread or task that waits for space or for messages registers a waker and then checks once more; the polling
//! thread checks for waiters after each step in which something moved. The waiting side pays for that memory order
//! ([`barrier`]), so a step without waiters costs one load.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
#[cfg(not(shuttle))]
use std::{sync::Mutex, thread};

use squall_fabric::atomics::{AtomicBool, Ordering};
#[cfg(shuttle)]
use squall_fabric::explore::{sync::Mutex, thread};
use squall_transports::barrier;

/// The threads and tasks that wait for one kind of event.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    has_waiters: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Waiters {
    /// Registers `waker`. The caller must check once more for what it waits for before it sleeps.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        // SYNC: pairs with `notify`: this store, then the barrier, then the caller's last check.
        self.has_waiters.store(true, Ordering::Relaxed);
        drop(wakers);
        barrier::heavy();
    }

    /// Wakes all waiters. It must be called after what they wait for was stored.
    #[inline]
    pub(crate) fn notify(&self) {
        barrier::light();
        // SYNC: pairs with `register`.
        if self.has_waiters.load(Ordering::Relaxed) {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_waiters.store(false, Ordering::Relaxed);
        for waker in wakers.drain(..) {
            waker.wake();
        }
    }
}

/// Runs a future to completion on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    run(future, None).expect("there is no deadline")
}

/// Runs a future on this thread, to completion or for at most `patience`.
pub(crate) fn block_for<F: Future>(future: F, patience: Duration) -> Option<F::Output> {
    run(future, Some(Instant::now() + patience))
}

fn run<F: Future>(future: F, deadline: Option<Instant>) -> Option<F::Output> {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return Some(output),
            Poll::Pending => {
                match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                    None => thread::park(),
                    Some(Duration::ZERO) => return None,
                    Some(left) => thread::park_timeout(left),
                }
            }
        }
    }
}

/// Waiting in explored schedules: no waiter sleeps while what it waits for is available.
#[cfg(all(test, shuttle))]
mod schedules {
    use std::future::poll_fn;

    use squall_fabric::atomics::AtomicU64;
    use squall_fabric::explore::{explore, finds_failure};

    use super::*;

    /// An error of one of the two sides.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Mutation {
        /// The waiter does not check once more after it has registered its waker.
        NoLastCheck,
        /// The polling thread wakes before it stores.
        NotifyFirst,
    }

    const ROUNDS: u64 = 3;

    /// Waits until the count is that of the round.
    async fn wait(waiters: &Waiters, count: &AtomicU64, round: u64, mutation: Option<Mutation>) {
        let is_there = || count.load(Ordering::Relaxed) >= round;
        poll_fn(|context| {
            if is_there() {
                return Poll::Ready(());
            }
            waiters.register(context.waker());
            if mutation != Some(Mutation::NoLastCheck) && is_there() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Runs two threads that wait, and the thread that they wait for.
    fn run(mutation: Option<Mutation>) {
        let shared = Arc::new((Waiters::default(), AtomicU64::new(0)));
        let sleeper = || {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                (1..=ROUNDS).for_each(|round| block_on(wait(&shared.0, &shared.1, round, mutation)));
            })
        };
        let sleepers = [sleeper(), sleeper()];
        for round in 1..=ROUNDS {
            if mutation == Some(Mutation::NotifyFirst) {
                shared.0.notify();
                shared.1.store(round, Ordering::Relaxed);
            } else {
                shared.1.store(round, Ordering::Relaxed);
                shared.0.notify();
            }
        }
        sleepers.into_iter().for_each(|sleeper| sleeper.join().expect("no panic"));
    }

    #[test]
    fn no_wake_up_is_lost() {
        explore(10_000, || run(None));
    }

    #[test]
    fn errors_of_each_side_are_found() {
        for mutation in [Mutation::NoLastCheck, Mutation::NotifyFirst] {
            assert!(finds_failure(10_000, move || run(Some(mutation))), "{mutation:?}");
        }
    }
}
