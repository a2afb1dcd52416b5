//! The runner's idle strategy: what a polling thread does when it finds no work (Spindle §2.4).
//!
//! A busy group polls without pause. Without work the thread first spins, then yields the processor, then
//! parks: an idle group uses no CPU time, and the first message wakes it through a doorbell. How long it
//! spins depends on what happens ([`IdleBudget`]): where others need the processors, spinning only keeps
//! them from working.

mod budget;
mod waits;

use std::sync::OnceLock;
use std::time::Duration;

use squall_fabric::{Fabric as _, Instant};

pub use budget::{IdleBudget, IdleStep, SETTLED, SPIN_MAX};
use waits::ProcessorWaits;

use crate::TransportFabric;

/// How to wait when there is no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleLimits {
    /// The polls without work before yielding begins.
    pub spins: u32,
    /// The polls without work, each followed by a yield, before parking. `u32::MAX` means that the thread
    /// never parks.
    pub yields: u32,
    /// Spinning and yielding are bounded by times instead, which follow what happens ([`IdleBudget`]); without
    /// any `spins` the thread does not spin at the beginning.
    pub adapts: bool,
}

impl IdleLimits {
    /// Never gives up the processor: for dedicated cores.
    pub const SPIN: Self = Self { spins: u32::MAX, yields: u32::MAX, adapts: false };

    /// Yields the processor between polls, but never sleeps.
    pub const YIELD: Self = Self { spins: 0, yields: u32::MAX, adapts: false };

    /// Parks soon: for machines with more polling threads than cores, and for tests.
    pub const PARK: Self = Self { spins: 0, yields: 50, adapts: false };

    /// For devices in software, which need the processor to transfer anything: yields for the time of a few
    /// short messages, then parks, since such a device transfers long messages faster when it has the
    /// processor for itself.
    pub const SOFTWARE_DEVICE: Self = Self { spins: 0, yields: 200, adapts: false };

    /// Returns limits that follow what happens. `threads` polling threads that have a core each begin with
    /// spinning.
    #[must_use]
    pub fn auto(threads: usize) -> Self {
        Self { spins: u32::from(threads <= cores()), yields: 1, adapts: true }
    }
}

/// What one polling thread does without work: an [`IdleBudget`] that is fed with what happens.
#[derive(Clone, Copy, Debug)]
pub struct IdleStrategy {
    /// What it decides by; takes what has happened.
    pub budget: IdleBudget,
    waits: ProcessorWaits,
    /// For how long the thread has waited for a processor, of how long, since that was last judged.
    waited: (Duration, Duration),
    lacks_processor: bool,
}

impl IdleStrategy {
    /// Waits as `limits` says.
    #[must_use]
    pub fn new(limits: IdleLimits) -> Self {
        let waited = (Duration::ZERO, Duration::ZERO);
        Self {
            budget: IdleBudget::new(limits),
            waits: ProcessorWaits::default(),
            waited,
            lacks_processor: false,
        }
    }

    /// Same as [`IdleBudget::next`], for this thread.
    pub fn next(&mut self, idle: impl FnOnce() -> Duration) -> IdleStep {
        if self.budget.adapts()
            && let Some((waited, of)) = self.waits.since_last()
        {
            self.budget.note_waiting(waited, of);
            self.waited = (self.waited.0 + waited, self.waited.1 + of);
            if self.waited.1 >= JUDGED {
                let (waited, of) = std::mem::take(&mut self.waited);
                self.lacks_processor = waited >= of / 2;
            }
        }
        self.budget.next(idle)
    }

    /// Returns whether this thread has waited for a processor for half of the last tenth of a second, once after each of these.
    #[inline]
    pub const fn take_lack_of_processor(&mut self) -> bool {
        std::mem::replace(&mut self.lacks_processor, false)
    }
}

/// Drives a transport and the cores on it from one thread.
#[derive(Debug)]
pub struct Runner {
    idle: IdleStrategy,
    /// When the first of the consecutive polls without work was.
    idle_since: Instant,
    /// The number of times that the thread has parked.
    parks: u64,
}

