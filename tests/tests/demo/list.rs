//! Guests are found from outside by their descriptors, with the threads of their vCPUs and their memory.

use std::fs;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::Arc;

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VmFd};
use kvmprof_attach::{
    AttachError, AttachedMemory, HostKernel, Machine as Found, Obstacle, find_machines,
};
use kvmprof_demo_guest::IMAGE;
use kvmprof_introspection::PhysicalMemory;
use kvmprof_tests::Capability::{Bpf, Perfmon, SysPtrace};
use kvmprof_tests::{
    Boot, Capability, Guest, Machine, as_root_with, kvmprof, on_kvm, run, run_command, until,
};
use rustix::process::Signal;
use serde_json::Value;
use vm_memory::GuestAddress;

/// The memory of all guests here.
const MEMORY: u64 = 64 << 20;
/// A guest-physical address that the guest doesn't use.
const MARK: u64 = 48 << 20;
/// A page of a guest's memory at 4 GiB.
const HIGH: u64 = 1 << 20;
/// Parts of the guest's image that it doesn't change.
const CONSTANTS: [&str; 4] = ["compute", "kernel_main", "run_workload", "build_idt"];

fn start(vcpus: u16) -> Machine {
    let machine = Machine::unwatched(Boot::Demo, vcpus);
    machine.truth();
    machine
}

/// The guests of process `pid`.
fn guests_of(kernel: &HostKernel, pid: u32) -> Vec<Found> {
    let mut found = find_machines(Ok(kernel)).machines;
    found.retain(|machine| u32::try_from(machine.pid) == Ok(pid));
    found
}

/// The one guest of process `pid`, as soon as all its vCPUs have run.
fn guest_of(kernel: &HostKernel, pid: u32, vcpus: usize) -> Found {
    until("all vCPUs have run", || {
        let [guest] = guests_of(kernel, pid).try_into().ok()?;
        let Found { vcpus: all, .. } = &guest;
        let has_run = all.len() == vcpus && all.iter().all(|vcpu| vcpu.thread.is_some());
        has_run.then_some(guest)
    })
}

/// Checks that each vCPU has its number, and the thread that kvmprof names by that number.
fn check_threads(guest: &Found) {
    for (number, vcpu) in (0..).zip(&guest.vcpus) {
        assert_eq!(vcpu.index, number, "{guest:?}");
        let (pid, tid) = (guest.pid, vcpu.thread.unwrap());
        let comm = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap();
        assert_eq!(comm.trim_end(), format!("vcpu {number}"));
    }
}

fn read(memory: &AttachedMemory, address: u64, bytes: u64) -> Option<Vec<u8>> {
    let mut buffer = vec![0; usize::try_from(bytes).unwrap()];
    memory.read_physical(GuestAddress(address), &mut buffer)?;
    Some(buffer)
}

/// Two guests of one process are distinguished, and each one has its own memory.
#[test]
fn guests_of_one_process_are_distinguished() {
    on_kvm(|| {
        let kernel = Arc::new(HostKernel::open().unwrap());
        let own = std::process::id();
        let machines = [start(1), start(2)];
        let mut found = guests_of(&kernel, own);
        found.sort_by_key(|guest| guest.vcpus.len());
        assert_eq!(found.len(), 2, "{found:?}");
        for (vcpus, (machine, guest)) in (1..).zip(machines.iter().zip(&found)) {
            assert_eq!(guest.vcpus.len(), vcpus, "{guest:?}");
            assert_eq!(guest.memory_bytes, Some(MEMORY));
            assert_eq!(guest.obstacle, None);
            check_threads(guest);
            let memory = AttachedMemory::open(guest, Arc::clone(&kernel)).unwrap();
            for name in CONSTANTS {
                let area = IMAGE.area(name).unwrap();
                let found = read(&memory, area.start, area.end - area.start);
                assert_eq!(found, Some(machine.object(name)), "{name}");
            }
            // Only this guest's memory contains this.
            let mark = u64::try_from(vcpus).unwrap().to_le_bytes();
            let offset = MARK - IMAGE.area("compute").unwrap().start;
            machine.overwrite("compute", offset, &mark);
        }
        let marks = found.iter().map(|guest| {
            let memory = AttachedMemory::open(guest, Arc::clone(&kernel)).unwrap();
            read(&memory, MARK, 1).unwrap()[0]
        });
        assert_eq!(marks.collect::<Vec<_>>(), [1, 2]);

        let memory = AttachedMemory::open(&found[0], Arc::clone(&kernel)).unwrap();
        assert!(!memory.refresh().unwrap());
        for machine in machines {
            machine.stop();
        }
        assert_eq!(guests_of(&kernel, own).len(), 0);
        let ended = memory.refresh();
        assert!(matches!(ended, Err(AttachError::Ended(_))), "{ended:?}");
        let again = AttachedMemory::open(&found[0], kernel);
        assert!(matches!(again, Err(AttachError::Ended(_))), "{again:?}");
    });
}

