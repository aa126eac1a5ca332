//! The part of the program that puts a record of the host's own call stack into the ring, ahead of the sample's record, if a tick comes while
//! the vCPU's thread isn't in the guest.

use kvmprof_introspection::bytes::u64_at;

use super::assembly::{
    ADD_IMMEDIATE, ADD_REGISTER, AND_IMMEDIATE, CONTEXT, HELPER_PERF_EVENT_OUTPUT,
    HELPER_PROBE_READ_USER, JUMP, JUMP_IF_ABOVE_IMMEDIATE, JUMP_IF_NOT, Program, RECORD,
    STORE_IMMEDIATE_64, TARGET, offset16,
};
use super::record::FLAGS;
use crate::kernel_memory::program::{
    HELPER_PROBE_READ_KERNEL, LOAD_64, MOVE_IMMEDIATE, MOVE_REGISTER, STORE_64,
};

/// Numbers of helpers (`include/uapi/linux/bpf.h`).
const HELPER_GET_STACK: i32 = 67;
const HELPER_GET_CURRENT_TASK_BTF: i32 = 158;
const HELPER_TASK_PT_REGS: i32 = 175;

/// A flag, at the offset of a sample's flags: the record is a host stack.
pub const HOST: i32 = 1 << 30;
/// Offsets in a record of the numbers of bytes of the kernel's frames and of the VMM's stack; each number has 8 bytes.
const KERNEL_LENGTH: usize = 0;
const STACK_LENGTH: usize = 8;
/// The VMM's registers when it entered the kernel (`struct pt_regs`, `arch/x86/include/asm/ptrace.h`).
const REGISTERS: usize = 64;
const REGISTERS_BYTES: i32 = 21 * 8;
const RBP: usize = REGISTERS + 4 * 8;
const RIP: usize = REGISTERS + 16 * 8;
const RSP: usize = REGISTERS + 19 * 8;
/// The kernel's frames.
const FRAMES: usize = REGISTERS + 21 * 8;
const FRAMES_BYTES: i32 = 64 * 8;
/// The copy of the VMM's stack, in pieces. A record that was cut short lacks whole pieces.
const STACK: usize = FRAMES + 64 * 8;
const PIECE: i32 = 1024;
const PIECES: i32 = 12;
/// The longest such record.
pub const MAX_HOST_RECORD_BYTES: usize = STACK + 12 * 1024;

/// The offset of the interrupted code segment in the program's context. The segment's lowest bits are the privilege level.
const CONTEXT_CS: i16 = 17 * 8;

/// The register with the number of bytes that were copied of the VMM's stack.
const COPIED: u8 = 8;

impl Program {
    /// Writes the record if the tick didn't interrupt the guest. The record is built in the value of the map `record`. Changes all registers
    /// but the context.
    pub fn host_stack(&mut self, record: i32, outputs: i32) {
        self.load_record(record);
        self.add(STORE_IMMEDIATE_64, RECORD, 0, offset16(FLAGS), HOST);
        // The kernel has no stack if the tick interrupted a guest (perf_callchain_kernel in arch/x86/events/core.c) or the VMM itself.
        self.registers(MOVE_REGISTER, 1, CONTEXT);
        self.point_to(2, FRAMES);
        self.immediate(MOVE_IMMEDIATE, 3, FRAMES_BYTES);
        self.immediate(MOVE_IMMEDIATE, 4, 0);
        self.call(HELPER_GET_STACK);
        let is_error = self.jump(JUMP_IF_ABOVE_IMMEDIATE, 0, 0, FRAMES_BYTES);
        let is_length = self.jump(JUMP, 0, 0, 0);
        self.land(is_error);
        self.immediate(MOVE_IMMEDIATE, 0, 0);
        self.land(is_length);
        self.add(STORE_64, RECORD, 0, offset16(KERNEL_LENGTH), 0);
        let has_frames = self.jump(JUMP_IF_NOT, 0, 0, 0);
        self.add(LOAD_64, 1, CONTEXT, CONTEXT_CS, 0);
        self.immediate(AND_IMMEDIATE, 1, 3);
        let is_vmm = self.jump(JUMP_IF_NOT, 1, 0, 0);
        let is_guest = self.jump(JUMP, 0, 0, 0);
        self.land_all([has_frames, is_vmm]);
        self.copy_program_stack();
        self.registers(MOVE_REGISTER, 5, COPIED);
        self.immediate(ADD_IMMEDIATE, 5, offset16(STACK).into());
        self.registers(MOVE_REGISTER, 1, CONTEXT);
        self.load_map(2, outputs);
        self.immediate(MOVE_IMMEDIATE, 3, 0);
        self.point_to(4, 0);
        self.call(HELPER_PERF_EVENT_OUTPUT);
        self.land(is_guest);
    }

