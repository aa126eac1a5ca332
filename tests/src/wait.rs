//! Waits for conditions.

use std::thread;
use std::time::{Duration, Instant};

/// Timeout of a wait. Conditions of tests take seconds at most; on a busy machine they may take a hundred times as long.
const DEADLINE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(2);

/// Calls `look` until it finds something.
///
/// # Panics
/// If it finds nothing within the timeout; `what` names the condition.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "timed out waiting until {what}");
        thread::sleep(POLL);
    }
}
