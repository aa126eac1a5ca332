//! Guest memory of each kind that the host has, more than fits below the hole at 3 GiB, and many vCPUs: profiling works alike,
//! here after a reset.

use std::fs;

use kvmprof_abi::pcs::{PROF_ALL, kind};
use kvmprof_tests::{Accounts, Boot, Guest, check_demo_processes, on_kvm, run, until};

/// Memory that continues above the hole.
const SIZE: &str = "3584M";
const BYTES: u64 = 3584 << 20;
const VCPUS: [usize; 3] = [17, 2, 2];

fn check_profile(guest: &Guest) {
    let mut pcs = guest.open();
    pcs.ioctl(PROF_ALL, 0);
    pcs.read_ticks(1500);
    let accounts = Accounts::of(&guest.connect());
    accounts.check();
    let recorded = pcs.stop();
    let users = recorded
        .samples()
        .filter(|sample| sample.kind == kind::USER);
    check_demo_processes(users.map(|sample| (sample.pc, sample.pid)));
}

#[test]
fn every_kind_of_memory_is_profiled_alike() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory");
        let in_file = format!(",file={}", file.display());
        for (backing, vcpus) in ["", ",shared", &in_file].into_iter().zip(VCPUS) {
            let memory = format!("{SIZE}{backing}");
            let options = ["--cpus", &vcpus.to_string(), "--hz", "500"];
            let guest = Guest::start_with_memory(Boot::Demo, &memory, options);
            let machine = guest.status().machine;
            assert_eq!((machine.memory_bytes, machine.vcpus), (BYTES, vcpus));
            let ran = guest.command("control", &["reset"]);
            assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{ran:?}");
            until("the guest is restarted", || {
                (guest.status().machine.resets == 1).then_some(())
            });
            check_profile(&guest);
            guest.stop();
        }
        // The file has the guest's memory after the end.
        assert_eq!(fs::metadata(&file).unwrap().len(), BYTES);
    });
}

#[test]
fn unavailable_memory_is_reported() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let kernel = folder.path().join("demo.elf");
        fs::write(&kernel, kvmprof_demo_guest::ELF).unwrap();
        let letter = folder.path().join("letter");
        fs::write(&letter, "dear").unwrap();
        let in_letter = format!("64M,file={}", letter.display());
        for (memory, status, words) in [
            ("64M,huge", 2, &["'huge'", "file=PATH"][..]),
            (&*in_letter, 1, &["4 bytes", "overwritten"]),
            ("64M,file=/nowhere/at-all", 1, &["/nowhere/at-all"]),
            ("33M,hugepages", 1, &["multiple", "2 MiB"]),
            ("4096T,hugepages", 1, &["huge pages"]),
        ] {
            let kernel = kernel.to_str().unwrap();
            let ran = run([
                "run",
                "--kernel",
                kernel,
                "--console",
                "none",
                "--memory",
                memory,
            ]);
            ran.assert_refused(status, words);
        }
        assert_eq!(fs::read(&letter).unwrap(), b"dear");
    });
}
