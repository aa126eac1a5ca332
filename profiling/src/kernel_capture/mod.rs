//! Samples that the host's kernel takes without stopping the vCPU's thread, by a clock or at exits. The kernel writes them into a ring. kvmprof reads the ring from
//! time to time, and then works out what became of the clock's ticks without a sample.

mod capture;
mod error;
mod opener;
mod places_words;
mod request;
mod ring;
mod run_time_account;
mod sample;
mod ticks;

pub use capture::{Capture, Contents, Period, VcpuThreadId, check};
pub use error::KernelCaptureError;
pub use opener::{CaptureHelper, CaptureOpener, TracedCaptures};
pub use places_words::{decode_places, encode_places};
#[cfg(feature = "testing")]
pub use request::rewritten_request;
pub use sample::Reader;
pub use ticks::KernelTicks;
