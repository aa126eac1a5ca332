//! What a stopped vCPU shows of its guest.

use std::sync::Arc;

use kvm_bindings::{KVM_MP_STATE_HALTED, KVM_MP_STATE_RUNNABLE};
use kvmprof_introspection::{
    AddressSpace, GuestKnowledge, Identity, PhysicalMemory, Registers, Stack, StackCopy,
    TaskReader, VcpuIntrospector,
};
use kvmprof_recording::{Mode, Sample, StackEnd, StackParts, StackSummary, Ticks};

use super::TickSender;
use super::registers::{interrupt_priority_level, page_table_root};
use crate::clock::{ClockSetting, ElapsedTicks, monotonic_ns};

const HLT: u8 = 0xf4;
/// The privilege level of user mode.
const USER: u8 = 3;

/// Whether a vCPU in this state (`KVM_MP_STATE_*`) has been started, so that its registers have a meaning.
pub fn has_started(mp_state: u32) -> bool {
    matches!(mp_state, KVM_MP_STATE_RUNNABLE | KVM_MP_STATE_HALTED)
}

/// The sample of a vCPU that hasn't been started yet: an application processor that has not had its SIPI.
pub fn not_started(vcpu: u16, time: u64) -> Sample {
    Sample {
        time,
        pid: -1,
        tid: -1,
        process_group: -1,
        vcpu,
        mode: Mode::Idle,
        ..Sample::default()
    }
}

/// The sample of a vCPU that runs a nested guest, for the process that `identity` identifies at the level of user mode. It has no program
/// counter and no stack, because addresses of the nested guest must not get the names that the guest has for them.
pub fn in_nested_guest(vcpu: u16, identity: &Identity, time: u64) -> Sample {
    Sample {
        time,
        pid: identity.pid,
        tid: identity.tid,
        process_group: identity.process_group,
        vcpu,
        cpl: USER,
        mode: identity.mode,
        comm: identity.comm,
        started: identity.started,
        ..Sample::default()
    }
}

/// What was copied of a vCPU that has continued since.
#[derive(Clone, Copy, Debug)]
pub struct Copied<'a> {
    /// The guest-virtual address of the task that ran; `None` if unknown.
    pub task: Option<u64>,
    /// The pid of the process that ran.
    pub pid: i32,
    /// The time of the copies.
    pub time: u64,
    /// The copies of the stacks; `None` if they couldn't be made.
    pub copies: Option<&'a [StackCopy<'a>]>,
}

/// One vCPU's view of its guest, whose memory is an `M`. It takes what consumers need, and no more.
#[derive(Debug)]
pub struct VcpuView<M> {
    /// The vCPU's number, from 0.
    pub vcpu: u16,
    /// The guest's memory.
    pub memory: M,
    /// What says who runs.
    pub introspector: VcpuIntrospector,
    /// Samples of the host's kernel whose process it couldn't read: it doesn't wait for a page that the host has reclaimed or moves.
    pub unread_processes: u64,
    /// Whether a sample of the host's kernel lacks functions of a language, which only a look at the stopped vCPU finds.
    pub lacks_functions: bool,
    process_group: bool,
    stacks: StackParts,
    processes: bool,
    // The stack of the last sample. It is kept, so that samples don't allocate memory.
    stack: Box<Stack>,
}

impl<M: PhysicalMemory> VcpuView<M> {
    /// The view of vCPU number `vcpu`, whose call stacks have `max_stack` frames at most.
    pub fn new(vcpu: u16, memory: M, knowledge: Arc<GuestKnowledge>, max_stack: usize) -> Self {
        Self {
            vcpu,
            memory,
            introspector: VcpuIntrospector::new(knowledge, vcpu),
            unread_processes: 0,
            lacks_functions: false,
            process_group: false,
            stacks: StackParts::default(),
            processes: false,
            stack: Box::new(Stack::with_limit(max_stack)),
        }
    }

    /// Forgets everything about the guest, which restarts.
    pub fn start_anew(&mut self) {
        self.introspector.start_anew();
        self.stack.clear();
    }

