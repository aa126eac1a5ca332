//! What a process takes.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Result;

/// Between two looks at a process.
const PAUSE: Duration = Duration::from_millis(5);

/// Time and memory.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// From its start to its end.
    pub time: Duration,
    /// The most memory that it had in use.
    pub bytes: u64,
}

impl Taken {
    /// The memory in MB.
    pub fn megabytes(self) -> f64 {
        // Far below 2^52.
        self.bytes as f64 / 1e6
    }
}

/// Runs `command` to its end, its output thrown away.
pub fn measure(command: &mut Command) -> Result<Taken> {
    let begin = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut bytes = 0;
    let status = loop {
        // It only grows: at most what came in the last moments is missed.
        bytes = peak(child.id()).unwrap_or(bytes);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        sleep(PAUSE);
    };
    let time = begin.elapsed();
    if !status.success() {
        return Err(format!("{command:?} failed").into());
    }
    Ok(Taken { time, bytes })
}

/// The most that the process has had in memory so far (`VmHWM`, proc_pid_status(5)).
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes << 10)
}
