//! The host scheduler's statistics of a thread (`/proc/PID/task/TID/schedstat`, Linux `Documentation/scheduler/sched-stats.rst`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// How long a thread has run, and how long it has waited for a processor, in ns since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// The run time. For a thread that runs at this moment, it is the time up to the host's last tick.
    pub run: u64,
    /// The time for which the thread was ready to run and waited.
    pub delay: u64,
}

impl ThreadTimes {
    /// Reads the times from a thread's file.
    pub fn read(schedstat: &File) -> io::Result<Self> {
        let mut text = [0; 96];
        let length = schedstat.read_at(&mut text, 0)?;
        parse(text.get(..length).unwrap_or_default())
            .ok_or_else(|| io::Error::other("the kernel writes a thread's times in an unknown way"))
    }
}

fn parse(text: &[u8]) -> Option<ThreadTimes> {
    let mut fields = str::from_utf8(text).ok()?.split_ascii_whitespace();
    let mut next = || fields.next()?.parse().ok();
    Some(ThreadTimes {
        run: next()?,
        delay: next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_first_two_fields() {
        let times = ThreadTimes {
            run: 123,
            delay: 456,
        };
        assert_eq!(parse(b"123 456 7\n"), Some(times));
        assert_eq!(parse(b"123\n"), None);
        assert_eq!(parse(b""), None);
    }
}
