//! kvmprof: a profiler that looks at a guest from the hypervisor.

pub mod binaries;
pub mod cli;
pub mod clock;
pub mod console;
pub mod host_socket;
pub mod introspection;
pub mod machine;
pub mod profiler;
pub mod vcpu;
pub mod virtio;
pub mod vm;
