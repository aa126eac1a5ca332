//! The records that the program puts into the ring.

use kvmprof_introspection::bytes::{array_at, u32_at, u64_at};
use kvmprof_introspection::{ProcessPlaces, Registers, StackCopy};

/// The offset of a record's time, in ns of CLOCK_MONOTONIC. This number and each of the following ones have 8 bytes.
pub const TIME: usize = 0;
/// The guest's RIP at its last exit.
pub const RIP: usize = 8;
/// CR3, or KVM's copy of it.
pub const CR3: usize = 16;
/// The privilege level at the last exit, in the lowest byte.
pub const CPL: usize = 24;
/// A byte with a bit that is set if the code segment is 64-bit code.
pub const CODE: usize = CPL + 1;
/// `KVM_MP_STATE_*`.
pub const MP_STATE: usize = 32;
/// `kvm_vcpu_arch.regs_avail`: which registers are valid.
pub const AVAILABLE: usize = 40;
/// The record's flags: [`OWN`], [`PRIVILEGE`], [`STACKS`], [`NESTED`], [`FAULT`], [`FAULTED`], [`WAITED`], [`TASKS_ROOT`], [`FIRST_VALUE`],
/// [`READ`], [`USERFAULT`].
pub const FLAGS: usize = 48;
/// The guest-virtual address of the running task; 0 if it couldn't be read.
pub const TASK: usize = 56;
/// The code segment's base.
pub const CODE_BASE: usize = 64;
/// Why the vCPU has left the guest: the processor's reason, and by which instruction set reasons are named (`KVM_ISA_*`), in 4 bytes each. 0 in a record of the clock.
pub const EXIT: usize = 72;
/// Of a fault of guest memory: the guest-physical address; the qualification of the exit (VT-x) or the error code (SVM); and the time from the exit to the next entry.
pub const FAULT_ADDRESS: usize = 80;
/// See [`FAULT_ADDRESS`].
pub const FAULT_ERROR: usize = 88;
/// See [`FAULT_ADDRESS`].
pub const FAULT_TIME: usize = 96;
/// The values, [`VALUE`] bytes for each.
pub const VALUES: usize = 104;
/// The size of a value in the record, in bytes.
pub const VALUE: usize = 16;
/// The size of a record without stacks, in bytes. Only records with stacks have the following members.
pub const RECORD_BYTES: usize = VALUES + VALUE * ProcessPlaces::MAX;

/// The general registers, by their numbers in instructions.
pub const GENERAL: usize = RECORD_BYTES;
/// Bytes of the general registers.
pub const GENERAL_BYTES: i32 = 16 * 8;
/// The descriptions of the copies, [`COPY`] bytes for each: the guest-virtual address, and the number of bytes. The copied bytes follow
/// behind all else, without gaps.
pub const COPIES: usize = GENERAL + 16 * 8;
/// The size of a copy's description, in bytes.
pub const COPY: usize = 16;
/// The number of the copy of the stack that the guest's kernel services interrupts on.
pub const INTERRUPT: usize = 0;
/// The same number, of the copy of the stack at the frame pointer, if the stack pointer isn't known.
pub const FRAME: usize = INTERRUPT;
/// The number of the copy of the task's stack in the kernel; of the registers that are saved at its end, if the stack pointer isn't known.
pub const KERNEL: usize = 1;
/// The number of the copy of the task's stack in user mode.
pub const USER: usize = 2;
const MAX_COPIES: usize = 3;
/// The offset at which copies begin.
pub const STACK_BYTES: usize = COPIES + COPY * MAX_COPIES;

/// Numbers of general registers (`VCPU_REGS_*`).
/// The number of the stack pointer.
pub const RSP: usize = 4;
/// The number of the frame pointer.
pub const RBP: usize = 5;

/// A flag: the vCPU is the guest's.
pub const OWN: i32 = 1;
/// A flag: the privilege level and the code segment were read.
pub const PRIVILEGE: i32 = 2;
/// A flag: the record has registers, and the stacks as far as they could be copied.
pub const STACKS: i32 = 4;
/// A flag: the vCPU runs a nested guest, and the registers are those of the nested guest.
pub const NESTED: i32 = 8;
/// A flag: the record is of a fault of guest memory.
pub const FAULT: i32 = 1 << 4;
/// A flag: the vCPU's thread had faults of its own meanwhile, for which the host's kernel didn't wait.
pub const FAULTED: i32 = 1 << 5;
/// A flag: the same with a wait.
pub const WAITED: i32 = 1 << 6;
/// A flag: CR3 is that of the running task, as its kernel notes it.
pub const TASKS_ROOT: i32 = 1 << 7;
/// A flag: the first value was read. The flags of the other values follow.
pub const FIRST_VALUE: i32 = 1 << 8;

/// A flag: the thread had something read from a disk meanwhile. It is behind those of the values.
pub const READ: i32 = FIRST_VALUE << ProcessPlaces::MAX;
/// A flag: the thread asked the handler of a userfaultfd for a page meanwhile.
pub const USERFAULT: i32 = READ << 1;

/// Bits of `regs_avail`.
const RIP_AVAILABLE: u64 = 1 << crate::host_kernel::vcpu_layout::RIP;
const RSP_AVAILABLE: u64 = 1 << RSP;

/// One record. All its members are from the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a>(&'a [u8]);

