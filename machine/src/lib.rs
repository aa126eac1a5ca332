//! The machine that kvmprof gives to a guest: memory, kernel, tables, devices, and what is behind these: disks, networks, shared folders, sockets.

pub mod connector;
pub mod console;
pub mod disk;
mod error;
pub mod helper;
pub mod layout;
pub mod lock;
pub mod log_limit;
mod machine;
mod memory;
pub mod network;
mod no_wait;
#[cfg(test)]
#[path = "../../tests/shared/not_run.rs"]
mod not_run;
pub mod output_names;
pub mod share;
pub mod unix_socket;
pub mod virtio;
pub mod vsock;

pub use error::MachineError;
pub use machine::*;
pub use memory::register as register_memory;
pub use memory::{GuestMemory, HugePages, MemoryBacking, MemoryOptions};
pub use no_wait::open_without_waiting;
pub use virtio::VirtioSlot;
