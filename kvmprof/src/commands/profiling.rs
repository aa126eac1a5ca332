//! The options of profiling, for the commands that run a guest or attach to one.

use std::path::PathBuf;

use clap::Args;
use kvmprof_cli::command_line::usage;
use kvmprof_introspection::GuestKnowledge;
use kvmprof_profiling::ProfilingConfig;
use kvmprof_profiling::clock::ClockSource;
use kvmprof_recording::DEFAULT_STACK_FRAMES;

use super::units::parse_max_stack;

/// What takes the samples of a guest that a command runs.
#[derive(Clone, Debug, Args)]
pub struct ClockOptions {
    /// What drives the clock: thread (a timer on each vCPU's thread) or kernel (the host's kernel takes the samples by
    /// eBPF, which costs the guest less; profil and pmc take exits all the same)
    #[arg(long = "clock", value_name = "SOURCE", default_value = "thread")]
    pub source: ClockSource,
}

/// The ticks and their samples.
#[derive(Clone, Debug, Args)]
pub struct SampleOptions {
    /// Give ticks a random phase, so that periodic work of the guest doesn't run in step with the clock; not where the host's
    /// kernel takes the samples
    #[arg(long)]
    jitter: bool,
    /// Take the call stacks of the host's kernel and of the VMM, too, where a tick comes while the vCPU isn't in the guest: recordings have
    /// them below the guest's; only where the host's kernel takes the samples
    #[arg(long)]
    host_stacks: bool,
}

/// All options that are the same for guests that kvmprof runs and for others.
#[derive(Clone, Debug, Args)]
pub struct ProfilingOptions {
    #[command(flatten)]
    pub samples: SampleOptions,
    /// A folder with the guest's files, or some of them: programs in recordings are looked for there first. A file is
    /// used if its build id (or, without one, its length) matches the guest's file
    #[arg(long, value_name = "DIR")]
    pub sysroot: Option<PathBuf>,
    /// How many frames a recorded call stack has at most, 16 to 1024, half of them the kernel's; each is read while the vCPU is stopped
    #[arg(long, value_name = "FRAMES", default_value_t = DEFAULT_STACK_FRAMES, value_parser = parse_max_stack)]
    max_stack: usize,
    /// The types of the guest's kernel, if its image lacks them: BTF, such as a copy of /sys/kernel/btf/vmlinux, or an ELF file of the
    /// same build
    #[arg(long, value_name = "FILE", conflicts_with = "pid_at")]
    pub btf: Option<PathBuf>,
    /// The symbols of the guest's kernel, if its image lacks them: its System.map, a copy of its /proc/kallsyms, or an ELF file of the
    /// same build
    #[arg(long, value_name = "FILE", conflicts_with = "pid_at")]
    pub symbols: Option<PathBuf>,
    /// Leave the command lines of processes out of recordings and of kvmprof processes: they may have secrets
    #[arg(long)]
    no_arguments: bool,
    /// Where the guest keeps the pid of the running process or thread, if its image doesn't say: absolute:ADDRESS[,OFFSET...]:BYTES,
    /// gs:OFFSET[,OFFSET...]:BYTES, VARIABLE:OFFSET[,OFFSET...]:BYTES with the name of a variable in the guest's image, or none
    #[arg(long, value_name = "PLACE")]
    pid_at: Option<String>,
}

impl SampleOptions {
    /// The configuration of samples by `source`, `hz` times a second.
    ///
    /// # Errors
    /// [`UsageError`](kvmprof_cli::command_line::UsageError): the options don't go with `source`.
    pub fn config(&self, source: ClockSource, hz: u32) -> anyhow::Result<ProfilingConfig> {
        let wrong = match source {
            ClockSource::Kernel if self.jitter => {
                "--jitter needs --clock thread, or attach's --capture ptrace: the host's kernel has no clock with a random phase"
            }
            ClockSource::Thread if self.host_stacks => "--host-stacks needs --clock kernel",
            ClockSource::Ptrace if self.host_stacks => "--host-stacks needs --capture kernel",
            _ => "",
        };
        if !wrong.is_empty() {
            return Err(usage(wrong));
        }
        Ok(ProfilingConfig {
            hz,
            source,
            jitter: self.jitter,
            host_stacks: self.host_stacks,
            ..ProfilingConfig::default()
        })
    }
}

impl ProfilingOptions {
    /// The configuration of profiling by `source`, with `hz` ticks a second.
    ///
    /// # Errors
    /// [`UsageError`](kvmprof_cli::command_line::UsageError): the options don't go together.
    pub fn config(&self, source: ClockSource, hz: u32) -> anyhow::Result<ProfilingConfig> {
        let knowledge = self.pid_at.as_deref().map(pid_at).transpose();
        Ok(ProfilingConfig {
            sysroot: self.sysroot.clone(),
            btf: self.btf.clone(),
            symbols: self.symbols.clone(),
            max_stack: self.max_stack,
            arguments: !self.no_arguments,
            knowledge: knowledge.map_err(usage)?,
            ..self.samples.config(source, hz)?
        })
    }
}

/// The knowledge about the guest from `--pid-at`.
fn pid_at(place: &str) -> Result<GuestKnowledge, String> {
    if place == "none" {
        return Ok(GuestKnowledge::unknown());
    }
    GuestKnowledge::from_pid_at(place).map_err(|error| format!("Invalid --pid-at: {error}"))
}
