//! The options of a clock, for the commands that run a guest.

use clap::Args;
use kvmprof_tools::command_line::usage;
use kvmprof_vmm::clock::ClockSource;

/// What drives the clock, and how.
#[derive(Clone, Debug, Args)]
pub struct ClockOptions {
    /// What drives the clock: thread (a timer on each vCPU's thread) or ticker (one thread for all vCPUs, which costs
    /// the guest less and another core more)
    #[arg(long = "clock", value_name = "SOURCE", default_value = "thread")]
    pub source: ClockSource,
    /// Give ticks a random phase, so that periodic work of the guest doesn't run in step with the clock; not with
    /// --clock ticker, which kicks all vCPUs at once
    #[arg(long)]
    pub jitter: bool,
}

impl ClockOptions {
    /// Whether the options go together.
    ///
    /// # Errors
    /// [`UsageError`](kvmprof_tools::command_line::UsageError).
    pub fn check(&self) -> anyhow::Result<()> {
        if self.jitter && self.source == ClockSource::Ticker {
            return Err(usage(
                "--jitter needs --clock thread: the ticker kicks all vCPUs at once",
            ));
        }
        Ok(())
    }
}
