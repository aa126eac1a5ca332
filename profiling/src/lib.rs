//! The profiler behind a guest: the clocks that make ticks, the rings that pass samples on, the consumers of ticks, and the host socket by which
//! clients read them. It knows neither who runs the vCPUs nor how they are looked at.

pub mod binaries;
pub mod clock;
mod config;
pub mod counters;
pub mod host_socket;
pub mod kernel_capture;
pub mod kernel_events;
#[cfg(test)]
#[path = "../../tests/shared/not_run.rs"]
mod not_run;
mod perf_event;
pub mod profil;
pub mod profiler;
pub mod sampling;
pub mod signals;
mod time;

pub use config::{LookPlan, ProfilingConfig, RecordPlan};
pub use perf_event::EventOpener;
