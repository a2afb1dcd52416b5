//! Exploration of schedules: runs one test body in thousands of interleavings, chosen by seeds (in a build
//! with `--cfg shuttle`).
//!
//! The threads of a test ([`thread`]) run one at a time. At each access to an atomic type of
//! [`crate::atomics`], and therefore to each word of a [`crate::Region`], and at each [`point`], the
//! scheduler decides which thread continues. Two schedulers are used: one chooses at random; the other gives
//! threads priorities that it changes at a few points (PCT), which finds defects that need one thread to
//! pause for a long time.
//!
//! **What is not covered.** Threads see each other's stores immediately and in order. Orderings weaker than
//! sequential consistency are not explored, so an `Ordering` that is too weak, or a missing fence, is not
//! found. Bytes in place (`&[u8]`) are read and written without points in between; tests put points between
//! them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

pub use shuttle::{sync, thread};

/// A point at which another thread may run. Outside an exploration it does nothing.
pub fn point() {
    if shuttle::current::try_get_current_task().is_some() && !thread::panicking() {
        // Virtual time does not pass in an exploration: the sleep only lets the scheduler choose.
        thread::sleep(crate::Duration::ZERO);
    }
}

/// Same as [`point`], for a thread that cannot continue before another thread acts.
pub fn yield_now() {
    thread::yield_now();
}

/// Returns a number below `below` that the schedule draws.
#[must_use]
pub fn draw(below: usize) -> usize {
    use shuttle::rand::Rng as _;
    shuttle::rand::thread_rng().gen_range(0..below)
}

/// Runs `test` in `schedules` schedules, multiplied by `SQUALL_SHUTTLE_FACTOR` if the build sets it. A
/// failure prints its schedule, which `shuttle::replay` repeats.
///
/// # Panics
/// Panics if `test` panics in a schedule, no thread can continue, or a schedule has more than [`STEPS_MAX`]
/// steps.
pub fn explore(schedules: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    let schedules = schedules * factor();
    let half = schedules / 2;
    Runner::new(RandomScheduler::new_from_seed(SEED, schedules - half), config(FailurePersistence::Print))
        .run(test.clone());
    for depth in DEPTHS {
        let pct = PctScheduler::new_from_seed(SEED, depth, half / DEPTHS.len());
        Runner::new(pct, config(FailurePersistence::Print)).run(test.clone());
    }
}

/// Returns whether `test` fails in one of at most `schedules` schedules; a test with a mutation must.
#[must_use]
pub fn finds_failure(schedules: usize, test: impl Fn() + Send + Sync + Clone + 'static) -> bool {
    let fails = |run: &dyn Fn()| catch_unwind(AssertUnwindSafe(run)).is_err();
    let half = schedules / 2;
    let random = || {
        let random = RandomScheduler::new_from_seed(SEED, half);
        _ = Runner::new(random, config(FailurePersistence::None)).run(test.clone());
    };
    let pct = |depth| {
        let pct = PctScheduler::new_from_seed(SEED, depth, half / DEPTHS.len());
        _ = Runner::new(pct, config(FailurePersistence::None)).run(test.clone());
    };
    fails(&random) || DEPTHS.into_iter().any(|depth| fails(&|| pct(depth)))
}

fn config(failure_persistence: FailurePersistence) -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.failure_persistence = failure_persistence;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config
}

/// Returns the factor for the number of schedules, set at build time because the environment must not change
/// behaviour here.
fn factor() -> usize {
    option_env!("SQUALL_SHUTTLE_FACTOR").map_or(1, |factor| factor.parse().expect("a number"))
}

/// Fixed, so that each run explores the same schedules.
const SEED: u64 = 0x5ca1_ab1e;
/// The number of points at which priorities change, plus one.
const DEPTHS: [usize; 3] = [2, 3, 5];
/// The steps after which a test that waits forever fails.
pub const STEPS_MAX: usize = 100_000;
const STACK_BYTES: usize = 1 << 18;
