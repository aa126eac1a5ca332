//! profil and pcsample against a running guest: buffers that kvmprof keeps, and stores into a process's own memory.

use kvmprof_abi::profil::{Call, Function, Range, State};
use kvmprof_demo_guest::{Mode, function_at, process_of, rows, symbol};
use kvmprof_recording::status::ConsumerStatus;
use kvmprof_test_guest::Stage;
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Machine, Profil, Sampled, assert_share, kept, on_kvm, profil_call,
    sampling_rate, share, until,
};
use kvmprof_vmm::clock::ClockSource;
use kvmprof_vmm::virtio::GuestAccess;

/// The demo guest's processes, in the order of their memory.
const PIDS: [i32; 4] = [101, 102, 103, 201];
/// Where each process has its private memory, and how much of it (`guest/demo/image/layout.h`).
const PRIVATE: u64 = 0x80_0000_0000;
const PAGE: usize = 4096;
const PRIVATE_LENGTH: usize = 8 * PAGE;
/// Private memory that no stack of two vCPUs reaches.
const UNUSED: usize = 4 * PAGE;
/// The 2 MiB with all code of user mode.
const USER_CODE: u64 = 0x60_0000;
const USER_CODE_LENGTH: u64 = 0x20_0000;
/// A page-table entry's accessed and dirty bits.
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;

fn machine(vcpus: u16, hz: u32) -> Machine {
    let clock = Clock {
        hz,
        source: ClockSource::Thread,
        // The guest's own timer would run in step.
        jitter: true,
    };
    Machine::start(Boot::Demo, vcpus, clock)
}

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

/// What a process has behind its stacks; nobody but profil writes there.
fn unused(machine: &Machine, process: usize) -> Vec<u8> {
    private(machine, process)[UNUSED..].to_vec()
}

/// "During program execution, the kernel samples the program counter of the process": only in user mode of that process,
/// in its own code. Processes have the shares that the guest itself says.
#[test]
fn each_process_has_its_share_of_the_ticks() {
    on_kvm(|| {
        let machine = machine(2, sampling_rate(1000));
        let profils = PIDS.map(|pid| {
            let profil = Profil::open(&machine.connect());
            let every = Call {
                flags: Call::EVERY_TICK,
                size: 500_000,
                ..profil_call(Function::Pcsample, pid)
            };
            profil.call(&kept(every), &[]);
            profil
        });
        machine.truth();
        let pressure = CpuPressure::begin();
        let samples = |profil: &Profil| profil.status().stored;
        let before = (machine.truth(), profils.each_ref().map(samples));
        until("ticks were stored", || {
            let stored: u64 = profils.iter().map(samples).sum();
            (stored >= before.1.iter().sum::<u64>() + 1500).then_some(())
        });
        let after = (machine.truth(), profils.each_ref().map(samples));
        let stored: [u64; 4] = std::array::from_fn(|process| after.1[process] - before.1[process]);
        let cycles = after.0.cycles_since(&before.0);
        let user = rows().iter().zip(cycles);
        let user: Vec<_> = user.filter(|(row, _)| row.mode == Mode::User).collect();
        let all: u64 = user.iter().map(|(_, cycles)| cycles).sum();
        for ((pid, stored_one), profil) in PIDS.iter().zip(stored).zip(&profils) {
            let (row, own) = user.iter().find(|(row, _)| row.pid == Some(*pid)).unwrap();
            let total = stored.iter().sum();
            let shares = (share(stored_one, total), share(*own, all));
            let sampled = Sampled::new(total, 0, 0, &pressure);
            assert_share(row.name, shares, sampled);
            let pcs = profil.samples();
            let in_user_code = |pc: &u64| (USER_CODE..USER_CODE + USER_CODE_LENGTH).contains(pc);
            assert!(pcs.iter().all(in_user_code), "{pid}: {pcs:x?}");
        }
        machine.stop();
    });
}

