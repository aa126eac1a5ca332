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

// For a file of tests that the fuzz targets have, too.
#[cfg(test)]
extern crate self as kvmprof_introspection;

mod bundle;
mod code;
mod error;
mod firmware;
mod image;
mod image_code;
mod knowledge;
mod linux;
mod noted;
mod other_guest;
mod process_places;
#[cfg(test)]
mod test_guest;
mod unwind;
mod vcpu;

pub use bundle::KernelBundle;
pub use error::IntrospectionError;
pub use firmware::Firmware;
pub use image::btf::{Btf, join as join_btf};
pub use image::types::{Missing, Structure, Types};
pub use image::{MAX_UNPACKED, Symbols, notes, unpack as unpack_kernel, unpack_archive};
pub use knowledge::GuestKnowledge;
#[cfg(feature = "kvm-bindings")]
pub use kvmprof_paging::select_registers;
pub use kvmprof_paging::{
    AddressSpace, NotWritable, PhysicalMemory, Registers, SharedMemory, WritableMemory, bytes,
};
pub use linux::{
    Area, Backing, BuildFiles, FileIdentity, GuestProcesses, KernelPulse, KernelWatch,
    LinuxKnowledge, ListedProcess, MappedFile, ModuleOmissions, Modules, NewFunctions,
    PerfMapPlace, ProcessFate, ProcessInstance, ProcessMap, ProcessOrigin, ProcessRuntime,
    ProgramFile, ReadProcesses, Runtime, TaskReader, TaskScope, UnwinderSlot, VMCOREINFO_BYTES,
    VmcoreinfoSearch, labels_of_group, recognize_runtime, release_of_file,
};
pub use noted::{PidAt, PidAtError};
pub use process_places::{
    LinearMap, ProcessPlaces, TaskMemory, TaskPointer, ValueAt, ValueKind, ValuePlace,
};
pub use unwind::{OrcTable, Stack, StackCopy, UnwindCache, UnwindTable, UserUnwinder};
pub use vcpu::VcpuIntrospector;

/// The parts of which the knowledge of a kernel is made, for fuzz targets, tests with real kernels and benchmarks.
#[doc(hidden)]
pub mod parts {
    pub use crate::code::Code;
    pub use crate::image::elf::{FileSymbol, Segment, SymbolKind};
    pub use crate::image::kallsyms::names_of_variables;
    pub use crate::image::{KernelImage, Vmlinux};
    pub use crate::linux::{
        ProcessMemory, SpaceMemory, hotspot_of_jdk_25, kernel_orc, kernel_release, kernel_symbols,
        python_of_version, v8_of_node,
    };
    pub use crate::unwind::{
        BareFrame, Base, CodeRules, Executed, KernelUnwinder, Kind, LanguageFrames, MAX_INLINED,
        OrcFormat, PagedMemory, UserRegisters,
    };
}

use kvmprof_recording::{COMM_LENGTH, Mode, Preemption};

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
    /// When the process was started, in ns of the guest's CLOCK_MONOTONIC; 0 if unknown.
    pub started: u64,
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
            started: 0,
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

/// The common value of all of `found`. `None` if there are none, or if they differ.
fn only<T: PartialEq>(mut found: impl Iterator<Item = T>) -> Option<T> {
    let first = found.next()?;
    found.all(|other| other == first).then_some(first)
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
