//! Reads processes and their guests from the memory of the host's kernel.
//!
//! Nothing is locked: the kernel may change or free what is being read. Each walk is bounded, and a walk that finds nothing
//! returns `None`. Callers have to check that a result is plausible.

mod error;
mod layout;
pub(crate) mod vcpu_layout;

use std::fs;
use std::io;

pub use error::HostKernelError;
pub(crate) use layout::{Layout, SlotLayout, SlotOrder};

use kvmprof_introspection::{Btf, Types, join_btf};

use crate::KernelMemory;
use vcpu_layout::VcpuLayout;

/// The files with the types of the kernel, of KVM if it is a module, and of KVM's module for SVM.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
const KVM_TYPES: &str = "/sys/kernel/btf/kvm";
const SVM_TYPES: &str = "/sys/kernel/btf/kvm_amd";

/// The maximum number of levels of pid namespaces (`MAX_PID_NS_LEVEL`, `kernel/pid_namespace.c`).
const MAX_LEVEL: u32 = 32;
/// The maximum depth of an xarray with indices of 32 bits.
const MAX_TREE: usize = 16;
/// The low bits of an entry of an xarray, and their value if the entry is the address of a node (`xa_is_internal`, `include/linux/xarray.h`).
const NODE_MASK: u64 = 3;
const NODE: u64 = 2;

/// The memory of the host's kernel, with the layout of its structures. Threads can share it.
#[derive(Debug)]
pub struct HostKernel {
    memory: KernelMemory,
    layout: Layout,
    /// An error matters only to sampling.
    vcpu_layout: Result<VcpuLayout, HostKernelError>,
    /// The pid namespace of this process, and its level.
    namespace: u64,
    level: u32,
}

/// A process in the kernel's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    /// The `struct task_struct` of its main thread.
    task: u64,
    /// The `struct mm_struct` of its address space.
    pub mm: u64,
    /// Its id as all of the host has it: eBPF programs are told that one.
    pub id: i32,
}

impl HostKernel {
    /// Loads the eBPF program that reads the kernel's memory, and finds the offsets of all members that are read. This takes about 10 ms.
    ///
    /// # Errors
    /// The kernel has no eBPF, this process may not use it, or this version doesn't support the kernel.
    pub fn open() -> Result<Self, HostKernelError> {
        let memory = KernelMemory::open()?;
        let types = types()?;
        let types = Types::Btf(Btf::parse(&types)?);
        let mut kernel = Self {
            memory,
            layout: Layout::find(&types)?,
            vcpu_layout: VcpuLayout::find(&types),
            namespace: 0,
            level: 0,
        };
        (kernel.namespace, kernel.level) = kernel
            .own_namespace()
            .ok_or(HostKernelError::Implausible("this thread isn't found"))?;
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        kernel.process(own).ok_or(HostKernelError::Implausible(
            "this process isn't found by its pid",
        ))?;
        Ok(kernel)
    }