    /// Reads the registers that the thread had when it left user mode, and copies its stack from RSP on.
    fn copy_program_stack(&mut self) {
        self.call(HELPER_GET_CURRENT_TASK_BTF);
        self.registers(MOVE_REGISTER, 1, 0);
        self.call(HELPER_TASK_PT_REGS);
        self.registers(MOVE_REGISTER, 3, 0);
        self.read(REGISTERS, REGISTERS_BYTES, HELPER_PROBE_READ_KERNEL);
        self.load(TARGET, RSP);
        let mut ends = Vec::new();
        for piece in 0..PIECES {
            self.immediate(MOVE_IMMEDIATE, COPIED, piece * PIECE);
            self.registers(MOVE_REGISTER, 1, RECORD);
            self.immediate(ADD_IMMEDIATE, 1, offset16(STACK).into());
            self.registers(ADD_REGISTER, 1, COPIED);
            self.immediate(MOVE_IMMEDIATE, 2, PIECE);
            self.registers(MOVE_REGISTER, 3, TARGET);
            self.registers(ADD_REGISTER, 3, COPIED);
            self.call(HELPER_PROBE_READ_USER);
            ends.push(self.jump(JUMP_IF_NOT, 0, 0, 0));
        }
        self.immediate(MOVE_IMMEDIATE, COPIED, PIECES * PIECE);
        self.land_all(ends);
        self.add(STORE_64, RECORD, COPIED, offset16(STACK_LENGTH), 0);
    }
}

/// A record of the host's stack at one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRecord<'a>(&'a [u8]);

impl<'a> HostRecord<'a> {
    /// The record at the beginning of `bytes`; `None` if a record of another kind is there.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let flags = u64_at(bytes, FLAGS)?;
        (bytes.len() >= STACK && flags == u64::from(HOST.cast_unsigned())).then_some(Self(bytes))
    }

    fn u64(&self, offset: usize) -> u64 {
        u64_at(self.0, offset).unwrap_or_default()
    }

    /// The kernel's frames, innermost first: the interrupted instruction, then return addresses. Empty if the VMM itself ran.
    pub fn kernel_frames(&self) -> impl Iterator<Item = u64> {
        let bytes = usize::try_from(self.u64(KERNEL_LENGTH)).unwrap_or(usize::MAX);
        let frames = self.0.get(FRAMES..STACK).unwrap_or_default();
        let (words, _) = frames[..bytes.min(frames.len())].as_chunks::<8>();
        words.iter().map(|word| u64::from_le_bytes(*word))
    }

    /// The VMM's RIP, RSP and RBP when it was interrupted or entered the kernel, and the copy of its stack from RSP on. `None` if they
    /// couldn't be read.
    pub fn program(&self) -> Option<([u64; 3], &'a [u8])> {
        let registers = [RIP, RSP, RBP].map(|offset| self.u64(offset));
        let length = usize::try_from(self.u64(STACK_LENGTH)).ok()?;
        let stack = self.0.get(STACK..STACK.checked_add(length)?)?;
        (registers[0] != 0).then_some((registers, stack))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with [`KERNEL`], [`REGISTERS`] and a stack of zeros, which claims these numbers of bytes of the kernel's frames and of the VMM's stack.
    fn record(kernel: u64, length: u64) -> Vec<u8> {
        let [rip, rsp, rbp] = REGISTERS;
        let mut bytes = vec![0; STACK];
        let numbers = [
            (KERNEL_LENGTH, kernel),
            (STACK_LENGTH, length),
            (FLAGS, HOST.cast_unsigned().into()),
            (RIP, rip),
            (RSP, rsp),
            (RBP, rbp),
        ];
        let frames = KERNEL.iter().enumerate();
        let frames = frames.map(|(index, frame)| (FRAMES + 8 * index, *frame));
        for (offset, number) in numbers.into_iter().chain(frames) {
            bytes[offset..offset + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes.extend([0; 1024]);
        bytes
    }

    const KERNEL: [u64; 2] = [0xffff_ffff_8100_0000, 0xffff_ffff_8200_0000];
    const REGISTERS: [u64; 3] = [0x1234, 0x7000, 0x7100];

    #[test]
    fn lengths_of_a_record_are_bounded_by_its_bytes() {
        let bytes = record(16, 24);
        let host = HostRecord::parse(&bytes).unwrap();
        let frames: Vec<u64> = host.kernel_frames().collect();
        assert_eq!(frames, KERNEL);
        let (registers, stack) = host.program().unwrap();
        assert_eq!((registers, stack.len()), (REGISTERS, 24));
        let bytes = record(u64::MAX, 1025);
        let host = HostRecord::parse(&bytes).unwrap();
        assert_eq!(host.kernel_frames().count(), 64);
        assert_eq!(host.program(), None);
        assert_eq!(HostRecord::parse(&bytes[..STACK - 1]), None);
    }

    #[test]
    fn a_sample_is_not_taken_for_a_host_stack() {
        let mut bytes = record(0, 0);
        bytes[FLAGS..FLAGS + 8].copy_from_slice(&0x107_u64.to_le_bytes());
        assert_eq!(HostRecord::parse(&bytes), None);
    }
}
