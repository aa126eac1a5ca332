//! Waiting for conditions.

use std::thread;
use std::time::{Duration, Instant};

/// Far beyond what anything here takes, on a loaded machine and in the lab too.
const DEADLINE: Duration = Duration::from_secs(100);
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
