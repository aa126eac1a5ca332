//! The work of a vCPU's thread when KVM_RUN was interrupted, or an event makes a tick: ticks, samples, requests.

use std::sync::Arc;
use std::time::Duration;

use kvm_bindings::KVM_MP_STATE_HALTED;
use kvm_ioctls::VcpuFd;
use kvmprof_recording::{EventKind, Sample};

use super::capture::{RegisterSource, read_by_ioctls};
use super::exits::{ExitCounter, GuestExit};
use super::kernel_clock::KernelClock;
use super::view::{VcpuView, has_started, not_started};
use super::{StoppedVcpu, TickSender, VcpuShared, signals};
use crate::clock::{ClockSetting, ElapsedTicks, Generation, TickSource, VcpuClock, monotonic_ns};
use crate::counters::VcpuCounting;
use crate::kernel_events::KernelEvent;
use crate::machine::GuestMemory;
use crate::profil::VcpuStores;
use kvmprof_introspection::{GuestKnowledge, Registers};

/// Maximum time that a thread waits to be kicked before it looks again.
const LONG: Duration = Duration::from_secs(3600);

/// A vCPU's clock, its capture and the ring for its samples.
#[derive(Debug)]
pub struct Sampler {
    pub(super) view: VcpuView<GuestMemory>,
    pub(super) clock: VcpuClock,
    // Replaces the clock while the host's kernel takes the samples.
    pub(super) kernel: Option<KernelClock>,
    // The profiler's setting.
    pub(super) setting: ClockSetting,
    // Replaces the clock while an event makes the ticks.
    pub(super) exits: ExitCounter,
    // The event, while the host's kernel counts it.
    pub(super) event: Option<KernelEvent>,
    pub(super) shared: Arc<VcpuShared>,
    pub(super) knowledge: Arc<GuestKnowledge>,
    pub(super) ticks: TickSender,
    pub(super) stores: VcpuStores,
    pub(super) counting: VcpuCounting,
    pub(super) registers: RegisterSource,
    // An application processor that has not had its SIPI yet has no meaningful registers.
    pub(super) started: bool,
    pub(super) generation: Generation,
    // Whether anything makes ticks. Then KVM stores the registers in the run page.
    pub(super) is_sampling: bool,
}

impl Sampler {
    /// Handles an EINTR of KVM_RUN. `signal` is the signal that was pending.
    pub fn interrupted(&mut self, fd: &mut VcpuFd, signal: Option<i32>) {
        self.shared.kicker.seen();
        self.take_kernel_ticks(fd);
        let now = monotonic_ns();
        match self.clock.on_interrupt(now, signal) {
            Some(elapsed) if elapsed.sample => self.sample(fd, now, elapsed),
            Some(elapsed) => {
                self.stores.pass(elapsed.without_sample());
                self.send(elapsed, None);
            }
            None => {}
        }
        let is_overflow = signal.is_some_and(signals::is_overflow);
        // A signal that stays pending would interrupt a halted vCPU again, and count again as the end of a halt.
        if self.event.is_some() && signals::take_overflows() | is_overflow {
            let is_kicked = signal == Some(signals::kick());
            self.sample_counted(fd, now, None, is_kicked);
        }
        self.follow_requests(fd, now);
        self.look_at_tasks(fd);
        self.enter_kernel(fd);
    }

    /// Looks at the guest's tasks, if the profiler has requested it.
    fn look_at_tasks(&mut self, fd: &VcpuFd) {
        let (shared, view) = (Arc::clone(&self.shared), &mut self.view);
        let is_there = shared.tasks.carry_out(|reader| {
            let has_started = mp_state(fd).is_none_or(has_started);
            // The run page has no registers while the host's kernel takes samples.
            let registers = read_by_ioctls(fd).filter(|_| has_started);
            registers.is_some_and(|registers| view.look_at_tasks(&registers, reader))
        });
        if is_there {
            self.ticks.ring();
        }
    }

    /// Follows the profiler's requests, and acknowledges them.
    pub fn follow_requests(&mut self, fd: &mut VcpuFd, now: u64) {
        self.counting.open_asked_for();
        let control = &self.shared.control;
        let (generation, setting) = control.requested();
        if generation == self.generation {
            return;
        }
        // A request for the kernel's symbols can't wait for the first sample, because there may be no clock.
        if self.knowledge.is_unlocated() {
            self.locate_kernel(fd);
        }
        if self.stores.are_watching() || self.counting.are_watching() {
            self.look_at_watched(fd, now);
        }
        let elapsed = self.clock.account_halted(now);
        self.stores.pass(elapsed.without_sample());
        self.send(elapsed, None);
        self.view.follow(&setting);
        self.setting = setting;
        let effective = setting.effective();
        if !self.stays_in_kernel(&effective) {
            self.take_ticks_from(fd, effective.source);
        }
        self.generation = generation;
        self.shared.control.acknowledge(generation);
        self.ticks.ring();
    }

