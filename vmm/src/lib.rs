//! kvmprof: a profiler that looks at a guest from the hypervisor.

pub mod host_socket;
