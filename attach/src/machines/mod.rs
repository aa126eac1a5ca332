//! The KVM guests of this host.

mod jail;
mod name;
mod obstacle;
mod origin;
mod processes;
mod rules;
mod threads;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

pub use obstacle::Obstacle;
pub(crate) use obstacle::obstacle_of_memory;
use processes::{Descriptor, Kind};
pub use rules::{NameRules, Named, RuleError, RuleText};

use crate::capabilities::{self, Capability};
use crate::host_kernel::Process;
use crate::{HostKernel, HostKernelError, Slots};

/// A vCPU of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vcpu {
    /// Its id (KVM_CREATE_VCPU). On x86 this is the id of its local APIC; most VMMs count from 0.
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
    /// When the process was started, in clock ticks since the host's start (proc_pid_stat(5), field 22). It distinguishes the
    /// process from a later one with the same pid.
    pub start_time: u64,
    /// The user that the VMM's process runs as, by its uid.
    pub user: u32,
    /// The name of the VMM's program. The VMM chose it: escape it before it is shown.
    pub program: String,
    /// The guest's name as what manages it says, else from the VMM's command line, or else from the jail that the VMM runs in. Escape it, too.
    pub name: Option<String>,
    /// What manages the guest, such as `libvirt`; `None` if it isn't known.
    pub manager: Option<&'static str>,
    /// What the manager and the VMM's control group on this host say of the guest, as texts by keys: `namespace`, `vm`, `vmid`, `sandbox`; `pod`, `qos`,
    /// `container`, `runtime`, `unit`. Escape them, too.
    pub labels: BTreeMap<String, String>,
    /// The guest's descriptor in the VMM.
    pub descriptor: i32,
    /// Its vCPUs, by their index.
    pub vcpus: Vec<Vcpu>,
    /// The size of its writable memory, in bytes. `None` if that isn't known.
    pub memory_bytes: Option<u64>,
    /// Why it can't be attached to; `None` if it can.
    pub obstacle: Option<Obstacle>,
}

/// The result of [`find_machines`].
#[derive(Clone, Debug, Default)]
pub struct MachineList {
    /// The guests, by the VMMs' pids.
    pub machines: Vec<Machine>,
    /// The number of processes that this process may not look into. They may have guests, too.
    pub hidden: usize,
}

/// A guest of which only what is cheap to find is known so far. A process of another user can have any number of descriptors of the same guests.
struct Candidate {
    machine: Machine,
    /// Its `struct kvm`, if that is known.
    kvm: Option<u64>,
    /// Whether the process has a descriptor of /dev/sev.
    may_be_encrypted: bool,
}

/// Lists every KVM guest of this host: all processes that hold a guest's descriptor, whatever their names.
///
/// With the host's kernel, the threads of vCPUs and the sizes of memory are exact, and processes with several guests are
/// told apart. Without it a guest has what /proc shows, and can't be attached to. Processes that end meanwhile are left
/// out.
pub fn find_machines(kernel: Result<&HostKernel, &HostKernelError>) -> MachineList {
    let mut found = MachineList::default();
    let mut candidates: Vec<Candidate> = Vec::new();
    for pid in processes::pids() {
        match processes::descriptors(pid) {
            Ok(descriptors) => candidates.extend(guests(pid, &descriptors, kernel)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.hidden += 1,
            Err(_) => {}
        }
    }
    let candidates = each_once(candidates).into_iter();
    found.machines = candidates
        .filter_map(|candidate| candidate.complete(kernel.ok()))
        .collect();
    found
}

/// One candidate for each guest, by the VMMs' pids. A guest can have several descriptors, and other processes can have inherited one: the VMM's
/// own descriptor is taken.
fn each_once(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by_key(|candidate| {
        let is_elsewhere = candidate.machine.obstacle == Some(Obstacle::Elsewhere);
        (
            is_elsewhere,
            candidate.machine.pid,
            candidate.machine.descriptor,
        )
    });
    let mut known = HashSet::new();
    candidates.retain(|candidate| candidate.kvm.is_none_or(|kvm| known.insert(kvm)));
    candidates.sort_by_key(|candidate| candidate.machine.pid);
    candidates
}

/// The names of the capabilities that this process lacks to look into process `pid`, or into any process if `pid` is `None`. The list is
/// empty if this process may look.
pub fn missing_to_look_into(pid: Option<i32>) -> Vec<&'static str> {
    let opened = pid.map(processes::descriptors);
    if !opened.is_none_or(|opened| is_forbidden(opened.err())) {
        return Vec::new();
    }
    // Files of the same user's processes can be opened without this capability, so that only other users' processes show whether it is needed.
    let needs_files = pid.is_none_or(|pid| is_forbidden(processes::open_descriptors(pid).err()));
    let files = needs_files.then_some(capabilities::FILES);
    let needed: Vec<Capability> = [capabilities::PROCESS].into_iter().chain(files).collect();
    capabilities::missing(&needed)
}

