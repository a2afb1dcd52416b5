//! The runner's idle strategy: what a polling thread does when it finds nothing to do (Spindle §2.4).
//!
//! A busy group polls without pause. When there is nothing to do the thread first spins, then yields the
//! processor, then parks: an idle group burns no CPU, and the first message wakes it through a doorbell. How long
//! it spins depends on whether there are cores to spare: where more threads poll than there are cores, spinning
//! only keeps the others from working.

use std::sync::OnceLock;

use squall_fabric::{Fabric as _, Instant};

use crate::TransportFabric;

/// How to wait when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleLimits {
    /// Polls without work before yielding begins.
    pub spins: u32,
    /// Polls without work, each followed by a yield, before parking. `u32::MAX`: never park.
    pub yields: u32,
}

impl IdleLimits {
    /// Never gives up the processor: for dedicated cores.
    pub const SPIN: Self = Self { spins: u32::MAX, yields: u32::MAX };

    /// Gives the processor to others between polls, but never sleeps.
    pub const YIELD: Self = Self { spins: 0, yields: u32::MAX };

    /// Parks soon: for machines with more polling threads than cores, and for tests.
    pub const PARK: Self = Self { spins: 0, yields: 50 };

    /// For devices in software, which need the processor to move anything: yields for the time of a few short messages,
    /// then parks, since long ones are moved faster by a device that has the processor for itself.
    pub const SOFTWARE_DEVICE: Self = Self { spins: 0, yields: 200 };

    /// Suits `threads` polling threads on this machine: spins for some tens of microseconds if each has a core,
    /// then yields, then parks.
    #[must_use]
    pub fn auto(threads: usize) -> Self {
        if threads <= cores() { Self { spins: 2_000, yields: 200 } } else { Self::PARK }
    }
}

/// Drives a transport and the cores on it from one thread.
#[derive(Clone, Debug)]
pub struct Runner {
    idle: IdleLimits,
    /// Consecutive polls without work.
    fruitless: u32,
    /// How often the thread has parked.
    parks: u64,
}

impl Runner {
    /// A runner that waits as `idle` says.
    #[must_use]
    pub const fn new(idle: IdleLimits) -> Self {
        Self { idle, fruitless: 0, parks: 0 }
    }

    /// Waits as `idle` says from now on.
    pub const fn set_limits(&mut self, idle: IdleLimits) {
        self.idle = idle;
    }

    /// How often the thread has parked.
    #[must_use]
    pub const fn parks(&self) -> u64 {
        self.parks
    }

    /// Polls once, and waits if there was nothing to do. Returns the amount of work done.
    #[inline]
    pub fn step<D: Driven>(&mut self, driven: &mut D) -> usize {
        let work = driven.poll();
        if work > 0 {
            self.fruitless = 0;
            return work;
        }
        self.wait(driven)
    }

    fn wait<D: Driven>(&mut self, driven: &mut D) -> usize {
        self.fruitless = self.fruitless.saturating_add(1);
        if self.fruitless <= self.idle.spins {
            // What is awaited mostly comes soon, and a pause would delay its being seen.
            if self.fruitless > EAGER_POLLS {
                std::hint::spin_loop();
            }
            return 0;
        }
        if self.fruitless - self.idle.spins <= self.idle.yields {
            std::thread::yield_now();
            driven.transport().yielded();
            return 0;
        }
        driven.transport().prepare_park();
        let work = driven.poll();
        if work == 0 {
            self.parks += 1;
            let now = driven.transport().now();
            let timeout = driven.next_deadline().map(|deadline| deadline.since(now));
            driven.transport().park(timeout);
        }
        driven.transport().unpark();
        self.fruitless = self.idle.spins;
        work
    }
}

/// Polls without work before the pauses between them begin: some microseconds.
const EAGER_POLLS: u32 = 100;

/// What a runner drives: a transport with the cores on it.
pub trait Driven {
    /// The transport.
    type Transport: TransportFabric;

    /// The transport, for parking.
    fn transport(&mut self) -> &mut Self::Transport;

    /// Polls the transport, hands its events to the cores and polls them; returns the amount of work done.
    fn poll(&mut self) -> usize;

    /// When to poll even if nothing happens.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// How many cores this process may use, as the first call finds it: a thread that is bound to one core by [`pin`]
/// still shares the machine's cores with the other members.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Binds the calling thread, and those that it starts from now on, to one core. Where the system refuses, the thread
/// stays where it is: pinning is for steadier figures only.
pub fn pin(core: usize) {
    // Counted before this process may use one core only.
    cores();
    if core < rustix::thread::CpuSet::MAX_CPU {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
