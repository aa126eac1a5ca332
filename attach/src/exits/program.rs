//! The eBPF programs that count exits. They run at tracepoints of KVM, on the vCPU's own thread, and hand nothing to user space: an exit begins at `kvm_exit`
//! and is counted at the next `kvm_entry`.

use kvmprof_recording::exits::{AccessKind, Histogram};

use super::processes::ProcessReads;
use super::record::{
    ACCESS, CLASSES, COUNT, ISA, LEFT, LEFT_COUNT, LEFT_KVM, LEFT_TOTAL, LONGEST, LOST_ACCESSES,
    LOST_FUNCTIONS, LOST_REASONS, LOST_THREADS, ON_CPU, PID, PLACE, REASON, RIP, TIME, TOTAL, VCPU,
};
use crate::kernel_memory::bpf::Instruction;
use crate::kernel_memory::program::{EXIT, LOAD_64, MOVE_IMMEDIATE, MOVE_REGISTER, STORE_64};
use crate::sampling::assembly::{
    ADD_IMMEDIATE, ADD_REGISTER, AND_IMMEDIATE, CONTEXT, HELPER_CURRENT_IDS, HELPER_KTIME_GET_NS,
    JUMP, JUMP_IF_ABOVE_IMMEDIATE, JUMP_IF_EQUAL, JUMP_IF_NOT, JUMP_IF_NOT_ABOVE,
    JUMP_IF_NOT_BELOW, JUMP_IF_ZERO, LOAD_32, Program, SHIFT_LEFT, SHIFT_RIGHT, STACK,
    STORE_IMMEDIATE_64, SUBTRACT_REGISTER,
};
use crate::tracepoint::{ExitMembers, Member};

/// Numbers of helpers (`include/uapi/linux/bpf.h`).
const HELPER_LOOKUP: i32 = 1;
const HELPER_UPDATE: i32 = 2;
/// A flag of an update: the entry must be new.
const NO_EXIST: i32 = 1;

/// Opcodes.
pub const STORE_32: u8 = 0x63;
const ATOMIC_64: u8 = 0xdb;
const SHIFT_RIGHT_BY_REGISTER: u8 = 0x7f;

/// Registers that calls don't change: the thread's entry, how long the exit took, and the entry that is being counted in.
pub const THREAD: u8 = 7;
pub const DURATION: u8 = 8;
pub const ENTRY: u8 = 9;
/// Where keys are on the stack.
pub const KEY: i16 = -16;
/// The longest key.
const KEY_BYTES: i16 = 16;

/// Whose exits are counted, and in which maps.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The VMM's process, as all of the host has it.
    pub vmm: i32,
    /// Descriptors of maps: the totals, and a value of zeros as long as the longest one of all maps.
    pub totals: i32,
    pub zeros: i32,
    pub threads: i32,
    pub reasons: i32,
    pub accesses: i32,
    pub functions: i32,
    /// `None` if the guest's processes aren't known.
    pub processes: Option<i32>,
    pub processors: i32,
    pub waits: i32,
    pub interrupts: i32,
}

/// The members of a tracepoint that is passed for an access.
#[derive(Clone, Copy, Debug)]
pub struct AccessMembers {
    pub place: Member,
    /// What says whether it is a write, and the number that does; `None` for accesses of one kind.
    pub write: Option<(Member, i32)>,
    /// The kind of a read, which that of the write follows.
    pub read_kind: AccessKind,
}

/// Puts together a program. It ends where `ends` jump to.
pub struct Counter {
    pub program: Program,
    pub plan: Plan,
    pub ends: Vec<usize>,
}

impl Counter {
    /// Begins a program for all threads of the host.
    pub fn of_all_threads(plan: Plan) -> Self {
        let mut program = Program::default();
        program.registers(MOVE_REGISTER, CONTEXT, 1);
        Self {
            program,
            plan,
            ends: Vec::new(),
        }
    }

    /// Begins a program, which ends if its thread isn't one of the VMM.
    pub fn new(plan: Plan) -> Self {
        let mut counter = Self::of_all_threads(plan);
        let program = &mut counter.program;
        program.call(HELPER_CURRENT_IDS);
        program.registers(MOVE_REGISTER, 1, 0);
        program.immediate(SHIFT_RIGHT, 1, 32);
        let other = program.jump(JUMP_IF_NOT, 1, 0, plan.vmm);
        // The key of its entry.
        program.add(STORE_64, STACK, 0, KEY, 0);
        counter.load_current_thread(KEY);
        counter.program.add(STORE_64, STACK, 1, KEY, 0);
        counter.ends = vec![other];
        counter
    }

