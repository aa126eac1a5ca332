//! Initial RAM disks for Linux guests: the archive, a kernel's modules in the order in which they load, and an init program
//! that starts a guest whose root is a shared folder.
#![forbid(unsafe_code)]

mod archive;
mod error;
mod kernel;
mod modules;
mod root;

pub use archive::Archive;
pub use error::InitramfsError;
pub use kernel::Kernel;
pub use modules::{Module, in_load_order};
pub use root::{RootSettings, root_initramfs};
