//! Finds what a guest is running, from a vCPU's registers and guest memory alone, without help from the guest.
//!
//! [`GuestKnowledge`] is read from the guest's image before it runs, or from the memory of a running Linux guest.
//! [`VcpuIntrospector`] applies it to one vCPU, at every tick. Everything read from a guest is untrusted: walks are
//! bounded, addresses are checked against guest memory, and implausible values become "unknown". This crate doesn't use
//! KVM: it reads memory through [`PhysicalMemory`].
//!
//! ```
//! use std::sync::Arc;
//!
//! use kvmprof_introspection::{GuestKnowledge, Registers, VcpuIntrospector};
//! use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
//!
//! // A guest without paging that keeps the current pid at address 0x2000.
//! let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x4000)]).unwrap();
//! memory.write_obj(42_u32, GuestAddress(0x2000)).unwrap();
//!
//! let knowledge = Arc::new(GuestKnowledge::from_pid_at("absolute:0x2000:4").unwrap());
//! let mut vcpu = VcpuIntrospector::new(knowledge, 0);
//! let identity = vcpu.identify(&memory, &Registers::default(), false, false);
//! assert_eq!(identity.pid, 42);
//! ```
#![forbid(unsafe_code)]

pub mod bytes;
mod code;
mod error;
mod image;
mod knowledge;
mod linux;
mod memory;
mod noted;
mod process_places;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod unwind;
mod vcpu;

pub use error::IntrospectionError;
pub use image::btf::{Btf, Structures, join as join_btf};
pub use image::{MAX_UNPACKED, Symbols, notes, unpack as unpack_kernel, unpack_archive};
pub use knowledge::GuestKnowledge;
pub use linux::{
    Area, Backing, FileIdentity, GuestProcesses, KernelPulse, KernelWatch, LinuxKnowledge,
    ListedProcess, MappedFile, ModuleOmissions, Modules, NewFunctions, ProcessFate,
    ProcessInstance, ProcessMap, ProcessOrigin, TaskReader, TaskScope, UnwinderSlot,
};
pub use memory::{AddressSpace, NotWritable, PhysicalMemory, SharedMemory, WritableMemory};
pub use noted::{PidAtError, parse as parse_pid_at};
pub use process_places::{LinearMap, ProcessPlaces, TaskPointer, ValueAt, ValueKind, ValuePlace};
pub use unwind::{OrcTable, Stack, StackCopy, UnwindCache, UnwindTable, UserUnwinder};
pub use vcpu::VcpuIntrospector;

use kvmprof_recording::{COMM_LENGTH, Mode, Preemption};

/// The part of a vCPU's state that introspection needs, from KVM's shared run page (`struct kvm_sync_regs`,
/// `Documentation/virt/kvm/api.rst`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    /// The program counter, a guest virtual address.
    pub rip: u64,
    /// The stack pointer.
    pub rsp: u64,
    /// The frame pointer, in code compiled with frame pointers.
    pub rbp: u64,
    /// RAX. Unwind tables may refer to it and to the next four registers.
    pub rax: u64,
    /// RDX.
    pub rdx: u64,
    /// RDI.
    pub rdi: u64,
    /// R10.
    pub r10: u64,
    /// R13.
    pub r13: u64,
    /// RBX. Code that waits for a lock may have the lock's address in any register. This and the following ones are 0
    /// if unknown.
    pub rbx: u64,
    /// RCX.
    pub rcx: u64,
    /// RSI.
    pub rsi: u64,
    /// R8.
    pub r8: u64,
    /// R9.
    pub r9: u64,
    /// R11.
    pub r11: u64,
    /// R12.
    pub r12: u64,
    /// R14.
    pub r14: u64,
    /// R15.
    pub r15: u64,
    /// The flags.
    pub rflags: u64,
    /// Control register 0: enables paging.
    pub cr0: u64,
    /// Control register 3: the root of the page tables.
    pub cr3: u64,
    /// Control register 4: selects 4 or 5 levels of page tables.
    pub cr4: u64,
    /// Control register 8: the task priority.
    pub cr8: u64,
    /// The extended features: enable long mode.
    pub efer: u64,
    /// The active GS base: the kernel's or a user's.
    pub gs_base: u64,
    /// The address of the interrupt descriptor table.
    pub idt_base: u64,
    /// Current privilege level, 0 to 3.
    pub cpl: u8,
    /// Whether the code segment is 64-bit (CS.L).
    pub is_64_bit_code: bool,
}

impl Registers {
    /// The general-purpose registers except the stack pointer, in no particular order.
    pub(crate) fn general(&self) -> [u64; 15] {
        [
            self.rax, self.rbx, self.rcx, self.rdx, self.rsi, self.rdi, self.rbp, self.r8, self.r9,
            self.r10, self.r11, self.r12, self.r13, self.r14, self.r15,
        ]
    }
}

/// The process and thread that a vCPU is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The mode of the vCPU.
    pub mode: Mode,
    /// Process (thread-group) id as the guest itself prints it; -1 if unknown.
    pub pid: i32,
    /// Thread id as the guest itself prints it; -1 if unknown.
    pub tid: i32,
    /// Process group id; -1 if unknown or not requested.
    pub process_group: i32,
    /// The thread's name, padded with NULs; all NUL if unknown.
    pub comm: [u8; COMM_LENGTH],
    /// Whether the guest's scheduler could preempt the code.
    pub preemption: Preemption,
}

impl Identity {
    /// An unknown process in `mode`.
    pub fn unknown(mode: Mode) -> Self {
        Self {
            mode,
            pid: -1,
            tid: -1,
            process_group: -1,
            comm: [0; COMM_LENGTH],
            preemption: Preemption::Unknown,
        }
    }

    /// An unknown process on a vCPU at privilege level `cpl`, which is in HLT if `halted`.
    pub fn at_level(cpl: u8, halted: bool) -> Self {
        Self::unknown(match (halted, cpl) {
            (true, _) => Mode::Idle,
            (false, 3) => Mode::User,
            (false, _) => Mode::Kernel,
        })
    }
}

/// `name` with all bytes after its first NUL set to NUL.
fn padded(mut name: [u8; COMM_LENGTH]) -> [u8; COMM_LENGTH] {
    let length = name
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(COMM_LENGTH);
    name[length..].fill(0);
    name
}
