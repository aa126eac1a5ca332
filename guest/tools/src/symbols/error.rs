//! The errors of reading symbols.

use std::io;
use std::path::{Path, PathBuf};

use kvmprof_client::ClientError;

/// Why a kernel's symbols are unavailable.
#[derive(Debug, thiserror::Error)]
pub enum SymbolsError {
    /// The file can't be read.
    #[error("Cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file has another format.
    #[error(
        "{} is neither an ELF file nor a System.map; a compressed kernel (bzImage, vmlinuz) has no symbols that can be read",
        path.display()
    )]
    NoNamelist {
        /// The file.
        path: PathBuf,
    },
    /// A line in the middle of a listing is invalid.
    #[error("Line {line} of {source_name} is not 'ADDRESS TYPE NAME'")]
    Line {
        /// The listing's name.
        source_name: String,
        /// The line, counted from 1.
        line: usize,
    },
    /// There are more names than any kernel has.
    #[error(
        "{source_name} has more than {limit} bytes of symbols: that is no kernel's list of symbols"
    )]
    TooLong {
        /// The listing's or the file's name.
        source_name: String,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The ELF file is damaged.
    #[error("{} is a damaged ELF file", path.display())]
    Elf {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: object::Error,
    },
    /// The ELF file has been stripped.
    #[error("{} has no symbol table: take the file from before strip(1), or a System.map", path.display())]
    Stripped {
        /// The file.
        path: PathBuf,
    },
    /// The file or listing has no text symbols.
    #[error(
        "There are no text symbols in {source_name} (of Debian's kernels, the System.map in /boot is a stub; the real one is in the -dbg package)"
    )]
    NoText {
        /// The name of the file or listing.
        source_name: String,
    },
    /// The kernel hides the addresses.
    #[error(
        "/proc/kallsyms shows no addresses: be root, and see that /proc/sys/kernel/kptr_restrict isn't 2"
    )]
    Hidden,
    /// The VMM doesn't know the guest's symbols.
    #[error(
        "The running guest's symbols aren't known (ENXIO): its kernel isn't up yet, or carries none; name a file of symbols"
    )]
    Unknown,
    /// The request to kvmprof failed.
    #[error("Cannot get the running guest's symbols")]
    Client(#[source] ClientError),
}

impl SymbolsError {
    /// The error for a file at `path` that can't be read.
    pub(super) fn read(path: &Path) -> impl Fn(io::Error) -> Self {
        |source| Self::Read {
            path: path.to_path_buf(),
            source,
        }
    }
}
