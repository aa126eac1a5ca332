//! Samples that the host's kernel takes, without stopping the vCPU's thread: the kernel puts them into a ring, from where they
//! are taken now and then, and the account of the other ticks is worked out then.

mod capture;
mod error;
mod ring;
mod run_time_account;
mod sample;
mod ticks;

pub(crate) use capture::{Capture, Contents, VcpuThreadId, check};
pub use error::KernelCaptureError;
pub(crate) use sample::Reader;
pub(crate) use ticks::KernelTicks;
