//! Stops a vCPU of another process for a moment, and reads its registers (ptrace(2)).
//!
//! KVM gives a vCPU's registers to the process alone that made it. So its thread is stopped, made to ask KVM itself, and let
//! go on as if nothing had been. Nothing of the other process has to be known or changed for that.
//!
//! The thread isn't traced between two samples: its signals take their way without this process. And whenever this process
//! is killed, the thread goes on by itself where it was stopped, by a return frame that is laid below its stack.

mod code;
mod frame;
mod memory;
mod ptrace;
mod thread;
mod vcpu;
mod vmm_thread;

pub use code::{CodeError, ThreadCode};
pub use vcpu::{Look, SLOW_PAUSE, State, TraceError, TracedVcpu};