/// A guest of another process is found by the program, and its memory read until it ends.
#[test]
fn a_guest_of_another_process_is_listed_and_read() {
    on_kvm(|| {
        let kernel = Arc::new(HostKernel::open().unwrap());
        let mut guest = Guest::start(Boot::Demo, ["--cpus", "2"]);
        let found = guest_of(&kernel, guest.pid(), 2);
        assert_eq!(
            (found.program.as_str(), &found.name, found.memory_bytes),
            ("kvmprof", &None, Some(MEMORY))
        );
        check_threads(&found);
        check_list(&found);

        let memory = AttachedMemory::open(&found, kernel).unwrap();
        for vcpu in &found.vcpus {
            // This guest has none.
            let nested = memory.nested_guest(vcpu.descriptor).unwrap();
            assert!(!nested.runs(), "{nested:?}");
        }
        let not_a_vcpu = memory.nested_guest(found.descriptor);
        assert!(not_a_vcpu.is_none(), "{not_a_vcpu:?}");
        let magic = IMAGE.area("kvmprof_truth").unwrap().start;
        until("the guest counts its time", || {
            (read(&memory, magic, 8)? == b"KVMTRUTH").then_some(())
        });
        assert!(read(&memory, MEMORY - 16, 16).is_some());
        assert_eq!(read(&memory, MEMORY - 16, 17), None);
        assert_eq!(read(&memory, MEMORY, 1), None);
        assert_eq!(read(&memory, u64::MAX, 2), None);
        assert!(memory.contains(GuestAddress(MEMORY - 1)));
        assert!(!memory.contains(GuestAddress(MEMORY)));

        guest.signal(Signal::KILL);
        guest.wait();
        assert_eq!(read(&memory, magic, 8), None);
        let ended = memory.refresh();
        assert!(matches!(ended, Err(AttachError::Ended(_))), "{ended:?}");
    });
}

/// The row of `kvmprof list` for `guest`.
fn check_list(guest: &Found) {
    let document = run(["list", "--json"]).json();
    let mut guests = document["guests"].as_array().unwrap().iter();
    let entry = guests.find(|it| it["pid"] == guest.pid).unwrap();
    assert_eq!(
        (&entry["memory_bytes"], &entry["attachable"]),
        (&MEMORY.into(), &true.into())
    );
    assert_eq!(entry["start_time"], guest.start_time);
    let threads = guest.vcpus.iter().filter_map(|vcpu| vcpu.thread);
    let threads: Vec<i64> = threads.map(i64::from).collect();
    let listed = entry["vcpus"].as_array().unwrap().iter();
    let listed: Vec<i64> = listed.filter_map(|vcpu| vcpu["thread"].as_i64()).collect();
    assert_eq!(listed, threads);
    let text = run(["list"]).quiet();
    let pid = guest.pid.to_string();
    let mut lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines
        .find(|words| words.first() == Some(&pid.as_str()))
        .unwrap();
    let places = [format!("0:{}", threads[0]), format!("1:{}", threads[1])];
    let rest = [
        "kvmprof", "-", "-", "64M", "yes", "2", &places[0], &places[1],
    ];
    assert_eq!(line[1..], rest, "{text}");
}

