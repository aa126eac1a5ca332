//! The host kernel's functions for kvmprof, and guests of other VMMs, with each of Debian's kernels as the host's.

use std::ops::Range;

use kvmprof_recording::{Mode, StackEnd};
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, guest_program, once, pcs_kind};

use crate::attach::COMMON;
use crate::record::{NamedSample, read};

/// The link address of the workload.
const SOMETIMES: u64 = 0x3000_0000;
/// The program's addresses.
const TEXT: Range<u64> = SOMETIMES..SOMETIMES + 0x100_0000;
/// Addresses of the kernel.
const KERNEL: Range<u64> = 0xffff_8000_0000_0000..u64::MAX;

kvmprof_tests::in_each_kernel! {
    events_are_where_they_happen
    guests_are_attached_to_by_both_captures
    guests_are_listed
    the_kernels_clock_samples_pids_and_program_counters
    recordings_by_the_kernels_clock_have_stacks_by_exits
}

/// Guests on a host with that series of kernels.
fn run(series: &str) -> Finished {
    once(&format!("vmx-hosts-{series}"), || {
        let sometimes = guest_program("brief.c", SOMETIMES, &[]);
        let guest = guest_init(include_str!("hosts_init.sh"), &[("sometimes", &sometimes)]);
        Scenario::vmx()
            .host_kernel(debian(series))
            .unpacked_kernel("vmlinuz", &debian("6.12"))
            .file("guest.cpio", guest)
            .qemu()
            .run(&format!("{COMMON}\n{}", include_str!("hosts.sh")))
    })
}

/// Checks that samples in the program have its pid, and that those of dd in the kernel are dd's. Each is a program counter, whether it is in
/// user mode, a pid and a name. The host's kernel can't read the process of a few, which is unknown then.
fn check_processes(what: &str, samples: impl Iterator<Item = (u64, bool, i32, String)>) {
    let (mut user, mut kernel, mut unread) = (0, 0, 0);
    for (pc, is_user, pid, name) in samples {
        if pid < 0 {
            unread += 1;
        } else if TEXT.contains(&pc) {
            assert!(
                is_user && pid > 1 && name == "sometimes",
                "{what}: {pc:#x} {pid} {name}"
            );
            user += 1;
        }
        if !is_user && name == "dd" {
            assert!(KERNEL.contains(&pc) && pid > 1, "{what}: {pc:#x} {pid}");
            kernel += 1;
        }
    }
    println!(
        "{what}: {user} samples of the program, {kernel} of dd in the kernel, {unread} of an unknown process"
    );
    assert!(user >= 5 && kernel >= 3, "{what}");
    assert!(unread * 10 <= user + kernel, "{what}: {unread}");
}

/// The samples of a recording from the time on at which kvmprof knows the location of the running process.
fn of_recording(seen: &[NamedSample]) -> impl Iterator<Item = (u64, bool, i32, String)> {
    let known = seen.iter().skip_while(|seen| seen.sample.pid < 0);
    known.map(|seen| {
        let sample = &seen.sample;
        (
            sample.pc,
            sample.mode == Mode::User,
            sample.pid,
            seen.name(),
        )
    })
}

fn the_kernels_clock_samples_pids_and_program_counters(run: &Finished) {
    let status = run.status_document("own.clock.status");
    assert_eq!(status.clock.source, "kernel");
    let stream = run.stream("own.clock");
    stream.check_accounts();
    let samples = stream.samples.iter().map(|sample| {
        let name = stream.names.get(&sample.pid).cloned().unwrap_or_default();
        (sample.pc, sample.kind == pcs_kind::USER, sample.pid, name)
    });
    check_processes("own.clock", samples);
}

/// With VT-x the host's kernel doesn't know the guest's stack pointer.
fn recordings_by_the_kernels_clock_have_stacks_by_exits(run: &Finished) {
    let status = run.status_document("own.recorded.json");
    assert_eq!(status.clock.source, "thread");
    let (_, seen) = read(run, "own.recorded.kvmprof");
    check_processes("own.recorded", of_recording(&seen));
    check_kernel_stacks("own.recorded", &seen);
}

/// All but a few are whole.
fn check_kernel_stacks(what: &str, seen: &[NamedSample]) {
    let kernel = seen.iter().filter(|seen| seen.sample.mode == Mode::Kernel);
    let whole = kernel
        .clone()
        .filter(|seen| seen.sample.stack.kernel_end == StackEnd::Complete);
    let (whole, all) = (whole.count(), kernel.count());
    println!("{what}: {whole} of {all} kernel stacks are whole");
    assert!(all > 0 && whole * 100 >= all * 95, "{what}");
}

