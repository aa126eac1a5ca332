//! Waiting for conditions.

use std::thread;
use std::time::{Duration, Instant};

/// For what hangs. What is waited for takes seconds at most; a machine that has much else to do may take a hundred times as long.
const DEADLINE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(2);

/// Looks until `look` finds something.
///
/// # Panics
/// When it still finds nothing after a time that is beyond doubt; `what` says what was waited for.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "waited in vain until {what}");
        thread::sleep(POLL);
    }
}
