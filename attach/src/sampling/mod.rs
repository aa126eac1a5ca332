//! Samples of vCPUs that the host's kernel takes. A small eBPF program runs on each clock event of the vCPU's thread, or at one of every N of its exits, and puts
//! one record for each tick into the ring of another event.
//!
//! The program runs in the clock's interrupt, or where KVM has saved the guest's registers at an exit, so the vCPU stands still meanwhile, and `current` is its thread. The program reads
//! the registers that KVM keeps in memory. It reads the running process and thread from guest memory, through the VMM's mapping. Their
//! addresses were found before, and are constants of the program.

pub(crate) mod assembly;
pub(crate) mod error;
mod host;
pub(crate) mod program;
pub mod record;
mod stacks;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub(crate) mod time_namespace;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use error::SamplingError;
pub use host::HostRecord;
pub use record::{RECORD_BYTES, Record};

use kvmprof_introspection::{ProcessPlaces, ValueAt};
use kvmprof_recording::StackParts;

use crate::host_kernel::vcpu_layout::{State, VcpuLayout, vmcb};
use crate::kernel_memory::bpf;
use crate::tracepoint::ExitTracepoint;
use crate::{AttachedMemory, HostKernel, HostStacks, Slots};
use assembly::Range;
use program::{Plan, Read, SampledExits, Source};
use stacks::{LinuxStacks, Stacks};

/// Maximum number of parts of guest memory in which tasks are searched. A guest has one below 4 GiB, one above, and its kernel's
/// image.
const MAX_RANGES: usize = 8;
/// Minimum size of a slot with memory, in bytes: smaller slots are firmware and devices.
const MIN_SLOT: u64 = 1 << 20;
/// Maximum number of bytes that are copied of each stack. A kernel's stack has 16 KiB, and usually a tenth of it is in use.
const STACK_BYTES: i32 = 4096;
/// CR4.LA57: 5 levels of page tables.
const LA57: u64 = 1 << 12;

/// The longest record of a sample.
pub const MAX_SAMPLE_BYTES: usize = record::STACK_BYTES + stacks::MOST * STACK_BYTES as usize;

/// Makes programs for the vCPUs of one guest.
#[derive(Debug)]
pub struct SamplingHost {
    kernel: Arc<HostKernel>,
    /// The guest's VMM.
    pid: i32,
    /// `struct kvm`.
    kvm: u64,
    layout: VcpuLayout,
    /// This process's CLOCK_MONOTONIC minus the host's, in ns modulo 2^64.
    time_offset: u64,
    /// Whether samples have host stacks.
    takes_host_stacks: bool,
    /// Where exits are sampled; `None` if they can't be.
    exits: Option<ExitTracepoint>,
}

/// The form of the records, for a reader of records that another process has the kernel take.
#[derive(Clone, Debug)]
pub struct RecordForm {
    state: State,
    takes_host_stacks: bool,
    host_stacks: Option<Arc<HostStacks>>,
}

/// A program for one vCPU. Once it is set on an event, it lives as long as the event.
#[derive(Debug)]
pub struct SamplingProgram {
    program: OwnedFd,
    /// The array with the event that records go to. The kernel removes the entry when this descriptor is closed.
    outputs: OwnedFd,
    /// The map in whose value the program builds a record.
    record: OwnedFd,
    host_record: Option<OwnedFd>,
    /// The map in whose value the program counts exits.
    exits: Option<OwnedFd>,
}

impl SamplingHost {
    /// Makes programs for the guest whose memory is `memory`.
    ///
    /// # Errors
    /// This version doesn't support the host's kernel.
    pub fn attached(memory: &AttachedMemory) -> Result<Self, SamplingError> {
        let kernel = Arc::clone(memory.kernel());
        Self::new(kernel, memory.machine().pid, memory.kvm())
    }

