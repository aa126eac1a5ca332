//! The files that the guest's processes execute: reads their contents and their functions, and makes unwinders for
//! stacks.
//!
//! A thread of its own does all this: it takes milliseconds, and neither a vCPU nor a client should wait that long.

mod disk_files;
mod generated_code;
mod initrd;
mod language_functions;
mod loader;
mod sources;
mod tables;
#[cfg(test)]
mod tests;

pub use disk_files::GuestDisks;
#[cfg(feature = "testing")]
pub use generated_code::read_while_growing;
pub use initrd::Initrd;
pub use loader::{BinaryLoader, FileId};
pub use sources::BinarySources;
