//! The options of a clock, for the commands that run a guest.

use clap::Args;
use kvmprof_tools::command_line::usage;
use kvmprof_vmm::clock::ClockSource;

/// What drives the clock, and how.
#[derive(Clone, Debug, Args)]
pub struct ClockOptions {
    /// What drives the clock: thread (a timer on each vCPU's thread) or kernel (the host's kernel takes the samples by
    /// eBPF, which costs the guest less; profil and pmc take exits all the same)
    #[arg(long = "clock", value_name = "SOURCE", default_value = "thread")]
    pub source: ClockSource,
    /// Give ticks a random phase, so that periodic work of the guest doesn't run in step with the clock; only with
    /// --clock thread
    #[arg(long)]
    pub jitter: bool,
    /// Take the call stacks of the host's kernel and of kvmprof itself, too, where a tick comes while the vCPU isn't in the guest: recordings have
    /// them below the guest's; only with --clock kernel
    #[arg(long)]
    pub host_stacks: bool,
}

impl ClockOptions {
    /// Checks that the options are compatible.
    ///
    /// # Errors
    /// [`UsageError`](kvmprof_tools::command_line::UsageError).
    pub fn check(&self) -> anyhow::Result<()> {
        if self.host_stacks && self.source != ClockSource::Kernel {
            return Err(usage("--host-stacks needs --clock kernel"));
        }
        if self.jitter && self.source == ClockSource::Kernel {
            return Err(usage(
                "--jitter needs --clock thread: the host's kernel has no clock with a random phase",
            ));
        }
        Ok(())
    }
}
