//! Initramfs archives, for the lab machine and for the guests inside it.

mod builder;

pub use builder::InitramfsBuilder;
pub(crate) use builder::add_host_file;
pub use kvmprof_initramfs::Archive;
