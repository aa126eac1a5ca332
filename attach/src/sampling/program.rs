//! The eBPF program that takes a sample.

use super::assembly::{
    ADD_IMMEDIATE, ADD_REGISTER, CONTEXT, FLAG_SET, HELPER_CURRENT_IDS, HELPER_KTIME_GET_NS,
    HELPER_PERF_EVENT_OUTPUT, HELPER_PROBE_READ_USER, JUMP, JUMP_IF_NOT, JUMP_IF_NOT_BELOW,
    JUMP_IF_ZERO, OR_IMMEDIATE, OR_REGISTER, Program, RECORD, Range, SHIFT_LEFT, SHIFT_RIGHT,
    STORE_IMMEDIATE_64, SUBTRACT_REGISTER, TARGET, offset16,
};
use super::faults::SampledFaults;
use super::record::{
    AVAILABLE, CODE, CODE_BASE, COPIES, CPL, CR3, EXIT as GUEST_EXIT, FIRST_VALUE, FLAGS, GENERAL,
    GENERAL_BYTES, MP_STATE, NESTED, OWN, PRIVILEGE, RECORD_BYTES, RIP, STACK_BYTES, STACKS, TASK,
    TASKS_ROOT, TIME, VALUE, VALUES,
};
use super::stacks::Stacks;
use crate::host_kernel::vcpu_layout::{State, VcpuLayout, vmcb};
use crate::kernel_memory::bpf::{Instruction, Trigger};
use crate::kernel_memory::program::{
    EXIT, HELPER_PROBE_READ_KERNEL, LOAD_64, MOVE_IMMEDIATE, MOVE_REGISTER, STORE_64,
};
use crate::tracepoint::ExitMembers;

/// What a program reads, and where it writes records.
#[derive(Debug)]
pub struct Plan {
    /// `struct kvm_vcpu`, and the `struct kvm` that it belongs to.
    pub vcpu: u64,
    pub kvm: u64,
    /// Whether SVM uses the guest's own page tables (nested paging). Then KVM's copy of CR3 isn't current.
    pub has_nested_paging: bool,
    /// The descriptor of the array whose first entry is the event that records go to.
    pub outputs: i32,
    /// The descriptor of the map whose value has room for a record.
    pub record: i32,
    pub pointer: Option<Pointer>,
    pub reads: Vec<Read>,
    pub stacks: Option<Stacks>,
    /// The descriptor of the map whose value has room for a record of the host's stack; `None` for programs without such records.
    pub host_record: Option<i32>,
    pub sampled: Sampled,
    /// The number of ns that the program adds to the host's CLOCK_MONOTONIC, modulo 2^64.
    pub time_offset: u64,
}

impl Plan {
    /// Maximum length of a record, in bytes.
    pub fn room(&self) -> usize {
        self.stacks.as_ref().map_or(RECORD_BYTES, Stacks::room)
    }

    /// What runs the program.
    pub fn trigger(&self) -> Trigger {
        match self.is_at_tracepoint() {
            false => Trigger::PerfEvent,
            true => Trigger::Tracepoint,
        }
    }

    fn is_at_tracepoint(&self) -> bool {
        !matches!(self.sampled, Sampled::Ticks)
    }
}

/// What a program makes records of.
#[derive(Clone, Copy, Debug)]
pub enum Sampled {
    /// Ticks of a clock, each time it runs.
    Ticks,
    Exits(SampledExits),
    Faults(SampledFaults),
}

/// Which exits of a vCPU a program at the tracepoint `kvm_exit` samples.
#[derive(Clone, Copy, Debug)]
pub struct SampledExits {
    /// The vCPU's thread, by the id that all of the host has it by.
    pub thread: u32,
    /// The vCPU's number.
    pub vcpu: u32,
    /// The last one of so many.
    pub period: u64,
    /// The descriptor of the map whose value is the number of exits since the last sample.
    pub count: i32,
    pub members: ExitMembers,
}

