//! Samples one vCPU: at a tick of its clock, in the batches of the host's kernel, or at an event, and answers the profiler's requests.

use std::sync::Arc;

use kvm_bindings::KVM_MP_STATE_HALTED;
use kvmprof_introspection::{GuestKnowledge, Registers};
use kvmprof_recording::{EventKind, Sample};

use super::access::{Presence, Unseen, VcpuAccess};
use super::kernel_clock::KernelClock;
use kvmprof_profiling::clock::{
    ClockBackend, ClockSetting, ElapsedTicks, Generation, TickSource, VcpuClock, monotonic_ns,
};
use kvmprof_profiling::kernel_events::KernelEvent;
use kvmprof_profiling::sampling::{
    ExitCounter, GuestExit, TickSender, VcpuShared, VcpuView, has_started, not_started,
};
use kvmprof_profiling::signals;

/// The samples of one vCPU, to which there is access by an `A`: what makes its ticks, its view of the guest, and the ring for the ticks.
pub struct Sampler<A: VcpuAccess> {
    pub(super) view: VcpuView<A::Memory>,
    pub(super) clock: VcpuClock<A::Backend>,
    // Replaces the clock while the host's kernel takes the samples.
    pub(super) kernel: Option<KernelClock>,
    // The profiler's setting.
    pub(super) setting: ClockSetting,
    // Replaces the clock while an event makes the ticks.
    exits: ExitCounter,
    // The event, while the host's kernel counts it.
    event: Option<KernelEvent>,
    pub(super) shared: Arc<VcpuShared>,
    pub(super) knowledge: Arc<GuestKnowledge>,
    pub(super) ticks: TickSender,
    // An application processor that has not had its SIPI yet has no meaningful registers.
    pub(super) started: bool,
    // The guest's registers at the last look that wasn't at a nested guest.
    registers: Option<Registers>,
    generation: Generation,
}

/// A tick's sample, and whether the vCPU is halted.
struct TickSample {
    sample: Sample,
    halted: bool,
    /// The registers; `None` if they aren't the guest's.
    registers: Option<Registers>,
}

impl<A: VcpuAccess> Sampler<A> {
    /// A sampler of the vCPU that `view` looks at, by `clock`, or by `kernel` while that can take the samples. It sends `ticks`.
    pub fn new(
        view: VcpuView<A::Memory>,
        clock: VcpuClock<A::Backend>,
        kernel: Option<KernelClock>,
        shared: Arc<VcpuShared>,
        knowledge: Arc<GuestKnowledge>,
        ticks: TickSender,
    ) -> Self {
        Self {
            exits: ExitCounter::new(monotonic_ns() ^ u64::from(view.vcpu)),
            started: false,
            view,
            clock,
            kernel,
            setting: ClockSetting::default(),
            event: None,
            shared,
            knowledge,
            ticks,
            registers: None,
            generation: 0,
        }
    }

    /// The state of the vCPU that other threads share.
    pub fn shared(&self) -> &VcpuShared {
        &self.shared
    }

    /// The clock, for the thread that waits for its ticks.
    pub fn clock_mut(&mut self) -> &mut VcpuClock<A::Backend> {
        &mut self.clock
    }

    /// The clock of the host's kernel, while it makes the ticks.
    pub fn running_kernel(&self) -> Option<&KernelClock> {
        self.kernel.as_ref().filter(|kernel| kernel.is_running())
    }

    /// Does all that is due now: delivers ticks, takes a sample, and follows requests. For a vCPU of this process KVM_RUN has returned EINTR;
    /// `signal` is the signal that was pending.
    pub fn interrupted(&mut self, vcpu: &mut A, signal: Option<i32>) -> Presence {
        self.shared.kicker.seen();
        if self.take_kernel_ticks(vcpu) == Presence::Gone {
            return Presence::Gone;
        }
        let now = monotonic_ns();
        let mut presence = Presence::There;
        match self.clock.on_interrupt(now, signal) {
            Some(elapsed) if elapsed.sample => presence = self.sample(vcpu, now, elapsed),
            Some(elapsed) => self.send_missed(vcpu, elapsed),
            None => {}
        }
        let is_overflow = signal.is_some_and(signals::is_overflow);
        // A signal that stays pending would interrupt a halted vCPU again, and count again as the end of a halt.
        if self.event.is_some() && signals::take_overflows() | is_overflow {
            let is_kicked = signal == Some(signals::kick());
            self.sample_counted(vcpu, now, None, is_kicked);
        }
        if presence == Presence::There {
            presence = self.follow_requests(vcpu, now);
        }
        self.look_at_tasks(vcpu, now);
        self.enter_kernel(vcpu);
        presence
    }

