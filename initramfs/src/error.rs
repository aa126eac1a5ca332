//! What can go wrong while an initramfs is made.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why there is no initramfs.
#[derive(Debug, Error)]
pub enum InitramfsError {
    /// A file on this host could not be read.
    #[error("Cannot {action} {path}")]
    File {
        /// What was attempted, as a verb.
        action: &'static str,
        /// The file in question.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A place inside the machine that cannot be used.
    #[error("{0:?} is no place for a file inside the machine: give an absolute path without `..`")]
    Destination(String),
    /// The given kernel file is not one that can boot here.
    #[error("{path} is no Linux kernel for x86: {reason}")]
    NotAKernel {
        /// The file.
        path: PathBuf,
        /// What about it is wrong.
        reason: &'static str,
    },
    /// The given kernel file lacks its end.
    #[error("{path} is cut short: it has {length} bytes of at least {least}")]
    CutShort {
        /// The file.
        path: PathBuf,
        /// How many bytes it has.
        length: u64,
        /// How many bytes its header asks for.
        least: u64,
    },
    /// Files that don't fit on the disk for a kernel without initial RAM disks.
    #[error(
        "The kernel's modules are too large for a disk that starts it: a kernel that takes an initrd is needed"
    )]
    DiskTooLarge,
    /// A kernel whose modules are nowhere.
    #[error(
        "The modules of kernel {version} are in none of {searched:?}: unpack the kernel's package with \
         `dpkg -x` and give the vmlinuz in its boot folder, or install the package"
    )]
    ModulesMissing {
        /// The kernel's own version string (`uname -r`).
        version: String,
        /// Where they were looked for.
        searched: Vec<PathBuf>,
    },
    /// A kernel that lacks a module.
    #[error("Kernel {version} has no {module}, neither built in nor as a module: it is needed")]
    ModuleMissing {
        /// The kernel's own version string.
        version: String,
        /// The module.
        module: String,
    },
}

impl InitramfsError {
    /// For `map_err`: the same I/O error with the file it was about.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}
