//! Samples of vCPUs that the host's kernel takes. A small eBPF program runs on each clock event of the vCPU's thread, or at one of every N of its exits or of its faults of
//! guest memory, and puts one record for each tick into the ring of another event.
//!
//! The program runs in the clock's interrupt, or where KVM has saved the guest's registers at an exit, so the vCPU stands still meanwhile, and `current` is its thread. The program reads
//! the registers that KVM keeps in memory. It reads the running process and thread from guest memory, through the VMM's mapping. Their
//! addresses were found before, and are constants of the program.

pub(crate) mod assembly;
pub(crate) mod error;
pub(crate) mod faults;
mod host;
mod places;
pub(crate) mod program;
pub mod record;
mod stacks;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub(crate) mod time_namespace;

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use error::SamplingError;
pub use host::HostRecord;
pub(crate) use places::{pointer, reads};
pub use record::{RECORD_BYTES, Record};

use kvmprof_introspection::ProcessPlaces;
use kvmprof_recording::StackParts;

use crate::host_kernel::vcpu_layout::{State, VcpuLayout, vmcb};
use crate::kernel_memory::bpf::{self, Trigger};
use crate::tracepoint::{ExitTracepoint, FaultTracepoints, Tracepoint};
use crate::{AttachedMemory, HostKernel, HostStacks, Slots};
use faults::SampledFaults;
use places::{host_address, physical_memory};
use program::{Plan, Pointer, Sampled, SampledExits};
use stacks::{LinuxStacks, Stacks};

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
    /// Where faults of guest memory are sampled, besides; `None` if they can't be.
    faults: Option<FaultTracepoints>,
}

/// What a sample is taken at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// An event of perf.
    Event,
    /// The last one of so many exits of the vCPU to KVM.
    Exits(u64),
    /// The last one of so many faults of guest memory.
    Faults(u64),
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
    /// The map in whose value the program counts exits or faults.
    count: Option<OwnedFd>,
    /// Perf's number of the tracepoint that runs the program; `None` if that is an event.
    tracepoint: Option<u64>,
    /// The programs that it needs elsewhere.
    others: Vec<(Probe, OwnedFd)>,
}