    /// Checks whether watched processes are alive; ticks don't check while the vCPU is halted.
    fn look_at_watched(&mut self, fd: &VcpuFd, now: u64) {
        let Some(registers) = read_by_ioctls(fd) else {
            return;
        };
        let vcpu = StoppedVcpu::new(&self.view, &registers);
        self.stores.look(vcpu, now);
        self.counting.look(vcpu);
    }

    /// Stands still while the setting is paused: nothing makes ticks, and requests are answered. Returns when the vCPU may
    /// continue, or when `is_over` and it is kicked. Call this after KVM_RUN has returned EINTR, or before its first call: then
    /// no instruction is unfinished.
    pub fn stand_still(&mut self, fd: &mut VcpuFd, is_over: impl Fn() -> bool) {
        if !self.setting.paused {
            return;
        }
        // Makes the guest's watchdogs ignore the time of the pause (kernel: Documentation/virt/kvm/api.rst, 4.70). For a
        // guest without kvmclock this fails with EINVAL.
        let _ = fd.kvmclock_ctrl();
        while self.setting.paused && !is_over() {
            signals::wait_for_kick(LONG);
            self.shared.kicker.seen();
            self.follow_requests(fd, monotonic_ns());
        }
    }

    /// Prepares a restart of the vCPU: accounts for the ticks that are due, and makes none until [`Sampler::start_anew`].
    pub fn suspend(&mut self, fd: &mut VcpuFd) {
        self.take_kernel_ticks(fd);
        let elapsed = self.clock.account_halted(monotonic_ns());
        self.stores.pass(elapsed.without_sample());
        self.send(elapsed, None);
        let suspended = ClockSetting {
            source: None,
            ..self.setting
        };
        if !self.stays_in_kernel(&suspended) {
            self.take_ticks_from(fd, None);
        }
        self.ticks.ring();
    }

    /// Handles the restart of the vCPU: drops all that was found of it, and makes ticks again.
    pub fn start_anew(&mut self, fd: &mut VcpuFd) {
        self.view.start_anew(Arc::clone(&self.knowledge));
        self.view.follow(&self.setting);
        self.started = self.view.vcpu == 0;
        self.take_ticks_from(fd, self.setting.effective().source);
    }

    fn take_ticks_from(&mut self, fd: &mut VcpuFd, source: Option<TickSource>) {
        let hz = source.map_or(0, TickSource::hz);
        let event = source.and_then(TickSource::event);
        if hz == self.clock.hz() && event == self.exits.event() {
            return;
        }
        self.end_event();
        if hz > 0 {
            self.clock.backend_mut().prepare_alarm();
        }
        self.clock.restart(hz, monotonic_ns());
        // While an event makes the ticks, all ticks count.
        self.stores.set_hz(hz);
        self.exits.restart(event);
        self.shared.control.set_halted(false);
        self.is_sampling = source.is_some();
        self.registers.enable(fd, self.is_sampling);
        let started = event.map_or(Ok(None), KernelEvent::start);
        self.event = started.unwrap_or_else(|why| {
            // The event could be opened when the setting was checked.
            log::warn!("vCPU {} makes no ticks by the event: {why}", self.view.vcpu);
            None
        });
    }

    /// Ends an event that the host's kernel counts. A tick that has no sample yet gets none.
    fn end_event(&mut self) {
        let Some(mut event) = self.event.take() else {
            return;
        };
        let lost = if signals::take_overflows() {
            event.take()
        } else {
            0
        };
        let elapsed = ElapsedTicks {
            lost,
            ..ElapsedTicks::default()
        };
        self.stores.pass(lost);
        self.send(elapsed, None);
    }

    /// Handles a return of KVM_RUN with `exit`, which the guest has caused.
    pub fn exited(&mut self, fd: &mut VcpuFd, exit: GuestExit) {
        if self.exits.count(exit) {
            self.sample_events(fd, monotonic_ns(), 1, Some(exit));
        } else if self.event.is_some() && signals::take_overflows() {
            // This comes before KVM_RUN continues behind the instruction.
            self.sample_counted(fd, monotonic_ns(), Some(exit), false);
        }
        if self.counting.is_on() {
            self.count_exit(fd, exit);
        }
    }

    /// Counts `exit` for the process that has caused it.
    fn count_exit(&mut self, fd: &mut VcpuFd, exit: GuestExit) {
        // The run page has no registers while no samples are taken.
        let registers = if self.is_sampling {
            self.registers.read(fd)
        } else {
            read_by_ioctls(fd)
        };
        let Some(registers) = registers else { return };
        let identity =
            (self.view.introspector).identify(&self.view.memory, &registers, false, false);
        let vcpu = StoppedVcpu::new(&self.view, &registers);
        let is_urgent = (self.counting).exited(exit, identity.pid, identity.comm, vcpu);
        if is_urgent {
            self.ticks.ring();
        }
    }

