//! The eBPF program that takes a sample, as instructions (`Documentation/bpf/standardization/instruction-set.rst`).

use super::layout::VcpuLayout;
use super::record::{
    AVAILABLE, CPL, CR3, FIRST_VALUE, FLAGS, LOADED, MP_STATE, OWN, RECORD_BYTES, RIP, TIME, VALUE,
    VALUES,
};
use crate::kernel_memory::bpf::Instruction;
use crate::kernel_memory::program::{
    CALL, EXIT, HELPER_GET_CURRENT_TASK, HELPER_PROBE_READ_KERNEL, LOAD_64, LOAD_IMMEDIATE_64,
    MOVE_IMMEDIATE, MOVE_REGISTER, STORE_64, op,
};

/// Numbers of helpers (`include/uapi/linux/bpf.h`).
const HELPER_KTIME_GET_NS: i32 = 5;
const HELPER_PERF_EVENT_OUTPUT: i32 = 25;
const HELPER_PROBE_READ_USER: i32 = 112;
/// The source register of a 64-bit load that says: a map by its descriptor.
const PSEUDO_MAP: u8 = 1;

/// Opcodes.
const STORE_IMMEDIATE_64: u8 = 0x7a;
const ADD_IMMEDIATE: u8 = 0x07;
const ADD_REGISTER: u8 = 0x0f;
const SUBTRACT_REGISTER: u8 = 0x1f;
const OR_IMMEDIATE: u8 = 0x47;
const JUMP: u8 = 0x05;
const JUMP_IF_NOT_ZERO: u8 = 0x55;
const JUMP_IF_NOT_EQUAL: u8 = 0x5d;
const JUMP_IF_NOT_BELOW: u8 = 0x3d;

/// Registers that calls leave alone: the program's context, where the pointer leads to, and flags.
const CONTEXT: u8 = 6;
const TARGET: u8 = 7;
const FLAG_SET: u8 = 8;
const STACK: u8 = 10;

/// What a program reads.
#[derive(Debug)]
pub struct Plan {
    /// `struct kvm_vcpu`, and the `struct kvm` that it belongs to.
    pub vcpu: u64,
    pub kvm: u64,
    /// The descriptor of the array whose first entry is the event that records go to.
    pub outputs: i32,
    pub pointer: Option<Pointer>,
    pub reads: Vec<Read>,
}

/// A pointer of the guest's, and the memory that it can point to.
#[derive(Debug)]
pub struct Pointer {
    /// Where it is in the VMM.
    pub at: u64,
    pub ranges: Vec<Range>,
}

/// Guest memory: guest-virtual addresses, and where they are in the VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub guest: u64,
    pub bytes: u64,
    pub host: u64,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// At this address in the VMM.
    Host(u64),
    /// So far behind where the pointer leads to.
    Pointer(i32),
}

/// A value.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Its place in the record.
    pub index: usize,
    pub source: Source,
    /// Up to 16.
    pub bytes: u8,
}

/// Instructions, as they are added.
struct Program(Vec<Instruction>);

impl Program {
    fn add(&mut self, code: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.0
            .push(op(code, destination, source, offset, immediate));
    }

    fn call(&mut self, helper: i32) {
        self.add(CALL, 0, 0, 0, helper);
    }

    fn load_immediate(&mut self, register: u8, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        let [low, high] = [[a, b, c, d], [e, f, g, h]].map(i32::from_le_bytes);
        self.add(LOAD_IMMEDIATE_64, register, 0, 0, low);
        self.add(0, 0, 0, 0, high);
    }

    /// Has `register` point to an offset of the record.
    fn point_to(&mut self, register: u8, offset: usize) {
        self.add(MOVE_REGISTER, register, STACK, 0, 0);
        self.add(ADD_IMMEDIATE, register, 0, 0, on_stack(offset).into());
    }

    /// Jumps from `position` to the next instruction.
    fn land(&mut self, position: usize) {
        let distance = self.0.len().saturating_sub(position + 1);
        if let Some(jump) = self.0.get_mut(position) {
            jump.offset = i16::try_from(distance).unwrap_or_default();
        }
    }

    /// A jump whose target is set by [`Program::land`].
    fn jump(&mut self, code: u8, destination: u8, source: u8, immediate: i32) -> usize {
        self.add(code, destination, source, 0, immediate);
        self.0.len() - 1
    }

    /// Reads kernel memory; zeros where that fails.
    fn read_kernel(&mut self, offset: usize, bytes: i32, address: u64) {
        self.load_immediate(3, address);
        self.read(offset, bytes, HELPER_PROBE_READ_KERNEL);
    }

    /// Reads from the address in register 3.
    fn read(&mut self, offset: usize, bytes: i32, helper: i32) {
        self.point_to(1, offset);
        self.add(MOVE_IMMEDIATE, 2, 0, 0, bytes);
        self.call(helper);
    }

    /// Sets `flag` if the number at [`FLAGS`], where kernel memory was put, is `expected`.
    fn compare(&mut self, expected: u64, flag: i32) {
        self.add(LOAD_64, 1, STACK, on_stack(FLAGS), 0);
        self.load_immediate(2, expected);
        let differs = self.jump(JUMP_IF_NOT_EQUAL, 1, 2, 0);
        self.add(OR_IMMEDIATE, FLAG_SET, 0, 0, flag);
        self.land(differs);
    }

