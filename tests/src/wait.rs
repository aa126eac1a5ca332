//! Waits for conditions.

use std::thread;
use std::time::{Duration, Instant};

/// Time after which a wait fails. What tests wait for takes seconds at most; on a busy machine it may take a hundred times as long.
const DEADLINE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(2);

/// Calls `look` until it finds something.
///
/// # Panics
/// If it finds nothing for a time that is long enough without doubt; `what` names what was waited for.
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
