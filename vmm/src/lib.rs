//! The virtual machine monitor: the machine, its clock, the profiler behind it, and the host socket.
//!
//! ```no_run
//! use kvmprof_vmm::vm::{Vm, VmConfig, VmEnd, VmError, block_signals};
//!
//! /// Runs a guest to its end; SIGINT, SIGTERM and SIGHUP end it.
//! fn run(config: VmConfig) -> Result<VmEnd, VmError> {
//!     // Before any other thread is there: only the event thread takes these signals.
//!     block_signals().expect("signals can be blocked");
//!     Vm::start(config)?.join()
//! }
//! ```

pub mod attached;
pub mod binaries;
pub mod clock;
pub mod connector;
pub mod console;
pub mod counters;
pub mod disk;
mod helper;
pub mod host_socket;
pub mod kernel_capture;
pub mod kernel_events;
mod lock;
mod log_limit;
pub mod machine;
pub mod network;
mod no_wait;
#[cfg(test)]
#[path = "../../tests/shared/not_run.rs"]
mod not_run;
mod perf_event;
pub mod profil;
pub mod profiler;
pub mod profiling;
pub mod sampling;
pub mod share;
pub mod signals;
mod time;
mod unix_socket;
pub mod vcpu;
pub mod virtio;
pub mod vm;
pub mod vsock;

pub use perf_event::EventOpener;