    /// Looks at the guest's tasks, if the profiler has requested it.
    fn look_at_tasks(&mut self, vcpu: &mut A, now: u64) {
        let (shared, view) = (&self.shared, &mut self.view);
        let is_there = shared.tasks.carry_out(|reader| {
            let looked = vcpu.look(now, |vcpu| {
                let has_started = has_started(vcpu.mp_state()?);
                Ok(has_started && view.look_at_tasks(&vcpu.registers()?, reader))
            });
            looked == Ok(true)
        });
        if is_there {
            self.ticks.ring();
        }
    }

    /// Follows the profiler's requests, and acknowledges them.
    pub fn follow_requests(&mut self, vcpu: &mut A, now: u64) -> Presence {
        vcpu.kicked();
        let (generation, setting) = self.shared.control.requested();
        if generation == self.generation {
            return Presence::There;
        }
        // A request for the kernel's symbols can't wait for the first sample, because there may be no clock.
        let mut presence = Presence::There;
        if self.knowledge.is_unlocated() {
            presence = self.locate_kernel(vcpu);
        }
        vcpu.requested(&self.view, now);
        self.account_halted(vcpu, now);
        self.view.follow(&setting);
        self.setting = setting;
        let effective = setting.effective();
        if !self.stays_in_kernel(&effective) {
            self.take_ticks_from(vcpu, effective.source);
        }
        self.generation = generation;
        self.shared.control.acknowledge(generation);
        self.ticks.ring();
        presence
    }

    /// Hands over the ticks of a halted vCPU until now.
    pub(super) fn account_halted(&mut self, vcpu: &mut A, now: u64) {
        let elapsed = self.clock.account_halted(now);
        self.send_missed(vcpu, elapsed);
    }

    /// Makes ticks by `source` from now on.
    pub(super) fn take_ticks_from(&mut self, vcpu: &mut A, source: Option<TickSource>) {
        if self.kernel.as_ref().is_some_and(KernelClock::is_alone) {
            return self.enter_kernel(vcpu);
        }
        let hz = source.map_or(0, TickSource::hz);
        let event = source.and_then(TickSource::event);
        if hz == self.clock.hz() && event == self.exits.event() {
            return;
        }
        self.end_event(vcpu);
        if hz > 0 {
            self.clock.backend_mut().prepare_alarm();
        }
        self.clock.restart(hz, monotonic_ns());
        vcpu.set_hz(hz);
        self.exits.restart(event);
        self.shared.control.set_halted(false);
        vcpu.set_sampling(source.is_some());
        let started = event.map_or(Ok(None), KernelEvent::start);
        self.event = started.unwrap_or_else(|why| {
            // The event could be opened when the setting was checked.
            log::warn!("vCPU {} makes no ticks by the event: {why}", self.view.vcpu);
            None
        });
    }

    /// Ends an event that the host's kernel counts. A tick that has no sample yet gets none.
    fn end_event(&mut self, vcpu: &mut A) {
        let Some(mut event) = self.event.take() else {
            return;
        };
        if signals::take_overflows() {
            let lost = event.take();
            self.send_missed(vcpu, lost_ticks(lost));
        }
    }

    /// Counts an exit that the guest has caused. It makes a tick if its event has.
    pub(super) fn take_exit(&mut self, vcpu: &mut A, exit: GuestExit) {
        if self.exits.count(exit) {
            self.sample_events(vcpu, monotonic_ns(), 1, Some(exit));
        } else if self.event.is_some() && signals::take_overflows() {
            // This comes before KVM_RUN continues behind the instruction.
            self.sample_counted(vcpu, monotonic_ns(), Some(exit), false);
        }
    }

    /// Handles a tick of an event that the host's kernel counts. It may have come with the guest's `exit`, or with a kick.
    fn sample_counted(
        &mut self,
        vcpu: &mut A,
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
        let is_interrupted = is_kicked
            && self.counts_halts()
            && vcpu.look(time, |vcpu| vcpu.mp_state()) == Ok(KVM_MP_STATE_HALTED);
        let ticks = taken - u64::from(is_interrupted);
        if ticks > 0 {
            self.sample_events(vcpu, time, ticks, exit);
        }
        if let Some(event) = &mut self.event {
            event.resume();
        }
    }

    /// Hands over ticks that an event has made. The last one can have a sample. No tick is stolen or idle, because the guest was
    /// just running.
    fn sample_events(&mut self, vcpu: &mut A, time: u64, ticks: u64, exit: Option<GuestExit>) {
        let missed = ticks - 1;
        vcpu.pass(missed);
        match self.look(vcpu, time, exit) {
            Ok(looked) => self.send(lost_ticks(missed), Some(looked.sample)),
            Err(_) => {
                vcpu.pass(1);
                self.send(lost_ticks(ticks), None);
            }
        }
    }

