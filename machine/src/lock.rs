//! Locks that a panic elsewhere doesn't take away.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also when a thread has panicked that held it: for what is sound after each change, so that whatever that
/// thread has left can be used on.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
