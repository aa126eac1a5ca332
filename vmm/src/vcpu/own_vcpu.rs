//! A vCPU of this process, on its own thread: its descriptor, what its ticks do for processes, and its exits, pauses and restarts.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use kvm_bindings::KVM_MP_STATE_RUNNABLE;
use kvm_ioctls::VcpuFd;
use kvmprof_attach::Slots;
use kvmprof_attach::tracer::TraceError;
use kvmprof_introspection::Registers;
use kvmprof_recording::Sample;

use super::access::{StoppedState, Unseen, VcpuAccess};
use super::sampler::Sampler;
use kvmprof_machine::GuestMemory;
use kvmprof_profiling::clock::{ThreadBackend, monotonic_ns};
use kvmprof_profiling::counters::VcpuCounting;
use kvmprof_profiling::profil::VcpuStores;
use kvmprof_profiling::sampling::{
    GuestExit, RegisterSource, StoppedVcpu, VcpuView, read_by_ioctls,
};
use kvmprof_profiling::signals;

/// Maximum time that a thread waits to be kicked before it looks again.
const LONG: Duration = Duration::from_secs(3600);

/// A vCPU of this process. Only its own thread uses it.
#[derive(Debug)]
pub struct OwnVcpu {
    /// KVM's descriptor of the vCPU.
    pub fd: VcpuFd,
    source: RegisterSource,
    /// Whether KVM stores the registers in the run page, and whether those of the last return of KVM_RUN are there.
    stores_registers: bool,
    has_registers: bool,
    slots: Arc<Slots>,
    stores: VcpuStores,
    counting: VcpuCounting,
}

impl OwnVcpu {
    /// The vCPU of the calling thread. Its registers come from `source`; its ticks go to `stores` and `counting`, too. `slots` are those of the
    /// guest's memory.
    pub fn new(
        fd: VcpuFd,
        source: RegisterSource,
        slots: Arc<Slots>,
        stores: VcpuStores,
        counting: VcpuCounting,
    ) -> Self {
        Self {
            fd,
            source,
            stores_registers: false,
            has_registers: false,
            slots,
            stores,
            counting,
        }
    }

    /// Notes that KVM_RUN has returned. Call this before anything else looks at the vCPU.
    pub fn returned(&mut self) {
        self.has_registers = self.stores_registers;
    }
}

impl StoppedState for OwnVcpu {
    fn registers(&mut self) -> Result<Registers, TraceError> {
        let registers = if self.has_registers {
            self.source.read(&mut self.fd)
        } else {
            read_by_ioctls(&self.fd)
        };
        registers.ok_or_else(|| TraceError::Kvm(io::Error::last_os_error()))
    }

    /// A vCPU whose state KVM doesn't tell runs.
    fn mp_state(&mut self) -> Result<u32, TraceError> {
        let state = self.fd.get_mp_state();
        Ok(state.map_or(KVM_MP_STATE_RUNNABLE, |state| state.mp_state))
    }
}

impl VcpuAccess for OwnVcpu {
    type Memory = GuestMemory;
    type Backend = ThreadBackend;

    fn look<T>(
        &mut self,
        _now: u64,
        look: impl FnOnce(&mut dyn StoppedState) -> Result<T, TraceError>,
    ) -> Result<T, Unseen> {
        look(self).map_err(|_| Unseen::Refused)
    }

    fn slots(&self) -> Arc<Slots> {
        Arc::clone(&self.slots)
    }

    fn kicked(&mut self) {
        self.counting.open_asked_for();
    }

    fn set_hz(&mut self, hz: u32) {
        // While an event makes the ticks, all ticks count.
        self.stores.set_hz(hz);
    }

    fn set_sampling(&mut self, is_sampling: bool) {
        self.source.enable(&mut self.fd, is_sampling);
        self.stores_registers = is_sampling;
        self.has_registers = false;
    }

    fn pass(&mut self, ticks: u64) {
        self.stores.pass(ticks);
    }

    fn tick(
        &mut self,
        sample: &Sample,
        view: &VcpuView<GuestMemory>,
        registers: &Registers,
    ) -> bool {
        let vcpu = StoppedVcpu::new(view, registers);
        self.stores.tick(sample, vcpu);
        (self.counting).tick(sample.pid, sample.comm, StoppedVcpu::new(view, registers))
    }

    /// Checks whether watched processes are alive; ticks don't check while the vCPU is halted.
    fn requested(&mut self, view: &VcpuView<GuestMemory>, now: u64) {
        if !self.stores.are_watching() && !self.counting.are_watching() {
            return;
        }
        let Ok(registers) = self.registers() else {
            return;
        };
        let vcpu = StoppedVcpu::new(view, &registers);
        self.stores.look(vcpu, now);
        self.counting.look(vcpu);
    }
}

impl Sampler<OwnVcpu> {
    /// Handles a return of KVM_RUN with `exit`, which the guest has caused.
    pub fn exited(&mut self, vcpu: &mut OwnVcpu, exit: GuestExit) {
        vcpu.returned();
        self.take_exit(vcpu, exit);
        if vcpu.counting.is_on() {
            self.count_exit(vcpu, exit);
        }
    }

    /// Counts `exit` for the process that has caused it.
    fn count_exit(&mut self, vcpu: &mut OwnVcpu, exit: GuestExit) {
        let Ok(registers) = vcpu.registers() else {
            return;
        };
        let view = &mut self.view;
        let identity = (view.introspector).identify(&view.memory, &registers, false, false);
        let stopped = StoppedVcpu::new(view, &registers);
        let counting = &mut vcpu.counting;
        if counting.exited(exit, identity.pid, identity.comm, stopped) {
            self.ticks.ring();
        }
    }

    /// Stands still while the setting is paused: nothing makes ticks, and requests are answered. Returns when the vCPU may
    /// continue, or when `is_over` and it is kicked. Call this after KVM_RUN has returned EINTR, or before its first call: then
    /// no instruction is unfinished.
    pub fn stand_still(&mut self, vcpu: &mut OwnVcpu, is_over: impl Fn() -> bool) {
        if !self.setting.paused {
            return;
        }
        // Makes the guest's watchdogs ignore the time of the pause (kernel: Documentation/virt/kvm/api.rst, 4.70). For a
        // guest without kvmclock this fails with EINVAL.
        let _ = vcpu.fd.kvmclock_ctrl();
        while self.setting.paused && !is_over() {
            signals::wait_for_kick(LONG);
            self.shared.kicker.seen();
            self.follow_requests(vcpu, monotonic_ns());
        }
    }
}
