//! Decides when the host's kernel samples a vCPU (`--clock kernel`, `--capture kernel`), and when exits do.
//!
//! Exits sample a vCPU of this process, as with `--clock thread`, while the guest's processes haven't been located yet, and while a consumer
//! needs more than a record of the host's kernel has, as it does once the guest was seen to execute a language. A vCPU of another program has no
//! exits to this process: its kernel clock is alone.

use std::sync::Once;
use std::sync::atomic::Ordering;

use super::access::{Presence, Unseen, VcpuAccess};
use super::kernel_clock::{CaptureInput, KernelClock};
use super::sampler::Sampler;
use kvmprof_profiling::clock::{ClockSetting, TickSource, monotonic_ns};

/// The message about functions that samples lack, which is one of the whole guest.
static LACKS_FUNCTIONS: Once = Once::new();

impl<A: VcpuAccess> Sampler<A> {
    /// Hands over the host kernel's samples until now.
    pub(super) fn take_kernel_ticks(&mut self, vcpu: &mut A) -> Presence {
        if self.running_kernel().is_none() {
            return Presence::There;
        }
        let taken = self.empty_ring(vcpu);
        if taken == Presence::Gone {
            return taken;
        }
        if self.view.lacks_functions && self.leave_kernel(vcpu) {
            return taken;
        }
        let now = monotonic_ns();
        let is_to_look = |kernel: &KernelClock| {
            let is_sure = self.view.introspector.places_are_sure();
            kernel.is_to_look(now, is_sure, self.knowledge.linux().is_some())
        };
        let mut found = None;
        if self.kernel.as_ref().is_some_and(is_to_look) {
            let looked = self.find_processes(vcpu, now);
            if Presence::from(&looked) == Presence::Gone {
                return Presence::Gone;
            }
            found = looked.ok().flatten();
        }
        let Some(kernel) = &mut self.kernel else {
            return Presence::There;
        };
        match kernel.renewed(now, found, vcpu.slots()) {
            Some(renewal) => {
                // The old program's samples are read with the places that it was made for.
                let taken = self.empty_ring(vcpu);
                if let Some(kernel) = &mut self.kernel {
                    kernel.renew(renewal);
                }
                taken
            }
            None => Presence::There,
        }
    }

    fn empty_ring(&mut self, vcpu: &A) -> Presence {
        let Some(kernel) = &mut self.kernel else {
            return Presence::There;
        };
        let (held, is_in_doubt) = (vcpu.held(), vcpu.is_in_doubt());
        let taken = kernel.take(&mut self.view, &mut self.ticks, held, is_in_doubt);
        (self.shared.unread_processes).store(self.view.unread_processes, Ordering::Relaxed);
        taken
    }

    /// Finds where it can be read without the vCPU's registers which process it runs; `None` while it runs a nested guest.
    fn find_processes(&mut self, vcpu: &mut A, now: u64) -> Result<Option<CaptureInput>, Unseen> {
        let view = &mut self.view;
        let looked = vcpu.look(now, |vcpu| {
            if vcpu.runs_nested_guest() {
                return Ok(None);
            }
            let registers = vcpu.registers()?;
            (view.introspector).identify(&view.memory, &registers, false, false);
            let places = (view.introspector).places(&view.memory, &registers);
            Ok(Some(CaptureInput { places, registers }))
        });
        // Another tracer soon lets the thread go, so the next turn may look.
        let is_traced = matches!(looked, Err(Unseen::Traced));
        if let Some(kernel) = self.kernel.as_mut().filter(|_| !is_traced) {
            kernel.note_look(now);
        }
        looked
    }

    /// Lets the host's kernel take the samples from now on, if its records suffice. All ticks until now have been
    /// taken.
    pub(super) fn enter_kernel(&mut self, vcpu: &mut A) {
        let setting = self.setting.effective();
        let Some(kernel) = self.kernel.as_ref().filter(|it| it.is_ready(&setting)) else {
            return;
        };
        let is_alone = kernel.is_alone();
        // The vCPU's own thread takes events.
        let is_possible = |source: &TickSource| is_alone || source.event().is_none();
        let Some(source) = setting.source.filter(is_possible) else {
            return;
        };
        // A halted vCPU's ticks are accounted for when it has run again.
        let is_early = self.clock.is_halted() || !self.started || self.knowledge.is_pending();
        if is_early && !is_alone {
            return;
        }
        let found = self.find_processes(vcpu, monotonic_ns()).ok().flatten();
        let tells_processes = self.knowledge.tells_processes();
        let is_complete = |found: &CaptureInput| found.places.is_some() || !tells_processes;
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let found = match found {
            _ if is_alone => found.unwrap_or_default(),
            Some(found) if is_complete(&found) && kernel.can_serve(&found, &setting) => found,
            _ => return,
        };
        self.clock.stop();
        if !kernel.start(source, setting, found, vcpu.slots()) {
            self.clock.restart(source.hz(), monotonic_ns());
            return;
        }
        vcpu.set_sampling(false);
        let control = &self.shared.control;
        control.set_in_kernel(true);
        control.set_halted(true);
    }

    /// Whether the host's kernel continues to take the samples, with `setting`. If not, it takes none from now on.
    pub(super) fn stays_in_kernel(&mut self, setting: &ClockSetting) -> bool {
        let Some(kernel) = self.kernel.as_mut().filter(|kernel| kernel.is_running()) else {
            return false;
        };
        if kernel.follow(*setting) {
            return true;
        }
        kernel.stop();
        self.note_left_kernel();
        false
    }

    fn note_left_kernel(&self) {
        let control = &self.shared.control;
        control.set_in_kernel(false);
        control.set_halted(false);
    }

    /// Has exits sample the vCPU until the setting changes. All ticks until now have been taken. False for a vCPU of another program.
    fn leave_kernel(&mut self, vcpu: &mut A) -> bool {
        let Some(kernel) = self.kernel.as_mut() else {
            return false;
        };
        if kernel.is_alone() {
            LACKS_FUNCTIONS.call_once(|| {
                log::warn!(
                    "The guest executes Python, JavaScript or Java: their functions aren't in samples of the host's kernel; attach with --capture ptrace for them"
                );
            });
            return false;
        }
        kernel.give_up();
        self.note_left_kernel();
        self.take_ticks_from(vcpu, self.setting.effective().source);
        true
    }

    /// Takes the host kernel's last samples, when the thread ends.
    pub(super) fn finish_kernel(&mut self, vcpu: &A) {
        // The thread of another program's vCPU may have ended, so that its last ticks can't be accounted for.
        let _ = self.empty_ring(vcpu);
        if let Some(kernel) = &mut self.kernel {
            kernel.stop();
        }
    }
}
