//! A sampler stands still while its guest restarts.

use super::access::VcpuAccess;
use super::sampler::Sampler;
use kvmprof_profiling::clock::{ClockSetting, monotonic_ns};

impl<A: VcpuAccess> Sampler<A> {
    /// Prepares a restart of the guest: accounts for the ticks that are due, and makes none until [`Sampler::start_anew`].
    pub fn suspend(&mut self, vcpu: &mut A) {
        // A vCPU's thread that has ended is found again after the restart.
        let _ = self.take_kernel_ticks(vcpu);
        self.account_halted(vcpu, monotonic_ns());
        let suspended = ClockSetting {
            source: None,
            ..self.setting
        };
        let setting = std::mem::replace(&mut self.setting, suspended);
        if !self.stays_in_kernel(&suspended) {
            self.take_ticks_from(vcpu, None);
        }
        self.setting = setting;
        self.ticks.ring();
    }

    /// Handles the restart of the guest: drops all that was found of the vCPU, and makes ticks again.
    pub fn start_anew(&mut self, vcpu: &mut A) {
        self.view.start_anew();
        self.view.follow(&self.setting);
        self.started = self.view.vcpu == 0;
        self.take_ticks_from(vcpu, self.setting.effective().source);
    }
}
