//! Threads that take processor time from the members for a while.
//!
//! They run at the priority of the members: the scheduler then gives each member its fair share, as on a machine that is
//! too small for its work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use squall_fabric::atomics::{AtomicBool, Ordering};

/// Threads that run until a time, or until this is dropped.
pub(crate) struct ProcessorLoad {
    until: Instant,
    is_over: Arc<AtomicBool>,
}

impl ProcessorLoad {
    /// Starts threads that run `work` until the time is over.
    pub(crate) fn start(lasts: Duration, works: impl IntoIterator<Item = Box<dyn FnMut() + Send>>) -> Self {
        let (until, is_over) = (Instant::now() + lasts, Arc::<AtomicBool>::default());
        let run = |mut work: Box<dyn FnMut() + Send>| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) && Instant::now() < until {
                    work();
                }
            })
        };
        // They are not joined: one may wait for a member that is halted.
        works.into_iter().for_each(|work| drop(run(work)));
        Self { until, is_over }
    }

    /// Twice as many threads as there are processors, which do nothing but run.
    pub(crate) fn busy(lasts: Duration) -> Self {
        let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let spin =
            || Box::new(|| (0..10_000).for_each(|_| std::hint::spin_loop())) as Box<dyn FnMut() + Send>;
        Self::start(lasts, (0..2 * processors).map(|_| spin()))
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }
}

impl Drop for ProcessorLoad {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
