//! Access to a vCPU: by its own descriptor on its own thread, or by tracing the thread of another program that runs it.

use std::sync::Arc;

use kvmprof_attach::Slots;
use kvmprof_attach::tracer::TraceError;
use kvmprof_introspection::{PhysicalMemory, Registers};
use kvmprof_recording::Sample;

use kvmprof_profiling::clock::ClockBackend;
use kvmprof_profiling::sampling::VcpuView;

/// The state of a stopped vCPU.
pub trait StoppedState {
    /// Its registers.
    ///
    /// # Errors
    /// KVM refuses them, or the vCPU's thread can't be made to ask KVM.
    fn registers(&mut self) -> Result<Registers, TraceError>;

    /// Whether it runs or is halted (`KVM_MP_STATE_*`).
    ///
    /// # Errors
    /// As for [`StoppedState::registers`].
    fn mp_state(&mut self) -> Result<u32, TraceError>;

    /// Whether its thread was in KVM_RUN: it was executing the guest, or was halted.
    fn is_in_guest(&self) -> bool {
        true
    }

    /// Whether its registers are those of a nested guest.
    fn runs_nested_guest(&self) -> bool {
        false
    }
}

/// Why there is no look at a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// The host has suspended its process.
    Suspended,
    /// Its state can't be read now.
    Refused,
    /// Another process traces its thread, as another kvmprof does during each of its looks.
    Traced,
    /// Its thread has ended.
    Gone,
}

/// Whether the thread of a vCPU is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    There,
    Gone,
}

impl<T> From<&Result<T, Unseen>> for Presence {
    fn from(looked: &Result<T, Unseen>) -> Self {
        match looked {
            Err(Unseen::Gone) => Self::Gone,
            _ => Self::There,
        }
    }
}

/// Access to one vCPU, and the work on its thread for processes, of which there is none if the thread is another program's.
pub trait VcpuAccess {
    /// The guest's memory.
    type Memory: PhysicalMemory;
    /// What drives the clock.
    type Backend: ClockBackend;

    /// Calls `look` with the vCPU while it stands still. The time is `now`, in ns.
    ///
    /// # Errors
    /// The vCPU can't be stopped, or `look` has failed. The failure is logged.
    fn look<T>(
        &mut self,
        now: u64,
        look: impl FnOnce(&mut dyn StoppedState) -> Result<T, TraceError>,
    ) -> Result<T, Unseen>;

    /// The slots of the guest's memory.
    fn slots(&self) -> Arc<Slots>;

    /// How long the vCPU's thread was held so far for looks, in ns. A thread of this process isn't.
    fn held(&self) -> u64 {
        0
    }

    /// Whether the guest may run another kernel by now than the known one. There are no samples then.
    fn is_in_doubt(&self) -> bool {
        false
    }

    /// Handles a kick, which the profiler may have sent for work on the vCPU's thread.
    fn kicked(&mut self) {}

    /// Notes the rate of the clock from now on, in Hz; 0 while it is stopped.
    fn set_hz(&mut self, _hz: u32) {}

    /// Notes whether samples are taken by looks from now on.
    fn set_sampling(&mut self, _is_sampling: bool) {}

    /// Notes that `ticks` ticks have passed without a sample.
    fn pass(&mut self, _ticks: u64) {}

    /// Handles the tick that has taken `sample`, at which the vCPU had these registers. True if the profiler should take the results soon.
    fn tick(
        &mut self,
        _sample: &Sample,
        _view: &VcpuView<Self::Memory>,
        _registers: &Registers,
    ) -> bool {
        false
    }

    /// Handles a request of the profiler at `now` (ns), at which no tick may be due for long.
    fn requested(&mut self, _view: &VcpuView<Self::Memory>, _now: u64) {}
}
