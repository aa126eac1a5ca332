//! Initial RAM disks for Linux guests: the archive, a kernel's modules in the order in which they load, and an init program
//! that starts a guest whose root is a shared folder.
//!
//! ```
//! use kvmprof_initramfs::Archive;
//!
//! let mut archive = Archive::new();
//! archive.folder("/dev", 0o755)?;
//! archive.character_device("/dev/console", 0o600, 5, 1)?;
//! archive.file("/init", 0o755, b"#!/bin/sh\nexec /bin/sh\n")?;
//! let bytes = archive.finish()?;
//! // The form that the kernel calls newc.
//! assert!(bytes.starts_with(b"070701"));
//! # Ok::<(), kvmprof_initramfs::InitramfsError>(())
//! ```
#![forbid(unsafe_code)]

mod archive;
mod error;
mod ext2;
mod kernel;
mod modules;
mod root;

pub use archive::Archive;
pub use error::InitramfsError;
pub use kernel::Kernel;
pub use modules::{Module, in_load_order};
pub use root::{RootSettings, STATUS_MARK, root_disk, root_initramfs};
