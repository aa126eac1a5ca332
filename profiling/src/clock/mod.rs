//! The virtual clock: decides when a vCPU is sampled, and accounts for every tick.
//!
//! A vCPU's ticks lie on a grid: tick `k` is due `k` periods after the clock started on that
//! vCPU. The thread looks after a timer's signal or the wake-up of a halted vCPU. In all cases, the grid
//! shows how many ticks have passed, so that each tick is counted exactly once.

mod backend;
mod control;
mod elapsed_ticks;
mod grid;
mod halted;
mod jitter;
mod run_delay;
mod schedstat;
#[cfg(test)]
mod tests;
mod timer;
mod vcpu_clock;

pub use backend::{ClockBackend, ThreadBackend};
pub use control::{ClockControl, ClockSetting, Generation, TickSource};
pub use elapsed_ticks::ElapsedTicks;
pub use grid::Grid;
pub use grid::aligned_start;
pub use halted::{HaltedTicks, RunTimeAlarm};
pub use jitter::Jitter;
pub use run_delay::RunDelay;
pub use schedstat::ThreadTimes;
pub use vcpu_clock::VcpuClock;

pub use crate::time::{monotonic_ns, thread_cpu_ns};

use std::str::FromStr;

use kvmprof_recording::file::KERNEL_CLOCK;

/// The fastest clock, in Hz. The slowest has 1.
pub const MAXIMUM_HZ: u32 = 10_000;
/// The clock's rate when nothing else is said, in Hz.
pub const DEFAULT_HZ: u32 = 100;

/// What makes a vCPU exit when a tick is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockSource {
    /// A POSIX timer on each vCPU's own thread.
    #[default]
    Thread,
    /// For the vCPUs of another program: a thread for each of them stops it by ptrace(2).
    Ptrace,
    /// The host's kernel takes samples in the interrupt of a perf clock, without an exit.
    Kernel,
}

impl ClockSource {
    /// The word for it on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Ptrace => "ptrace",
            Self::Kernel => KERNEL_CLOCK,
        }
    }
}

impl FromStr for ClockSource {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "thread" => Ok(Self::Thread),
            "kernel" => Ok(Self::Kernel),
            "ticker" => Err(
                "the ticker was removed: use thread, or kernel, which takes less of the guest's time"
                    .to_owned(),
            ),
            _ => Err(format!("'{word}' is no clock: use thread or kernel")),
        }
    }
}
