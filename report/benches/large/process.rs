//! Measures the time and the memory of a process.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Result;

/// The pause between two readings.
const PAUSE: Duration = Duration::from_millis(5);

/// Time and memory.
#[derive(Clone, Copy, Debug)]
pub struct ProcessCost {
    /// From its start to its end.
    pub time: Duration,
    /// Its peak memory use.
    pub bytes: u64,
}

impl ProcessCost {
    /// The memory in MB.
    pub fn megabytes(self) -> f64 {
        // Far below 2^52.
        self.bytes as f64 / 1e6
    }
}

/// Runs `command` to its end and discards its output.
pub fn measure(command: &mut Command) -> Result<ProcessCost> {
    let begin = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut bytes = 0;
    let status = loop {
        // The peak only grows: at most the growth of the last moments is missed.
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
    Ok(ProcessCost { time, bytes })
}

/// The process's peak memory use so far (`VmHWM`, proc_pid_status(5)).
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes << 10)
}