/// Why this process can't look into process `pid`, or into some process if `pid` is `None`, and what to do, in words.
pub fn why_hidden(pid: Option<i32>) -> String {
    let mut missing = missing_to_look_into(pid);
    if missing.is_empty() {
        // Descriptors can be readable where memory isn't.
        missing = capabilities::missing(&[capabilities::PROCESS]);
    }
    if missing.is_empty() {
        return "kvmprof has the capabilities, but a security module, or the user namespace of a container, keeps the process from it".to_owned();
    }
    capabilities::lacks(&missing)
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
    let (Some(start_time), Some(user), Some(program)) = (
        processes::start_time(pid),
        processes::user(pid),
        processes::program(pid),
    ) else {
        return Vec::new();
    };
    let origin = origin::origin_of(pid);
    let name = origin.name.or_else(|| name::name_of_guest(pid));
    let machine = |descriptor| Machine {
        pid,
        start_time,
        user,
        program: program.clone(),
        name: name.clone(),
        manager: origin.manager,
        labels: origin.labels.clone(),
        descriptor,
        vcpus: Vec::new(),
        memory_bytes: None,
        obstacle: None,
    };
    let may_be_encrypted = descriptors.iter().any(|it| it.kind == Kind::Sev);
    let candidate = |machine, kvm| Candidate {
        machine,
        kvm,
        may_be_encrypted,
    };
    let kernel = match kernel {
        Ok(kernel) => kernel,
        Err(error) => {
            let machines = by_proc(error, guests.into_iter().map(machine), descriptors);
            let machines = machines.into_iter();
            return machines.map(|machine| candidate(machine, None)).collect();
        }
    };
    let Some(process) = kernel.process(pid) else {
        let without = |descriptor| Machine {
            obstacle: Some(Obstacle::NoMainThread),
            ..machine(descriptor)
        };
        let machines = guests.into_iter().map(without);
        return machines.map(|machine| candidate(machine, None)).collect();
    };
    let mut vcpus = vcpus_by_kernel(kernel, process, descriptors);
    let mut known = HashSet::new();
    let by_kernel = |descriptor| {
        let kvm = kernel.private_data(process, descriptor)?;
        known.insert(kvm).then_some(())?;
        let is_own = kernel.mm_of(kvm)? == process.mm;
        let machine = Machine {
            vcpus: vcpus.remove(&kvm).unwrap_or_default(),
            obstacle: (!is_own).then_some(Obstacle::Elsewhere),
            ..machine(descriptor)
        };
        Some(candidate(machine, Some(kvm)))
    };
    guests.into_iter().filter_map(by_kernel).collect()
}

