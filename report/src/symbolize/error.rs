//! The errors of sources of names.

use std::io;
use std::path::PathBuf;

/// Why a source of names can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SymbolError {
    /// The debug file of the kernel can't be read.
    #[error("Cannot read {path}", path = .path.display())]
    Vmlinux {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is another kernel's debug file.
    #[error(
        "{path} is not the kernel of the recording: its build id is {found}, the recorded one {recorded}",
        path = .path.display()
    )]
    OtherKernel {
        /// The file.
        path: PathBuf,
        /// Its build id.
        found: String,
        /// The recording's.
        recorded: String,
    },
    /// The kernel's slide is unknown.
    #[error(
        "Cannot tell where the kernel of {path} ran: the recording has neither its symbols nor its slide",
        path = .0.display()
    )]
    NoSlide(PathBuf),
    /// The folder with the guest's files can't be opened.
    #[error("Cannot open the folder {path}", path = .path.display())]
    Sysroot {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}
