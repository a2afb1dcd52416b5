//! Shortage: memory or descriptors that the system does not provide.
//!
//! A protocol asks for memory where it cannot continue without it: deep inside the installation of a view. So
//! [`crate::Fabric::register`] and [`crate::Fabric::attach`] do not return without memory. They *unwind*,
//! with a [`Shortage`], to the driver of the cores, which catches it, ends the cores and reports the reason.
//! Nothing is printed, and the cores are not used again, since they may be in the middle of a step. Without a
//! driver that catches it, the shortage is a panic with the same text; a program built with `panic = "abort"`
//! ends there.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Memory or descriptors that the system does not provide: what is missing, why, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage(String);

impl Shortage {
    /// Creates a shortage from a message for people.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// Abandons the current step of a core and unwinds to the nearest [`Shortage::catch`].
    ///
    /// # Panics
    /// Panics always; prints a message only if nothing catches it.
    pub fn unwind(self) -> ! {
        if CATCHERS.get() == 0 {
            panic!("{self}");
        }
        resume_unwind(Box::new(self))
    }

    /// Runs `work`, which may unwind with a shortage. The caller must then drop whatever `work` has changed.
    ///
    /// # Errors
    /// Returns the shortage.
    #[inline]
    pub fn catch<R>(work: impl FnOnce() -> R) -> Result<R, Self> {
        CATCHERS.set(CATCHERS.get() + 1);
        // The caller drops or ends what `work` holds, as the contract above requires.
        let outcome = catch_unwind(AssertUnwindSafe(work));
        CATCHERS.set(CATCHERS.get() - 1);
        outcome.map_err(|payload| match payload.downcast::<Self>() {
            Ok(shortage) => *shortage,
            Err(panic) => resume_unwind(panic),
        })
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Shortage {}

thread_local! {
    /// The number of calls of [`Shortage::catch`] on this thread's stack.
    static CATCHERS: Cell<u32> = const { Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_catches_a_shortage() {
        let shortage = || Shortage::new("no memory".into());
        let inner = || Shortage::catch(|| -> u32 { shortage().unwind() });
        assert_eq!(Shortage::catch(|| (1, inner())), Ok((1, Err(shortage()))));
        assert_eq!(Shortage::catch(|| 7), Ok(7));
    }

    /// A panic is no shortage and is passed on.
    #[test]
    #[should_panic(expected = "a bug")]
    fn a_panic_is_not_caught() {
        let _ = Shortage::catch(|| panic!("a bug"));
    }

    #[test]
    #[should_panic(expected = "no memory for it")]
    fn without_a_driver_it_is_a_panic() {
        let _ = Shortage::catch(|| ());
        Shortage::new("no memory for it".into()).unwind();
    }
}
