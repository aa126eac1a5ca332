//! The registers of user code, by their numbers in unwind information (System V ABI for x86-64, figure 3.36).

use crate::Registers;

/// Numbers of registers.
pub(super) mod number {
    pub const RAX: u16 = 0;
    pub const RDX: u16 = 1;
    pub const RCX: u16 = 2;
    pub const RBX: u16 = 3;
    pub const RSI: u16 = 4;
    pub const RDI: u16 = 5;
    pub const RBP: u16 = 6;
    pub const RSP: u16 = 7;
    pub const R8: u16 = 8;
    pub const R12: u16 = 12;
    pub const R13: u16 = 13;
    pub const R15: u16 = 15;
    /// The return address.
    pub const RA: u16 = 16;
}

/// The number of general registers.
pub(super) const GENERAL: usize = 16;

/// The registers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameRegisters {
    /// The program counter: the next instruction, or a return address.
    pub ip: u64,
    /// The stack pointer; 0 if it isn't known, which only an innermost frame's can be.
    pub sp: u64,
    /// The others, if they are known.
    pub others: [Option<u64>; GENERAL],
    /// Whether a frame pointer has led here, and not rules alone.
    pub is_assumed: bool,
}

impl FrameRegisters {
    /// The registers of a frame of which only these are known.
    pub fn new(ip: u64, sp: u64, bp: Option<u64>) -> Self {
        let mut registers = Self {
            ip,
            sp,
            others: [None; GENERAL],
            is_assumed: false,
        };
        registers.set(number::RBP, bp);
        registers
    }

    /// The frame pointer, if the code has one and it is known.
    pub fn bp(&self) -> Option<u64> {
        self.get(number::RBP)
    }

    /// The value of register `register`, if it is known.
    pub fn get(&self, register: u16) -> Option<u64> {
        match register {
            number::RSP => Some(self.sp).filter(|sp| *sp != 0),
            number::RA => Some(self.ip),
            _ => *self.others.get(usize::from(register))?,
        }
    }

    /// Sets a register other than the program counter and the stack pointer.
    pub fn set(&mut self, register: u16, value: Option<u64>) {
        if let Some(place) = self.others.get_mut(usize::from(register)) {
            *place = value;
        }
    }

    /// The registers as a function's caller has them, if the function leaves them unchanged: those that functions must
    /// preserve, without the program counter and the stack pointer (System V ABI, figure 3.4).
    pub fn preserved(&self) -> [Option<u64>; GENERAL] {
        let mut others = [None; GENERAL];
        for register in [number::RBX, number::RBP]
            .into_iter()
            .chain(number::R12..=number::R15)
        {
            if let Some(place) = others.get_mut(usize::from(register)) {
                *place = self.get(register);
            }
        }
        others
    }

    /// The registers of this function's caller, found by rules.
    pub fn caller(&self, ip: u64, sp: u64, others: [Option<u64>; GENERAL]) -> Self {
        Self {
            ip,
            sp,
            others,
            is_assumed: self.is_assumed,
        }
    }

    /// The same registers, found by a frame pointer.
    #[must_use]
    pub fn assumed(self) -> Self {
        Self {
            is_assumed: true,
            ..self
        }
    }
}

/// The registers that a walk of a user stack starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRegisters {
    pub(super) at: FrameRegisters,
    /// Whether the program counter is that of the next instruction. Otherwise it is behind the instruction SYSCALL,
    /// which the kernel is executing.
    pub(super) is_exact: bool,
    /// Whether the code is 64-bit code.
    pub(super) is_64_bit: bool,
}

impl UserRegisters {
    /// The registers of a vCPU in user mode.
    pub fn new(registers: &Registers) -> Self {
        let mut at = FrameRegisters::new(registers.rip, registers.rsp, Some(registers.rbp));
        let numbered = [
            (number::RAX, registers.rax),
            (number::RDX, registers.rdx),
            (number::RCX, registers.rcx),
            (number::RBX, registers.rbx),
            (number::RSI, registers.rsi),
            (number::RDI, registers.rdi),
        ];
        let later = [
            registers.r8,
            registers.r9,
            registers.r10,
            registers.r11,
            registers.r12,
            registers.r13,
            registers.r14,
            registers.r15,
        ];
        for (register, value) in numbered.into_iter().chain((number::R8..).zip(later)) {
            at.set(register, Some(value));
        }
        Self {
            at,
            is_exact: true,
            is_64_bit: registers.is_64_bit_code,
        }
    }

    /// Registers of 64-bit code of which only these are known.
    #[cfg(test)]
    pub fn at(ip: u64, sp: u64, bp: u64) -> Self {
        Self {
            at: FrameRegisters::new(ip, sp, Some(bp)),
            is_exact: true,
            is_64_bit: true,
        }
    }
}