    /// Makes programs for the guest of kvmprof's process `pid` behind its descriptor `vm`.
    ///
    /// # Errors
    /// This version doesn't support the host's kernel.
    pub fn own(kernel: Arc<HostKernel>, pid: i32, vm: i32) -> Result<Self, SamplingError> {
        let process = kernel.process(pid);
        let kvm = process.and_then(|process| {
            let kvm = kernel.private_data(process, vm)?;
            (kernel.mm_of(kvm)? == process.mm).then_some(kvm)
        });
        let mut host = Self::new(kernel, pid, kvm.ok_or(SamplingError::NoGuest)?)?;
        // kvmprof's own guests have neither VT-x nor SVM.
        host.layout.nested = None;
        Ok(host)
    }

    fn new(kernel: Arc<HostKernel>, pid: i32, kvm: u64) -> Result<Self, SamplingError> {
        Ok(Self {
            layout: *vcpu_layout(&kernel)?,
            kernel,
            pid,
            kvm,
            time_offset: time_namespace::monotonic_offset(),
            takes_host_stacks: false,
            exits: None,
        })
    }

    /// Samples exits, too, if KVM passes this tracepoint.
    #[must_use]
    pub fn with_exits(self, exits: Option<ExitTracepoint>) -> Self {
        Self { exits, ..self }
    }

    /// Perf's number of the tracepoint of exits.
    ///
    /// # Errors
    /// Exits aren't sampled.
    pub fn exit_tracepoint(&self) -> Result<u64, SamplingError> {
        let exits = self.exits.as_ref().ok_or(SamplingError::NoExits)?;
        Ok(exits.tracepoint.id)
    }

    /// If so, a record of the host's stack precedes each sample with stacks whose tick didn't interrupt the guest.
    #[must_use]
    pub fn with_records_of_host_stacks(self, takes_host_stacks: bool) -> Self {
        Self {
            takes_host_stacks,
            ..self
        }
    }

    /// The form of the records that the programs write.
    pub fn form(&self) -> RecordForm {
        RecordForm {
            state: self.layout.state,
            takes_host_stacks: self.takes_host_stacks,
            host_stacks: None,
        }
    }

    /// Loads the program for the vCPU behind `descriptor` of the guest's VMM, which has guest memory at `slots`. The program writes to
    /// `output`, an event of type `PERF_COUNT_SW_BPF_OUTPUT` on the vCPU's thread. It is for a perf event, or, with a number `exits`, for the tracepoint of exits:
    /// then it samples one of so many, without the host's stack, which is always the same there. Records have the values of `places`, in the same
    /// order, or only registers if `places` is `None`. They have these parts of `stacks`, of guests other than Linux the stack that is
    /// in use, if the host's kernel has the stack pointer in memory.
    ///
    /// # Errors
    /// The VMM has closed the vCPU, or the host's kernel refuses the program.
    pub fn program(
        &self,
        slots: &Slots,
        descriptor: i32,
        places: Option<&ProcessPlaces>,
        stacks: StackParts,
        exits: Option<u64>,
        output: BorrowedFd<'_>,
    ) -> Result<SamplingProgram, SamplingError> {
        let vcpu = self.vcpu(descriptor)?;
        let has_stacks = stacks != StackParts::default();
        let takes_host_stacks = self.takes_host_stacks && has_stacks && exits.is_none();
        let outputs = bpf::create_event_array().map_err(error::refused)?;
        bpf::set_event(&outputs, output).map_err(error::refused)?;
        let linux = places.filter(|places| places.is_linux).map(|places| {
            let interrupt_stack = places.interrupt_stack;
            LinuxStacks {
                user: stacks.user,
                interrupt_stack: interrupt_stack.and_then(|at| host_address(slots, at.0, 8)),
            }
        });
        let mut plan = Plan {
            vcpu,
            kvm: self.kvm,
            has_nested_paging: self.has_nested_paging(vcpu),
            outputs: outputs.as_raw_fd(),
            record: -1,
            pointer: places.and_then(|places| pointer(places, slots)),
            reads: places.map_or_else(Vec::new, |places| reads(places, slots)),
            stacks: self.stacks(vcpu, stacks, linux, slots),
            host_record: None,
            exits: None,
            time_offset: self.time_offset,
        };
        let record = bpf::create_map(plan.room()).map_err(error::refused)?;
        plan.record = record.as_raw_fd();
        let host_record = takes_host_stacks
            .then(|| bpf::create_map(host::MAX_HOST_RECORD_BYTES).map_err(error::refused))
            .transpose()?;
        plan.host_record = host_record.as_ref().map(AsRawFd::as_raw_fd);
        let count = exits
            .map(|_| bpf::create_map(size_of::<u64>()).map_err(error::refused))
            .transpose()?;
        if let (Some(period), Some(count)) = (exits, &count) {
            plan.exits = Some(self.sampled_exits(vcpu, period, count)?);
        }
        let program = bpf::load_for(plan.trigger(), &program::instructions(&self.layout, &plan))?;
        Ok(SamplingProgram {
            program,
            outputs,
            record,
            host_record,
            exits: count,
        })
    }

