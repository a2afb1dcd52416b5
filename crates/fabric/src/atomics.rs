//! The only source of atomic types: every lock-free structure of the workspace takes them from here, so that
//! a concurrency checker can replace them in one place.
//!
//! A build with `--cfg shuttle` replaces them with types that wrap those of the standard library, with the
//! same size and in the same memory. Each access is first a point at which `explore` may run another thread.
//! Ordinary builds contain none of this.

#[cfg(not(shuttle))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

pub use std::sync::atomic::{Ordering, compiler_fence, fence};

#[cfg(shuttle)]
pub use explored::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

#[cfg(shuttle)]
mod explored {
    use std::sync::atomic::{self, Ordering};

    use crate::explore::point;

    macro_rules! explored {
        ($($(#[$about:meta])* $name:ident of $value:ty, $($add:ident)?;)+) => {
            $(
                $(#[$about])*
                #[derive(Debug, Default)]
                #[repr(transparent)]
                pub struct $name(atomic::$name);

                impl $name {
                    /// Same as in the standard library.
                    #[must_use]
                    pub const fn new(value: $value) -> Self {
                        Self(atomic::$name::new(value))
                    }

                    /// Same as in the standard library, after a point at which another thread may run.
                    #[must_use]
                    pub fn load(&self, ordering: Ordering) -> $value {
                        point();
                        self.0.load(ordering)
                    }

                    /// Same as in the standard library, after a point at which another thread may run.
                    pub fn store(&self, value: $value, ordering: Ordering) {
                        point();
                        self.0.store(value, ordering);
                    }

                    /// Same as in the standard library, after a point at which another thread may run.
                    pub fn swap(&self, value: $value, ordering: Ordering) -> $value {
                        point();
                        self.0.swap(value, ordering)
                    }

                    /// Same as in the standard library, after a point at which another thread may run.
                    pub fn fetch_or(&self, value: $value, ordering: Ordering) -> $value {
                        point();
                        self.0.fetch_or(value, ordering)
                    }

                    /// Same as in the standard library.
                    pub fn into_inner(self) -> $value {
                        self.0.into_inner()
                    }

                    $(
                        /// Same as in the standard library, after a point at which another thread may run.
                        pub fn $add(&self, value: $value, ordering: Ordering) -> $value {
                            point();
                            self.0.$add(value, ordering)
                        }

                        /// Same as in the standard library, after a point at which another thread may run.
                        pub fn fetch_sub(&self, value: $value, ordering: Ordering) -> $value {
                            point();
                            self.0.fetch_sub(value, ordering)
                        }

                        /// Same as in the standard library, after a point at which another thread may run.
                        pub fn fetch_max(&self, value: $value, ordering: Ordering) -> $value {
                            point();
                            self.0.fetch_max(value, ordering)
                        }
                    )?
                }
            )+
        };
    }

    explored! {
        /// A flag whose accesses an exploration can interleave.
        AtomicBool of bool, ;
        /// A 32-bit integer whose accesses an exploration can interleave.
        AtomicU32 of u32, fetch_add;
        /// A word whose accesses an exploration can interleave.
        AtomicU64 of u64, fetch_add;
        /// A size whose accesses an exploration can interleave.
        AtomicUsize of usize, fetch_add;
    }
}