/// `kvmprof list --json` by root with only these capabilities.
fn list_with(capabilities: &'static [Capability]) -> Value {
    let mut command = Command::new(kvmprof());
    command.args(["list", "--json"]);
    as_root_with(&mut command, capabilities);
    run_command(&mut command).json()
}

/// Three capabilities suffice; without one of them the list names it.
#[test]
fn three_capabilities_suffice_and_a_missing_one_is_named() {
    on_kvm(|| {
        // A contained guest's main thread keeps no right that a reader could lack.
        let guest = Guest::start(Boot::Demo, ["--cpus", "1", "--sandbox", "off"]);
        guest_of(&HostKernel::open().unwrap(), guest.pid(), 1);
        let entry = |capabilities| {
            let mut document = list_with(capabilities);
            let guests = document["guests"].as_array_mut().unwrap();
            guests.retain(|entry| entry["pid"] == guest.pid());
            (guests.pop(), document["hidden_processes"].as_u64().unwrap())
        };
        let (entry_with_all, _) = entry(&[SysPtrace, Perfmon, Bpf]);
        assert_eq!(entry_with_all.unwrap()["attachable"], true);
        for (capabilities, missing) in [
            (&[SysPtrace, Bpf][..], "lacks CAP_PERFMON;"),
            (&[SysPtrace, Perfmon], "lacks CAP_BPF;"),
            (&[SysPtrace], "lacks CAP_PERFMON and CAP_BPF;"),
        ] {
            let (entry, _) = entry(capabilities);
            let entry = entry.unwrap();
            let obstacle = entry["obstacle"].as_str().unwrap();
            assert!(obstacle.contains(missing), "{entry}");
            assert_eq!(entry["vcpus"][0]["index"], 0);
            assert_eq!(entry["attachable"], false);
        }
        let (entry, hidden) = entry(&[Perfmon, Bpf]);
        assert_eq!(entry, None);
        assert!(hidden > 0);
        guest.stop();
    });
}

/// A guest of this process without a vCPU, whose memory is made of pages that begin with their number.
struct Pages {
    vm: VmFd,
    /// The number of the first page in the backing memory.
    start: u64,
    _backing: Vec<u8>,
}

impl Pages {
    fn new(count: u8) -> Self {
        let pages: Vec<u8> = (0..count).flat_map(|page| [page; 4096]).collect();
        let mut backing = vec![0; pages.len() + 4096];
        let offset = backing.as_ptr().align_offset(4096);
        backing[offset..offset + pages.len()].copy_from_slice(&pages);
        Self {
            vm: Kvm::new().unwrap().create_vm().unwrap(),
            start: backing[offset..].as_ptr() as u64,
            _backing: backing,
        }
    }

    /// Makes page `page` the memory at the guest's page `guest`.
    fn set(&self, slot: u32, flags: u32, guest: u64, page: u64) {
        self.set_at(slot, flags, guest, self.start + (page << 12), 1);
    }

    fn remove(&self, slot: u32) {
        self.set_at(slot, 0, 0, self.start, 0);
    }

    fn set_at(&self, slot: u32, flags: u32, guest: u64, host_address: u64, pages: u64) {
        let region = kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr: guest << 12,
            memory_size: pages << 12,
            userspace_addr: host_address,
        };
        // SAFETY: no vCPU can write to what is there.
        unsafe { self.vm.set_user_memory_region(region).unwrap() };
    }
}

/// The first number in each of the guest's pages.
fn first_bytes<const N: usize>(memory: &AttachedMemory, pages: [u64; N]) -> [Option<u8>; N] {
    pages.map(|page| Some(read(memory, page << 12, 1)?[0]))
}

