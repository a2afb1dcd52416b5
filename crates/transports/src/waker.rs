//! Ends a runner's park from any thread of the process.
//!
//! An `eventfd` that the parked transport waits on beside its sockets, behind a flag, so that waking a runner
//! that is awake costs one load and no system call. A waker must not be missed: who has stored something for
//! the runner loads the flag *after* the store, and the runner looks for work once more *after* it has set the
//! flag. That store-load order costs the waker nothing because the parking side pays for both (see `barrier`).

use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use squall_fabric::atomics::{AtomicBool, Ordering};

use crate::barrier;

/// A handle by which any thread of the process ends a [`crate::TransportFabric::park`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    parked: AtomicBool,
    doorbell: OwnedFd,
}

impl Waker {
    /// A waker whose runner is awake.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    pub fn new() -> std::io::Result<Self> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { shared: Arc::new(Shared { parked: AtomicBool::new(false), doorbell }) })
    }

    /// Wakes the runner if it is parked or about to park. To be called after what it shall find was stored.
    #[inline]
    pub fn wake(&self) {
        barrier::light();
        // SYNC: pairs with `set_parked` followed by `barrier::heavy` in `prepare_park`.
        if self.shared.parked.load(Ordering::Relaxed) {
            self.wake_parked();
        }
    }

    /// One ring ends a park: who comes second need not ring, the runner looks for work before it parks again.
    #[cold]
    fn wake_parked(&self) {
        if self.shared.parked.swap(false, Ordering::Relaxed) {
            self.ring();
        }
    }

    /// Rings whether the runner is parked or not.
    #[cold]
    pub fn ring(&self) {
        // A full counter (EAGAIN) means that the doorbell rings already.
        let _ = rustix::io::write(&self.shared.doorbell, &1u64.to_ne_bytes());
    }

    /// Marks the runner as parked, or awake again. The caller follows a mark by [`barrier::heavy`].
    pub(crate) fn set_parked(&self, parked: bool) {
        self.shared.parked.store(parked, Ordering::Relaxed);
        if !parked {
            self.silence();
        }
    }

    /// Silences the doorbell, until somebody rings again.
    pub(crate) fn silence(&self) {
        // EAGAIN means that nobody rang.
        let _ = rustix::io::read(&self.shared.doorbell, &mut [0u8; 8]);
    }

    /// Readable when somebody rang.
    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(waker: &Waker) -> Option<u64> {
        let mut count = [0; 8];
        rustix::io::read(&waker.shared.doorbell, &mut count).ok().map(|_| u64::from_ne_bytes(count))
    }

    #[test]
    fn an_awake_runner_is_not_rung() {
        let waker = Waker::new().expect("a file descriptor");
        waker.wake();
        assert_eq!(rings(&waker), None);
    }

    #[test]
    fn a_parked_runner_is_rung_once_by_many() {
        let waker = Waker::new().expect("a file descriptor");
        waker.set_parked(true);
        waker.wake();
        waker.clone().wake();
        assert_eq!(rings(&waker), Some(1));
        waker.set_parked(false);
        waker.set_parked(true);
        waker.wake();
        assert_eq!(rings(&waker), Some(1), "each park can be ended");
    }

    #[test]
    fn waking_up_silences_the_doorbell() {
        let waker = Waker::new().expect("a file descriptor");
        waker.set_parked(true);
        waker.wake();
        waker.set_parked(false);
        assert_eq!(rings(&waker), None);
    }
}

/// Parking, in explored schedules: a runner does not sleep while there is something to do.
#[cfg(all(test, shuttle))]
mod schedules {
    use rustix::event::{PollFd, PollFlags};
    use squall_fabric::atomics::AtomicU64;
    use squall_fabric::explore::{explore, finds_failure, thread, yield_now};

    use super::*;

    /// An error of one of the two sides.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Mutation {
        /// The runner does not look once more when its mark is there.
        NoLastLook,
        /// Whoever has something for the runner wakes it first.
        WakeFirst,
    }

    const THINGS: u64 = 3;

    /// The steps of [`crate::runner::Runner`] and of a transport, from one sleep to the next.
    fn rest(waker: &Waker, mut has_work: impl FnMut() -> bool, mutation: Option<Mutation>) {
        waker.set_parked(true);
        barrier::heavy();
        if mutation == Some(Mutation::NoLastLook) || !has_work() {
            let no_time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let rings = || {
                let mut doorbell = [PollFd::from_borrowed_fd(waker.doorbell(), PollFlags::IN)];
                rustix::event::poll(&mut doorbell, Some(&no_time)).expect("a doorbell") > 0
            };
            while !rings() {
                yield_now();
            }
        }
        waker.set_parked(false);
    }

    /// Two threads that each have something for the runner, again and again.
    fn run(mutation: Option<Mutation>) {
        let shared = Arc::new((Waker::new().expect("a file descriptor"), AtomicU64::new(0)));
        let user = || {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for _ in 0..THINGS {
                    if mutation == Some(Mutation::WakeFirst) {
                        shared.0.wake();
                        shared.1.fetch_add(1, Ordering::Relaxed);
                    } else {
                        shared.1.fetch_add(1, Ordering::Relaxed);
                        shared.0.wake();
                    }
                }
            })
        };
        let users = [user(), user()];
        let mut seen = 0;
        while seen < 2 * THINGS {
            let there = shared.1.load(Ordering::Relaxed);
            if there == seen {
                rest(&shared.0, || shared.1.load(Ordering::Relaxed) > seen, mutation);
            }
            seen = there;
        }
        users.into_iter().for_each(|user| user.join().expect("no panic"));
    }

    #[test]
    fn no_ring_is_lost() {
        explore(2000, || run(None));
    }

    #[test]
    fn errors_of_each_side_are_found() {
        for mutation in [Mutation::NoLastLook, Mutation::WakeFirst] {
            assert!(finds_failure(2000, move || run(Some(mutation))), "{mutation:?}");
        }
    }
}
