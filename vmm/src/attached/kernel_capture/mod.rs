//! Samples that the host's kernel takes, without stopping the vCPU's thread: the kernel puts them into a ring, and a thread
//! for each vCPU takes them from there now and then, and keeps the account of ticks.

mod capture;
mod error;
mod reckoning;
mod ring;
mod sample;
mod vcpu;

pub use capture::check;
pub use error::KernelCaptureError;
pub use vcpu::KernelVcpu;
