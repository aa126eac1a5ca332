//! `--clock kernel`: samples agree with the addresses of the guest's programs, consumers that need exits get them while they
//! are active, and a host that doesn't allow it is recognised.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::process::Command;

use kvmprof_abi::pcs::{PCS_SETBSIZE, PROF_ALL, kind};
use kvmprof_abi::pmc::CounterId;
use kvmprof_recording::Mode;
use kvmprof_tests::Capability::{Bpf, Perfmon};
use kvmprof_tests::{
    Accounts, Boot, ENOUGH_SAMPLES, Guest, Pmc, as_root_with, check_demo_processes,
    is_kernel_clock_for_demo, kvmprof, on_kvm, recorded, run, run_command, until,
};

const BSIZE: i64 = 65_536;

fn guest(options: &[&str]) -> Guest {
    let always = ["--clock", "kernel", "--hz", "1000"];
    Guest::start(Boot::Demo, always.iter().chain(options))
}

fn until_source(guest: &Guest, expected: &str) {
    until("the clock is driven otherwise", || {
        (guest.status().clock.source == expected).then_some(())
    });
}

/// Counts of processes need exits. Nothing is counted twice or lost at either switch, and samples are as good.
#[test]
fn consumers_that_need_exits_get_them_while_active() {
    on_kvm(|| {
        if !is_kernel_clock_for_demo() {
            return;
        }
        let guest = guest(&["--cpus", "2"]);
        let mut pcs = guest.open();
        let before = Accounts::of(&pcs.connection);
        pcs.ioctl(PCS_SETBSIZE, BSIZE);
        pcs.ioctl(PROF_ALL, 0);
        for _ in 0..3 {
            until_source(&guest, "kernel");
            let counting = guest.connect();
            let pmc = Pmc::open(&counting);
            pmc.account(&[CounterId::Ticks]);
            until_source(&guest, "thread");
            pcs.read_available();
            drop(pmc);
            drop(counting);
            Accounts::of(&pcs.connection).check();
        }
        until_source(&guest, "kernel");
        pcs.read_ticks(6000);
        let recorded = pcs.stop();
        let samples = || {
            recorded
                .samples()
                .map(|sample| (sample.kind, sample.pc, sample.pid))
        };
        let user = samples().filter(|(mode, ..)| *mode == kind::USER);
        check_demo_processes(user.map(|(_, pc, pid)| (pc, pid)));
        let vcpus: BTreeSet<u16> = recorded.samples().map(|sample| sample.cpu).collect();
        assert_eq!(vcpus, BTreeSet::from([0, 1]));
        let clock = recorded.accounts.clock.since(&before.clock);
        let ledger = recorded.status.ledger;
        assert_eq!(clock.ticks, ledger.ticks - before.pcs.ticks);
        guest.stop();
    });
}

/// A recorder needs stacks and mappings, which take another program in the host's kernel.
#[test]
fn a_recorder_has_its_samples_from_the_hosts_kernel() {
    on_kvm(|| {
        if !is_kernel_clock_for_demo() {
            return;
        }
        let guest = guest(&["--cpus", "2"]);
        let pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        until_source(&guest, "kernel");
        let path = guest.folder().join("recording");
        let arguments = ["--output", path.to_str().unwrap()];
        let mut user = Vec::new();
        // The number of ticks with a sample depends on the host.
        while user.len() < ENOUGH_SAMPLES {
            let ran = guest.record(3000, &arguments);
            assert_eq!(ran.status, 0, "{ran:?}");
            // Without the stacks the program is another one: exits are used until it runs.
            until_source(&guest, "kernel");
            Accounts::of(&pcs.connection).check();
            let (samples, contents) = recorded(&path);
            assert_eq!(contents.info.clock, "kernel");
            let samples = samples.into_iter();
            user.extend(samples.filter(|sample| sample.mode == Mode::User));
            // The host's kernel doesn't provide that register.
            let stalls = run([OsStr::new("stalls"), path.as_os_str()]).stdout;
            assert!(
                stalls.contains("Whether interrupts were off isn't known"),
                "{stalls}"
            );
            std::fs::remove_file(&path).unwrap();
        }
        check_demo_processes(user.iter().map(|sample| (sample.pc, sample.pid)));
        drop(pcs);
        guest.stop();
    });
}

#[test]
fn a_host_that_does_not_allow_it_is_named() {
    on_kvm(|| {
        for (kept, missing) in [
            (&[Bpf][..], "lacks CAP_PERFMON;"),
            (&[Perfmon], "lacks CAP_BPF;"),
            (&[], "lacks CAP_PERFMON and CAP_BPF;"),
        ] {
            let mut command = Command::new(kvmprof());
            command.args(["demo", "--seconds", "1", "--json", "--clock", "kernel"]);
            as_root_with(&mut command, kept);
            run_command(&mut command).assert_refused(1, &[missing, "--clock thread"]);
        }
    });
}
