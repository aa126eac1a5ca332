//! The KVM guests of this host.

mod name;
mod obstacle;
mod processes;
mod threads;

use std::io;

pub use obstacle::Obstacle;
pub(crate) use obstacle::obstacle_of_memory;
use processes::{Descriptor, Kind};

use crate::capabilities::{self, Capability};
use crate::host_kernel::Process;
use crate::{HostKernel, HostKernelError, Slots};

/// A vCPU of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vcpu {
    /// Its id (KVM_CREATE_VCPU): on x86 its local APIC's, in most VMMs its number from 0.
    pub index: u32,
    /// Its descriptor in the VMM.
    pub descriptor: i32,
    /// The thread id, on the host, of the VMM's thread that runs it; `None` if it hasn't run yet, or none could be found.
    pub thread: Option<i32>,
}

/// A KVM guest of this host.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The VMM's process.
    pub pid: i32,
    /// When the process was started, in clock ticks since the host's start (proc_pid_stat(5), field 22): tells it from
    /// another one with the same pid later on.
    pub start_time: u64,
    /// The name of the VMM's program. The VMM chose it: escape it before it is shown.
    pub program: String,
    /// The guest's name by the VMM's command line, if that has one. Escape it, too.
    pub name: Option<String>,
    /// The guest's descriptor in the VMM.
    pub descriptor: i32,
    /// Its vCPUs, by their index.
    pub vcpus: Vec<Vcpu>,
    /// The size of its memory, in bytes: all that the VMM gave it and it can write to. `None` if that isn't known.
    pub memory_bytes: Option<u64>,
    /// What keeps it from being attached to.
    pub obstacle: Option<Obstacle>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The guests, by the VMMs' pids.
    pub machines: Vec<Machine>,
    /// How many processes this one may not look into: they may have guests, too.
    pub hidden: usize,
}

/// A guest with its `struct kvm`, if that is known.
struct Candidate {
    machine: Machine,
    kvm: Option<u64>,
}

/// Lists every KVM guest of this host: all processes that hold a guest's descriptor, whatever their names.
///
/// With the host's kernel, the threads of vCPUs and the sizes of memory are exact, and processes with several guests are
/// told apart. Without it a guest has what /proc shows, and can't be attached to. Processes that end meanwhile are left
/// out.
pub fn find_machines(kernel: Result<&HostKernel, &HostKernelError>) -> Found {
    let mut found = Found::default();
    let mut candidates: Vec<Candidate> = Vec::new();
    for pid in processes::pids() {
        match processes::descriptors(pid) {
            Ok(descriptors) => candidates.extend(guests(pid, &descriptors, kernel)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.hidden += 1,
            Err(_) => {}
        }
    }
    // One guest can have several descriptors, and processes that inherited one: the VMM's own come first.
    candidates.sort_by_key(|candidate| {
        let is_elsewhere = candidate.machine.obstacle == Some(Obstacle::Elsewhere);
        (
            is_elsewhere,
            candidate.machine.pid,
            candidate.machine.descriptor,
        )
    });
    let mut known = Vec::new();
    candidates.retain(|candidate| {
        let is_new = candidate.kvm.is_none_or(|kvm| !known.contains(&kvm));
        known.extend(candidate.kvm);
        is_new
    });
    candidates.sort_by_key(|candidate| candidate.machine.pid);
    let machines = candidates.into_iter().map(|candidate| candidate.machine);
    found.machines = machines.collect();
    found
}

/// The names of the capabilities that this process lacks to look into process `pid`, or, without one, into any. None if it may.
pub fn missing_to_look_into(pid: Option<i32>) -> Vec<&'static str> {
    let opened = pid.map(processes::descriptors);
    if !opened.is_none_or(|opened| is_forbidden(opened.err())) {
        return Vec::new();
    }
    // Files of the same user's processes can be opened, and say nothing.
    let needs_files = pid.is_none_or(|pid| is_forbidden(processes::open_descriptors(pid).err()));
    let files = needs_files.then_some(capabilities::FILES);
    let needed: Vec<Capability> = [capabilities::PROCESS].into_iter().chain(files).collect();
    capabilities::missing(&needed)
}