    /// Handles a tick of an event that the host's kernel counts. It may have come with the guest's `exit`, or with a kick.
    fn sample_counted(
        &mut self,
        fd: &mut VcpuFd,
        time: u64,
        exit: Option<GuestExit>,
        is_kicked: bool,
    ) {
        let Some(event) = &mut self.event else {
            return;
        };
        let taken = event.take();
        if taken == 0 {
            return;
        }
        // The kick has woken up the thread, not the vCPU: this isn't the end of a halt.
        let is_interrupted =
            is_kicked && self.counts_halts() && mp_state(fd) == Some(KVM_MP_STATE_HALTED);
        let ticks = taken - u64::from(is_interrupted);
        if ticks > 0 {
            self.sample_events(fd, time, ticks, exit);
        }
        if let Some(event) = &mut self.event {
            event.resume();
        }
    }

    /// Hands over ticks that an event has made. The last one can have a sample. No tick is stolen or idle, because the guest was
    /// just running.
    fn sample_events(&mut self, fd: &mut VcpuFd, time: u64, ticks: u64, exit: Option<GuestExit>) {
        let missed = ticks - 1;
        self.stores.pass(missed);
        let sample = self.look(fd, time, exit).map(|(sample, _)| sample);
        if sample.is_none() {
            self.stores.pass(1);
        }
        let lost = missed + u64::from(sample.is_none());
        let elapsed = ElapsedTicks {
            lost,
            ..ElapsedTicks::default()
        };
        self.send(elapsed, sample);
    }

    /// Ends the clock when the thread ends. No tick follows, and no other thread needs to wait for this one.
    pub fn finish(&mut self) {
        let elapsed = self.clock.account_halted(monotonic_ns());
        self.send(elapsed, None);
        self.finish_kernel();
        self.end_event();
        self.clock.stop();
        self.shared.control.finish();
        self.ticks.ring();
    }

    /// Locates the guest's kernel, without a sample. When the guest resets itself, this is the last chance to locate
    /// it, which is needed to detect a panic.
    pub fn locate_kernel(&self, fd: &VcpuFd) {
        if let Some(registers) = read_by_ioctls(fd) {
            self.knowledge.locate(&self.view.memory, &registers);
        }
    }

    fn sample(&mut self, fd: &mut VcpuFd, time: u64, mut elapsed: ElapsedTicks) {
        self.stores.pass(elapsed.without_sample());
        let Some((sample, halted)) = self.look(fd, time, None) else {
            elapsed.lost += 1;
            self.stores.pass(1);
            self.send(elapsed, None);
            return;
        };
        self.send(elapsed, Some(sample));
        if halted {
            self.clock.halt();
        }
        self.shared.control.set_halted(self.clock.is_halted());
    }

    /// Takes a sample, and returns whether the vCPU is halted, too. After `exit`, the sample is of the instruction that has caused it.
    fn look(
        &mut self,
        fd: &mut VcpuFd,
        time: u64,
        exit: Option<GuestExit>,
    ) -> Option<(Sample, bool)> {
        self.view.clear();
        self.started |= exit.is_some();
        if !self.has_started(fd) {
            let sample = not_started(self.view.vcpu, time);
            return Some((sample, true));
        }
        let mut registers = self.registers.read(fd)?;
        if let Some(exit) = exit {
            registers.rip = exit.instruction(&registers, &self.view.memory);
        }
        let behind_hlt = exit.is_none() && self.view.is_behind_hlt(&registers);
        let is_end_of_halt = behind_hlt && self.counts_halts();
        if is_end_of_halt {
            registers.rip = registers.rip.wrapping_sub(1);
        }
        // Asking KVM costs a system call, so this asks only if the vCPU can be halted. A vCPU that an interrupt has just woken up may
        // still be reported as halted.
        let halted = behind_hlt && !is_end_of_halt && mp_state(fd) == Some(KVM_MP_STATE_HALTED);
        let (ticks, view) = (&mut self.ticks, &mut self.view);
        let sample = view.capture(&registers, halted, behind_hlt && !halted, time, ticks);
        let vcpu = StoppedVcpu::new(&self.view, &registers);
        self.stores.tick(&sample, vcpu);
        self.count_tick(&sample, &registers);
        Some((sample, halted))
    }

    /// Counts what has passed on the vCPU until the tick of `sample`.
    fn count_tick(&mut self, sample: &Sample, registers: &Registers) {
        let vcpu = StoppedVcpu::new(&self.view, registers);
        let is_urgent = self.counting.tick(sample.pid, sample.comm, vcpu);
        if is_urgent {
            self.ticks.ring();
        }
    }

    fn has_started(&mut self, fd: &VcpuFd) -> bool {
        if !self.started {
            self.started = mp_state(fd).is_none_or(has_started);
        }
        self.started
    }

    /// Whether the ends of halts make the ticks.
    fn counts_halts(&self) -> bool {
        self.event.as_ref().map(KernelEvent::kind) == Some(EventKind::Halt)
    }

    fn send(&mut self, elapsed: ElapsedTicks, sample: Option<Sample>) {
        self.view.send(&mut self.ticks, elapsed, sample);
    }
}

fn mp_state(fd: &VcpuFd) -> Option<u32> {
    fd.get_mp_state().ok().map(|state| state.mp_state)
}
