//! A store-load barrier between threads of one process that is free for the busy side and expensive for the
//! waiting side.
//!
//! Waiting needs Dekker's pattern: the busy side stores data, then loads the mark; the waiting side stores
//! the mark, then loads the data; at least one must see the other's store. With `membarrier` (private
//! expedited) the waiting side makes every running thread of the process execute a full barrier, so the busy
//! side needs only a compiler barrier. On kernels without that call, the busy side fences.
//!
//! There is no such barrier between processes: `membarrier` (global expedited) misses threads. When a thread
//! ends, the kernel notes that its core runs no registered process, and does not check again when the next
//! thread on that core is of the same process (observed with Linux 6.18: in 9 of 200,000 rounds of the litmus
//! test below neither side saw the other). So a thread that writes for another process fences later and looks
//! again (`shm/park.rs`), or the other side waits (`shm/revocation.rs`).

use std::sync::OnceLock;

use rustix::thread::{MembarrierCommand, membarrier};
use squall_fabric::atomics::{Ordering, compiler_fence, fence};

static EXPEDITED: OnceLock<bool> = OnceLock::new();

/// Returns whether this kernel has the expedited barrier; the first call registers this process for it.
pub fn expedited() -> bool {
    *EXPEDITED.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
}

/// Runs the busy side's barrier, between its stores and its load of the mark.
#[inline]
pub fn light() {
    if expedited() {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Runs the waiting side's barrier, between its store of the mark and its last check for work. It is also a
/// full fence, for a peer in another process that fences.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if expedited() {
        membarrier(MembarrierCommand::PrivateExpedited).expect("registered, so the kernel has it");
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use squall_fabric::atomics::{AtomicBool, AtomicU64};

    use super::*;

    /// A word in cache lines of its own: the barrier matters when a store waits for its line.
    #[repr(align(128))]
    struct Line(AtomicU64);

    /// Pins this thread to the first or the last core that it may use.
    fn stay(last: bool) {
        let may = sched_getaffinity(None).expect("the cores of this process");
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core));
        let mut only = CpuSet::new();
        only.set(if last { cores.next_back() } else { cores.next() }.expect("it runs somewhere"));
        sched_setaffinity(None, &only).expect("one of its cores");
    }

    /// Dekker's litmus test: of two threads that store and then load the other's word, at least one sees the
    /// other's store. Threads that end on the busy thread's core make no difference.
    #[test]
    fn one_side_sees_the_other() {
        const ROUNDS: u64 = 100_000;
        let [busy, waiting, round_word] = [const { Line(AtomicU64::new(0)) }; 3];
        let is_over = AtomicBool::new(false);
        // Both sides begin each round together, offset by some nanoseconds; yielding lets the other side run
        // on a loaded machine.
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
        let busy_side = |round: u64| {
            meet(2 * round - 1, round % 97);
            busy.0.store(round, Ordering::Relaxed);
            light();
            let seen = waiting.0.load(Ordering::Relaxed) == round;
            meet(2 * round, 0);
            seen
        };
        let waiting_side = |round: u64| {
            meet(2 * round - 1, round % 89);
            waiting.0.store(round, Ordering::Relaxed);
            heavy();
            let seen = busy.0.load(Ordering::Relaxed) == round;
            meet(2 * round, 0);
            seen
        };
        std::thread::scope(|scope| {
            let busy_saw = scope.spawn(|| {
                stay(false);
                (1..=ROUNDS).map(busy_side).collect::<Vec<_>>()
            });
            let waiting_saw = scope.spawn(|| {
                stay(true);
                (1..=ROUNDS).map(waiting_side).collect::<Vec<_>>()
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    scope.spawn(|| stay(false)).join().expect("no panic");
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
            });
            let saw = [busy_saw, waiting_saw].map(|side| side.join().expect("no panic"));
            is_over.store(true, Ordering::Relaxed);
            let blind = saw[0].iter().zip(&saw[1]).position(|(busy, waiting)| !busy && !waiting);
            assert_eq!(blind, None, "in this round neither side saw the other");
        });
    }
}
