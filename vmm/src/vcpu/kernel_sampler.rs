//! Decides when the host's kernel samples a vCPU (`--clock kernel`), and when exits do.
//!
//! Exits sample the vCPU, as with `--clock thread`, while the guest's processes haven't been located yet, and while a consumer
//! needs more than a record of the host's kernel has.

use std::sync::atomic::Ordering;

use kvm_ioctls::VcpuFd;

use super::capture::read_by_ioctls;
use super::kernel_clock::Found;
use super::sampler::Sampler;
use crate::clock::{ClockSetting, TickSource, monotonic_ns};

impl Sampler {
    /// Hands over the host kernel's samples until now.
    pub(super) fn take_kernel_ticks(&mut self, fd: &VcpuFd) {
        let Some(kernel) = self.kernel.as_mut().filter(|kernel| kernel.is_running()) else {
            return;
        };
        kernel.take(&mut self.view, &mut self.ticks);
        (self.shared.unread_processes).store(self.view.unread_processes, Ordering::Relaxed);
        // Pages that weren't mapped when the guest started may be mapped now.
        if self.knowledge.linux().is_none()
            && let Some(registers) = read_by_ioctls(fd)
            && let Some(places) = (self.view.introspector).places(&self.view.memory, &registers)
            && kernel.is_improved_by(&places)
        {
            let places = Some(places);
            kernel.read_from(Found { places, registers });
        }
    }

    /// Lets the host's kernel take the samples from now on, if its records suffice. All ticks until now have been
    /// taken.
    pub(super) fn enter_kernel(&mut self, fd: &mut VcpuFd) {
        let setting = self.setting.effective();
        let Some(kernel) = self.kernel.as_mut().filter(|it| it.is_ready(&setting)) else {
            return;
        };
        let Some(TickSource::Clock(hz)) = setting.source else {
            return;
        };
        // A halted vCPU's ticks are accounted for when it has run again.
        if self.clock.is_halted() || !self.started || self.knowledge.is_pending() {
            return;
        }
        let Some(registers) = read_by_ioctls(fd) else {
            return;
        };
        let places = (self.view.introspector).places(&self.view.memory, &registers);
        let is_complete = places.is_some() || !self.knowledge.tells_processes();
        let found = Found { places, registers };
        if !is_complete || !kernel.can_serve(&found, &setting) {
            return;
        }
        self.clock.stop();
        if !kernel.start(hz, setting, found) {
            self.clock.restart(hz, monotonic_ns());
            return;
        }
        self.is_sampling = false;
        self.registers.enable(fd, false);
        let control = &self.shared.control;
        control.set_in_kernel(true);
        control.set_halted(true);
    }

    /// Whether the host's kernel continues to take the samples, with `setting`. If not, it takes none from now on.
    pub(super) fn stays_in_kernel(&mut self, setting: &ClockSetting) -> bool {
        let Some(kernel) = self.kernel.as_mut().filter(|kernel| kernel.is_running()) else {
            return false;
        };
        let hz = setting.source.map_or(0, TickSource::hz);
        if kernel.follow(hz, *setting) {
            return true;
        }
        kernel.stop();
        let control = &self.shared.control;
        control.set_in_kernel(false);
        control.set_halted(false);
        false
    }

    /// Takes the host kernel's last samples, when the thread ends.
    pub(super) fn finish_kernel(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.take(&mut self.view, &mut self.ticks);
            (self.shared.unread_processes).store(self.view.unread_processes, Ordering::Relaxed);
            kernel.stop();
        }
    }
}
