//! Wakers: end a runner's park from any thread of the process.
//!
//! A waker is an `eventfd` that the parked transport waits for together with its sockets, behind a flag, so
//! that waking a runner that is awake costs a fence, one load and no system call. A wake-up must not be missed: a
//! thread that has stored something for the runner loads the flag *after* the store, and the runner looks for
//! work once more *after* it has set the flag. Both sides fence for that (5 ns): the kernel's `membarrier` on the
//! parking side alone would cost it 8 to 15 µs while other threads of the process run, and interrupt those.

use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use squall_fabric::atomics::{AtomicBool, Ordering, fence};

/// A handle with which any thread of the process ends a [`crate::TransportFabric::park`]. Cheap to clone.
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
    /// Creates a waker whose runner is awake.
    ///
    /// # Errors
    /// Returns an error if the process has no file descriptor left.
    pub fn new() -> std::io::Result<Self> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { shared: Arc::new(Shared { parked: AtomicBool::new(false), doorbell }) })
    }

    /// Wakes the runner if it is parked or about to park. Call this after storing what the runner must find.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        // SYNC: pairs with `set_parked`: both store, fence and load.
        if self.shared.parked.load(Ordering::Relaxed) {
            self.wake_parked();
        }
    }

    /// Rings once per park: a second thread need not ring, since the runner looks for work before it parks
    /// again.
    #[cold]
    fn wake_parked(&self) {
        if self.shared.parked.swap(false, Ordering::Relaxed) {
            self.ring();
        }
    }

    /// Rings whether the runner is parked or not.
    #[cold]
    pub fn ring(&self) {
        // A full counter (EAGAIN) means that the doorbell is ringing already.
        let _ = rustix::io::write(&self.shared.doorbell, &1u64.to_ne_bytes());
    }

    /// Marks the runner as parked, or as awake again. After a mark it has to look for work once more.
    pub(crate) fn set_parked(&self, parked: bool) {
        self.shared.parked.store(parked, Ordering::Relaxed);
        if parked {
            fence(Ordering::SeqCst);
        } else {
            self.silence();
        }
    }

    /// Silences the doorbell until it is rung again; returns whether it was rung.
    pub fn silence(&self) -> bool {
        // EAGAIN means that it was not rung.
        rustix::io::read(&self.shared.doorbell, &mut [0u8; 8]).is_ok()
    }

    /// Returns the doorbell, which is readable when it was rung.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::atomics::AtomicU64;

    use super::*;

    /// A word in cache lines of its own: the fence matters when a store waits for its line.
    #[repr(align(128))]
    struct Line(AtomicU64);

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
    fn many_wakers_ring_a_parked_runner_once() {
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

    /// Dekker's litmus test, on this processor: of a thread that has stored something, and a runner that is about to park, one sees the other.
    #[test]
    fn no_wake_up_is_lost_between_two_cores() {
        const ROUNDS: u64 = 200_000;
        let waker = Waker::new().expect("a file descriptor");
        let [thing, round_word] = [const { Line(AtomicU64::new(0)) }; 2];
        // Both sides begin each round together, offset by some nanoseconds; yielding lets the other side run on a loaded machine.
        let meet = |round: u64, shift: u64| {
            round_word.0.fetch_add(1, Ordering::Relaxed);
            let mut looks = 0;
            while round_word.0.load(Ordering::Relaxed) < 2 * round {
                looks += 1;
                if looks % 2_000 == 0 {
                    std::thread::yield_now();
                }
            }
            (0..shift).for_each(|_| std::hint::black_box(()));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    meet(2 * round - 1, round % 97);
                    thing.0.store(round, Ordering::Relaxed);
                    waker.wake();
                    meet(2 * round, 0);
                }
            });
            let mut lost = 0;
            for round in 1..=ROUNDS {
                meet(2 * round - 1, round % 89);
                waker.set_parked(true);
                let is_seen = thing.0.load(Ordering::Relaxed) == round;
                meet(2 * round, 0);
                lost += u64::from(!is_seen && rings(&waker).is_none());
                waker.set_parked(false);
            }
            assert_eq!(lost, 0, "of {ROUNDS} wake-ups");
        });
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

/// Parking, in explored schedules: a runner does not sleep while there is work.
#[cfg(all(test, shuttle))]
mod schedules {
    use rustix::event::{PollFd, PollFlags};
    use squall_fabric::atomics::AtomicU64;
    use squall_fabric::explore::{explore, finds_failure, thread, yield_now};

    use super::*;

    /// A defect of one of the two sides.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Mutation {
        /// The runner does not look once more after it has set its mark.
        NoLastLook,
        /// A thread with something for the runner wakes it first.
        WakeFirst,
    }

    const THINGS: u64 = 3;

    /// Runs the steps of [`crate::runner::Runner`] and of a transport, from one sleep to the next.
    fn rest(waker: &Waker, mut has_work: impl FnMut() -> bool, mutation: Option<Mutation>) {
        waker.set_parked(true);
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

    /// Runs two threads that each repeatedly have something for the runner.
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
