//! vCPU threads: they run the guest, and look at it when a tick is due.

mod access;
mod capture;
mod exits;
mod gate;
mod kernel_clock;
mod kernel_sampler;
mod kicker;
mod own_vcpu;
mod restart;
mod ring;
mod sampler;
pub mod signals;
mod stopped;
mod task_request;
mod thread;
mod view;

pub(crate) use access::{Presence, StoppedState, Unseen, VcpuAccess};
pub(crate) use capture::page_table_root;
pub use capture::{RegisterSource, select_registers};
pub use exits::{ExitTotals, GuestExit};
pub use gate::Gate;
pub(crate) use kernel_clock::KernelClock;
pub use kernel_clock::KernelSampling;
pub use kicker::Kicker;
pub use restart::{OnReset, Restart};
pub use ring::{Doorbell, TickReceiver, TickSender, tick_ring};
pub(crate) use sampler::Sampler;
pub use stopped::{SEARCH_PERIOD, StoppedVcpu, in_turn};
pub use task_request::TaskRequest;
pub use thread::{Ending, VcpuCommon, VcpuShared, VcpuThread};
pub(crate) use view::{Copied, VcpuView, has_started, in_nested_guest, not_started};