fn guests_are_listed(run: &Finished) {
    for (guest, name) in [("own", None), ("qemu", Some("qemu"))] {
        let list = run.json(&format!("{guest}.list.json"));
        let [machine] = list["guests"].as_array().unwrap().as_slice() else {
            panic!("{list}");
        };
        assert_eq!(machine["attachable"], true, "{machine}");
        assert_eq!(machine["name"].as_str(), name);
        let [vcpu] = machine["vcpus"].as_array().unwrap().as_slice() else {
            panic!("{machine}");
        };
        assert!(vcpu["thread"].is_number(), "{machine}");
        // Firmware is memory, too.
        let bytes = machine["memory_bytes"].as_u64().unwrap();
        assert!((256 << 20..272 << 20).contains(&bytes), "{machine}");
    }
}

/// By ptrace samples have stacks. The host's kernel has only the program counter of the guest's, and reports that.
fn guests_are_attached_to_by_both_captures(run: &Finished) {
    for guest in ["own", "qemu"] {
        assert_eq!(
            run.status(guest),
            0,
            "{}",
            run.text(&format!("{guest}.stderr"))
        );
        for capture in ["ptrace", "kernel"] {
            let name = format!("{guest}.{capture}");
            let said = run.text(&format!("{name}.attach"));
            assert_eq!(
                run.text(&format!("{name}.attach.status")).trim(),
                "0",
                "{said}"
            );
            assert_eq!(
                run.status_document(&format!("{name}.json")).clock.source,
                capture
            );
            let (contents, seen) = read(run, &format!("{name}.kvmprof"));
            assert!(contents.account.balances(), "{:?}", contents.account);
            check_processes(&name, of_recording(&seen));
            if capture == "ptrace" {
                check_kernel_stacks(&name, &seen);
                continue;
            }
            for seen in seen.iter().filter(|seen| seen.sample.mode != Mode::Idle) {
                let stack = seen.sample.stack;
                let kernel = (stack.kernel, stack.kernel_end);
                assert!(
                    [(0, StackEnd::Absent), (1, StackEnd::Unsupported)].contains(&kernel),
                    "{name}: {kernel:?} {:?}",
                    seen.frames
                );
            }
            // Programs' functions have names.
            let of_program = seen.iter().filter(|seen| TEXT.contains(&seen.sample.pc));
            let named = of_program.clone().filter(|seen| seen.frames[0] == "main");
            assert!(named.count() * 10 >= of_program.count() * 9, "{name}");
        }
    }
}

/// Whether it is at the serial port's I/O.
fn is_port(seen: &NamedSample) -> bool {
    let innermost = seen.frames.first();
    innermost.is_some_and(|frame| frame.starts_with("io_serial_"))
}

/// Exits to kvmprof are at the serial port's I/O, page faults of KVM at first uses of memory, halts in the idle loop.
fn events_are_where_they_happen(run: &Finished) {
    let event = |event: &str| {
        let (name, _) = event.split_once(':').unwrap();
        let (contents, seen) = read(run, &format!("own.{name}.kvmprof"));
        assert_eq!(contents.info.event, Some(event.parse().unwrap()));
        assert!(contents.account.balances() && seen.len() >= 20, "{name}");
        seen
    };
    let part = |what: &str, seen: &[NamedSample], is: fn(&NamedSample) -> bool| {
        for seen in seen.iter().filter(|seen| !is(seen)).take(8) {
            println!(
                "{what}: {:?} {} {:?}",
                seen.sample.mode,
                seen.name(),
                seen.frames
            );
        }
        let count = seen.iter().filter(|seen| is(seen)).count();
        println!("{what}: {count} of {}", seen.len());
        count * 100 / seen.len()
    };
    assert!(part("exits at ports", &event("exits:1"), is_port) >= 90);
    let halted = |seen: &NamedSample| seen.sample.mode == Mode::Idle;
    assert!(part("halts", &event("halt:1"), halted) >= 90);
    let faults = event("page-faults:1");
    assert!(part("page faults of dd", &faults, |seen| seen.name() == "dd") >= 50);
    // Timer interrupts and other exits that KVM handles itself.
    let all = event("kvm-exits:20");
    assert!(part("other exits", &all, |seen| !is_port(seen)) >= 50);
}
