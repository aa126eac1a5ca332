//! The physical memory of a guest that another process runs, for reading.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError, RwLock};

use kvmprof_introspection::PhysicalMemory;
use vm_memory::GuestAddress;

use crate::backing::Backings;
use crate::machines::{self, Machine};
use crate::{HostKernel, NestedGuest, Obstacle, Slot, Slots};

/// Why a guest's memory can't be read.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The guest has ended, or its VMM made a new one in its place.
    #[error("The guest of process {0} has ended")]
    Ended(i32),
    /// An obstacle keeps this process from reading it.
    #[error("Cannot attach to the guest of process {pid}: {obstacle}")]
    Obstacle {
        /// The VMM.
        pid: i32,
        /// The obstacle.
        obstacle: Obstacle,
    },
    /// The memory slots can't be read.
    #[error(
        "The memory slots of the guest of process {0} can't be read: they change all the time, or don't fit together"
    )]
    Slots(i32),
    /// The process that has the rights has ended.
    #[error("kvmprof's process that traces process {0} has ended: the guest goes on; try again")]
    NoTracer(i32),
}

/// The physical memory of a guest that another process runs. It is only read, never written. Threads can share it.
#[derive(Debug)]
pub struct AttachedMemory {
    kernel: Arc<HostKernel>,
    machine: Machine,
    /// `struct kvm`.
    kvm: u64,
    /// The VMM's address space.
    ///
    /// /proc/PID/mem and not process_vm_readv(2): the open file stays with the address space that it was opened for, while
    /// a pid can become another process's between any two calls. The permission is checked once, not at each read. A read
    /// of up to a page is quicker (0.9 us against 1.3); large ones are copied twice (8 GB/s), which is enough for a look through
    /// all of a guest's memory.
    memory: File,
    slots: RwLock<Arc<Slots>>,
}

impl AttachedMemory {
    /// Opens the memory of `machine`, one of those that [`crate::find_machines`] has found.
    ///
    /// # Errors
    /// The guest has ended meanwhile, or its memory can't be read.
    pub fn open(machine: &Machine, kernel: Arc<HostKernel>) -> Result<Self, AttachError> {
        let pid = machine.pid;
        let memory =
            File::open(format!("/proc/{pid}/mem")).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => AttachError::Ended(pid),
                _ => AttachError::Obstacle {
                    pid,
                    obstacle: Obstacle::Permission(machines::why_hidden(Some(pid))),
                },
            })?;
        // A process with the same start time now is the one that the file was opened for.
        let kvm = guest_of(&kernel, machine).ok_or(AttachError::Ended(pid))?;
        let slots = with_backing(read_slots(&kernel, machine, kvm)?, pid);
        Ok(Self {
            kernel,
            machine: machine.clone(),
            kvm,
            memory,
            slots: RwLock::new(Arc::new(slots)),
        })
    }

    /// The guest whose memory this is.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn kernel(&self) -> &Arc<HostKernel> {
        &self.kernel
    }

    /// The address of the guest's `struct kvm`.
    pub(crate) fn kvm(&self) -> u64 {
        self.kvm
    }

    /// The number of vCPUs that the guest has made until now, closed ones included; `None` if the host's kernel doesn't show it.
    pub fn vcpu_count(&self) -> Option<u32> {
        self.kernel.vcpu_count(self.kvm)
    }

    /// A check whether the vCPU behind `descriptor` of the VMM runs a nested guest; `None` if the host's kernel doesn't show it.
    pub fn nested_guest(&self, descriptor: i32) -> Option<NestedGuest> {
        NestedGuest::of_vcpu(&self.kernel, self.machine.pid, self.kvm, descriptor)
    }

    /// The memory slots as they were read last.
    pub fn slots(&self) -> Arc<Slots> {
        Arc::clone(&self.slots.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the memory slots again if they have changed. Returns whether they have. If they haven't, this takes about 20 short reads
    /// of the host kernel's memory and of /proc, in 40 us.
    ///
    /// # Errors
    /// The guest has ended, or has no memory that can be read any more. [`AttachedMemory::slots`] stay as they were.
    pub fn refresh(&self) -> Result<bool, AttachError> {
        // This comes first: the structures of a guest that has ended stay readable for a while, with the same version of the slots.
        if guest_of(&self.kernel, &self.machine) != Some(self.kvm) {
            return Err(AttachError::Ended(self.machine.pid));
        }
        let current = Slots::current_version(&self.kernel, self.kvm);
        if current == Some(self.slots().version()) {
            return Ok(false);
        }
        let slots = read_slots(&self.kernel, &self.machine, self.kvm)?;
        let slots = with_backing(slots, self.machine.pid);
        *self.slots.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(slots);
        Ok(true)
    }

    fn slot(&self, address: u64) -> Option<Slot> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.find(GuestAddress(address)).copied()
    }
}

impl PhysicalMemory for AttachedMemory {
    /// Makes one system call for each slot of the range. The host's kernel faults absent pages in, as for any read of the VMM.
    fn read_physical(&self, address: GuestAddress, buffer: &mut [u8]) -> Option<()> {
        let mut address = address.0;
        let mut rest = buffer;
        while !rest.is_empty() {
            let slot = self.slot(address)?;
            let within = address.checked_sub(slot.address.0)?;
            let room = usize::try_from(slot.bytes.checked_sub(within)?).ok()?;
            let (part, behind) = rest.split_at_mut_checked(room.min(rest.len()))?;
            let host_address = slot.host_address.checked_add(within)?;
            self.memory.read_exact_at(part, host_address).ok()?;
            address = address.checked_add(u64::try_from(part.len()).ok()?)?;
            rest = behind;
        }
        Some(())
    }

    fn contains(&self, address: GuestAddress) -> bool {
        self.slot(address.0).is_some()
    }
}

/// The address of the `struct kvm` of `machine`, if it still is the process's own.
fn guest_of(kernel: &HostKernel, machine: &Machine) -> Option<u64> {
    let process = kernel.process(machine.pid)?;
    let kvm = kernel.private_data(process, machine.descriptor)?;
    let is_own = kernel.mm_of(kvm)? == process.mm;
    // This comes last: if the process is still the same, it was so during all reads before.
    (is_own && machines::is_same_process(machine)).then_some(kvm)
}

/// The memory slots of `machine`.
///
/// # Errors
/// It has ended, or has no memory that can be read.
pub(crate) fn slots_of(kernel: &HostKernel, machine: &Machine) -> Result<Slots, AttachError> {
    let kvm = guest_of(kernel, machine).ok_or(AttachError::Ended(machine.pid))?;
    read_slots(kernel, machine, kvm)
}

/// The same slots with what their memory is backed by, as far as process `pid`, their VMM, lets that be read.
fn with_backing(slots: Slots, pid: i32) -> Slots {
    match Backings::of(pid) {
        Ok(backings) => slots.backed_by(&backings),
        Err(_) => slots,
    }
}

fn read_slots(kernel: &HostKernel, machine: &Machine, kvm: u64) -> Result<Slots, AttachError> {
    let pid = machine.pid;
    let slots = Slots::read(kernel, kvm).ok_or(AttachError::Slots(pid))?;
    match machines::obstacle_of_memory(kernel, kvm, &slots) {
        Some(obstacle) => Err(AttachError::Obstacle { pid, obstacle }),
        None => Ok(slots),
    }
}
