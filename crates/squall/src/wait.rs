//! Waiting for the polling thread: threads that block and tasks that await share one mechanism.
//!
//! Who waits for room or for messages leaves a waker and looks once more; the polling thread, after each step in
//! which something moved, looks whether anybody waits. The price of that order is paid by the waiting side
//! ([`barrier`]), so a step that nobody waits for costs one load.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_transports::barrier;

/// Those who wait for one kind of thing.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    anybody: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Waiters {
    /// Leaves `waker`. The caller must look once more for what it waits for before it sleeps.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        // SYNC: pairs with `notify`: this store, then the barrier, then the caller's last look.
        self.anybody.store(true, Ordering::Relaxed);
        drop(wakers);
        barrier::heavy();
    }

    /// Wakes all who wait. To be called after what they wait for was stored.
    #[inline]
    pub(crate) fn notify(&self) {
        barrier::light();
        // SYNC: pairs with `register`.
        if self.anybody.load(Ordering::Relaxed) {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        self.anybody.store(false, Ordering::Relaxed);
        for waker in wakers.drain(..) {
            waker.wake();
        }
    }
}

/// Runs a future to its end on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    run(future, None).expect("there is no deadline")
}

/// Runs a future on this thread, to its end or for `patience`.
pub(crate) fn block_for<F: Future>(future: F, patience: Duration) -> Option<F::Output> {
    run(future, Some(Instant::now() + patience))
}

fn run<F: Future>(future: F, deadline: Option<Instant>) -> Option<F::Output> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return Some(output),
            Poll::Pending => {
                match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                    None => std::thread::park(),
                    Some(Duration::ZERO) => return None,
                    Some(left) => std::thread::park_timeout(left),
                }
            }
        }
    }
}