    /// One of `period` exits of the `struct kvm_vcpu` at `vcpu`, which a program counts in the map `count`.
    fn sampled_exits(
        &self,
        vcpu: u64,
        period: u64,
        count: &OwnedFd,
    ) -> Result<SampledExits, SamplingError> {
        let exits = self.exits.as_ref().ok_or(SamplingError::NoExits)?;
        let found = self.kernel.index_and_thread_of(vcpu);
        let (index, thread) = found.ok_or(SamplingError::NoVcpu)?;
        Ok(SampledExits {
            thread,
            vcpu: index,
            period,
            count: count.as_raw_fd(),
            members: exits.members,
        })
    }

    /// The stacks to copy; `None` if none are wanted, or the stack pointer isn't in memory.
    fn stacks(
        &self,
        vcpu: u64,
        parts: StackParts,
        linux: Option<LinuxStacks>,
        slots: &Slots,
    ) -> Option<Stacks> {
        let is_wanted = parts != StackParts::default() && self.form().knows_privilege();
        is_wanted.then_some(())?;
        let cr4 = self.kernel.memory().u64(vcpu, self.layout.cr4)?;
        Some(Stacks {
            bytes: STACK_BYTES,
            linux,
            levels: if cr4 & LA57 == 0 { 4 } else { 5 },
            memory: physical_memory(slots),
        })
    }

    fn has_nested_paging(&self, vcpu: u64) -> bool {
        let State::Svm { vmcb } = self.layout.state else {
            return false;
        };
        let control = || {
            let memory = self.kernel.memory();
            let vmcb = memory.pointer(vcpu, vmcb)?;
            memory.u32(vmcb, vmcb::NESTED_CONTROL)
        };
        control().is_some_and(|control| control & 1 == 1)
    }

    /// The `struct kvm_vcpu` behind `descriptor`.
    fn vcpu(&self, descriptor: i32) -> Result<u64, SamplingError> {
        let kernel = &self.kernel;
        let process = kernel.process(self.pid);
        let vcpu = process.and_then(|process| kernel.private_data(process, descriptor));
        let of_guest = |vcpu: &u64| {
            (kernel.memory().pointer(*vcpu, self.layout.kvm)? == self.kvm).then_some(())
        };
        vcpu.filter(|vcpu| of_guest(vcpu).is_some())
            .ok_or(SamplingError::NoVcpu)
    }
}

impl RecordForm {
    /// The form on this host, without records of the host's stacks.
    ///
    /// # Errors
    /// This version doesn't support the host's kernel.
    pub fn of(kernel: &HostKernel) -> Result<Self, SamplingError> {
        Ok(Self {
            state: vcpu_layout(kernel)?.state,
            takes_host_stacks: false,
            host_stacks: None,
        })
    }

    /// The same records, and if `stacks` has the host's functions those of the stacks of the guest's VMM, with these as their reader.
    #[must_use]
    pub fn with_host_stacks(self, stacks: Option<Arc<HostStacks>>) -> Self {
        Self {
            takes_host_stacks: stacks.as_ref().is_some_and(|stacks| stacks.has_functions()),
            host_stacks: stacks,
            ..self
        }
    }

    /// The reader for records of the host's stacks, and the names of exits; `None` if there is neither.
    pub fn host_stacks(&self) -> Option<&HostStacks> {
        self.host_stacks.as_deref()
    }

    /// Whether a record of the host's stack can precede a sample's.
    pub fn takes_host_stacks(&self) -> bool {
        self.takes_host_stacks
    }