    /// Sets register 1 to the id of the calling thread, out of what its helper has returned, which the stack has at `at`.
    pub fn load_current_thread(&mut self, at: i16) {
        self.program.add(LOAD_32, 1, STACK, at, 0);
    }

    pub fn end(mut self) -> Vec<Instruction> {
        self.program.land_all(self.ends);
        // With 0 the kernel would keep the tracepoint's record from everybody's events, also those of perf (`trace_call_bpf`, `kernel/trace/bpf_trace.c`).
        self.program.immediate(MOVE_IMMEDIATE, 0, 1);
        self.program.add(EXIT, 0, 0, 0, 0);
        self.program.0
    }

    /// Ends here if `register` is 0.
    pub fn end_if_zero(&mut self, register: u8) {
        let end = self.program.jump(JUMP_IF_ZERO, register, 0, 0);
        self.ends.push(end);
    }

    /// Adds 1 to a number of the totals.
    pub fn count_in_totals(&mut self, member: i16) {
        self.program.load_value(1, self.plan.totals);
        self.program.immediate(MOVE_IMMEDIATE, 2, 1);
        self.program.add(ATOMIC_64, 1, 2, member, 0);
    }

    /// Sets `destination` to a number of the tracepoint's record.
    pub fn load_member(&mut self, destination: u8, member: Member) {
        self.program.load_member(destination, member);
    }

    /// Puts the address of the entry with the key on the stack into register 0: 0 if there is none.
    pub fn look_up(&mut self, map: i32) {
        self.program.load_map(1, map);
        self.point_to_key();
        self.program.call(HELPER_LOOKUP);
    }

    fn point_to_key(&mut self) {
        self.program.registers(MOVE_REGISTER, 2, STACK);
        self.program.immediate(ADD_IMMEDIATE, 2, KEY.into());
    }

    /// Puts the address of the entry with the key on the stack into `register`, and makes the entry if there is none. If the map is full, `lost` is counted
    /// in the totals. Returns the jump for that case.
    pub fn find_or_make(&mut self, register: u8, map: i32, lost: i16) -> usize {
        self.look_up(map);
        let known = self.program.jump(JUMP_IF_NOT, 0, 0, 0);
        self.program.load_map(1, map);
        self.point_to_key();
        self.program.load_value(3, self.plan.zeros);
        self.program.immediate(MOVE_IMMEDIATE, 4, NO_EXIST);
        self.program.call(HELPER_UPDATE);
        // Another vCPU may have made it meanwhile.
        self.look_up(map);
        self.program.land(known);
        self.program.registers(MOVE_REGISTER, register, 0);
        let found = self.program.jump(JUMP_IF_NOT, register, 0, 0);
        self.count_in_totals(lost);
        let full = self.program.jump(JUMP, 0, 0, 0);
        self.program.land(found);
        full
    }

    /// Puts 4 bytes of the number at `member` of the thread's entry into the key.
    pub fn key_from_thread(&mut self, at: i16, member: i16) {
        self.program.add(LOAD_64, 1, THREAD, member, 0);
        self.program.add(STORE_32, STACK, 1, KEY + at, 0);
    }

    /// Puts the number there into the key's second half.
    fn place_from_thread(&mut self, member: i16) {
        self.program.add(LOAD_64, 1, THREAD, member, 0);
        self.program.add(STORE_64, STACK, 1, KEY + 8, 0);
    }

    /// Adds the number in `register` to one of an entry, which other vCPUs may count in at the same time.
    pub fn add_atomically(&mut self, member: i16, register: u8) {
        self.program.add(ATOMIC_64, ENTRY, register, member, 0);
    }

    /// Sets [`DURATION`] to the time that has passed since the one at `member` of the thread's entry, which becomes 0. Ends if it is 0 already.
    pub fn take_time(&mut self, member: i16) {
        self.program.add(LOAD_64, 1, THREAD, member, 0);
        self.end_if_zero(1);
        let p = &mut self.program;
        p.call(HELPER_KTIME_GET_NS);
        p.registers(MOVE_REGISTER, DURATION, 0);
        p.add(LOAD_64, 1, THREAD, member, 0);
        let is_later = p.jump(JUMP_IF_NOT_BELOW, DURATION, 1, 0);
        p.registers(MOVE_REGISTER, DURATION, 1);
        p.land(is_later);
        p.registers(SUBTRACT_REGISTER, DURATION, 1);
        p.add(STORE_IMMEDIATE_64, THREAD, 0, member, 0);
    }