impl Runner {
    /// Creates a runner that waits as `idle` says.
    #[must_use]
    pub fn new(idle: IdleLimits) -> Self {
        Self { idle: IdleStrategy::new(idle), idle_since: Instant::from_nanos(0), parks: 0 }
    }

    /// Waits as `idle` says from now on.
    pub fn set_limits(&mut self, idle: IdleLimits) {
        self.idle.budget.set_limits(idle);
    }

    /// Returns the number of times that the thread has parked.
    #[must_use]
    pub const fn parks(&self) -> u64 {
        self.parks
    }

    /// Same as [`IdleStrategy::take_lack_of_processor`].
    #[inline]
    pub const fn take_lack_of_processor(&mut self) -> bool {
        self.idle.take_lack_of_processor()
    }

    /// Polls once, and waits if there was no work. Returns the amount of work done.
    #[inline]
    pub fn step<D: Driven>(&mut self, driven: &mut D) -> usize {
        let work = driven.poll();
        if work > 0 {
            self.idle.budget.note_work();
            return work;
        }
        self.wait(driven)
    }

    fn wait<D: Driven>(&mut self, driven: &mut D) -> usize {
        let now = driven.transport().now();
        if self.idle.budget.fruitless() == 0 {
            self.idle_since = now;
        }
        match self.idle.next(|| now.since(self.idle_since)) {
            IdleStep::Spin => {
                // The awaited work usually comes soon, and a pause would delay its detection.
                if self.idle.budget.fruitless() > EAGER_POLLS {
                    std::hint::spin_loop();
                }
                0
            }
            IdleStep::Yield => {
                std::thread::yield_now();
                self.idle.budget.note_yield(driven.transport().now().since(now));
                driven.transport().yielded();
                // Others may have run for long.
                if self.idle.budget.fruitless().is_multiple_of(LOOK_AT_ALL) {
                    driven.look_at_all();
                }
                0
            }
            IdleStep::Sleep => self.park(driven, now),
        }
    }

    fn park<D: Driven>(&mut self, driven: &mut D, now: Instant) -> usize {
        driven.transport().prepare_park();
        driven.look_at_all();
        let work = driven.poll();
        if work == 0 {
            self.parks += 1;
            let now = driven.transport().now();
            let timeout = driven.next_deadline().map(|deadline| deadline.since(now));
            driven.transport().park(timeout);
        }
        driven.transport().unpark();
        // Work that came before it slept would have been met as well.
        self.idle.budget.note_sleep(driven.transport().now().since(now));
        work
    }
}

/// The time over which it is judged whether a thread lacks a processor.
const JUDGED: Duration = Duration::from_millis(100);

/// After one of this many yields the next poll looks at everything.
pub const LOOK_AT_ALL: u32 = 16;

/// Polls without work before pauses between them begin: some microseconds.
const EAGER_POLLS: u32 = 100;

/// What a runner drives: a transport with the cores on it.
pub trait Driven {
    /// The transport.
    type Transport: TransportFabric;

    /// Returns the transport, for parking.
    fn transport(&mut self) -> &mut Self::Transport;

    /// Polls the transport, passes its events to the cores and polls them; returns the amount of work done.
    fn poll(&mut self) -> usize;

    /// Lets the next `poll` look at everything, as `squall_fabric::Core::look_at_all` does.
    fn look_at_all(&mut self) {}

    /// Returns the instant at which to poll even if nothing happens.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// Returns the number of cores that this process may use, as the first call finds it: a thread that [`pin`]
/// binds to one core still shares the machine's cores with the other members.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Binds the calling thread, and those that it starts from now on, to one core. If the system refuses,
/// nothing changes: pinning only makes measurements steadier.
pub fn pin(core: usize) {
    // Counted before this process is limited to one core.
    cores();
    if core < rustix::thread::CpuSet::MAX_CPU {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
