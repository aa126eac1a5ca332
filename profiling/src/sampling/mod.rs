//! Samples of a stopped vCPU: its registers, what they and the guest's memory show, and the ring by which its ticks reach the
//! profiler.

mod exits;
mod gate;
mod registers;
mod ring;
mod shared;
mod stopped;
mod task_request;
mod view;

pub use exits::{ExitCounter, ExitTotals, GuestExit};
pub use gate::Gate;
pub use kvmprof_introspection::select_registers;
pub use registers::RegisterSource;
pub use registers::{page_table_root, read_by_ioctls};
pub use ring::{Doorbell, TickReceiver, TickSender, tick_ring};
pub use shared::VcpuShared;
pub use stopped::{SEARCH_PERIOD, StoppedVcpu, in_turn};
pub use task_request::TaskRequest;
pub use view::{Copied, VcpuView, has_started, in_nested_guest, not_started};