impl Candidate {
    /// Completes the guest; `None` if its process has ended meanwhile.
    fn complete(self, kernel: Option<&HostKernel>) -> Option<Machine> {
        let mut machine = self.machine;
        let by_memory = kernel.zip(self.kvm).and_then(|(kernel, kvm)| {
            let slots = Slots::read(kernel, kvm);
            machine.memory_bytes = slots.as_ref().map(Slots::bytes);
            match slots {
                None => Some(Obstacle::NoMemory),
                Some(slots) => obstacle_of_memory(kernel, kvm, &slots),
            }
        });
        machine.vcpus.sort_unstable_by_key(|vcpu| vcpu.index);
        // The process may have two descriptors of one vCPU.
        machine.vcpus.dedup_by_key(|vcpu| vcpu.index);
        let obstacle = machine.obstacle.take();
        machine.obstacle = obstacle
            .or(by_memory)
            .or_else(|| self.may_be_encrypted.then_some(Obstacle::Encrypted))
            .or_else(|| obstacle_of_process(&machine));
        // A process that took over the pid meanwhile has nothing to do with these descriptors.
        (processes::start_time(machine.pid) == Some(machine.start_time)).then_some(machine)
    }
}

/// Why a guest can't be attached to, as far as its process and its vCPUs show.
fn obstacle_of_process(machine: &Machine) -> Option<Obstacle> {
    if !processes::can_read_memory(machine.pid) {
        Some(Obstacle::Permission(why_hidden(Some(machine.pid))))
    } else if machine.vcpus.is_empty() {
        Some(Obstacle::NoVcpu)
    } else if machine.vcpus.iter().all(|vcpu| vcpu.thread.is_none()) {
        Some(Obstacle::NoThread)
    } else {
        None
    }
}

/// The vCPUs behind descriptors, by the `struct kvm` that they belong to.
fn vcpus_by_kernel(
    kernel: &HostKernel,
    process: Process,
    descriptors: &[Descriptor],
) -> HashMap<u64, Vec<Vcpu>> {
    let mut vcpus: HashMap<u64, Vec<Vcpu>> = HashMap::new();
    for descriptor in descriptors {
        let Kind::Vcpu(index) = descriptor.kind else {
            continue;
        };
        let Some(address) = kernel.private_data(process, descriptor.number) else {
            continue;
        };
        if let Some(guest) = kernel.guest_of(address, index) {
            vcpus.entry(guest).or_default().push(Vcpu {
                index,
                descriptor: descriptor.number,
                thread: kernel.thread_of(address),
            });
        }
    }
    vcpus
}

/// Completes the guests of one process by what /proc shows.
fn by_proc(
    error: &HostKernelError,
    machines: impl ExactSizeIterator<Item = Machine>,
    descriptors: &[Descriptor],
) -> Vec<Machine> {
    // Only the kernel knows to which of several guests a vCPU belongs.
    let is_only_one = machines.len() == 1;
    let complete = |mut machine: Machine| {
        if is_only_one {
            machine.vcpus = threads::vcpus(machine.pid, descriptors);
        }
        machine.obstacle = Some(Obstacle::HostKernel(error.to_string()));
        machine
    };
    machines.map(complete).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(pid: i32, descriptor: i32, kvm: Option<u64>, is_own: bool) -> Candidate {
        Candidate {
            machine: Machine {
                pid,
                start_time: 0,
                user: 0,
                program: String::new(),
                name: None,
                manager: None,
                labels: BTreeMap::new(),
                descriptor,
                vcpus: Vec::new(),
                memory_bytes: None,
                obstacle: (!is_own).then_some(Obstacle::Elsewhere),
            },
            kvm,
            may_be_encrypted: false,
        }
    }

    #[test]
    fn a_guest_is_listed_once_for_the_process_that_has_its_memory() {
        // The memory slots of each candidate that is left are read.
        let mut candidates: Vec<Candidate> = (0..1000)
            .map(|descriptor| candidate(7, descriptor, Some(1), false))
            .collect();
        candidates.push(candidate(9, 4, Some(1), true));
        candidates.push(candidate(9, 3, Some(1), true));
        candidates.push(candidate(8, 5, Some(2), false));
        candidates.push(candidate(5, 6, None, false));
        candidates.push(candidate(5, 7, None, false));
        let listed: Vec<(i32, i32)> = each_once(candidates)
            .iter()
            .map(|candidate| (candidate.machine.pid, candidate.machine.descriptor))
            .collect();
        assert_eq!(listed, [(5, 6), (5, 7), (8, 5), (9, 3)]);
    }
}
