//! Builds an eBPF program, instruction by instruction (`Documentation/bpf/standardization/instruction-set.rst`).

use super::record::FLAGS;
use crate::kernel_memory::bpf::Instruction;
use crate::kernel_memory::program::{
    CALL, HELPER_PROBE_READ_KERNEL, LOAD_64, LOAD_IMMEDIATE_64, MOVE_IMMEDIATE, MOVE_REGISTER, op,
};
use crate::tracepoint::Member;

/// Numbers of helpers (`include/uapi/linux/bpf.h`).
pub const HELPER_KTIME_GET_NS: i32 = 5;
pub const HELPER_CURRENT_IDS: i32 = 14;
pub const HELPER_PERF_EVENT_OUTPUT: i32 = 25;
pub const HELPER_PROBE_READ_USER: i32 = 112;
/// The source registers by which a 64-bit load takes a map by its descriptor, or the address of the map's value.
pub const PSEUDO_MAP: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;

/// Opcodes.
const LOAD_8: u8 = 0x71;
const LOAD_16: u8 = 0x69;
pub const LOAD_32: u8 = 0x61;
pub const STORE_IMMEDIATE_64: u8 = 0x7a;
pub const ADD_IMMEDIATE: u8 = 0x07;
pub const ADD_REGISTER: u8 = 0x0f;
pub const SUBTRACT_REGISTER: u8 = 0x1f;
pub const OR_IMMEDIATE: u8 = 0x47;
pub const OR_REGISTER: u8 = 0x4f;
pub const AND_IMMEDIATE: u8 = 0x57;
pub const SHIFT_LEFT: u8 = 0x67;
pub const SHIFT_RIGHT: u8 = 0x77;
pub const SHIFT_RIGHT_SIGNED: u8 = 0xc7;
pub const JUMP: u8 = 0x05;
pub const JUMP_IF_ZERO: u8 = 0x15;
pub const JUMP_IF_NOT: u8 = 0x55;
pub const JUMP_IF_NOT_EQUAL: u8 = 0x5d;
pub const JUMP_IF_EQUAL: u8 = 0x1d;
pub const JUMP_IF_NOT_BELOW: u8 = 0x3d;
pub const JUMP_IF_NOT_ABOVE: u8 = 0xbd;
pub const JUMP_IF_ABOVE_IMMEDIATE: u8 = 0x25;
pub const JUMP_IF_ANY_BIT: u8 = 0x45;
pub const JUMP_IF_NEGATIVE: u8 = 0xc5;

/// Registers that calls don't change: the program's context, the address that the pointer holds, flags, and the record.
pub const CONTEXT: u8 = 6;
pub const TARGET: u8 = 7;
pub const FLAG_SET: u8 = 8;
pub const RECORD: u8 = 9;
/// The stack, downwards.
pub const STACK: u8 = 10;

/// An offset, as instructions have it. It has to fit into 16 bits.
pub fn offset16(offset: usize) -> i16 {
    i16::try_from(offset).unwrap_or_default()
}

/// A program under construction. It writes a record to a map's value.
#[derive(Default)]
pub struct Program(pub Vec<Instruction>);

impl Program {
    pub fn add(&mut self, code: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.0
            .push(op(code, destination, source, offset, immediate));
    }

    pub fn call(&mut self, helper: i32) {
        self.add(CALL, 0, 0, 0, helper);
    }

    /// Adds an operation on a register and a number of 32 bits.
    pub fn immediate(&mut self, code: u8, register: u8, value: i32) {
        self.add(code, register, 0, 0, value);
    }

    /// Adds an operation on two registers.
    pub fn registers(&mut self, code: u8, destination: u8, source: u8) {
        self.add(code, destination, source, 0, 0);
    }

    pub fn load_immediate(&mut self, register: u8, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        let [low, high] = [[a, b, c, d], [e, f, g, h]].map(i32::from_le_bytes);
        self.add(LOAD_IMMEDIATE_64, register, 0, 0, low);
        self.add(0, 0, 0, 0, high);
    }

    /// Sets `destination` to a number of the record of the tracepoint that runs the program.
    pub fn load_member(&mut self, destination: u8, member: Member) {
        let code = match member.bytes {
            1 => LOAD_8,
            2 => LOAD_16,
            4 => LOAD_32,
            _ => LOAD_64,
        };
        self.add(code, destination, CONTEXT, member.offset, 0);
    }

