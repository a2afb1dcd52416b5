//! Locks that ignore poisoning (of no paper): a thread that panicked has already reported it, and its data stays consistent
//! between two statements that change it, so that other threads continue.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError, TryLockError, TryLockResult};

/// Locks `mutex`, whether or not a thread that held it has panicked.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Returns what was locked, or what a thread waited for with a lock, whether or not a thread that held it has panicked. The
/// mutexes of an exploration have the same results as those of the standard library.
pub fn unpoisoned<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// Same as [`unpoisoned`], for an attempt; `None` if another thread holds the lock.
pub fn unless_held<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
