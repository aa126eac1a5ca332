//! `kvmprof dump`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use kvmprof_attach::remote::StandStill;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};
use kvmprof_machine::output_names;
use kvmprof_profiling::ProfilingConfig;
use kvmprof_profiling::clock::ClockSource;
use kvmprof_vmm::attached::{Attachment, DumpConfig, Dumped, dump};

use super::recordings::Progress;
use super::sandbox::SandboxMode;
use super::targets;
use super::units::format_memory;

/// Write a guest's memory and registers to a file, for crash and drgn
///
/// The guest may be one of kvmprof run or of another program, such as QEMU: it needs no preparation and goes on afterwards. The file is an ELF core file with the
/// registers of each vCPU and, if the guest's kernel is Linux, its VMCOREINFO. Memory of zeros takes no room in it.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 when the file is whole; 1 for an error: there is no new file then; 2 for wrong options.\n\n\
    Examples:\n  \
      kvmprof dump debian12 --pause -o debian12.core\n  \
      crash debian12.core vmlinux"
)]
pub struct DumpArguments {
    /// The guest, as for kvmprof attach
    #[arg(value_name = "PID|PID:START_TIME|NAME")]
    guest: String,
    /// The file. An older one is replaced once the new one is whole
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Let no vCPU run while memory is copied, so that all of it is of one moment. Without this the guest runs on, and only the registers of each vCPU are of one
    /// moment
    #[arg(long)]
    pause: bool,
    #[command(flatten)]
    sandbox: SandboxMode,
}

impl Command for DumpArguments {
    /// Dumps the guest.
    fn execute(&self, _console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        self.sandbox.close_inherited(&[]);
        let (host, machine) = targets::find_machine(&self.guest, false)?;
        // SAFETY: the command has started no thread yet.
        let names = unsafe { self.sandbox.output_names(Vec::new(), Some(&self.output)) }?;
        let profiling = ProfilingConfig {
            source: ClockSource::Ptrace,
            ..ProfilingConfig::default()
        };
        let stand_still = match self.pause {
            true => StandStill::UntilReleased,
            false => StandStill::Briefly,
        };
        // SAFETY: the command has started no thread yet.
        let attachment = unsafe { Attachment::open(machine, host, &profiling, stand_still) }?;
        let path = self.output.display();
        let (file, name) = output_names::create(names.as_ref(), &self.output)
            .with_context(|| format!("Cannot write {path}"))?;
        self.sandbox.contain()?;
        let config = DumpConfig {
            attachment,
            pause: self.pause,
            file,
            name,
            restrict_paths: self.sandbox.restricts_paths(),
        };
        let progress = Progress::uninterrupted().of("Dumping");
        let dumped =
            dump(config, &progress).with_context(|| format!("There is no {path} of it"))?;
        drop(progress);
        self.report(&dumped);
        Ok(ExitStatus::SUCCESS)
    }
}

impl DumpArguments {
    /// Says on standard error what the file has, and what it lacks.
    fn report(&self, dumped: &Dumped) {
        eprintln!(
            "{}: {} of memory, {} of them not zero",
            self.output.display(),
            format_memory(dumped.memory_bytes),
            format_memory(dumped.copied_bytes)
        );
        if !dumped.has_vmcoreinfo {
            log::warn!(
                "No VMCOREINFO of a Linux kernel was found: programs have to be told where its kernel is"
            );
        }
        if !dumped.without_registers.is_empty() {
            let ids = dumped.without_registers.iter().map(u32::to_string);
            log::warn!(
                "The registers of these vCPUs are zeros, since they haven't run yet or run a guest of the guest: {}",
                ids.collect::<Vec<_>>().join(", ")
            );
        }
        if dumped.unreadable_bytes > 0 {
            log::warn!(
                "Memory that couldn't be read is zeros: {} bytes",
                dumped.unreadable_bytes
            );
        }
    }
}