/// A pointer of the guest's, and the memory that it can point to.
#[derive(Debug)]
pub struct Pointer {
    /// Where it is in the VMM.
    pub at: u64,
    pub ranges: Vec<Range>,
    /// What is read behind it of the task's memory.
    pub memory: Option<ReadMemory>,
}

/// Where the task at a pointer has its memory: see [`kvmprof_introspection::TaskMemory`].
#[derive(Clone, Copy, Debug)]
pub struct ReadMemory {
    pub mm: i32,
    pub page_tables: i32,
    pub stack: Option<i32>,
    pub direct_map: u64,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// At this address in the VMM.
    Host(u64),
    /// This many bytes behind the address that the pointer holds.
    Pointer(i32),
}

/// A value.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Its index in the record.
    pub index: usize,
    pub source: Source,
    /// Its size in bytes, at most 16.
    pub bytes: u8,
}

impl Program {
    fn value(&mut self, read: &Read) {
        match read.source {
            Source::Host(address) => self.load_immediate(3, address),
            Source::Pointer(offset) => self.point_behind(TARGET, offset),
        }
        let place = VALUES + VALUE * read.index;
        self.read(place, read.bytes.into(), HELPER_PROBE_READ_USER);
        let flag = u32::try_from(read.index)
            .ok()
            .and_then(|index| FIRST_VALUE.checked_shl(index));
        self.flag_success(flag.unwrap_or_default());
    }

    /// Follows the pointer, and reads what is there.
    pub fn follow(&mut self, pointer: &Pointer, reads: &[Read]) {
        self.load_immediate(3, pointer.at);
        self.read(TASK, 8, HELPER_PROBE_READ_USER);
        let unreadable = self.jump(JUMP_IF_NOT, 0, 0, 0);
        self.load(1, TASK);
        self.find(1, &pointer.ranges);
        self.registers(MOVE_REGISTER, TARGET, 3);
        let nowhere = self.jump(JUMP_IF_ZERO, TARGET, 0, 0);
        for read in reads {
            self.value(read);
        }
        if let Some(memory) = &pointer.memory {
            self.follow_memory(memory, &pointer.ranges);
        }
        self.land_all([unreadable, nowhere]);
    }

    /// Reads where the stack of the task at [`TARGET`] is, and puts the address of its page tables into the record as CR3.
    fn follow_memory(&mut self, memory: &ReadMemory, ranges: &[Range]) {
        if let Some(stack) = memory.stack {
            self.point_behind(TARGET, stack);
            self.read_task_stack();
        }
        self.point_behind(TARGET, memory.mm);
        self.read(FLAGS, 8, HELPER_PROBE_READ_USER);
        let mut ends = vec![self.jump(JUMP_IF_NOT, 0, 0, 0)];
        self.load(1, FLAGS);
        self.find(1, ranges);
        ends.push(self.jump(JUMP_IF_ZERO, 3, 0, 0));
        self.immediate(ADD_IMMEDIATE, 3, memory.page_tables);
        self.read(FLAGS, 8, HELPER_PROBE_READ_USER);
        ends.push(self.jump(JUMP_IF_NOT, 0, 0, 0));
        self.load(1, FLAGS);
        self.load_immediate(2, memory.direct_map);
        self.registers(SUBTRACT_REGISTER, 1, 2);
        self.add(STORE_64, RECORD, 1, offset16(CR3), 0);
        self.immediate(OR_IMMEDIATE, FLAG_SET, TASKS_ROOT);
        self.land_all(ends);
    }

    /// Points register 3 behind the address in `register`.
    fn point_behind(&mut self, register: u8, offset: i32) {
        self.registers(MOVE_REGISTER, 3, register);
        self.immediate(ADD_IMMEDIATE, 3, offset);
    }