    /// Adds the number in `register` to one of an entry that one vCPU alone counts in.
    fn add_alone(&mut self, member: i16, register: u8) {
        let p = &mut self.program;
        p.add(LOAD_64, 0, ENTRY, member, 0);
        p.registers(ADD_REGISTER, 0, register);
        p.add(STORE_64, ENTRY, 0, member, 0);
    }

    /// Counts what has taken this time in an entry that one vCPU alone counts in.
    fn count_alone(&mut self, count: i16, total: i16) {
        self.program.immediate(MOVE_IMMEDIATE, 1, 1);
        self.add_alone(count, 1);
        self.add_alone(total, DURATION);
    }

    /// Counts what has taken this time in an entry.
    pub fn count(&mut self, count: i16, total: i16) {
        self.program.immediate(MOVE_IMMEDIATE, 1, 1);
        self.add_atomically(count, 1);
        self.add_atomically(total, DURATION);
    }

    /// Counts the exit by its reason. One vCPU alone counts in the entry.
    fn count_reason(&mut self) {
        self.key_from_thread(0, REASON);
        self.key_from_thread(4, VCPU);
        let full = self.find_or_make(ENTRY, self.plan.reasons, LOST_REASONS);
        self.count_alone(COUNT, TOTAL);
        self.program.add(LOAD_64, 1, ENTRY, LONGEST, 0);
        let shorter = self.program.jump(JUMP_IF_NOT_ABOVE, DURATION, 1, 0);
        self.program.add(STORE_64, ENTRY, DURATION, LONGEST, 0);
        self.program.land(shorter);
        self.program.add(LOAD_64, 1, THREAD, LEFT, 0);
        let stayed = self.program.jump(JUMP_IF_ZERO, 1, 0, 0);
        self.count_alone(LEFT_COUNT, LEFT_TOTAL);
        self.program.land(stayed);
        self.count_class();
        self.program.land(full);
    }

    /// Counts the exit in its class of the histogram ([`Histogram`]).
    fn count_class(&mut self) {
        let [time, rest, power, number] = [1, 2, 3, 4];
        let p = &mut self.program;
        p.registers(MOVE_REGISTER, time, DURATION);
        p.load_immediate(number, (1 << Histogram::MOST) - 1);
        let short = p.jump(JUMP_IF_NOT_ABOVE, time, number, 0);
        p.registers(MOVE_REGISTER, time, number);
        p.land(short);
        // The power of 2, by halves.
        p.registers(MOVE_REGISTER, rest, time);
        p.immediate(MOVE_IMMEDIATE, power, 0);
        for bits in [32, 16, 8, 4, 2, 1] {
            p.load_immediate(number, (1 << bits) - 1);
            let less = p.jump(JUMP_IF_NOT_ABOVE, rest, number, 0);
            p.immediate(SHIFT_RIGHT, rest, bits);
            p.immediate(ADD_IMMEDIATE, power, bits);
            p.land(less);
        }
        let shift = i32::from(Histogram::SHIFT);
        let large = p.jump(JUMP_IF_ABOVE_IMMEDIATE, power, 0, shift - 1);
        let whole = p.jump(JUMP, 0, 0, 0);
        p.land(large);
        p.registers(MOVE_REGISTER, number, power);
        p.immediate(ADD_IMMEDIATE, number, -shift);
        p.registers(SHIFT_RIGHT_BY_REGISTER, time, number);
        p.immediate(AND_IMMEDIATE, time, (1 << shift) - 1);
        p.immediate(ADD_IMMEDIATE, power, 1 - shift);
        p.immediate(SHIFT_LEFT, power, shift);
        p.registers(ADD_REGISTER, time, power);
        p.land(whole);
        // For the verifier.
        let classes = i32::try_from(Histogram::CLASSES).unwrap_or_default();
        let outside = p.jump(JUMP_IF_ABOVE_IMMEDIATE, time, 0, classes - 1);
        p.immediate(SHIFT_LEFT, time, 3);
        p.registers(ADD_REGISTER, time, ENTRY);
        p.add(LOAD_64, rest, time, CLASSES, 0);
        p.immediate(ADD_IMMEDIATE, rest, 1);
        p.add(STORE_64, time, rest, CLASSES, 0);
        p.land(outside);
    }

    /// Counts the exit by the access in it, if there is one.
    fn count_access(&mut self) {
        self.program.add(LOAD_64, 1, THREAD, ACCESS, 0);
        let none = self.program.jump(JUMP_IF_ZERO, 1, 0, 0);
        self.key_from_thread(0, REASON);
        self.key_from_thread(4, ACCESS);
        self.place_from_thread(PLACE);
        let full = self.find_or_make(ENTRY, self.plan.accesses, LOST_ACCESSES);
        self.count(COUNT, TOTAL);
        self.program.land_all([none, full]);
    }

