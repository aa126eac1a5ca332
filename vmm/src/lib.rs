//! kvmprof: a profiler that looks at a guest from the hypervisor.
