//! The eBPF program that reads the kernel's memory, as instructions (`Documentation/bpf/standardization/instruction-set.rst`).

use super::bpf::Instruction;

/// Numbers of helpers (`include/uapi/linux/bpf.h`).
pub const HELPER_GET_CURRENT_TASK: i32 = 35;
pub const HELPER_PROBE_READ_KERNEL: i32 = 113;
/// The source register of a 64-bit load that loads the address of a map's value.
const PSEUDO_MAP_VALUE: u8 = 2;

/// Opcodes.
pub const LOAD_64: u8 = 0x79;
pub const STORE_64: u8 = 0x7b;
pub const LOAD_IMMEDIATE_64: u8 = 0x18;
pub const MOVE_REGISTER: u8 = 0xbf;
pub const MOVE_IMMEDIATE: u8 = 0xb7;
const JUMP_IF_NOT: u8 = 0x55;
const JUMP_IF_ABOVE: u8 = 0x25;
pub const CALL: u8 = 0x85;
pub const EXIT: u8 = 0x95;

/// The program's result when a length is too large. Errors of the helper are other negative numbers.
const TOO_LONG: i32 = -1;

/// Instructions that copy `length <= limit` bytes from kernel address `address` to the start of the value of `map`
/// (a descriptor), where `address` and `length` are the program's arguments. Where the address is 0 they put the
/// address of the running `task_struct` there. The result is 0, or a negative errno.
pub fn instructions(map: i32, limit: i32) -> Vec<Instruction> {
    let [context, result, place, bytes, source] = [1, 0, 1, 2, 3];
    let [address, length] = [6, 7];
    let [first, second] = map_value(place, map);
    vec![
        op(LOAD_64, address, context, 0, 0),
        op(LOAD_64, length, context, 8, 0),
        op(JUMP_IF_NOT, address, 0, 6, 0),
        op(CALL, 0, 0, 0, HELPER_GET_CURRENT_TASK),
        first,
        second,
        op(STORE_64, place, result, 0, 0),
        op(MOVE_IMMEDIATE, result, 0, 0, 0),
        op(EXIT, 0, 0, 0, 0),
        op(MOVE_IMMEDIATE, result, 0, 0, TOO_LONG),
        op(JUMP_IF_ABOVE, length, 0, 5, limit),
        first,
        second,
        op(MOVE_REGISTER, bytes, length, 0, 0),
        op(MOVE_REGISTER, source, address, 0, 0),
        op(CALL, 0, 0, 0, HELPER_PROBE_READ_KERNEL),
        op(EXIT, 0, 0, 0, 0),
    ]
}

/// One instruction.
pub fn op(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers: destination | source << 4,
        offset,
        immediate,
    }
}

/// Puts the address of the first value of `map` into a register.
fn map_value(register: u8, map: i32) -> [Instruction; 2] {
    [
        op(LOAD_IMMEDIATE_64, register, PSEUDO_MAP_VALUE, 0, map),
        op(0, 0, 0, 0, 0),
    ]
}
