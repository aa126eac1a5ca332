//! profil and pcsample against a running guest: buffers that kvmprof keeps, and stores into a process's own memory.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, Function, Range, State};
use kvmprof_abi::wire::device;
use kvmprof_demo_guest::{function_at, process_of};
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_recording::status::ConsumerStatus;
use kvmprof_test_guest::Stage;
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Guest, Machine, Profil, Sampled, assert_share, errno_of, kept,
    on_kvm, profil_call, share, until,
};

/// The address and size of each process's private memory (`guest/demo/image/layout.h`).
const PRIVATE: u64 = 0x80_0000_0000;
const PAGE: usize = 4096;
const PRIVATE_LENGTH: usize = 8 * PAGE;
/// Private memory that the stacks of two vCPUs don't reach.
const UNUSED: usize = 4 * PAGE;
/// The 2 MiB with all code of user mode.
const USER_CODE: u64 = 0x60_0000;
const USER_CODE_LENGTH: u64 = 0x20_0000;
/// A page-table entry's accessed and dirty bits.
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;

/// A histogram of all user code, with a count for each 8 bytes.
fn histogram(pid: i32) -> Call {
    Call {
        size: USER_CODE_LENGTH / 4,
        offset: USER_CODE,
        scale: 0x4000,
        ..profil_call(Function::Profil, pid)
    }
}

/// The private memory of process number `process`.
fn private(machine: &Machine, process: usize) -> Vec<u8> {
    let all = machine.object("process_memory");
    all[process * PRIVATE_LENGTH..][..PRIVATE_LENGTH].to_vec()
}

/// The memory of a process after its stacks; only profil writes there.
fn unused(machine: &Machine, process: usize) -> Vec<u8> {
    private(machine, process)[UNUSED..].to_vec()
}

/// A count for each 8 bytes of code, 100 times a second, for any rate of the clock.
#[test]
fn a_histogram_has_its_counts_in_the_processes_functions() {
    on_kvm(|| {
        let machine = Machine::start(
            Boot::Demo,
            1,
            Clock {
                hz: 1000,
                ..Clock::jittered(1000)
            },
        );
        let profil = Profil::open(&machine.connect());
        profil.call(&kept(histogram(101)), &[]);
        let before = machine.status().clock.ledger.ticks;
        let status = profil.until_stored(20);
        let ticks = machine.status().clock.ledger.ticks - before;
        let counts = profil.counts();
        assert_eq!(counts.len() as u64, USER_CODE_LENGTH / 8);
        let stored: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        assert!(stored >= status.stored);
        assert!(
            status.ticks <= ticks / 10 + 1,
            "{} of {ticks}",
            status.ticks
        );
        for (address, count) in (USER_CODE..).step_by(8).zip(counts) {
            // A function may begin in the middle of the 8 bytes.
            let names = [address, address + 7].map(|pc| function_at(pc).unwrap_or_default());
            let own = names.iter().any(|name| process_of(name) == Some(101));
            assert!(count == 0 || own, "{count} in {names:?}");
        }
        machine.stop();
    });
}

/// Stores go only into the process's own memory, through its page tables, whose accessed and dirty bits are set.
#[test]
fn stores_go_into_the_memory_of_the_process_alone() {
    on_kvm(|| {
        let machine = Machine::start(Boot::Demo, 2, Clock::jittered(1000));
        let before = [0, 1, 2, 3].map(|process| unused(&machine, process));
        assert!(before.iter().flatten().all(|byte| *byte == 0));
        let profil = Profil::open(&machine.connect());
        // Across two pages, at an odd address.
        let capacity = 40_u16;
        let start = UNUSED + PAGE - 13;
        let pcsample = Call {
            buffer: PRIVATE + start as u64,
            size: capacity.into(),
            ..profil_call(Function::Pcsample, 102)
        };
        assert_eq!(profil.call(&pcsample, &[]), 0);
        let status = profil.until_stored(capacity.into());
        assert_eq!(
            (status.state, status.stored),
            (State::Full, capacity.into())
        );
        let memory = private(&machine, 1);
        let (array, behind) = memory[start..].split_at(usize::from(capacity) * 8);
        for pc in array.as_chunks::<8>().0 {
            let name = function_at(u64::from_le_bytes(*pc));
            assert!(
                name.is_some_and(|name| process_of(name) == Some(102)),
                "{name:?}"
            );
        }
        assert!(behind.iter().all(|byte| *byte == 0));
        assert!(memory[UNUSED..start].iter().all(|byte| *byte == 0));
        for (process, before) in before.iter().enumerate() {
            assert!(process == 1 || unused(&machine, process) == *before);
        }
        let tables = machine.object("process_pt_1");
        let entries = tables
            .as_chunks::<8>()
            .0
            .iter()
            .map(|entry| u64::from_le_bytes(*entry));
        let marked: Vec<bool> = entries
            .take(8)
            .map(|entry| entry & (ACCESSED | DIRTY) == ACCESSED | DIRTY)
            .collect();
        // Those of the stacks, and the two stored to.
        assert_eq!(marked[1..], [false, false, false, true, true, false, false]);
        // "On subsequent calls, it returns the number of samples that were stored".
        let off = Call {
            size: 0,
            ..pcsample
        };
        assert_eq!(profil.call(&off, &[]), i64::from(capacity));
        machine.stop();
    });
}