/// What runs one more program of a sampled vCPU. All threads that come there run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The tracepoint that perf knows by this number.
    Tracepoint(u64),
    /// The begin of the function `name` of the host's kernel, by an event of perf's type number `kind`. A host without it needs no program there.
    Function {
        /// Perf's number.
        kind: u32,
        /// The function.
        name: &'static CStr,
    },
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
            faults: None,
        })
    }

    /// Samples exits, too, if KVM passes this tracepoint.
    #[must_use]
    pub fn with_exits(self, exits: Option<ExitTracepoint>) -> Self {
        Self { exits, ..self }
    }

    /// Samples faults of guest memory, too, if KVM passes these tracepoints, and that of exits.
    #[must_use]
    pub fn with_faults(self, faults: Option<FaultTracepoints>) -> Self {
        Self { faults, ..self }
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
    /// `output`, an event of type `PERF_COUNT_SW_BPF_OUTPUT` on the vCPU's thread. Samples at exits and faults are without the host's stack, which is always the same there. Records have the values of `places`, in the same
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
        occasion: Occasion,
        output: BorrowedFd<'_>,
    ) -> Result<SamplingProgram, SamplingError> {
        let vcpu = self.vcpu(descriptor)?;
        let has_stacks = stacks != StackParts::default();
        let takes_host_stacks = self.takes_host_stacks && has_stacks && occasion == Occasion::Event;
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
            pointer: places.and_then(|places| self.pointer(places, slots)),
            reads: places.map_or_else(Vec::new, |places| reads(places, slots)),
            stacks: self.stacks(vcpu, stacks, linux, slots),
            host_record: None,
            sampled: Sampled::Ticks,
            time_offset: self.time_offset,
        };
        let record = bpf::create_map(plan.room()).map_err(error::refused)?;
        plan.record = record.as_raw_fd();
        let host_record = takes_host_stacks
            .then(|| bpf::create_map(host::MAX_HOST_RECORD_BYTES).map_err(error::refused))
            .transpose()?;
        plan.host_record = host_record.as_ref().map(AsRawFd::as_raw_fd);
        let (count, tracepoint) = match occasion {
            Occasion::Event => (None, None),
            Occasion::Exits(period) => {
                let count = bpf::create_map(size_of::<u64>()).map_err(error::refused)?;
                plan.sampled = Sampled::Exits(self.sampled_exits(vcpu, period, &count)?);
                (Some(count), Some(self.exits()?.tracepoint.id))
            }
            Occasion::Faults(period) => {
                let state = bpf::create_map(faults::STATE_BYTES).map_err(error::refused)?;
                plan.sampled = Sampled::Faults(self.sampled_faults(vcpu, period, &state)?);
                (Some(state), Some(self.faults()?.fault.id))
            }
        };
        let others = self.others(&plan)?;
        let program = bpf::load_for(plan.trigger(), &program::instructions(&self.layout, &plan))?;
        Ok(SamplingProgram {
            program,
            outputs,
            record,
            host_record,
            count,
            tracepoint,
            others,
        })
    }

    fn exits(&self) -> Result<&ExitTracepoint, SamplingError> {
        self.exits.as_ref().ok_or(SamplingError::NoExits)
    }

    fn faults(&self) -> Result<&FaultTracepoints, SamplingError> {
        self.faults.as_ref().ok_or(SamplingError::NoFaults)
    }

    /// The programs that the one of `plan` needs elsewhere, in the order in which they are to be attached.
    fn others(&self, plan: &Plan) -> Result<Vec<(Probe, OwnedFd)>, SamplingError> {
        let Sampled::Faults(of) = &plan.sampled else {
            return Ok(Vec::new());
        };
        let (exit, points) = (&self.exits()?.tracepoint, self.faults()?);
        let at = |point: &Tracepoint| (Probe::Tracepoint(point.id), Trigger::Tracepoint);
        let at_function = |kind| {
            let name = faults::USERFAULTS;
            (Probe::Function { kind, name }, Trigger::Function)
        };
        let waits = points.other_waits.as_ref().map(at);
        let userfaults = points.functions.map(at_function);
        let programs = [
            (Some(at(&points.entry)), faults::at_entry(plan, of)),
            (waits, faults::at_another_threads_wait(of)),
            (userfaults, faults::at_userfault(of)),
            (Some(at(exit)), faults::at_exit(of)),
        ];
        let programs = programs.into_iter();
        programs
            .filter_map(|(place, instructions)| Some((place?, instructions)))
            .map(|((probe, trigger), instructions)| {
                Ok((probe, bpf::load_for(trigger, &instructions)?))
            })
            .collect()
    }

    /// The number and the thread of the `struct kvm_vcpu` at `vcpu`.
    fn index_and_thread(&self, vcpu: u64) -> Result<(u32, u32), SamplingError> {
        let found = self.kernel.index_and_thread_of(vcpu);
        found.ok_or(SamplingError::NoVcpu)
    }

    /// One of `period` faults of the `struct kvm_vcpu` at `vcpu`, whose programs share the map `state`.
    fn sampled_faults(
        &self,
        vcpu: u64,
        period: u64,
        state: &OwnedFd,
    ) -> Result<SampledFaults, SamplingError> {
        let (index, thread) = self.index_and_thread(vcpu)?;
        let task = &self.kernel.layout().task;
        let [min, maj] = task.faults.map(Some);
        let counts = [min, maj, task.read_bytes];
        Ok(SampledFaults {
            thread,
            vcpu: index,
            period,
            state: state.as_raw_fd(),
            exit: self.exits()?.members,
            fault: self.faults()?.members,
            counts: counts.map(|offset| i32::try_from(offset?).ok()),
        })
    }

    /// One of `period` exits of the `struct kvm_vcpu` at `vcpu`, which a program counts in the map `count`.
    fn sampled_exits(
        &self,
        vcpu: u64,
        period: u64,
        count: &OwnedFd,
    ) -> Result<SampledExits, SamplingError> {
        let (index, thread) = self.index_and_thread(vcpu)?;
        Ok(SampledExits {
            thread,
            vcpu: index,
            period,
            count: count.as_raw_fd(),
            members: self.exits()?.members,
        })
    }

    /// The pointer to the running task, whose memory is read only where CR3 isn't in the host's memory.
    fn pointer(&self, places: &ProcessPlaces, slots: &Slots) -> Option<Pointer> {
        let mut pointer = pointer(places, slots)?;
        if self.form().knows_privilege() {
            pointer.memory = None;
        }
        Some(pointer)
    }

    /// The stacks to copy; `None` if none are wanted, or none can be found without the stack pointer.
    fn stacks(
        &self,
        vcpu: u64,
        parts: StackParts,
        linux: Option<LinuxStacks>,
        slots: &Slots,
    ) -> Option<Stacks> {
        let hides_pointer = !self.form().knows_privilege();
        let is_wanted = match hides_pointer {
            true => parts.user && linux.is_some(),
            false => parts != StackParts::default(),
        };
        is_wanted.then_some(())?;
        let cr4 = self.kernel.memory().u64(vcpu, self.layout.cr4)?;
        Some(Stacks {
            bytes: STACK_BYTES,
            linux,
            hides_pointer,
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
    /// Perf's number of the tracepoint that is to run the program; `None` if an event is.
    pub fn tracepoint(&self) -> Option<u64> {
        self.tracepoint
    }

    /// The programs for other places, in the order in which they are to be attached before this one.
    pub fn others(&self) -> impl Iterator<Item = (Probe, BorrowedFd<'_>)> {
        let others = self.others.iter();
        others.map(|(probe, program)| (*probe, program.as_fd()))
    }

    /// The files that have to stay open while the program is used. Those of [`Self::others`] are by their events.
    pub fn into_files(self) -> Vec<OwnedFd> {
        let files = [self.program, self.outputs, self.record];
        let optional = self.host_record.into_iter().chain(self.count);
        files.into_iter().chain(optional).collect()
    }
}

fn vcpu_layout(kernel: &HostKernel) -> Result<&VcpuLayout, SamplingError> {
    let layout = kernel.vcpu_layout();
    layout.map_err(|error| SamplingError::Layout(error.to_string()))
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod stack_tests;
#[cfg(test)]
mod tests;
