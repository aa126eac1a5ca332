//! Samples that the host's kernel takes, without stopping the vCPU's thread: the kernel puts them into a ring, from where they
//! are taken now and then, and the account of ticks is reckoned.

mod capture;
mod error;
mod reckoning;
mod ring;
mod sample;

pub(crate) use capture::{Capture, VcpuThreadId, check};
pub use error::KernelCaptureError;
pub(crate) use reckoning::Reckoning;
pub(crate) use ring::Entry;
pub(crate) use sample::Reader;