    /// Takes the contents of samples that `setting` asks for from now on.
    pub fn follow(&mut self, setting: &ClockSetting) {
        self.process_group = setting.process_group;
        self.stacks = setting.stacks;
        self.processes = setting.processes;
        self.lacks_functions = false;
        self.introspector.follow_modules();
    }

    /// Forgets the stack of the last sample.
    pub fn clear(&mut self) {
        self.stack.clear();
    }

    /// Takes a sample of the vCPU, which stands still with these registers. It is `halted`, or still at the instruction after a HLT
    /// (`behind_hlt`), or neither. The stack is sent by [`VcpuView::send`]. The process's mappings are added to `ticks` when they have
    /// changed.
    pub fn capture(
        &mut self,
        registers: &Registers,
        halted: bool,
        behind_hlt: bool,
        time: u64,
        ticks: &mut TickSender,
    ) -> Sample {
        let identity =
            self.introspector
                .identify(&self.memory, registers, halted, self.process_group);
        (self.introspector).note_firmware(&self.memory, registers, time);
        if self.processes {
            self.follow_process(registers, time, ticks);
        }
        if self.stacks != StackParts::default() {
            let stack = &mut self.stack;
            (self.introspector).unwind(&self.memory, registers, self.stacks, None, stack);
        }
        // Recordings have this, and other formats have no place for it.
        let lock = match identity.mode {
            Mode::Kernel | Mode::Interrupt if self.stacks.kernel => {
                self.introspector.lock_wait(&self.memory, registers)
            }
            _ => None,
        };
        let inner_tid = self.inner_tid(registers, identity.tid);
        // The vCPU was woken up, but has executed nothing since.
        let is_still_idle = behind_hlt && identity.pid == 0 && identity.mode == Mode::Kernel;
        Sample {
            time,
            pc: registers.rip,
            pid: identity.pid,
            tid: identity.tid,
            process_group: identity.process_group,
            vcpu: self.vcpu,
            cpl: registers.cpl,
            ipl: interrupt_priority_level(registers),
            mode: if is_still_idle {
                Mode::Idle
            } else {
                identity.mode
            },
            comm: identity.comm,
            address_space: page_table_root(registers.cr3),
            stack: self.stack.summary(),
            preemption: identity.preemption,
            lock,
            fault: None,
            inner_tid,
            started: identity.started,
        }
    }

    /// The id in its innermost pid namespace of the thread of the last sample, if recordings want it, which also have the processes.
    pub fn inner_tid(&mut self, registers: &Registers, tid: i32) -> Option<i32> {
        let wanted = self.processes.then_some(&mut self.introspector)?;
        wanted.inner_tid(&self.memory, registers, tid)
    }

    /// Takes a sample of a vCPU that runs a nested guest. The sample is of the process that runs it, in user mode, as Linux accounts
    /// for it. What the nested guest executes isn't known. `registers` are those of the guest before it entered the nested guest; without
    /// them, its process isn't known.
    pub fn capture_nested(
        &mut self,
        registers: Option<&Registers>,
        halted: bool,
        time: u64,
    ) -> Sample {
        let identity = registers.map(|registers| {
            let registers = Registers {
                cpl: USER,
                ..*registers
            };
            (self.introspector).identify(&self.memory, &registers, halted, self.process_group)
        });
        let identity = identity.unwrap_or_else(|| Identity::at_level(USER, halted));
        in_nested_guest(self.vcpu, &identity, time)
    }