    /// Loads the map with this descriptor into `register`.
    pub fn load_map(&mut self, register: u8, map: i32) {
        self.add(LOAD_IMMEDIATE_64, register, PSEUDO_MAP, 0, map);
        self.add(0, 0, 0, 0, 0);
    }

    /// Loads the address of the value of the map with this descriptor into [`RECORD`].
    pub fn load_record(&mut self, map: i32) {
        self.load_value(RECORD, map);
    }

    /// Loads the address of the value of the map with this descriptor into `register`.
    pub fn load_value(&mut self, register: u8, map: i32) {
        self.add(LOAD_IMMEDIATE_64, register, PSEUDO_MAP_VALUE, 0, map);
        self.add(0, 0, 0, 0, 0);
    }

    /// Zeros the record's 64-bit numbers at these offsets.
    pub fn zero(&mut self, offsets: impl Iterator<Item = usize>) {
        for offset in offsets {
            self.add(STORE_IMMEDIATE_64, RECORD, 0, offset16(offset), 0);
        }
    }

    /// Loads the address of the record's byte number `offset` into `register`.
    pub fn point_to(&mut self, register: u8, offset: usize) {
        self.registers(MOVE_REGISTER, register, RECORD);
        self.immediate(ADD_IMMEDIATE, register, offset16(offset).into());
    }

    /// Makes the next instruction the target of the jump at `position`.
    pub fn land(&mut self, position: usize) {
        let distance = self.0.len().saturating_sub(position + 1);
        if let Some(jump) = self.0.get_mut(position) {
            jump.offset = i16::try_from(distance).unwrap_or_default();
        }
    }

    /// Makes the next instruction the target of the jumps at all of `positions`.
    pub fn land_all(&mut self, positions: impl IntoIterator<Item = usize>) {
        for position in positions {
            self.land(position);
        }
    }

    /// Adds a jump, whose target is set by [`Program::land`], and returns its position.
    pub fn jump(&mut self, code: u8, destination: u8, source: u8, immediate: i32) -> usize {
        self.add(code, destination, source, 0, immediate);
        self.0.len() - 1
    }

    /// Reads kernel memory to `offset` of the record. If that fails, the record has zeros there.
    pub fn read_kernel(&mut self, offset: usize, bytes: i32, address: u64) {
        self.load_immediate(3, address);
        self.read(offset, bytes, HELPER_PROBE_READ_KERNEL);
    }

    /// Reads from the address in register 3 to an offset of the record.
    pub fn read(&mut self, offset: usize, bytes: i32, helper: i32) {
        self.point_to(1, offset);
        self.immediate(MOVE_IMMEDIATE, 2, bytes);
        self.call(helper);
    }

    /// Loads a number of the record.
    pub fn load(&mut self, register: u8, offset: usize) {
        self.add(LOAD_64, register, RECORD, offset16(offset), 0);
    }

    /// Sets `flag` if the number at [`FLAGS`], where kernel memory was put, is `expected`.
    pub fn compare(&mut self, expected: u64, flag: i32) {
        self.load(1, FLAGS);
        self.load_immediate(2, expected);
        let differs = self.jump(JUMP_IF_NOT_EQUAL, 1, 2, 0);
        self.immediate(OR_IMMEDIATE, FLAG_SET, flag);
        self.land(differs);
    }

    /// Sets `flag` if the helper that was just called has succeeded.
    pub fn flag_success(&mut self, flag: i32) {
        let failed = self.jump(JUMP_IF_NOT, 0, 0, 0);
        self.immediate(OR_IMMEDIATE, FLAG_SET, flag);
        self.land(failed);
    }

    /// Puts the VMM's address for the address in register `from` into register 3: 0 if that is in none of `ranges`. Changes
    /// register 2.
    pub fn find(&mut self, from: u8, ranges: &[Range]) {
        let mut found = Vec::new();
        for range in ranges {
            self.registers(MOVE_REGISTER, 3, from);
            self.load_immediate(2, range.guest);
            self.registers(SUBTRACT_REGISTER, 3, 2);
            self.load_immediate(2, range.bytes);
            let outside = self.jump(JUMP_IF_NOT_BELOW, 3, 2, 0);
            self.load_immediate(2, range.host);
            self.registers(ADD_REGISTER, 3, 2);
            found.push(self.jump(JUMP, 0, 0, 0));
            self.land(outside);
        }
        self.immediate(MOVE_IMMEDIATE, 3, 0);
        self.land_all(found);
    }
}

/// A range of guest memory: its addresses, virtual or physical ones, and its address in the VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub guest: u64,
    pub bytes: u64,
    pub host: u64,
}
