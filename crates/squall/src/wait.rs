//! Waiting for the polling thread: threads that block and tasks that await share one mechanism.
//!
//! A thread or task that waits for space or for messages registers a waker and then checks once more; the polling
//! thread checks for waiters after each step in which something moved, and wakes those that may have what they wait for: one that waits for
//! the messages of a subgroup is not woken by those of others. Both sides fence, so a step without waiters costs a fence and a load.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
#[cfg(not(shuttle))]
use std::{sync::Mutex, thread};

use squall_fabric::atomics::{AtomicBool, Ordering, fence};
#[cfg(shuttle)]
use squall_fabric::explore::{sync::Mutex, thread};
use squall_fabric::mutex::unpoisoned;
use squall_protocols::multicast::PullWatch;

/// The threads and tasks that wait for one kind of event.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    has_waiters: AtomicBool,
    wakers: Mutex<Vec<(Waker, Awaited)>>,
}

/// What a thread or task waits for, as the polling thread sees it.
#[derive(Debug)]
pub(crate) enum Awaited {
    /// Anything may concern it.
    Any,
    /// News in one of these.
    Pulls(Vec<PullWatch>),
    /// That a count reaches a number.
    #[cfg(all(shuttle, test))]
    Count(schedules::Shared, u64),
}

impl Awaited {
    /// Returns whether it may be there.
    fn has_news(&self) -> bool {
        match self {
            Self::Any => true,
            Self::Pulls(pulls) => pulls.iter().any(PullWatch::has_news),
            #[cfg(all(shuttle, test))]
            Self::Count(shared, number) => shared.1.load(Ordering::Relaxed) >= *number,
        }
    }

    /// Returns whether a waiter that waits for the one is woken for the other.
    fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Pulls(pulls), Self::Pulls(others)) => {
                others.iter().all(|other| pulls.iter().any(|pull| pull.is_same(other)))
            }
            _ => false,
        }
    }
}

impl Waiters {
    /// Registers `waker`. The caller must check once more for what it waits for before it sleeps.
    pub(crate) fn register(&self, waker: &Waker) {
        self.register_for(waker, Awaited::Any);
    }

    /// Registers `waker`, as [`Waiters::register`] does, for what is awaited: [`Waiters::notify_watching`] wakes it for nothing else. A task may
    /// wait for several things.
    pub(crate) fn register_for(&self, waker: &Waker, awaited: Awaited) {
        let mut wakers = unpoisoned(self.wakers.lock());
        if !wakers.iter().any(|(other, present)| other.will_wake(waker) && present.includes(&awaited)) {
            wakers.push((waker.clone(), awaited));
        }
        // SYNC: pairs with `notify`: this store, then the barrier, then the caller's last check.
        self.has_waiters.store(true, Ordering::Relaxed);
        drop(wakers);
        fence(Ordering::SeqCst);
    }

    /// Wakes all waiters. It must be called after what they wait for was stored.
    #[inline]
    pub(crate) fn notify(&self) {
        fence(Ordering::SeqCst);
        // SYNC: pairs with `register`.
        if self.has_waiters.load(Ordering::Relaxed) {
            self.wake_all();
        }
    }

    /// Wakes those that wait for something that may be there. It must be called after what they wait for was stored.
    #[inline]
    pub(crate) fn notify_watching(&self) {
        fence(Ordering::SeqCst);
        // SYNC: pairs with `register`.
        if self.has_waiters.load(Ordering::Relaxed) {
            self.wake(Awaited::has_news);
        }
    }

    #[cold]
    fn wake_all(&self) {
        self.wake(|_| true);
    }

    fn wake(&self, is_due: impl Fn(&Awaited) -> bool) {
        let mut wakers = unpoisoned(self.wakers.lock());
        wakers.extract_if(.., |(_, awaited)| is_due(awaited)).for_each(|(waker, _)| waker.wake());
        self.has_waiters.store(!wakers.is_empty(), Ordering::Relaxed);
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

    pub(super) type Shared = Arc<(Waiters, AtomicU64)>;

    /// Waits until the count is that of the round.
    async fn wait(shared: &Shared, round: u64, watches: bool, mutation: Option<Mutation>) {
        let is_there = || shared.1.load(Ordering::Relaxed) >= round;
        poll_fn(|context| {
            if is_there() {
                return Poll::Ready(());
            }
            if watches {
                shared.0.register_for(context.waker(), Awaited::Count(Arc::clone(shared), round));
            } else {
                shared.0.register(context.waker());
            }
            if mutation != Some(Mutation::NoLastCheck) && is_there() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Runs two threads that wait, for the last round only or for each, and the thread that they wait for.
    fn run(watches: bool, mutation: Option<Mutation>) {
        let shared = Arc::new((Waiters::default(), AtomicU64::new(0)));
        let sleeper = |first: u64| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                (first..=ROUNDS).for_each(|round| block_on(wait(&shared, round, watches, mutation)));
            })
        };
        let sleepers = [sleeper(1), sleeper(ROUNDS)];
        let notify = || if watches { shared.0.notify_watching() } else { shared.0.notify() };
        for round in 1..=ROUNDS {
            if mutation == Some(Mutation::NotifyFirst) {
                notify();
                shared.1.store(round, Ordering::Relaxed);
            } else {
                shared.1.store(round, Ordering::Relaxed);
                notify();
            }
        }
        sleepers.into_iter().for_each(|sleeper| sleeper.join().expect("no panic"));
    }

    #[test]
    fn no_wake_up_is_lost() {
        explore(10_000, || run(false, None));
        explore(10_000, || run(true, None));
    }

    #[test]
    fn errors_of_each_side_are_found() {
        for (mutation, watches) in [Mutation::NoLastCheck, Mutation::NotifyFirst]
            .into_iter()
            .flat_map(|mutation| [(mutation, false), (mutation, true)])
        {
            assert!(finds_failure(10_000, move || run(watches, Some(mutation))), "{mutation:?}, {watches}");
        }
    }
}