    /// The kernel's memory.
    pub fn memory(&self) -> &KernelMemory {
        &self.memory
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The offsets of a vCPU's registers, or why they aren't known.
    pub(crate) fn vcpu_layout(&self) -> Result<&VcpuLayout, &HostKernelError> {
        self.vcpu_layout.as_ref()
    }

    /// The calling thread's pid namespace and the namespace's level, checked by the thread id.
    fn own_namespace(&self) -> Option<(u64, u32)> {
        let layout = &self.layout.task;
        let task = self.memory.own_task().ok()?;
        let pid = self.memory.pointer(task, layout.thread_pid)?;
        let level = self.memory.u32(pid, layout.level)?;
        let entry = self.number_entry(pid, level)?;
        let number = self.memory.u32(entry, layout.number)?;
        let namespace = self.memory.pointer(entry, layout.namespace)?;
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        (number == own.cast_unsigned()).then_some((namespace, level))
    }

    fn number_entry(&self, pid: u64, level: u32) -> Option<u64> {
        let layout = &self.layout.task;
        let offset = u64::from(level) * layout.number_size;
        (level <= MAX_LEVEL).then_some(())?;
        pid.checked_add(layout.numbers)?.checked_add(offset)
    }

    /// The number of the `struct pid` at `pid` in this process's namespace.
    fn number(&self, pid: u64) -> Option<i32> {
        let layout = &self.layout.task;
        let level = self.memory.u32(pid, layout.level)?;
        (level >= self.level).then_some(())?;
        let entry = self.number_entry(pid, self.level)?;
        let namespace = self.memory.pointer(entry, layout.namespace)?;
        (namespace == self.namespace).then_some(())?;
        let number = self.memory.u32(entry, layout.number)?;
        i32::try_from(number).ok().filter(|number| *number > 0)
    }

    /// The process with this pid. `None` if it doesn't exist, has ended or has no address space.
    pub(crate) fn process(&self, pid: i32) -> Option<Process> {
        let layout = &self.layout.task;
        let structure = self.pid_structure(pid)?;
        (self.number(structure)? == pid).then_some(())?;
        let link = self.memory.pointer(structure, layout.processes)?;
        let task = link.checked_sub(layout.process_link)?;
        let own_pid = self.memory.pointer(task, layout.thread_pid)?;
        (own_pid == structure).then_some(())?;
        let mm = self.memory.pointer(task, layout.mm)?;
        let of_all = self.number_entry(structure, 0)?;
        let id = self.memory.u32(of_all, self.layout.task.number)?;
        let id = i32::try_from(id).ok()?;
        Some(Process { task, mm, id })
    }

    /// The `struct pid` with this number, from the namespace's tree (`xas_load`, `lib/xarray.c`).
    fn pid_structure(&self, pid: i32) -> Option<u64> {
        let layout = &self.layout.pids;
        let index = u64::try_from(pid).ok()?;
        let mut entry = self.memory.pointer(self.namespace, layout.root)?;
        for _ in 0..MAX_TREE {
            if entry & NODE_MASK != NODE {
                return (entry & NODE_MASK == 0).then_some(entry);
            }
            let node = entry - NODE;
            let shift = self.memory.byte(node, layout.shift)?;
            let slot = index.checked_shr(shift.into())? & (layout.slot_count - 1);
            let slots = node.checked_add(layout.slots)?;
            entry = self.memory.pointer(slots, slot * 8)?;
        }
        None
    }

    /// `private_data` of the file with this descriptor: the `struct kvm` of a KVM guest, or the `struct kvm_vcpu` of a vCPU.
    pub(crate) fn private_data(&self, process: Process, descriptor: i32) -> Option<u64> {
        let layout = &self.layout.files;
        let files = self.memory.pointer(process.task, self.layout.task.files)?;
        let table = self.memory.pointer(files, layout.table)?;
        let max = self.memory.u32(table, layout.max)?;
        let descriptor = u32::try_from(descriptor).ok().filter(|it| *it < max)?;
        let all = self.memory.pointer(table, layout.files)?;
        let file = self.memory.pointer(all, u64::from(descriptor) * 8)?;
        self.memory.pointer(file, layout.private_data)
    }

    /// The `struct mm_struct` of the process that has made the guest at `kvm`.
    pub(crate) fn mm_of(&self, kvm: u64) -> Option<u64> {
        self.memory.pointer(kvm, self.layout.kvm.mm)
    }

    /// The type of the guest at `kvm`, `KVM_X86_*_VM` (`arch/x86/include/uapi/asm/kvm.h`): 0 is an ordinary guest. `None` if
    /// the kernel has no types of guests.
    pub(crate) fn vm_type(&self, kvm: u64) -> Option<u8> {
        self.memory.byte(kvm, self.layout.kvm.vm_type?)
    }

    /// The guest of the vCPU at `vcpu`. `None` if the vCPU's index isn't `index`.
    pub(crate) fn guest_of(&self, vcpu: u64, index: u32) -> Option<u64> {
        let layout = &self.layout.kvm;
        let found = self.memory.u32(vcpu, layout.vcpu_id)?;
        (found == index).then_some(())?;
        self.memory.pointer(vcpu, layout.vcpu_kvm)
    }

    /// The number of vCPUs of the guest at `kvm`.
    pub(crate) fn vcpu_count(&self, kvm: u64) -> Option<u32> {
        self.memory.u32(kvm, self.layout.kvm.vcpu_count?)
    }

    /// The number of the vCPU at `vcpu`, and the id of the thread that ran it last, as all of the host has it. `None` if the vCPU hasn't run yet.
    pub(crate) fn index_and_thread_of(&self, vcpu: u64) -> Option<(u32, u32)> {
        let layout = &self.layout;
        let index = self.memory.u32(vcpu, layout.kvm.vcpu_id)?;
        let pid = self.memory.pointer(vcpu, layout.kvm.vcpu_pid)?;
        let entry = self.number_entry(pid, 0)?;
        let thread = self.memory.u32(entry, layout.task.number)?;
        Some((index, thread))
    }

    /// The id of the thread that ran the vCPU at `vcpu` last. `None` if the vCPU hasn't run yet.
    pub(crate) fn thread_of(&self, vcpu: u64) -> Option<i32> {
        self.number(self.memory.pointer(vcpu, self.layout.kvm.vcpu_pid)?)
    }
}

/// The BTF of the kernel, with that of KVM if KVM is a module.
pub(crate) fn types() -> Result<Vec<u8>, HostKernelError> {
    types_with(KVM_TYPES)
}

/// The BTF of the kernel, with that of KVM's module for SVM if there is one.
pub(crate) fn svm_types() -> Result<Vec<u8>, HostKernelError> {
    types_with(SVM_TYPES)
}

fn types_with(module: &'static str) -> Result<Vec<u8>, HostKernelError> {
    let base = fs::read(KERNEL_TYPES).map_err(|error| HostKernelError::NoTypes {
        path: KERNEL_TYPES,
        error,
    })?;
    match fs::read(module) {
        Ok(split) => Ok(join_btf(&base, &split)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(base),
        Err(error) => Err(HostKernelError::NoTypes {
            path: module,
            error,
        }),
    }
}