    /// Maximum length of the records of one tick, in bytes, with these parts of stacks.
    pub fn max_record_bytes(&self, stacks: StackParts) -> usize {
        if stacks == StackParts::default() {
            return RECORD_BYTES;
        }
        let host = usize::from(self.takes_host_stacks) * host::MAX_HOST_RECORD_BYTES;
        MAX_SAMPLE_BYTES + host
    }

    /// Whether every record has the vCPU's privilege level. Without it, only addresses show a guest's mode, and only those of Linux distinguish
    /// the kernel from programs.
    pub fn knows_privilege(&self) -> bool {
        self.state != State::Unknown
    }

    /// The bit of a record that is set if the code segment is 64-bit code.
    pub fn long_mask(&self) -> u8 {
        self.state.long_mask()
    }
}

impl AsFd for SamplingProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

impl SamplingProgram {
    /// The files that have to stay open while the program is used.
    pub fn into_files(self) -> Vec<OwnedFd> {
        let files = [self.program, self.outputs, self.record];
        let optional = self.host_record.into_iter().chain(self.exits);
        files.into_iter().chain(optional).collect()
    }
}

fn vcpu_layout(kernel: &HostKernel) -> Result<&VcpuLayout, SamplingError> {
    let layout = kernel.vcpu_layout();
    layout.map_err(|error| SamplingError::Layout(error.to_string()))
}

/// The VMM's address for guest-physical `address`.
fn host_address(slots: &Slots, address: u64, bytes: u64) -> Option<u64> {
    let slot = slots.find(vm_memory::GuestAddress(address))?;
    let within = address.checked_sub(slot.address.0)?;
    (within.checked_add(bytes)? <= slot.bytes).then_some(())?;
    slot.host_address.checked_add(within)
}

/// The largest parts of guest memory, by physical address.
fn physical_memory(slots: &Slots) -> Vec<Range> {
    let mut memory: Vec<Range> = slots
        .iter()
        .filter(|slot| slot.bytes >= MIN_SLOT && !slot.is_read_only)
        .map(|slot| Range {
            guest: slot.address.0,
            bytes: slot.bytes,
            host: slot.host_address,
        })
        .collect();
    memory.sort_by_key(|range| std::cmp::Reverse(range.bytes));
    memory.truncate(MAX_RANGES);
    memory
}

/// Where the VMM has the pointer to the running task, and the memory that it can point to.
pub(crate) fn pointer(places: &ProcessPlaces, slots: &Slots) -> Option<program::Pointer> {
    let task = places.task.as_ref()?;
    let mut ranges = Vec::new();
    for map in &task.maps {
        let end = map.physical.0.saturating_add(map.bytes);
        for slot in slots.iter().filter(|slot| slot.bytes >= MIN_SLOT) {
            let first = slot.address.0.max(map.physical.0);
            let bytes = slot.end().min(end).saturating_sub(first);
            let host = host_address(slots, first, bytes);
            let guest = map
                .address
                .checked_add(first.saturating_sub(map.physical.0));
            if let (1.., Some(host), Some(guest)) = (bytes, host, guest) {
                ranges.push(Range { guest, bytes, host });
            }
        }
    }
    ranges.truncate(MAX_RANGES);
    let at = host_address(slots, task.at.0, 8)?;
    Some(program::Pointer { at, ranges })
}

/// Where the VMM has the values of `places`.
pub(crate) fn reads(places: &ProcessPlaces, slots: &Slots) -> Vec<Read> {
    let values = places.values.iter().take(ProcessPlaces::MAX);
    let read = |(index, value): (usize, &kvmprof_introspection::ValuePlace)| {
        let source = match value.at {
            ValueAt::Physical(at) => Source::Host(host_address(slots, at.0, value.width.into())?),
            ValueAt::Task(offset) => Source::Pointer(i32::try_from(offset).ok()?),
        };
        Some(Read {
            index,
            source,
            bytes: value.width.min(16),
        })
    };
    values.enumerate().filter_map(read).collect()
}

#[cfg(test)]
mod stack_tests;
#[cfg(test)]
mod tests;
