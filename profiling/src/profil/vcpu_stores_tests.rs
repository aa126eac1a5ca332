//! Ticks of a process of a Linux guest that was built by hand.

use std::sync::Arc;

use kvmprof_abi::profil::{Call, Function, State};
use kvmprof_introspection::{GuestKnowledge, VcpuIntrospector};
use kvmprof_introspection_fixtures::kernel::{Areas, HOT, task};
use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, LinuxGuest, TASKS, USER_TABLES};
use kvmprof_introspection_fixtures::page_tables::Tables;
use kvmprof_introspection_fixtures::processes::FixtureMemory;
use kvmprof_recording::{Mode, Sample};
use vm_memory::{Bytes, GuestAddress};

use super::{ProfiledProcesses, ProgramEnd, VcpuStores, Watch};
use crate::sampling::StoppedVcpu;

/// The process that runs, as the guest's task 1.
const PID: i32 = 41;
/// Its array and the bytes that identify its program: virtual and physical addresses.
const BUFFER: u64 = 0x7fff_1234_5000;
const BUFFER_PAGE: u64 = 0x50_0000;
const RANDOM: u64 = 0x7fff_1234_6010;
const RANDOM_PAGE: u64 = 0x50_1000;
const AT_RANDOM: u64 = 25;
const PROGRAM: [u8; 16] = *b"sixteen letters!";
/// A page-table entry's bit: user mode may access the page.
const USER: u64 = 1 << 2;

/// A guest whose process has called pcsample.
struct Sampled {
    guest: LinuxGuest,
    introspector: VcpuIntrospector,
    processes: Arc<ProfiledProcesses>,
    stores: VcpuStores,
    /// The page table with the entries of both pages.
    table: u64,
}

impl Sampled {
    fn new() -> Self {
        let guest = LinuxGuest::new(HOT);
        let parent = DIRECT_MAP + TASKS + 0x2000;
        guest.write(TASKS + 0x1000 + task::PARENT, &parent.to_le_bytes());
        let mut user = Tables::new(guest.memory.clone(), USER_TABLES, 4);
        user.skip_to(0x58_0000);
        user.map(BUFFER, BUFFER_PAGE, 1);
        user.map(RANDOM & !0xfff, RANDOM_PAGE, 1);
        let table = user.end() - 4096;
        guest.write(RANDOM_PAGE + (RANDOM & 0xfff), &PROGRAM);
        let mut room = FixtureMemory::new(&guest, Areas::Tree);
        let mm = room.process(1, &[]);
        room.auxiliary_vector(mm, &[(AT_RANDOM, RANDOM), (0, 0)]);
        let knowledge = GuestKnowledge::from_kernel_image(&HOT.file()).unwrap();
        let mut introspector = VcpuIntrospector::new(Arc::new(knowledge), 0);
        for registers in [guest.kernel(0), guest.user()] {
            introspector.identify(&guest.memory, &registers, false, false);
        }
        let call = Call {
            flags: Call::EVERY_TICK,
            buffer: BUFFER,
            size: 9,
            program: PROGRAM,
            ..Call::new(Function::Pcsample, PID)
        };
        let processes = Arc::<ProfiledProcesses>::default();
        assert_eq!(processes.call(&call, &[], Some(&[])), Ok(0));
        let mut stores = VcpuStores::new(Arc::clone(&processes));
        stores.set_hz(100);
        let sampled = Self {
            guest,
            introspector,
            processes,
            stores,
            table,
        };
        let entry = sampled.entry(BUFFER);
        sampled.set_entry(BUFFER, entry | USER);
        sampled
    }

    fn slot(&self, address: u64) -> GuestAddress {
        GuestAddress(self.table + (address >> 12 & 0x1ff) * 8)
    }

    fn entry(&self, address: u64) -> u64 {
        self.guest.memory.read_obj(self.slot(address)).unwrap()
    }

    fn set_entry(&self, address: u64, entry: u64) {
        let slot = self.slot(address);
        self.guest.memory.write_obj(entry, slot).unwrap();
    }

    /// Makes a tick in the process. Returns the state, and the number of program counters in its array.
    fn tick(&mut self) -> (State, usize) {
        let registers = self.guest.user();
        let sample = Sample {
            pc: registers.rip,
            pid: PID,
            mode: Mode::User,
            ..Sample::default()
        };
        let vcpu = StoppedVcpu {
            memory: &self.guest.memory,
            registers: &registers,
            introspector: &self.introspector,
        };
        self.stores.tick(&sample, vcpu);
        let mut words = [0; 9];
        for (place, word) in (BUFFER_PAGE..).step_by(8).zip(&mut words) {
            *word = self.guest.memory.read_obj(GuestAddress(place)).unwrap();
        }
        let stored = words.iter().filter(|word| **word == registers.rip).count();
        (self.processes.status(PID).unwrap().state, stored)
    }
}

#[test]
fn a_program_that_cannot_be_read_yet_is_looked_at_again() {
    let mut sampled = Sampled::new();
    let entry = sampled.entry(RANDOM);
    sampled.set_entry(RANDOM, 0);
    assert_eq!(sampled.tick(), (State::On, 0));
    assert_eq!(sampled.tick(), (State::On, 0));
    sampled.set_entry(RANDOM, entry);
    assert_eq!(sampled.tick(), (State::On, 1));
    // Once it is known, it needn't be in memory.
    sampled.set_entry(RANDOM, 0);
    assert_eq!(sampled.tick(), (State::On, 2));
}

/// A process of the next kernel has the same id, and in guests other than Linux nothing else tells it from the former one.
#[test]
fn nothing_is_stored_after_a_restart() {
    let mut sampled = Sampled::new();
    let watch = Watch::begin(&sampled.processes, PID).unwrap();
    assert_eq!(sampled.tick(), (State::On, 1));
    sampled.processes.restart(5);
    assert_eq!(sampled.tick(), (State::Ended, 1));
    let state = State::Ended;
    assert_eq!(watch.process().end(), Some(ProgramEnd { state, time: 5 }));
}

/// The array was in the memory of the former program.
#[test]
fn nothing_is_stored_for_another_program() {
    let execute = |sampled: &Sampled| {
        let number = TASKS + 0x1000 + task::EXEC_ID;
        sampled.guest.write(number, &9_u64.to_le_bytes());
        sampled.guest.write(RANDOM_PAGE + 0x10, b"another program!");
    };
    // Between two ticks, and before the first one.
    for ticks in [1, 0] {
        let mut sampled = Sampled::new();
        for tick in 1..=ticks {
            assert_eq!(sampled.tick(), (State::On, tick));
        }
        execute(&sampled);
        assert_eq!(sampled.tick(), (State::Executed, ticks));
        assert_eq!(sampled.tick(), (State::Executed, ticks));
    }
}
