//! The virtual machine monitor: the vCPUs of guests of its own, these guests from their start to their end, and guests of other VMMs.
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
#[cfg(test)]
#[path = "../../tests/shared/not_run.rs"]
mod not_run;
pub mod vcpu;
pub mod vm;