    /// Reads registers that KVM has in memory.
    fn vcpu(&mut self, layout: &VcpuLayout, plan: &Plan) {
        let member = |offset: u64| plan.vcpu.wrapping_add(offset);
        self.read_kernel(FLAGS, 8, member(layout.kvm));
        self.compare(plan.kvm, OWN);
        if let Some(nested) = layout.nested {
            self.read_kernel(FLAGS, 8, member(nested.walk_mmu));
            self.compare(member(nested.nested_mmu), NESTED);
        }
        self.read_kernel(RIP, 8, member(layout.rip()));
        self.read_kernel(AVAILABLE, 4, member(layout.available));
        self.read_kernel(MP_STATE, 4, member(layout.mp_state));
        let has_stacks = plan.stacks.is_some();
        if has_stacks {
            self.read_kernel(GENERAL, GENERAL_BYTES, member(layout.registers));
        }
        let mut has_current_root = true;
        match layout.state {
            State::Svm { vmcb } => {
                has_current_root = !plan.has_nested_paging;
                self.vmcb(member(vmcb), plan);
            }
            State::Software { cpl, code, base } => {
                self.read_kernel(CPL, 4, member(cpl));
                self.read_kernel(CODE, 1, member(code));
                self.read_kernel(CODE_BASE, 8, member(base));
                self.flag_success(PRIVILEGE);
            }
            State::Unknown => {}
        }
        if has_current_root {
            self.read_kernel(CR3, 8, member(layout.cr3));
        }
    }

    /// Counts an exit, unless it is another vCPU's. The returned jumps are taken if it isn't sampled.
    fn count_exit(&mut self, exits: &SampledExits) -> Vec<usize> {
        let is_others = self.skip_others(exits.thread);
        let is_another = self.skip_vcpu(exits.members, exits.vcpu);
        self.load_value(2, exits.count);
        let is_early = self.skip_early(2, 0, exits.period);
        vec![is_others, is_another, is_early]
    }

    /// The returned jump is taken if another thread than `thread` runs the program.
    pub fn skip_others(&mut self, thread: u32) -> usize {
        // The id of the process is in the upper half.
        self.call(HELPER_CURRENT_IDS);
        self.immediate(SHIFT_LEFT, 0, 32);
        self.immediate(SHIFT_RIGHT, 0, 32);
        self.jump(JUMP_IF_NOT, 0, 0, i32::try_from(thread).unwrap_or_default())
    }

    /// The returned jump is taken at an exit of another vCPU than number `vcpu`.
    pub fn skip_vcpu(&mut self, members: ExitMembers, vcpu: u32) -> usize {
        self.load_member(1, members.vcpu);
        self.jump(JUMP_IF_NOT, 1, 0, i32::try_from(vcpu).unwrap_or_default())
    }

    /// Counts in the number that is `offset` behind the address in `register`. The returned jump is taken unless it is the last one of a `period`.
    pub fn skip_early(&mut self, register: u8, offset: i16, period: u64) -> usize {
        self.add(LOAD_64, 1, register, offset, 0);
        self.immediate(ADD_IMMEDIATE, 1, 1);
        self.add(STORE_64, register, 1, offset, 0);
        self.load_immediate(3, period);
        let is_due = self.jump(JUMP_IF_NOT_BELOW, 1, 3, 0);
        let is_early = self.jump(JUMP, 0, 0, 0);
        self.land(is_due);
        self.add(STORE_IMMEDIATE_64, register, 0, offset, 0);
        is_early
    }

    /// Puts the record, whose length is in register 5, into the ring.
    pub fn put_record(&mut self, outputs: i32) {
        self.registers(MOVE_REGISTER, 1, CONTEXT);
        self.load_map(2, outputs);
        self.immediate(MOVE_IMMEDIATE, 3, 0);
        self.point_to(4, 0);
        self.call(HELPER_PERF_EVENT_OUTPUT);
    }

    /// Sets register 1 to the exit's reason, as a record has it.
    pub fn load_reason(&mut self, members: ExitMembers) {
        self.load_member(1, members.isa);
        self.immediate(SHIFT_LEFT, 1, 32);
        self.load_member(2, members.reason);
        self.registers(OR_REGISTER, 1, 2);
    }

