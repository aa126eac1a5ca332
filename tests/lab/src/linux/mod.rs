//! `cargo lab linux`: profiles a real kernel, on any machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use kvmprof_lab::{InitramfsBuilder, Kernel, Lab};

use crate::limits::LimitArguments;

/// The scripts for profiling from the host: in the guest, and in the lab around it.
const HOST_SIDE: Scripts = Scripts {
    guest: include_str!("host_side_init.sh"),
    lab: include_str!("host_side.sh"),
};
/// The scripts for a guest that profiles itself: in the guest, and in the lab around it.
const GUEST_SIDE: Scripts = Scripts {
    guest: include_str!("guest_side_init.sh"),
    lab: include_str!("guest_side.sh"),
};
/// A program with symbols, from `part_time.c`; busybox has no symbols.
const PART_TIME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/part_time"));
/// Modules that the agent needs in a guest.
const AGENT_MODULES: [&str; 4] = ["virtio_mmio", "virtio_console", "fuse", "cuse"];

/// The name of the recording in the output folder.
const RECORDING: &str = "recording";

struct Scripts {
    guest: &'static str,
    lab: &'static str,
}

/// Profile a real Debian kernel in the lab.
#[derive(Debug, Args)]
pub(crate) struct LinuxArguments {
    /// Kernel to be profiled, a vmlinuz [default: Debian's 6.12 cloud kernel]
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,
    /// For how long, in the lab's own time
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Virtual CPUs of the profiled guest
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// Show the device nodes and the tools inside the guest, instead of a client on the host
    #[arg(long)]
    guest_side: bool,
    /// Record it with call stacks to this file, and report that
    #[arg(long, value_name = "FILE", conflicts_with = "guest_side")]
    record: Option<PathBuf>,
    /// The kvmprof program, statically linked [default: built from this source]
    #[arg(long, value_name = "PATH")]
    kvmprof: Option<PathBuf>,
    #[command(flatten)]
    limit: LimitArguments,
}

impl LinuxArguments {
    /// Profiles a kernel in this machine. Returns the exit status.
    pub(crate) fn run(self, lab: Lab) -> Result<u8> {
        let kernel = match &self.kernel {
            Some(image) => Kernel::from_image(image)?,
            None => kvmprof_lab::kernels()?
                .pop()
                .context("There is no Debian kernel to profile")?,
        };
        let kvmprof = match self.kvmprof {
            Some(path) => path,
            None => kvmprof_lab::build_program("kvmprof")?,
        };
        eprintln!(
            "lab: profiling Linux {} for {} s, in an emulated machine: nothing comes until it has started, for a minute or two",
            kernel.version, self.seconds
        );
        let scripts = if self.guest_side {
            GUEST_SIDE
        } else {
            HOST_SIDE
        };
        let mut guest = InitramfsBuilder::new()
            .init(scripts.guest)
            .contents("/bin/busy_loop", 0o755, include_str!("busy_loop.sh"))
            .contents("/bin/part_time", 0o755, PART_TIME);
        if self.guest_side {
            let pcsd = kvmprof_lab::build_program_of("kvmprof-agent", "pcsd")?;
            let tools = kvmprof_lab::build_program("kvmprof-tools")?;
            guest = guest
                .add(pcsd, "/bin/pcsd")
                .add(tools, "/bin/kvmprof-tools")
                .modules(&kernel, &AGENT_MODULES);
        }
        let (cpus, seconds) = (self.cpus.to_string(), self.seconds.to_string());
        let client = if self.record.is_some() {
            "recording"
        } else {
            "samples"
        };
        let out = tempfile::tempdir().context("Cannot make a folder for the recording")?;
        let lab = lab
            .out(out.path())
            .add(kvmprof, "/lab/kvmprof")
            .add(&kernel.image, "/lab/vmlinuz")
            .contents("/lab/guest.cpio", 0o644, guest.build()?)
            .command(["sh", "-c", scripts.lab, "sh", &cpus, &seconds, client])
            .forward_output();
        // While the client samples, the lab prints nothing.
        let lab = self.limit.apply(lab, Duration::from_secs(self.seconds));
        let outcome = match lab.run() {
            Ok(outcome) => outcome,
            Err(error) => {
                if error.traces().is_some() {
                    // The recording has the samples until then, too.
                    show_guest(&out.keep());
                }
                return Err(error.into());
            }
        };
        if let Some(path) = &self.record
            && outcome.status == 0
        {
            std::fs::copy(out.path().join(RECORDING), path)
                .with_context(|| format!("Cannot keep the recording as {}", path.display()))?;
        }
        Ok(outcome.status)
    }
}

/// Prints the last output of the guest and of its kvmprof, as far as it came back from the lab.
fn show_guest(out: &Path) {
    for (name, who) in [("console", "The guest"), ("kvmprof.log", "kvmprof")] {
        let said = kvmprof_lab::last_lines(&out.join(name));
        match said.trim_end() {
            "" => eprintln!("lab: {who} said nothing"),
            said => eprintln!("lab: {who} said:\n{said}"),
        }
    }
}