    /// Ends the clock when the thread ends. No tick follows, and no other thread needs to wait for this one.
    pub fn finish(&mut self, vcpu: &mut A) {
        self.account_halted(vcpu, monotonic_ns());
        self.finish_kernel(vcpu);
        self.end_event(vcpu);
        self.clock.stop();
        self.shared.control.finish();
        self.shared.kicker.detach();
        self.ticks.ring();
    }

    /// Locates the guest's kernel, without a sample. When the guest resets itself, this is the last chance to locate
    /// it, which is needed to detect a panic.
    pub fn locate_kernel(&self, vcpu: &mut A) -> Presence {
        let looked = vcpu.look(monotonic_ns(), |vcpu| {
            if let Some(linux) = self.knowledge.linux()
                && !vcpu.runs_nested_guest()
            {
                linux.locate(&self.view.memory, &vcpu.registers()?);
            }
            Ok(())
        });
        Presence::from(&looked)
    }

    fn sample(&mut self, vcpu: &mut A, time: u64, mut elapsed: ElapsedTicks) -> Presence {
        vcpu.pass(elapsed.without_sample());
        let looked = if vcpu.is_in_doubt() {
            Err(Unseen::Refused)
        } else {
            self.look(vcpu, time, None)
        };
        let presence = Presence::from(&looked);
        match looked {
            Ok(looked) => {
                self.send(elapsed, Some(looked.sample));
                if looked.halted {
                    self.clock.halt();
                }
            }
            Err(unseen) => {
                let missed = match unseen {
                    Unseen::Suspended => &mut elapsed.stolen,
                    Unseen::Refused | Unseen::Traced | Unseen::Gone => &mut elapsed.lost,
                };
                *missed += 1;
                vcpu.pass(1);
                self.send(elapsed, None);
            }
        }
        self.shared.control.set_halted(self.clock.is_halted());
        presence
    }

    /// Takes a sample. After `exit`, the sample is of the instruction that has caused it.
    fn look(
        &mut self,
        vcpu: &mut A,
        time: u64,
        exit: Option<GuestExit>,
    ) -> Result<TickSample, Unseen> {
        self.view.clear();
        self.started |= exit.is_some();
        let counts_halts = self.counts_halts();
        let (view, ticks) = (&mut self.view, &mut self.ticks);
        let (started, last) = (&mut self.started, &mut self.registers);
        let looked = vcpu.look(time, |vcpu| {
            *started = *started || has_started(vcpu.mp_state()?);
            if !*started {
                return Ok(TickSample {
                    sample: not_started(view.vcpu, time),
                    halted: true,
                    registers: None,
                });
            }
            if vcpu.runs_nested_guest() {
                let halted = vcpu.mp_state()? == KVM_MP_STATE_HALTED;
                return Ok(TickSample {
                    sample: view.capture_nested(last.as_ref(), halted, time),
                    halted,
                    registers: None,
                });
            }
            let mut registers = vcpu.registers()?;
            *last = Some(registers);
            if let Some(exit) = exit {
                registers.rip = exit.instruction(&registers, &view.memory);
            }
            let behind_hlt = exit.is_none() && view.is_behind_hlt(&registers);
            let is_end_of_halt = behind_hlt && counts_halts;
            if is_end_of_halt {
                registers.rip = registers.rip.wrapping_sub(1);
            }
            // Asking KVM costs a system call, so this asks only if the vCPU can be halted. A vCPU that an interrupt has just woken up may
            // still be reported as halted. A VMM that answers HLT itself waits outside KVM_RUN.
            let halted = behind_hlt
                && !is_end_of_halt
                && (!vcpu.is_in_guest() || vcpu.mp_state()? == KVM_MP_STATE_HALTED);
            let sample = view.capture(&registers, halted, behind_hlt && !halted, time, ticks);
            Ok(TickSample {
                sample,
                halted,
                registers: Some(registers),
            })
        })?;
        if let Some(registers) = &looked.registers
            && vcpu.tick(&looked.sample, &self.view, registers)
        {
            self.ticks.ring();
        }
        Ok(looked)
    }

    /// Whether the ends of halts make the ticks.
    fn counts_halts(&self) -> bool {
        self.event.as_ref().map(KernelEvent::kind) == Some(EventKind::Halt)
    }

    fn send(&mut self, elapsed: ElapsedTicks, sample: Option<Sample>) {
        self.view.send(&mut self.ticks, elapsed, sample);
    }

    /// Hands over ticks that have no sample.
    fn send_missed(&mut self, vcpu: &mut A, elapsed: ElapsedTicks) {
        vcpu.pass(elapsed.without_sample());
        self.send(elapsed, None);
    }
}

fn lost_ticks(lost: u64) -> ElapsedTicks {
    ElapsedTicks {
        lost,
        ..ElapsedTicks::default()
    }
}
