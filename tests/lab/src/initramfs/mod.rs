//! Initramfs archives, for the lab machine and for the guests inside it.

mod archive;
mod builder;

pub use archive::Archive;
pub use builder::InitramfsBuilder;
pub(crate) use builder::add_host_file;