/// Slots in any order, with holes, and changed meanwhile: each address is read from its present slot.
#[test]
fn slots_that_change_are_read_again() {
    on_kvm(|| {
        let kernel = Arc::new(HostKernel::open().unwrap());
        let vm = Pages::new(5);
        vm.set(7, 0, HIGH, 4);
        // This address of this process is unmapped.
        vm.set_at(8, 0, HIGH + 1, 0x1000, 1);
        vm.set(1, 0, 1, 0);
        vm.set(0, 0, 0, 2);
        vm.set(2, KVM_MEM_READONLY, 3, 3);

        let found = guests_of(&kernel, std::process::id());
        let [guest] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(guest.memory_bytes, Some(4 << 12));
        assert_eq!(guest.obstacle, Some(Obstacle::NoVcpu));
        let memory = AttachedMemory::open(guest, kernel).unwrap();
        let pages = [0, 1, 2, 3, 4, HIGH, HIGH + 1];
        let expected = [Some(2), Some(0), None, Some(3), None, Some(4), None];
        assert_eq!(first_bytes(&memory, pages), expected);
        assert!(memory.contains(GuestAddress((HIGH + 1) << 12)));
        assert_eq!(read(&memory, ((HIGH + 1) << 12) - 2, 4), None);
        // Across two slots that aren't adjacent in the VMM.
        assert_eq!(read(&memory, 0xffe, 4).unwrap(), [2, 2, 0, 0]);
        assert_eq!(read(&memory, 0x1ffe, 4), None);

        assert!(!memory.refresh().unwrap());
        vm.remove(1);
        vm.set(3, 0, 2, 1);
        assert!(memory.refresh().unwrap());
        let expected = [Some(2), None, Some(1), Some(3), None, Some(4), None];
        assert_eq!(first_bytes(&memory, pages), expected);
        assert!(!memory.refresh().unwrap());
        let slots = memory.slots();
        assert_eq!((slots.bytes(), slots.iter().count()), (4 << 12, 5));

        for slot in [0, 3, 7, 8] {
            vm.remove(slot);
        }
        let gone = memory.refresh();
        let Err(AttachError::Obstacle { obstacle, .. }) = gone else {
            panic!("{gone:?}");
        };
        assert_eq!(obstacle, Obstacle::NoMemory);
    });
}

/// A guest whose vCPU hasn't run has no thread that could be stopped.
#[test]
fn a_guest_whose_vcpu_has_not_run_is_refused() {
    on_kvm(|| {
        let kernel = HostKernel::open().unwrap();
        let vm = Pages::new(1);
        vm.set(0, 0, 0, 0);
        let vcpu = vm.vm.create_vcpu(0).unwrap();
        let own = std::process::id();
        let found = guests_of(&kernel, own);
        let [guest] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(guest.obstacle, Some(Obstacle::NoThread));
        assert_eq!(guest.vcpus.len(), 1);
        assert_eq!(guest.vcpus[0].descriptor, vcpu.as_raw_fd());
        assert_eq!(guest.vcpus[0].thread, None);
        let words = ["attach", &own.to_string(), "--socket", "/nowhere"];
        run(words).assert_refused(1, &["none of its vCPUs has run yet"]);
    });
}

/// A process that inherited a guest's descriptor isn't its VMM: its own memory isn't the guest's.
#[test]
fn a_guest_belongs_to_the_process_that_has_its_memory() {
    on_kvm(|| {
        let kernel = Arc::new(HostKernel::open().unwrap());
        let vm = Pages::new(1);
        vm.set(0, 0, 0, 0);
        // SAFETY: the descriptor is open; only its own flags are changed.
        let kept = unsafe { libc::fcntl(vm.vm.as_raw_fd(), libc::F_SETFD, 0) };
        assert_eq!(kept, 0);
        let mut heir = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        until("the other program runs", || {
            let comm = fs::read_to_string(format!("/proc/{}/comm", heir.id())).unwrap();
            (comm == "cat\n").then_some(())
        });
        assert_eq!(guests_of(&kernel, heir.id()).len(), 0);
        assert_eq!(guests_of(&kernel, std::process::id()).len(), 1);
        drop(vm);
        assert_eq!(guests_of(&kernel, std::process::id()).len(), 0);
        let found = guests_of(&kernel, heir.id());
        let obstacles: Vec<_> = found.iter().map(|guest| &guest.obstacle).collect();
        assert_eq!(obstacles, [&Some(Obstacle::Elsewhere)]);
        let opened = AttachedMemory::open(&found[0], kernel);
        assert!(matches!(opened, Err(AttachError::Ended(_))), "{opened:?}");
        drop(heir.stdin.take());
        heir.wait().unwrap();
    });
}
