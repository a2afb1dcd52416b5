//! The monotonic clock of a real machine, as protocols see it.

use rustix::time::{ClockId, clock_gettime};
use squall_fabric::Instant;

/// A clock that counts from the start of a fabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: nanoseconds() }
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(nanoseconds().saturating_sub(self.origin))
    }
}

/// Returns the nanoseconds since the machine was started. Polls ask for it, and this takes three quarters of the time of
/// [`std::time::Instant::elapsed`].
#[inline]
fn nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}