impl<'a> Record<'a> {
    /// The record at the beginning of `bytes`; `None` if there are too few.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= RECORD_BYTES).then_some(Self(bytes))
    }

    pub(super) fn u64(&self, offset: usize) -> u64 {
        u64_at(self.0, offset).unwrap_or_default()
    }

    pub(super) fn has(&self, flag: i32) -> bool {
        self.u64(FLAGS) & u64::from(flag.cast_unsigned()) != 0
    }

    /// When it was made, in ns of this process's CLOCK_MONOTONIC.
    pub fn time(&self) -> u64 {
        self.u64(TIME)
    }

    /// Whether the vCPU still belongs to the guest. If it doesn't, the record's other members are invalid.
    pub fn is_own(&self) -> bool {
        self.has(OWN)
    }

    /// Whether the vCPU runs a nested guest. Then the registers and the stacks are those of the nested guest, and the values those of the guest.
    pub fn is_nested(&self) -> bool {
        self.has(NESTED)
    }

    /// The guest's program counter at its last exit; `None` if the host's kernel doesn't have it in memory.
    pub fn rip(&self) -> Option<u64> {
        (self.u64(AVAILABLE) & RIP_AVAILABLE != 0).then(|| self.u64(RIP))
    }

    /// CR3; with VT-x, where KVM has no current copy, what the running task's is by the guest's kernel, or `None` if that couldn't be read.
    pub fn cr3(&self) -> Option<u64> {
        (self.has(PRIVILEGE) || self.has(TASKS_ROOT)).then(|| self.u64(CR3))
    }

    /// The privilege level at the last exit; `None` unless [`super::RecordForm::knows_privilege`].
    pub fn cpl(&self) -> Option<u8> {
        (self.has(PRIVILEGE)).then(|| self.u64(CPL).to_le_bytes()[0] & 3)
    }

    /// The guest-virtual address of the running task, if it was read.
    pub fn task(&self) -> Option<u64> {
        Some(self.u64(TASK)).filter(|task| *task != 0)
    }

    /// The reason of the exit at which the record was made, and `KVM_ISA_*`; `None` for a record of the clock.
    pub fn exit(&self) -> Option<(u32, u32)> {
        let isa = u32_at(self.0, EXIT + 4).filter(|isa| *isa != 0)?;
        Some((u32_at(self.0, EXIT)?, isa))
    }

    /// `KVM_MP_STATE_*` (`include/uapi/linux/kvm.h`).
    pub fn mp_state(&self) -> u32 {
        let [a, b, c, d, ..] = self.u64(MP_STATE).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// The value with this index; the bytes behind its width are 0. `None` if it couldn't be read.
    pub fn value(&self, index: usize) -> Option<[u8; VALUE]> {
        let flag = u32::try_from(index)
            .ok()
            .and_then(|index| FIRST_VALUE.checked_shl(index))?;
        if index >= ProcessPlaces::MAX || !self.has(flag) {
            return None;
        }
        array_at(self.0, VALUES + index * VALUE)
    }

    /// Sets the general registers, with VT-x to 0 the stack pointer, of which KVM has no current copy. `None` for a record without stacks, and if the host's kernel
    /// didn't have the stack pointer in memory, or with VT-x CR3.
    pub fn fill_general(&self, registers: &mut Registers) -> Option<()> {
        let has_pointer = self.has(PRIVILEGE);
        let has_stacks = match has_pointer {
            true => self.u64(AVAILABLE) & RSP_AVAILABLE != 0,
            false => self.has(TASKS_ROOT),
        };
        (self.has(STACKS) && has_stacks).then_some(())?;
        let general = |number: usize| u64_at(self.0, GENERAL + 8 * number);
        let places = [
            &mut registers.rax,
            &mut registers.rcx,
            &mut registers.rdx,
            &mut registers.rbx,
            &mut registers.rsp,
            &mut registers.rbp,
            &mut registers.rsi,
            &mut registers.rdi,
            &mut registers.r8,
            &mut registers.r9,
            &mut registers.r10,
            &mut registers.r11,
            &mut registers.r12,
            &mut registers.r13,
            &mut registers.r14,
            &mut registers.r15,
        ];
        for (number, place) in places.into_iter().enumerate() {
            *place = general(number)?;
        }
        if !has_pointer {
            registers.rsp = 0;
        }
        Some(())
    }

    /// Whether the code segment is 64-bit code, by the bit in `mask`; false unless [`super::RecordForm::knows_privilege`].
    pub fn is_64_bit_code(&self, mask: u8) -> bool {
        self.has(PRIVILEGE) && self.0.get(CODE).is_some_and(|byte| byte & mask != 0)
    }

    /// The number that makes RIP a linear address: the code segment's base, which only 64-bit code ignores, as in real mode. `mask` is that of
    /// [`Self::is_64_bit_code`]. 0 unless [`super::RecordForm::knows_privilege`].
    pub fn code_base(&self, mask: u8) -> u64 {
        match self.has(PRIVILEGE) && !self.is_64_bit_code(mask) {
            true => self.u64(CODE_BASE),
            false => 0,
        }
    }

    /// The copies of the stacks, by their numbers: [`INTERRUPT`] and so on. A stack that wasn't copied is empty.
    pub fn copies(&self) -> [StackCopy<'a>; MAX_COPIES] {
        let mut rest = self.0.get(STACK_BYTES..).unwrap_or_default();
        [INTERRUPT, KERNEL, USER].map(|index| {
            let place = COPIES + COPY * index;
            let length = match self.has(STACKS) {
                true => usize::try_from(self.u64(place + 8)).unwrap_or(usize::MAX),
                false => 0,
            };
            // A record that was cut short lacks all of the copy that didn't fit.
            let (bytes, behind) = rest.split_at_checked(length).unwrap_or_default();
            rest = behind;
            StackCopy {
                address: self.u64(place),
                bytes,
            }
        })
    }
}
