//! The command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use kvmprof_lab::{Kernel, Lab};

use crate::limits::LimitArguments;
use crate::{debian, demo, linux};

/// A machine with a complete KVM in emulation, on any x86-64 host.
#[derive(Debug, Parser)]
#[command(name = "cargo lab", version)]
pub(crate) struct Arguments {
    /// Give the machine Intel's VT-x in place of AMD's SVM (run, linux, demo): one CPU, emulated by Bochs, slowly
    #[arg(long, global = true)]
    vmx: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run a command in a lab machine
    ///
    /// Exit status: the command's own; 124 when the time was up, or the machine
    /// silent for too long; 125 when it could not be prepared, did not come up or
    /// went down.
    Run(RunArguments),
    /// Profile a real Debian kernel under kvmprof in a lab machine
    Linux(linux::LinuxArguments),
    /// Boot a whole Debian system from a disk under kvmprof in a lab machine
    Debian(debian::DebianArguments),
    /// Run the embedded guest under kvmprof in a lab machine
    Demo(demo::DemoArguments),
    /// Try whether this machine's /dev/kvm runs a guest; status 1 if not
    Probe,
    /// Fetch the Debian packages that the lab uses, and say where they are
    Fetch,
}

#[derive(Debug, Args)]
struct RunArguments {
    /// Kernel of the lab machine, a vmlinuz with its modules near it or in
    /// /lib/modules [default: Debian's 6.1 cloud kernel]
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,
    /// Memory of the machine: MiB, or with K, M or G [default: 2048M; with --vmx 1024M]
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    memory: Option<u64>,
    /// CPUs of the machine [default: 2; with --vmx 1]
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Put a file or folder into the machine [default place: /lab/NAME]
    #[arg(long, value_name = "FILE[:DEST]")]
    add: Vec<String>,
    /// Bring what the command leaves in $LAB_OUT into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    limit: LimitArguments,
    /// The command and its arguments; its PATH has /lab and busybox's applets
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Arguments {
    /// Executes the action. Returns the exit status.
    pub(crate) fn run(self) -> Result<u8> {
        let lab = match self.vmx {
            true => Lab::new().vmx(),
            false => Lab::new(),
        };
        match self.action {
            Action::Run(arguments) => arguments.run(lab),
            Action::Linux(arguments) => arguments.run(lab),
            Action::Demo(arguments) => arguments.run(lab),
            _ if self.vmx => bail!("--vmx is for run, linux and demo"),
            Action::Debian(arguments) => arguments.run(),
            Action::Probe => Ok(match kvmprof_lab::probe_kvm() {
                Ok(()) => {
                    println!("/dev/kvm runs guests");
                    0
                }
                Err(error) => {
                    println!("{error}");
                    1
                }
            }),
            Action::Fetch => {
                for kernel in kvmprof_lab::fetch()? {
                    println!("Linux {}: {}", kernel.version, kernel.image.display());
                }
                println!("busybox: {}", kvmprof_lab::busybox()?.display());
                println!("passt: {}", kvmprof_lab::passt()?.display());
                Ok(0)
            }
        }
    }
}

impl RunArguments {
    fn run(self, lab: Lab) -> Result<u8> {
        let mut lab = lab.command(self.command).forward_output();
        if let Some(cpus) = self.cpus {
            lab = lab.cpus(cpus);
        }
        if let Some(memory) = self.memory {
            lab = lab.memory(memory);
        }
        lab = self.limit.apply(lab, Duration::ZERO);
        if let Some(image) = self.kernel {
            lab = lab.kernel(Kernel::from_image(&image)?);
        }
        if let Some(folder) = self.out {
            lab = lab.out(folder);
        }
        for word in &self.add {
            lab = match file_and_place(word) {
                (file, Some(place)) => lab.add(file, &place),
                (file, None) => lab.add_to_lab(file),
            };
        }
        Ok(lab.run()?.status)
    }
}

/// The parts of `FILE[:DEST]`. A destination starts with a slash; one that ends with a slash is the folder for the file.
fn file_and_place(word: &str) -> (PathBuf, Option<String>) {
    let whole = PathBuf::from(word);
    let Some((file, place)) = word.rsplit_once(':') else {
        return (whole, None);
    };
    // A file may have a colon in its name.
    if !place.starts_with('/') || whole.exists() {
        return (whole, None);
    }
    let place = match Path::new(file).file_name().and_then(|name| name.to_str()) {
        Some(name) if place.ends_with('/') => format!("{place}{name}"),
        _ => place.to_owned(),
    };
    (PathBuf::from(file), Some(place))
}

/// A size in MiB, from a number with an optional unit.
fn memory_size(text: &str) -> Result<u64> {
    let (number, kibibytes) = match text.trim_end_matches(['B', 'b', 'i']).char_indices().last() {
        Some((end, 'K' | 'k')) => (&text[..end], 1),
        Some((end, 'M' | 'm')) => (&text[..end], 1 << 10),
        Some((end, 'G' | 'g')) => (&text[..end], 1 << 20),
        _ => (text, 1 << 10),
    };
    match number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(kibibytes))
    {
        Some(size) if size >= 1 << 10 => Ok(size >> 10),
        _ => bail!("give MiB, or a number with K, M or G, as in 2048 or 2G"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn sizes_have_units() {
        for (text, mebibytes) in [("512", 512), ("2G", 2048), ("300M", 300), ("2048KiB", 2)] {
            assert_eq!(memory_size(text).unwrap(), mebibytes, "{text}");
        }
        for text in ["", "G", "1K", "x", "-1", "99999999999999G", "é"] {
            assert!(memory_size(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn files_and_targets_are_split() {
        let place = |word| file_and_place(word).1;
        assert_eq!(place("a/b"), None);
        assert_eq!(place("a/b:/x/y").as_deref(), Some("/x/y"));
        assert_eq!(place("a/b:/x/").as_deref(), Some("/x/b"));
        assert_eq!(file_and_place("a:b"), (PathBuf::from("a:b"), None));
    }
}
