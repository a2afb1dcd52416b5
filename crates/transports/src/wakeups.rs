//! Lost wake-ups: waits that ended by a fallback timer although there was work.
//!
//! A timer that ends a wait in any case hides a wake-up that was lost: everything works, but slowly. So a wait whose
//! timer has run out looks here whether the sleeper should have been woken. In builds with debug assertions a lost
//! wake-up ends the process, wherever it happens, so that each test looks for them; other builds do not look.

use std::io::Write as _;

use squall_fabric::Duration;
use squall_fabric::atomics::{AtomicU64, Ordering};

/// Call this after a wait has ended by its fallback timer. `has_work` returns whether there is work whose owner
/// wakes the sleeper, and `rings` waits for that wake-up, for the given time at most, and returns whether it has
/// come.
pub fn check_fallback(place: &str, has_work: impl Fn() -> bool, rings: impl FnMut(Duration) -> bool) {
    if cfg!(debug_assertions) && is_lost(has_work, rings) {
        LOST.fetch_add(1, Ordering::Relaxed);
        end_process(place);
    }
}

/// Returns how many wake-ups this process has lost.
#[must_use]
pub fn lost_wakeups() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// A thread that has work for the sleeper rings after it has stored the work, so the ring may still be on its way.
fn is_lost(has_work: impl Fn() -> bool, mut rings: impl FnMut(Duration) -> bool) -> bool {
    has_work() && !(0..SLICES).any(|_| rings(SLICE))
}

/// A panic would end one thread only, which others may take for a lost connection.
fn end_process(place: &str) {
    // Not by `eprintln`, whose text a test runner keeps, and loses when the process ends.
    let text = "the wait ended by its timer although there was work";
    let _ = writeln!(std::io::stderr(), "a wake-up of {place} was lost: {text}");
    std::process::abort();
}

/// The wake-ups of this process that were lost.
static LOST: AtomicU64 = AtomicU64::new(0);
/// How long a ring may be on its way: in slices, since a process that is stopped meanwhile loses one of them only.
const SLICES: u32 = 100;
const SLICE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wakeup_is_lost_if_there_is_work_and_nothing_rings() {
        assert!(is_lost(|| true, |_| false));
        assert!(!is_lost(|| false, |_| false));
        let mut slices = 0;
        let late = |_| {
            slices += 1;
            slices == 7
        };
        assert!(!is_lost(|| true, late), "a ring that is late is none that was lost");
    }
}
