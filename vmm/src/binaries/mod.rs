//! The files that the guest's processes execute: where their contents are found, which functions they have, how
//! their stacks are unwound.
//!
//! All of that is done on a thread of its own: it takes milliseconds, which neither a vCPU nor a client should wait.

mod disk_files;
mod initrd;
mod loader;
mod sources;
#[cfg(test)]
mod tests;

pub use disk_files::GuestDisks;
pub use initrd::Initrd;
pub use loader::{BinaryLoader, FileId};
pub use sources::BinarySources;
