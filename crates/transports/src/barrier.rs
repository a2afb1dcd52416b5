//! A store-load barrier that is free for the busy side and dear for the parking side.
//!
//! Parking needs Dekker's pattern: the busy side stores data, then loads the mark; the parking side stores the
//! mark, then loads the data; at least one must see the other. With `membarrier` (global expedited) the parking
//! side makes every running thread of every registered process pass a full barrier, so the busy side needs
//! only a compiler barrier. A busy side that must reckon with a process without that call has to fence.

use std::sync::OnceLock;

use rustix::thread::{MembarrierCommand, membarrier};
use squall_fabric::atomics::{Ordering, compiler_fence, fence};

static EXPEDITED: OnceLock<bool> = OnceLock::new();

/// Whether this kernel has the expedited global barrier; registers this process for it at the first call.
pub fn expedited() -> bool {
    *EXPEDITED.get_or_init(|| membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok())
}

/// The busy side's half, between its stores and its load of the mark.
#[inline]
pub fn light() {
    light_if(!expedited());
}

/// As [`light`], for a busy side that knows whether a process that it must reckon with lacks the expedited
/// barrier: then it must fence.
#[inline]
pub(crate) fn light_if(fenced: bool) {
    if fenced {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The parking side's half, between its store of the mark and its last look for work.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if expedited() {
        membarrier(MembarrierCommand::GlobalExpedited).expect("registered, so the kernel has it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::atomics::AtomicU64;

    /// A word in cache lines of its own: a store that waits for its line is what the barrier is for.
    #[repr(align(128))]
    struct Line(AtomicU64);

    /// Dekker's litmus: of two threads that store and then load the other's word, at least one sees the other.
    #[test]
    fn one_side_sees_the_other() {
        const ROUNDS: u64 = 30_000;
        let [busy, parking, turn] = [const { Line(AtomicU64::new(0)) }; 3];
        // Both sides begin each round together, shifted against each other by some nanoseconds; yielding lets the
        // other come on a crowded machine.
        let meet = |round: u64, shift: u64| {
            turn.0.fetch_add(1, Ordering::Relaxed);
            let mut looks = 0;
            while turn.0.load(Ordering::Relaxed) < 2 * round {
                looks += 1;
                if looks % 2_000 == 0 {
                    std::thread::yield_now();
                }
            }
            (0..shift).for_each(|_| std::hint::black_box(()));
        };
        let busy_side = |round: u64| {
            meet(2 * round - 1, round % 97);
            busy.0.store(round, Ordering::Relaxed);
            light();
            let seen = parking.0.load(Ordering::Relaxed) == round;
            meet(2 * round, 0);
            seen
        };
        let parking_side = |round: u64| {
            meet(2 * round - 1, round % 89);
            parking.0.store(round, Ordering::Relaxed);
            heavy();
            let seen = busy.0.load(Ordering::Relaxed) == round;
            meet(2 * round, 0);
            seen
        };
        std::thread::scope(|scope| {
            let busy_saw = scope.spawn(|| (1..=ROUNDS).map(busy_side).collect::<Vec<_>>());
            let parking_saw: Vec<_> = (1..=ROUNDS).map(parking_side).collect();
            let busy_saw = busy_saw.join().expect("no panic");
            for (round, (busy, parking)) in busy_saw.into_iter().zip(parking_saw).enumerate() {
                assert!(busy || parking, "round {round}: neither side saw the other");
            }
        });
    }
}