    fn value(&mut self, read: &Read) {
        match read.source {
            Source::Host(address) => self.load_immediate(3, address),
            Source::Pointer(offset) => {
                self.add(MOVE_REGISTER, 3, TARGET, 0, 0);
                self.add(ADD_IMMEDIATE, 3, 0, 0, offset);
            }
        }
        let place = VALUES + VALUE * read.index;
        self.read(place, read.bytes.into(), HELPER_PROBE_READ_USER);
        let failed = self.jump(JUMP_IF_NOT_ZERO, 0, 0, 0);
        let flag = u32::try_from(read.index)
            .ok()
            .and_then(|index| FIRST_VALUE.checked_shl(index));
        self.add(OR_IMMEDIATE, FLAG_SET, 0, 0, flag.unwrap_or_default());
        self.land(failed);
    }

    /// Follows the pointer, and reads what is there.
    fn follow(&mut self, pointer: &Pointer, reads: &[Read]) {
        self.load_immediate(3, pointer.at);
        self.read(FLAGS, 8, HELPER_PROBE_READ_USER);
        let unreadable = self.jump(JUMP_IF_NOT_ZERO, 0, 0, 0);
        self.add(LOAD_64, 1, STACK, on_stack(FLAGS), 0);
        let mut found = Vec::new();
        for range in &pointer.ranges {
            self.add(MOVE_REGISTER, TARGET, 1, 0, 0);
            self.load_immediate(2, range.guest);
            self.add(SUBTRACT_REGISTER, TARGET, 2, 0, 0);
            self.load_immediate(2, range.bytes);
            let outside = self.jump(JUMP_IF_NOT_BELOW, TARGET, 2, 0);
            self.load_immediate(2, range.host);
            self.add(ADD_REGISTER, TARGET, 2, 0, 0);
            found.push(self.jump(JUMP, 0, 0, 0));
            self.land(outside);
        }
        let nowhere = self.jump(JUMP, 0, 0, 0);
        for position in found {
            self.land(position);
        }
        for read in reads {
            self.value(read);
        }
        self.land(nowhere);
        self.land(unreadable);
    }
}

/// The stack's offset of an offset of the record.
fn on_stack(offset: usize) -> i16 {
    let below = RECORD_BYTES.saturating_sub(offset);
    -i16::try_from(below).unwrap_or_default()
}

/// Instructions that write a record. Their result is 0, so that the event itself writes nothing.
pub fn instructions(layout: &VcpuLayout, plan: &Plan) -> Vec<Instruction> {
    let mut program = Program(Vec::new());
    program.add(MOVE_REGISTER, CONTEXT, 1, 0, 0);
    program.add(MOVE_IMMEDIATE, FLAG_SET, 0, 0, 0);
    for offset in (0..RECORD_BYTES).step_by(8) {
        program.add(STORE_IMMEDIATE_64, STACK, 0, on_stack(offset), 0);
    }
    program.call(HELPER_KTIME_GET_NS);
    program.add(STORE_64, STACK, 0, on_stack(TIME), 0);
    registers(&mut program, layout, plan);
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
    program.add(STORE_64, STACK, FLAG_SET, on_stack(FLAGS), 0);
    program.add(MOVE_REGISTER, 1, CONTEXT, 0, 0);
    program.add(LOAD_IMMEDIATE_64, 2, PSEUDO_MAP, 0, plan.outputs);
    program.add(0, 0, 0, 0, 0);
    program.add(MOVE_IMMEDIATE, 3, 0, 0, 0);
    program.point_to(4, 0);
    let bytes = i32::try_from(RECORD_BYTES).unwrap_or_default();
    program.add(MOVE_IMMEDIATE, 5, 0, 0, bytes);
    program.call(HELPER_PERF_EVENT_OUTPUT);
    program.add(MOVE_IMMEDIATE, 0, 0, 0, 0);
    program.add(EXIT, 0, 0, 0, 0);
    program.0
}

fn registers(program: &mut Program, layout: &VcpuLayout, plan: &Plan) {
    let member = |offset: u64| plan.vcpu.wrapping_add(offset);
    program.call(HELPER_GET_CURRENT_TASK);
    program.add(MOVE_REGISTER, 3, 0, 0, 0);
    let notifiers = i32::try_from(layout.notifiers).unwrap_or_default();
    program.add(ADD_IMMEDIATE, 3, 0, 0, notifiers);
    program.read(FLAGS, 8, HELPER_PROBE_READ_KERNEL);
    program.compare(member(layout.link), LOADED);
    program.read_kernel(FLAGS, 8, member(layout.kvm));
    program.compare(plan.kvm, OWN);
    program.read_kernel(RIP, 8, member(layout.rip));
    program.read_kernel(AVAILABLE, 4, member(layout.available));
    program.read_kernel(CR3, 8, member(layout.cr3));
    program.read_kernel(MP_STATE, 4, member(layout.mp_state));
    if let Some(cpl) = layout.cpl {
        program.read_kernel(CPL, 4, member(cpl));
    }
}
