//! `cargo lab debian`: a whole Debian system on a disk, profiled from its first instruction to its end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use kvmprof_lab::{DebianDisk, GUEST_NETWORK, JAIL, Lab, virtiofsd};

use crate::limits::LimitArguments;

const DRIVER: &str = include_str!("lab.sh");
const CHECKS: &str = include_str!("checks.sh");
/// Memory of the lab machine in MiB. It holds the disk, which grows, beside the guest.
const MEMORY: u64 = 5 << 10;
/// Bytes of the file that the guest fetches.
const FILE: u64 = 100 << 20;
/// The script's status after a crash of the guest. In about one boot of ten, emulated processors make a kernel crash that changes its own
/// code.
const CRASHED: u8 = 103;
const TRIES: u32 = 3;
const RECORDING: &str = "recording";

/// Boot a whole Debian system in the lab.
#[derive(Debug, Args)]
pub(crate) struct DebianArguments {
    /// A qcow2 image of another Debian system, made as docs/devices.md says [default: one made of
    /// Debian's packages]
    #[arg(long, value_name = "PATH", requires_all = ["kernel", "initrd"])]
    disk: Option<PathBuf>,
    /// That system's kernel, a vmlinuz
    #[arg(long, value_name = "PATH", requires = "disk")]
    kernel: Option<PathBuf>,
    /// That kernel's initial RAM disk
    #[arg(long, value_name = "PATH", requires = "disk")]
    initrd: Option<PathBuf>,
    /// Virtual CPUs of the Debian system
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// Memory of the Debian system
    #[arg(long, value_name = "SIZE", default_value = "768M")]
    memory: String,
    /// What the other end of its network is; the system is booted once with each
    #[arg(
        long,
        value_name = "END",
        value_delimiter = ',',
        default_value = "passt"
    )]
    net: Vec<Net>,
    /// Record the first boot with call stacks to this file, and report that
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Bring consoles, messages and status documents into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The kvmprof program, statically linked [default: built from this source]
    #[arg(long, value_name = "PATH")]
    kvmprof: Option<PathBuf>,
    #[command(flatten)]
    limit: LimitArguments,
}

/// The other end of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Net {
    /// The program passt
    Passt,
    /// A tap interface
    Tap,
}

impl Net {
    fn name(self) -> &'static str {
        match self {
            Self::Passt => "passt",
            Self::Tap => "tap",
        }
    }
}

impl DebianArguments {
    /// Boots the system. Returns the exit status.
    pub(crate) fn run(self) -> Result<u8> {
        let disk = match (&self.disk, &self.kernel, &self.initrd) {
            (Some(image), Some(kernel), Some(initrd)) => DebianDisk {
                image: image.clone(),
                kernel: kernel.clone(),
                initrd: initrd.clone(),
            },
            _ => kvmprof_lab::debian_disk()?,
        };
        let kvmprof = match &self.kvmprof {
            Some(path) => path.clone(),
            None => kvmprof_lab::build_program("kvmprof")?,
        };
        let temporary = tempfile::tempdir().context("Cannot make a folder for the recording")?;
        let out = self.out.as_deref().unwrap_or(temporary.path());
        let networks: Vec<_> = self.net.iter().map(|net| net.name()).collect();
        let script = format!("{JAIL}\n{GUEST_NETWORK}\n{DRIVER}");
        let words = [
            self.cpus.to_string(),
            self.memory.clone(),
            FILE.to_string(),
            networks.join(" "),
            self.record
                .as_ref()
                .map_or_else(String::new, |_| RECORDING.to_owned()),
        ];
        let lab = Lab::new()
            .memory(MEMORY)
            .out(out)
            .add(kvmprof, "/lab/kvmprof")
            .add(disk.image, "/lab/debian.qcow2")
            .add(disk.kernel, "/lab/vmlinuz")
            .add(disk.initrd, "/lab/initrd.img")
            .contents("/lab/checks", 0o644, CHECKS)
            .program_with_libraries(&virtiofsd(), "/lab/virtiofsd")
            .guest_network()?
            .command(
                ["sh", "-c", &script, "sh"]
                    .into_iter()
                    .chain(words.iter().map(String::as_str)),
            )
            .forward_output();
        let lab = self.limit.apply(lab, Duration::ZERO);
        let mut outcome = lab.run()?;
        for _ in 1..TRIES {
            if outcome.status != CRASHED {
                break;
            }
            eprintln!("lab: starting again");
            outcome = lab.run()?;
        }
        if let Some(path) = &self.record {
            keep_recording(&out.join(RECORDING), path)?;
        }
        Ok(outcome.status)
    }
}

fn keep_recording(from: &Path, to: &Path) -> Result<()> {
    if from.exists() {
        std::fs::copy(from, to)
            .with_context(|| format!("Cannot keep the recording as {}", to.display()))?;
    }
    Ok(())
}