    /// Counts the exit by the guest's program counter and process.
    fn count_function(&mut self) {
        self.key_from_thread(0, REASON);
        self.key_from_thread(4, PID);
        self.place_from_thread(RIP);
        let full = self.find_or_make(ENTRY, self.plan.functions, LOST_FUNCTIONS);
        self.count(COUNT, TOTAL);
        self.program.land(full);
    }
}

/// The program at `kvm_exit`: notes what the thread's vCPU has left the guest for, and what the guest ran.
pub fn at_exit(
    plan: Plan,
    members: ExitMembers,
    processes: Option<&ProcessReads>,
) -> Vec<Instruction> {
    let mut counter = Counter::new(plan);
    let full = counter.find_or_make(THREAD, plan.threads, LOST_THREADS);
    counter.ends.push(full);
    for (member, place) in [
        (members.reason, REASON),
        (members.vcpu, VCPU),
        (members.rip, RIP),
    ] {
        counter.load_member(1, member);
        counter.program.add(STORE_64, THREAD, 1, place, 0);
    }
    for place in [ACCESS, LEFT] {
        counter.program.add(STORE_IMMEDIATE_64, THREAD, 0, place, 0);
    }
    counter.program.immediate(MOVE_IMMEDIATE, 1, 1);
    counter.program.add(STORE_64, THREAD, 1, ON_CPU, 0);
    counter.note_process(processes, members.vcpu);
    counter.load_member(2, members.isa);
    // All vCPUs have the same: they would take the line of the cache from each other.
    counter.program.load_value(1, plan.totals);
    counter.program.add(LOAD_64, 3, 1, ISA, 0);
    let known = counter.program.jump(JUMP_IF_EQUAL, 2, 3, 0);
    counter.program.add(STORE_64, 1, 2, ISA, 0);
    counter.program.land(known);
    counter.program.call(HELPER_KTIME_GET_NS);
    counter.program.add(STORE_64, THREAD, 0, TIME, 0);
    counter.end()
}

/// The program at `kvm_entry`: counts the exit that ends here.
pub fn at_entry(plan: Plan) -> Vec<Instruction> {
    let mut counter = Counter::new(plan);
    counter.look_up(plan.threads);
    counter.program.registers(MOVE_REGISTER, THREAD, 0);
    counter.end_if_zero(THREAD);
    counter.take_time(TIME);
    // Keys are shorter than this, or as long.
    for at in (0..KEY_BYTES).step_by(8) {
        (counter.program).add(STORE_IMMEDIATE_64, STACK, 0, KEY + at, 0);
    }
    counter.count_reason();
    counter.count_access();
    counter.count_function();
    if let Some(processes) = plan.processes {
        counter.count_process(processes);
    }
    counter.end()
}

/// The program at `kvm_userspace_exit`: notes that KVM hands the exit to the VMM.
pub fn at_userspace_exit(plan: Plan) -> Vec<Instruction> {
    let mut counter = Counter::new(plan);
    counter.count_in_totals(LEFT_KVM);
    counter.look_up(plan.threads);
    counter.end_if_zero(0);
    counter.program.immediate(MOVE_IMMEDIATE, 1, 1);
    counter.program.add(STORE_64, 0, 1, LEFT, 0);
    counter.end()
}

/// The program at a tracepoint that is passed for an access: notes the first one of each exit.
pub fn at_access(plan: Plan, members: AccessMembers) -> Vec<Instruction> {
    let mut counter = Counter::new(plan);
    counter.look_up(plan.threads);
    counter.program.registers(MOVE_REGISTER, THREAD, 0);
    counter.end_if_zero(THREAD);
    counter.program.add(LOAD_64, 1, THREAD, ACCESS, 0);
    let another = counter.program.jump(JUMP_IF_NOT, 1, 0, 0);
    counter.ends.push(another);
    let kind = members.read_kind as i32;
    counter.program.immediate(MOVE_IMMEDIATE, 2, kind);
    if let Some((member, write)) = members.write {
        counter.load_member(1, member);
        let read = counter.program.jump(JUMP_IF_NOT, 1, 0, write);
        counter.program.immediate(MOVE_IMMEDIATE, 2, kind + 1);
        counter.program.land(read);
    }
    counter.program.add(STORE_64, THREAD, 2, ACCESS, 0);
    counter.load_member(1, members.place);
    counter.program.add(STORE_64, THREAD, 1, PLACE, 0);
    counter.end()
}
