//! The one door to atomic types: every lock-free structure of the workspace takes them from here, so that a
//! concurrency checker can replace them in one place.

pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};