    /// Unwinds the stack of a vCPU that has continued since it was copied, when it stood still with these registers. The stack is sent by
    /// [`VcpuView::send`]. The process's mappings are added to `ticks` when they have changed.
    pub fn capture_copied(
        &mut self,
        registers: &Registers,
        copied: &Copied<'_>,
        ticks: &mut TickSender,
    ) {
        let is_wanted = self.stacks != StackParts::default();
        if self.processes || is_wanted {
            let task = copied.task.unwrap_or_default();
            (self.introspector).recall(&self.memory, registers, task, copied.pid);
        }
        if self.processes {
            self.follow_process(registers, copied.time, ticks);
            if registers.cpl == USER {
                (self.introspector).recall_process(registers, copied.pid, copied.time);
            }
        }
        match copied.copies {
            Some(copies) if is_wanted => {
                self.lacks_functions |= self.stacks.user && self.introspector.executes_language();
                let (stacks, stack) = (self.stacks, &mut self.stack);
                (self.introspector).unwind(&self.memory, registers, stacks, Some(copies), stack);
            }
            _ => self.only_counter(registers),
        }
    }

    /// Adds frames of the host to the stack of the last sample, if it has any of the guest's. The result describes the whole stack.
    pub fn add_host_frames(&mut self, frames: &[u64]) -> StackSummary {
        self.stack.push_host(frames);
        self.stack.summary()
    }

    /// Sets the stack to the program counter alone, if the stack at this level was asked for.
    fn only_counter(&mut self, registers: &Registers) {
        let is_wanted = match registers.cpl {
            3 => self.stacks.user,
            _ => self.stacks.kernel,
        };
        self.stack.clear();
        if is_wanted {
            (self.stack).only(registers.rip, registers.cpl, StackEnd::Unsupported);
        }
    }

    fn follow_process(&mut self, registers: &Registers, time: u64, ticks: &mut TickSender) {
        let changed = self
            .introspector
            .follow_process(&self.memory, registers, time);
        if let Some(map) = changed
            && !ticks.send_map(map)
        {
            self.introspector.forget_process();
        }
    }

    /// Looks at the guest's tasks, while the vCPU is stopped with these registers. False if they can't be read.
    pub fn look_at_tasks(&mut self, registers: &Registers, reader: &mut TaskReader) -> bool {
        let begun = monotonic_ns();
        let has_looked = (self.introspector).look_at_tasks(&self.memory, registers, reader);
        let look = reader.look_mut();
        (look.time, look.vcpu) = (begun, self.vcpu);
        look.duration = monotonic_ns().saturating_sub(begun);
        has_looked
    }

    /// Whether the byte before the program counter is HLT. It may also be the end of another instruction.
    pub fn is_behind_hlt(&self, registers: &Registers) -> bool {
        if registers.cpl != 0 {
            return false;
        }
        let mut byte = [0u8];
        let last = registers.rip.wrapping_sub(1);
        AddressSpace::new(&self.memory, registers)
            .read(last, &mut byte)
            .is_some()
            && byte == [HLT]
    }

    /// Sends the account of the ticks, and the sample with its stack.
    pub fn send(&self, ticks: &mut TickSender, elapsed: ElapsedTicks, sample: Option<Sample>) {
        let passed = Ticks {
            vcpu: self.vcpu,
            idle: elapsed.idle,
            stolen: elapsed.stolen,
            lost: elapsed.lost,
            ungathered: 0,
            sample,
        };
        ticks.send(&passed, self.stack.frames());
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::DEFAULT_STACK_FRAMES;
    use vm_memory::{GuestAddress, GuestMemoryMmap};

    use super::*;

    #[test]
    fn nested_guests_are_not_sampled_as_the_guest() {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        let knowledge = Arc::new(GuestKnowledge::unknown());
        let mut view = VcpuView::new(3, memory, knowledge, DEFAULT_STACK_FRAMES);
        let registers = Registers {
            rip: 0xffff_ffff_8100_0000,
            cr3: 0x1000,
            ..Registers::default()
        };
        for before in [None, Some(&registers)] {
            let sample = view.capture_nested(before, false, 7);
            assert_eq!((sample.vcpu, sample.time, sample.cpl), (3, 7, 3));
            assert_eq!((sample.mode, sample.pid), (Mode::User, -1));
            assert_eq!((sample.pc, sample.address_space), (0, 0));
            assert_eq!(sample.stack, StackSummary::default());
            assert_eq!(view.capture_nested(before, true, 7).mode, Mode::Idle);
        }
    }
}