fn is_forbidden(error: Option<io::Error>) -> bool {
    error.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Whether the process and the descriptor of `machine` are still those that were found.
pub(crate) fn is_same_process(machine: &Machine) -> bool {
    processes::is_guest(machine.pid, machine.descriptor)
        && processes::start_time(machine.pid) == Some(machine.start_time)
}

/// The guests of a process that has these descriptors.
fn guests(
    pid: i32,
    descriptors: &[Descriptor],
    kernel: Result<&HostKernel, &HostKernelError>,
) -> Vec<Candidate> {
    let guests: Vec<i32> = descriptors
        .iter()
        .filter(|descriptor| descriptor.kind == Kind::Guest)
        .map(|descriptor| descriptor.number)
        .collect();
    if guests.is_empty() {
        return Vec::new();
    }
    let (Some(start_time), Some(program)) = (processes::start_time(pid), processes::program(pid))
    else {
        return Vec::new();
    };
    let name = name::name_of(&processes::command_line(pid));
    let machine = |descriptor| Machine {
        pid,
        start_time,
        program: program.clone(),
        name: name.clone(),
        descriptor,
        vcpus: Vec::new(),
        memory_bytes: None,
        obstacle: None,
    };
    let machines: Vec<Machine> = guests.into_iter().map(machine).collect();
    let mut candidates = match kernel {
        Ok(kernel) => by_kernel(kernel, machines, descriptors),
        Err(error) => by_proc(error, machines, descriptors),
    };
    let may_be_encrypted = descriptors.iter().any(|it| it.kind == Kind::Sev);
    for machine in candidates
        .iter_mut()
        .map(|candidate| &mut candidate.machine)
    {
        machine.vcpus.sort_unstable_by_key(|vcpu| vcpu.index);
        let obstacle = machine.obstacle.take();
        machine.obstacle = obstacle
            .or_else(|| may_be_encrypted.then_some(Obstacle::Encrypted))
            .or_else(|| obstacle_of_process(machine));
    }
    // A process that took over the pid meanwhile has nothing to do with these descriptors.
    candidates.retain(|candidate| processes::start_time(candidate.machine.pid) == Some(start_time));
    candidates
}

/// What keeps a guest from being attached to, as far as its process and its vCPUs say.
fn obstacle_of_process(machine: &Machine) -> Option<Obstacle> {
    if !processes::can_read_memory(machine.pid) {
        Some(Obstacle::Permission)
    } else if machine.vcpus.is_empty() {
        Some(Obstacle::NoVcpu)
    } else if machine.vcpus.iter().all(|vcpu| vcpu.thread.is_none()) {
        Some(Obstacle::NoThread)
    } else {
        None
    }
}

/// Completes the guests of one process by what the kernel knows.
fn by_kernel(
    kernel: &HostKernel,
    machines: Vec<Machine>,
    descriptors: &[Descriptor],
) -> Vec<Candidate> {
    let Some(first) = machines.first() else {
        return Vec::new();
    };
    let Some(process) = kernel.process(first.pid) else {
        let without = |mut machine: Machine| {
            machine.obstacle = Some(Obstacle::NoMainThread);
            Candidate { machine, kvm: None }
        };
        return machines.into_iter().map(without).collect();
    };
    let vcpus = vcpus_by_kernel(kernel, process, descriptors);
    let complete = |mut machine: Machine| {
        let kvm = kernel.private_data(process, machine.descriptor)?;
        let own = vcpus.iter().filter(|(guest, _)| *guest == kvm);
        machine.vcpus = own.map(|(_, vcpu)| *vcpu).collect();
        // A vCPU that the process has two descriptors of is one vCPU.
        machine.vcpus.sort_unstable_by_key(|vcpu| vcpu.index);
        machine.vcpus.dedup_by_key(|vcpu| vcpu.index);
        let slots = Slots::read(kernel, kvm);
        machine.memory_bytes = slots.as_ref().map(Slots::bytes);
        machine.obstacle = match (kernel.mm_of(kvm)? == process.mm, slots) {
            (false, _) => Some(Obstacle::Elsewhere),
            (true, None) => Some(Obstacle::NoMemory),
            (true, Some(slots)) => obstacle_of_memory(kernel, kvm, &slots),
        };
        Some(Candidate {
            machine,
            kvm: Some(kvm),
        })
    };
    machines.into_iter().filter_map(complete).collect()
}

/// The vCPUs behind descriptors, each with the `struct kvm` that it belongs to.
fn vcpus_by_kernel(
    kernel: &HostKernel,
    process: Process,
    descriptors: &[Descriptor],
) -> Vec<(u64, Vcpu)> {
    let vcpu = |descriptor: &Descriptor| {
        let Kind::Vcpu(index) = descriptor.kind else {
            return None;
        };
        let address = kernel.private_data(process, descriptor.number)?;
        let vcpu = Vcpu {
            index,
            descriptor: descriptor.number,
            thread: kernel.thread_of(address),
        };
        Some((kernel.guest_of(address, index)?, vcpu))
    };
    descriptors.iter().filter_map(vcpu).collect()
}

/// Completes the guests of one process by what /proc shows.
fn by_proc(
    error: &HostKernelError,
    machines: Vec<Machine>,
    descriptors: &[Descriptor],
) -> Vec<Candidate> {
    // Which guest of several a vCPU belongs to, only the kernel knows.
    let is_only_one = machines.len() == 1;
    let complete = |mut machine: Machine| {
        if is_only_one {
            machine.vcpus = threads::vcpus(machine.pid, descriptors);
        }
        machine.obstacle = Some(Obstacle::HostKernel(error.to_string()));
        Candidate { machine, kvm: None }
    };
    machines.into_iter().map(complete).collect()
}