/// A process that calls profil and one that calls pcsample, both in the guest: by the guest's own count of their run time,
/// and in their own memory.
#[test]
fn processes_of_the_guest_profile_themselves() {
    on_kvm(|| {
        let boot = Boot::Test("workload=profil");
        let clock = Clock::jittered(500);
        let machine = Machine::start_with_ports(boot, 1, clock, GuestAccess::Profil);
        machine.until_stage(Stage::Open);
        machine.allow(Stage::Open);
        let stored = || {
            let counts = private(&machine, 0);
            let counts = counts[UNUSED..].as_chunks::<2>().0.iter();
            let counted: u64 = counts
                .map(|count| u64::from(u16::from_le_bytes(*count)))
                .sum();
            let samples = private(&machine, 1);
            let samples = samples[UNUSED..].as_chunks::<8>().0.iter();
            let samples: Vec<u64> = samples.map(|pc| u64::from_le_bytes(*pc)).collect();
            let filled = samples.iter().position(|pc| *pc == 0);
            let filled = filled.unwrap_or(samples.len());
            assert!(samples[filled..].iter().all(|pc| *pc == 0));
            let image = &kvmprof_test_guest::IMAGE;
            for pc in &samples[..filled] {
                let name = image.function_at(*pc).unwrap_or_default();
                assert!(process_of(name) == Some(102), "{pc:#x} {name}");
            }
            (counted, filled as u64)
        };
        machine.truth();
        let pressure = CpuPressure::begin();
        let (before, cycles_before) = (stored(), machine.truth());
        let after = until("ticks were stored", || {
            let now = stored();
            (now.0 + now.1 >= before.0 + before.1 + 500).then_some(now)
        });
        let cycles = machine.truth().cycles_since(&cycles_before);
        let (counted, sampled) = (after.0 - before.0, after.1 - before.1);
        let (observed, expected) = (
            share(counted, counted + sampled),
            share(cycles[0], cycles[0] + cycles[1]),
        );
        let seen = Sampled::new(counted + sampled, 0, 0, &pressure);
        assert_share("profil beside pcsample", observed, expected, seen);
        for process in [2, 3] {
            assert!(unused(&machine, process).iter().all(|byte| *byte == 0));
        }
        let consumers = machine.status().consumers;
        let names: Vec<&str> = consumers.iter().map(ConsumerStatus::name).collect();
        assert!(names.contains(&"profil 101") && names.contains(&"profil 102"));
        machine.stop();
    });
}

/// Invalid calls are refused, and change nothing.
#[test]
fn wrong_calls_are_refused() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let connection = guest.connect();
        assert_eq!(errno_of(connection.open(device::PROFIL, 1)), Errno::ENXIO);
        let profil = Profil::open(&connection);
        let good = histogram(101);
        let too_long = (4 << 20) + 1;
        for wrong in [
            Call { pid: 0, ..good },
            Call { pid: -1, ..good },
            kept(Call { buffer: 8, ..good }),
            kept(Call {
                size: too_long,
                ..good
            }),
            kept(profil_call(Function::AixRanges, 101)),
        ] {
            assert_eq!(profil.refused(&wrong, &[]), Errno::EINVAL, "{wrong:?}");
        }
        let range = Range {
            low: 0,
            high: 8,
            buffer: 0,
            size: 8,
            scale: 2,
        };
        let ranges = profil_call(Function::AixRanges, 101);
        let too_many = vec![range; 257];
        assert_eq!(profil.refused(&ranges, &too_many), Errno::EINVAL);
        assert_eq!(errno_of(profil.0.read(8)), Errno::EINVAL);
        assert_eq!(errno_of(profil.0.ioctl(0x5503, 0)), Errno::EINVAL);
        let short = profil
            .0
            .ioctl_with(kvmprof_abi::profil::PROFIL_CALL, 0, &[0; 71], 0);
        assert_eq!(errno_of(short), Errno::EFAULT);
        assert!(!guest.status().clock.running);
        // At most 64 MiB of buffers are kept.
        let longest = kept(Call {
            size: 4 << 20,
            ..good
        });
        let sixteen: Vec<Profil> = (0..16).map(|_| Profil::open(&connection)).collect();
        for profil in &sixteen {
            profil.call(&longest, &[]);
        }
        assert_eq!(profil.refused(&longest, &[]), Errno::ENOSPC);
        sixteen[0].call(&longest, &[]);
        guest.stop();
    });
}