    /// Puts the time of this moment into the record.
    fn time(&mut self, time_offset: u64) {
        self.call(HELPER_KTIME_GET_NS);
        if time_offset != 0 {
            self.load_immediate(1, time_offset);
            self.registers(ADD_REGISTER, 0, 1);
        }
        self.add(STORE_64, RECORD, 0, offset16(TIME), 0);
    }

    /// Reads the registers that only the VMCB has. The pointer to the VMCB is at `pointer`.
    fn vmcb(&mut self, pointer: u64, plan: &Plan) {
        self.read_kernel(FLAGS, 8, pointer);
        self.load(TARGET, FLAGS);
        let mut member = |offset: i32, place, bytes| {
            self.point_behind(TARGET, offset);
            self.read(place, bytes, HELPER_PROBE_READ_KERNEL);
        };
        // Without nested paging, CR3 in the VMCB is the root of KVM's own tables.
        if plan.has_nested_paging {
            member(vmcb::CR3, CR3, 8);
        }
        member(vmcb::CPL, CPL, 1);
        member(vmcb::CODE_ATTRIBUTES, CODE, 1);
        member(vmcb::CODE_BASE, CODE_BASE, 8);
        self.flag_success(PRIVILEGE);
    }
}

/// The instructions that write a record, or at a fault make one, which [`faults::at_entry`](super::faults::at_entry) writes. The result of a clock's program is 0, so that the event itself
/// writes nothing. That of one at a tracepoint is 1: with 0 the kernel would keep the tracepoint's record from everybody's events (`trace_call_bpf`, `kernel/trace/bpf_trace.c`).
pub fn instructions(layout: &VcpuLayout, plan: &Plan) -> Vec<Instruction> {
    let mut program = Program::default();
    program.registers(MOVE_REGISTER, CONTEXT, 1);
    let unsampled = match &plan.sampled {
        Sampled::Ticks => Vec::new(),
        Sampled::Exits(exits) => program.count_exit(exits),
        Sampled::Faults(faults) => program.count_fault(faults),
    };
    if let Some(host_record) = plan.host_record {
        program.host_stack(host_record, plan.outputs);
    }
    program.immediate(MOVE_IMMEDIATE, FLAG_SET, 0);
    program.load_record(plan.record);
    program.zero((0..RECORD_BYTES).step_by(8));
    if plan.stacks.is_some() {
        program.zero((COPIES..STACK_BYTES).step_by(8));
        program.begin_stacks();
    }
    match &plan.sampled {
        Sampled::Ticks => program.time(plan.time_offset),
        Sampled::Exits(exits) => {
            program.load_reason(exits.members);
            program.add(STORE_64, RECORD, 1, offset16(GUEST_EXIT), 0);
            program.time(plan.time_offset);
        }
        Sampled::Faults(faults) => program.describe_fault(faults, plan.time_offset),
    }
    program.vcpu(layout, plan);
    let (in_target, at_hosts): (Vec<Read>, Vec<Read>) = plan
        .reads
        .iter()
        .partition(|read| matches!(read.source, Source::Pointer(_)));
    for read in &at_hosts {
        program.value(read);
    }
    if let Some(pointer) = plan.pointer.as_ref().filter(|_| !in_target.is_empty()) {
        program.follow(pointer, &in_target);
    }
    if plan.stacks.is_some() {
        program.immediate(OR_IMMEDIATE, FLAG_SET, STACKS);
    }
    program.add(STORE_64, RECORD, FLAG_SET, offset16(FLAGS), 0);
    match &plan.stacks {
        Some(stacks) => {
            program.copy_stacks(stacks);
            program.record_length(5, stacks);
        }
        None => program.immediate(MOVE_IMMEDIATE, 5, offset16(RECORD_BYTES).into()),
    }
    match &plan.sampled {
        Sampled::Ticks | Sampled::Exits(_) => program.put_record(plan.outputs),
        Sampled::Faults(faults) => program.await_entry(faults),
    }
    program.land_all(unsampled);
    program.immediate(MOVE_IMMEDIATE, 0, plan.is_at_tracepoint().into());
    program.add(EXIT, 0, 0, 0, 0);
    program.0
}