/// A count for each 8 bytes of code, 100 times a second, whatever the clock's rate.
#[test]
fn a_histogram_has_its_counts_in_the_processes_functions() {
    on_kvm(|| {
        let machine = machine(1, 1000);
        let profil = Profil::open(&machine.connect());
        profil.call(&kept(histogram(101)), &[]);
        profil.until_stored(20);
        profil.call(
            &kept(Call {
                scale: 0,
                ..histogram(101)
            }),
            &[],
        );
        assert_eq!(profil.status().state, State::Off);
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

/// Stores go into the process's own memory, by way of its page tables, whose accessed and dirty bits are set, and
/// nowhere else.
#[test]
fn stores_go_into_the_memory_of_the_process_alone() {
    on_kvm(|| {
        let machine = machine(2, sampling_rate(1000));
        let before = [0, 1, 2, 3].map(|process| unused(&machine, process));
        assert!(before.iter().flatten().all(|byte| *byte == 0));
        let profil = Profil::open(&machine.connect());
        // Over the border of two pages, at an odd address.
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
        // The stacks', and the two that were stored to.
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

/// Both systems' histograms, and AIX's ranges, count in the process's memory.
#[test]
fn all_histograms_count_in_the_process() {
    on_kvm(|| {
        let machine = machine(1, sampling_rate(1000));
        let size = 64_u8;
        let wheel = symbol("turn_wheel").unwrap();
        let range = Range {
            low: wheel.address,
            high: wheel.address + wheel.size,
            buffer: PRIVATE + UNUSED as u64,
            size: size.into(),
            scale: u32::MAX,
        };
        for function in [Function::Profil, Function::AixProfil, Function::AixRanges] {
            let profil = Profil::open(&machine.connect());
            let ranges: &[Range] = match function {
                Function::AixRanges => &[range],
                _ => &[],
            };
            let on = Call {
                flags: Call::EVERY_TICK,
                buffer: PRIVATE + UNUSED as u64,
                size: size.into(),
                offset: USER_CODE,
                scale: 2,
                ..profil_call(function, 102)
            };
            assert_eq!(profil.call(&on, ranges), 0);
            profil.until_stored(20);
            assert_eq!(profil.call(&Call { scale: 0, ..on }, &[]), 0);
            assert_eq!(profil.status().state, State::Off, "{function:?}");
            let counts = unused(&machine, 1);
            let counts = counts.as_chunks::<2>().0.iter();
            let counted: u64 = counts
                .map(|count| u64::from(u16::from_le_bytes(*count)))
                .sum();
            assert!(counted >= 20, "{function:?}: {counted}");
            let other = &unused(&machine, 1)[usize::from(size)..];
            assert!(other.iter().all(|byte| *byte == 0), "{function:?}");
            machine.overwrite("process_memory", (PRIVATE_LENGTH + UNUSED) as u64, &[0; 64]);
        }
        machine.stop();
    });
}

/// "Profiling is turned off if a buff update would cause a memory fault": where the process has no memory, where it is
/// the kernel's, and where a page can't be written at one of its levels.
#[test]
fn a_buffer_that_the_process_cannot_write_turns_profiling_off() {
    on_kvm(|| {
        let machine = machine(1, sampling_rate(1000));
        let kernel_data = symbol("kvmprof_truth").unwrap().address;
        let read_only = PRIVATE + 6 * PAGE as u64;
        let entry = u64::from_le_bytes(machine.object("process_pt_2")[48..56].try_into().unwrap());
        machine.overwrite("process_pt_2", 48, &(entry & !2).to_le_bytes());
        let before = machine.object("process_memory");
        for buffer in [
            0,
            kernel_data,
            0xfee0_0000,
            PRIVATE + PRIVATE_LENGTH as u64,
            PRIVATE + PRIVATE_LENGTH as u64 - 4,
            read_only,
            0x7fff_ffff_fffc,
            0xffff_8000_0000_0000,
            0x1000_0000_0000_0000,
            u64::MAX - 3,
        ] {
            let profil = Profil::open(&machine.connect());
            let on = Call {
                buffer,
                size: 8,
                ..profil_call(Function::Pcsample, 103)
            };
            profil.call(&on, &[]);
            let status = profil.until_stored(1);
            assert_eq!(
                (status.state, status.lost),
                (State::Fault, 1),
                "{buffer:#x}"
            );
        }
        let stacks = UNUSED..PRIVATE_LENGTH;
        let now = machine.object("process_memory");
        for process in 0..PIDS.len() {
            let own = process * PRIVATE_LENGTH;
            let range = own + stacks.start..own + stacks.end;
            assert_eq!(now[range.clone()], before[range]);
        }
        machine.stop();
    });
}

/// A page may be another one at the next tick, or lie where there is no memory.
#[test]
fn a_page_that_is_remapped_between_two_ticks_is_followed() {
    on_kvm(|| {
        let machine = machine(1, sampling_rate(1000));
        let page = UNUSED as u64 / PAGE as u64;
        let entry = |machine: &Machine, page: u64| {
            let tables = machine.object("process_pt_3");
            let (entries, _) = tables.as_chunks::<8>();
            u64::from_le_bytes(entries[usize::try_from(page).unwrap()])
        };
        let remap = |to: u64| machine.overwrite("process_pt_3", page * 8, &to.to_le_bytes());
        let profil = Profil::open(&machine.connect());
        let on = Call {
            flags: Call::EVERY_TICK,
            buffer: PRIVATE + UNUSED as u64,
            size: 2,
            scale: 2,
            offset: USER_CODE,
            ..profil_call(Function::AixProfil, 201)
        };
        profil.call(&on, &[]);
        profil.until_stored(3);
        let count = |page: usize| {
            let counts = private(&machine, 3);
            u16::from_le_bytes([counts[page * PAGE], counts[page * PAGE + 1]])
        };
        let (first, other) = (entry(&machine, page), entry(&machine, page + 1));
        remap(other);
        profil.until_stored(profil.status().stored + 3);
        let page = UNUSED / PAGE;
        let before = count(page);
        assert!(before >= 3 && count(page + 1) >= 2);
        profil.until_stored(profil.status().stored + 3);
        assert_eq!(count(page), before);
        // Devices, which user mode may write by these tables, and no memory at all.
        for nowhere in [0xfee0_0000, 0x000f_ffff_ffff_f000] {
            remap(nowhere | other & 0xfff);
            let stopped = until("storing has stopped", || {
                let status = profil.status();
                (status.state != State::On).then_some(status)
            });
            assert_eq!(stopped.state, State::Fault);
            profil.call(&on, &[]);
        }
        remap(first);
        machine.stop();
    });
}

/// A process that calls profil and one that calls pcsample, both in the guest: by the time that the guest itself says they
/// have run, and in their own memory.
#[test]
fn processes_of_the_guest_profile_themselves() {
    on_kvm(|| {
        let clock = Clock {
            hz: sampling_rate(500),
            source: ClockSource::Thread,
            jitter: true,
        };
        let boot = Boot::Test("workload=profil");
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
        let shares = (
            share(counted, counted + sampled),
            share(cycles[0], cycles[0] + cycles[1]),
        );
        let seen = Sampled::new(counted + sampled, 0, 0, &pressure);
        assert_share("profil beside pcsample", shares, seen);
        for process in [2, 3] {
            assert!(unused(&machine, process).iter().all(|byte| *byte == 0));
        }
        let consumers = machine.status().consumers;
        let names: Vec<&str> = consumers.iter().map(ConsumerStatus::name).collect();
        assert!(names.contains(&"profil 101") && names.contains(&"profil 102"));
        machine.stop();
    });
}
