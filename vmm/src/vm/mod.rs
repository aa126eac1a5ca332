//! A running guest: its machine, its vCPU threads, and the event thread with all services for
//! clients.

mod build_files;
mod config;
mod consoles;
mod contained;
mod devices;
mod end;
mod error;
mod event_loop;
mod event_thread;
mod file_sizes;
mod forced_end;
mod guest_control;
mod kernel;
mod launch;
mod power_button;
mod sampling;
mod sockets;
mod termination;
mod threads;
mod time_limit;

pub use crate::vcpu::OnReset;
pub(crate) use build_files::{ReadFile, ReadFiles};
pub use config::VmConfig;
pub(crate) use contained::restrict_paths;
pub use end::VmEnd;
pub use error::VmError;
pub(crate) use event_loop::{EventLoop, GuestThreads, Services, add};
pub use forced_end::{end_at_once, enter_sandbox, set_unheard};
pub use kernel::{parse_kernel, read_kernel};
pub use kvmprof_profiling::signals::block_signals;
pub use launch::Vm;
pub(crate) use launch::{RecordingOutput, open_recording, open_sysroot, start_recorder};
pub use sockets::{sockets_of_devices, sockets_to_make};
pub(crate) use termination::Termination;
pub use termination::catch_signals;
pub(crate) use threads::Profiled;
pub(crate) use time_limit::TimeLimit;
