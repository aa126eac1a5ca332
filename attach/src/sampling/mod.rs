//! Samples of vCPUs that the host's kernel takes: a small eBPF program on a clock event of the vCPU's thread, which puts
//! one record for each tick into the ring of another event.
//!
//! The program runs in the clock's interrupt, so the vCPU stands still meanwhile, and `current` is its thread. It reads
//! registers that KVM keeps in memory, and who runs out of guest memory through the VMM's mapping, at addresses that were
//! found before and are constants of the program.

mod error;
mod layout;
mod program;
pub mod record;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use error::SamplingError;
pub use record::{RECORD_BYTES, Record};

use kvmprof_introspection::{ProcessPlaces, ValueAt};

use crate::kernel_memory::bpf;
use crate::{AttachedMemory, HostKernel, Slots};
pub(crate) use layout::VcpuLayout;
use program::{Plan, Range, Read, Source};

/// Most parts of guest memory that tasks are looked for in: a guest has one below 4 GiB and one above, and its kernel's
/// image.
const MAX_RANGES: usize = 8;
/// Smaller slots are firmware and devices.
const MIN_SLOT: u64 = 1 << 20;

/// Makes programs for the vCPUs of one guest.
#[derive(Debug)]
pub struct SamplingHost {
    kernel: Arc<HostKernel>,
    /// The guest's VMM.
    pid: i32,
    /// `struct kvm`.
    kvm: u64,
    layout: VcpuLayout,
}

/// A program for one vCPU. Once it is set on an event it lives as long as that.
#[derive(Debug)]
pub struct SamplingProgram {
    program: OwnedFd,
    /// The array with the event that records go to. An entry is removed as the descriptor is closed by which it was made.
    _outputs: OwnedFd,
}

impl SamplingHost {
    /// For the guest whose memory is `memory`.
    ///
    /// # Errors
    /// The host's kernel isn't one that is known.
    pub fn attached(memory: &AttachedMemory) -> Result<Self, SamplingError> {
        let kernel = Arc::clone(memory.kernel());
        Self::new(kernel, memory.machine().pid, memory.kvm())
    }

    /// For the guest of this process behind the descriptor `vm`.
    ///
    /// # Errors
    /// The host's kernel isn't one that is known.
    pub fn own(kernel: Arc<HostKernel>, vm: i32) -> Result<Self, SamplingError> {
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        let process = kernel.process(pid);
        let kvm = process.and_then(|process| {
            let kvm = kernel.private_data(process, vm)?;
            (kernel.mm_of(kvm)? == process.mm).then_some(kvm)
        });
        Self::new(kernel, pid, kvm.ok_or(SamplingError::NoGuest)?)
    }

    fn new(kernel: Arc<HostKernel>, pid: i32, kvm: u64) -> Result<Self, SamplingError> {
        let layout = kernel.vcpu_layout();
        let layout = layout.map_err(|error| SamplingError::Layout(error.to_string()))?;
        Ok(Self {
            layout: *layout,
            kernel,
            pid,
            kvm,
        })
    }

    /// Whether a vCPU's privilege level is in every record. Without it a guest's mode is told by its addresses, which only
    /// Linux has apart.
    pub fn knows_privilege(&self) -> bool {
        self.layout.cpl.is_some()
    }

    /// The program for the vCPU behind `descriptor` of the guest's VMM, which has guest memory at `slots` and writes to
    /// `output`, an event of type `PERF_COUNT_SW_BPF_OUTPUT` on the vCPU's thread. Records have the values of `places`, by
    /// their order there; `None`: registers only.
    ///
    /// # Errors
    /// The vCPU is gone, or the host's kernel refuses the program.
    pub fn program(
        &self,
        slots: &Slots,
        descriptor: i32,
        places: Option<&ProcessPlaces>,
        output: BorrowedFd<'_>,
    ) -> Result<SamplingProgram, SamplingError> {
        let vcpu = self.vcpu(descriptor)?;
        let outputs = bpf::create_event_array().map_err(error::refused)?;
        bpf::set_event(&outputs, output).map_err(error::refused)?;
        let plan = Plan {
            vcpu,
            kvm: self.kvm,
            outputs: outputs.as_raw_fd(),
            pointer: places.and_then(|places| pointer(places, slots)),
            reads: places.map_or_else(Vec::new, |places| reads(places, slots)),
        };
        let program = bpf::load_for_event(&program::instructions(&self.layout, &plan))?;
        Ok(SamplingProgram {
            program,
            _outputs: outputs,
        })
    }

    /// The `struct kvm_vcpu` behind `descriptor`.
    fn vcpu(&self, descriptor: i32) -> Result<u64, SamplingError> {
        let kernel = &self.kernel;
        let process = kernel.process(self.pid);
        let vcpu = process.and_then(|process| kernel.private_data(process, descriptor));
        let of_guest = |vcpu: &u64| {
            let kvm = vcpu.checked_add(self.layout.kvm)?;
            (kernel.memory().read_pointer(kvm)? == self.kvm).then_some(())
        };
        vcpu.filter(|vcpu| of_guest(vcpu).is_some())
            .ok_or(SamplingError::NoVcpu)
    }
}

impl AsFd for SamplingProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// Where guest-physical `address` is in the VMM.
fn host_address(slots: &Slots, address: u64, bytes: u64) -> Option<u64> {
    let slot = slots.find(vm_memory::GuestAddress(address))?;
    let within = address.checked_sub(slot.address.0)?;
    (within.checked_add(bytes)? <= slot.bytes).then_some(())?;
    slot.host_address.checked_add(within)
}

fn pointer(places: &ProcessPlaces, slots: &Slots) -> Option<program::Pointer> {
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

fn reads(places: &ProcessPlaces, slots: &Slots) -> Vec<Read> {
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
mod tests;
