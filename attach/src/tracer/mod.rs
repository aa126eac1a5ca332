//! Stops a vCPU of another process for a moment, and reads its registers (ptrace(2)).
//!
//! KVM gives a vCPU's registers only to the process that made the vCPU. So the tracer stops the vCPU's thread, makes it ask KVM itself, and
//! then lets it continue where it was. This needs no knowledge of the other process's program, and no change to it.
//!
//! The thread isn't traced between two samples: its signals don't pass through this process, and those that come while it does
//! what it is told are blocked until it has its registers back. If this process is killed, the
//! thread goes on where it was stopped, by a return frame that was written below its stack.

mod code;
mod error;
mod frame;
mod memory;
mod moved;
mod ptrace;
#[cfg(test)]
mod tests;
mod thread;
mod vcpu;
mod vmm_thread;

pub use code::{CodeError, ThreadCode};
pub use error::TraceError;
pub use vcpu::{SLOW_PAUSE, State, StopOutcome, TracedVcpu};
