//! What a guest's exits are named by, which a process without rights finds before they are counted: this one keeps its rights meanwhile, and parses nothing that the
//! guest has made.

use std::fs::File;
use std::io::{Read, Seek};

use anyhow::Context;
use kvmprof_attach::remote::StandStill;
use kvmprof_attach::{HostKernel, Machine};
use kvmprof_profiling::ProfilingConfig;
use kvmprof_profiling::clock::ClockSource;
use kvmprof_vmm::attached::{Attachment, GuestNames};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::commands::sandbox::SandboxMode;
use crate::commands::separate_process::{Side, separate};

/// Maximum length of the functions' names, in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// Has a process explore the guest `machine`, and returns what it has found. This one must have started no thread yet. `None` if the process has nothing else to do: in that
/// which explores, and if the user wants it to end.
///
/// # Errors
/// The host gives no process.
pub fn explore(
    machine: &Machine,
    host: HostKernel,
    sandbox: SandboxMode,
) -> anyhow::Result<Option<(HostKernel, GuestNames)>> {
    let found = memfd_create("kvmprof-guest", MemfdFlags::CLOEXEC);
    let mut found = File::from(found.context("Cannot make a file in memory")?);
    match separate().context("Cannot start a process that looks at the guest")? {
        Side::Child => {
            let looked = look(machine, host, sandbox);
            let written = looked.and_then(|names| Ok(names.write(&mut found)?));
            if let Err(error) = written {
                log::warn!("Exits have no functions and no processes: {error:#}");
            }
            Ok(None)
        }
        Side::Parent {
            was_asked: true, ..
        } => Ok(None),
        Side::Parent { .. } => {
            let mut bytes = Vec::new();
            let read = found
                .rewind()
                .and_then(|()| found.take(MAX_BYTES).read_to_end(&mut bytes));
            read.context("Cannot read what is known of the guest")?;
            let names = GuestNames::read(&bytes).unwrap_or_default();
            Ok(Some((host, names)))
        }
    }
}

/// Looks at the guest. This process is contained from now on.
fn look(machine: &Machine, host: HostKernel, sandbox: SandboxMode) -> anyhow::Result<GuestNames> {
    let profiling = ProfilingConfig {
        source: ClockSource::Ptrace,
        ..ProfilingConfig::default()
    };
    // SAFETY: the command has started no thread.
    let attachment =
        unsafe { Attachment::open(machine.clone(), host, &profiling, StandStill::Briefly) }?;
    sandbox.contain()?;
    Ok(GuestNames::find(attachment, sandbox.restricts_paths())?)
}
