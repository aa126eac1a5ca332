//! The program's exit status and messages for each end of a guest.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{PCS_SETBSIZE, PROF_ALL, kind};
use kvmprof_abi::wire::device;
use kvmprof_tests::{Boot, Guest, Ran, StoppedThread, errno_of, kvmprof, not_run, on_kvm};
use rustix::process::Signal;

/// Runs a guest that ends by itself, with this number of vCPUs; returns the program's result, and its console.
fn ending(workload: &str, cpus: &str) -> (Ran, String) {
    let words = format!("workload={workload}");
    let options = ["--cpus", cpus, "--on-reset", "exit"];
    let mut guest = Guest::launch(Boot::Test(&words), options);
    let ran = guest.wait();
    assert!(!guest.socket().exists(), "the socket goes with the guest");
    assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    (ran, guest.console())
}

#[test]
fn power_off_and_reboot_are_successes() {
    on_kvm(|| {
        for workload in ["poweroff", "reboot"] {
            for cpus in ["1", "2"] {
                let (ran, console) = ending(workload, cpus);
                assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{workload}");
                assert_ne!(console, "", "{workload}");
            }
        }
    });
}

/// A panic of kvmprof in the thread of a vCPU: it is reported, and no guest continues without one.
#[test]
fn a_vcpus_thread_that_panics_ends_the_guest() {
    on_kvm(|| {
        let mut guest = Guest::start(Boot::Demo, [""; 0]);
        let vcpu = StoppedThread::stop(guest.pid(), "vcpu 0");
        if !vcpu.let_go_to_panic(&kvmprof(), &["kvmprof_vmm", "4vcpu7sampler", "interrupted"]) {
            return not_run("a vCPU's thread that panics: the program has no symbols");
        }
        let ran = guest.wait();
        assert_eq!(ran.status, 5, "{ran:?}");
        let words = [
            "'vcpu 0'",
            "on purpose",
            "attempt to add with overflow",
            "a bug in kvmprof",
        ];
        for words in words {
            assert!(ran.stderr.contains(words), "no {words}: {ran:?}");
        }
    });
}

#[test]
fn a_triple_fault_is_reported() {
    on_kvm(|| {
        let (ran, _) = ending("triple-fault", "1");
        assert_eq!(ran.status, 3, "{ran:?}");
        for word in ["kvmprof: ", "triple fault"] {
            assert!(ran.stderr.contains(word), "{ran:?}");
        }
    });
}

/// An instruction that an interpreting KVM lacks: one message that says what and where. Other KVMs execute it, and the guest prints that.
#[test]
fn an_emulation_failure_is_reported_once() {
    on_kvm(|| {
        let (ran, console) = ending("bad-instruction", "1");
        if console.contains("instruction executed") {
            assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
            return not_run("the end by a failure of KVM's: this KVM executes the instruction");
        }
        assert_eq!(ran.status, 3, "{ran:?}");
        // cmpxchg16b is 0f c7 /1 with REX.W (SDM volume 2).
        for word in ["rip 0x", "CPL 0", "0f c7", "VT-x", "SVM", "cargo lab"] {
            assert!(ran.stderr.contains(word), "no {word}: {ran:?}");
        }
        assert_eq!(ran.stderr.matches("rip 0x").count(), 1, "{ran:?}");
    });
}

/// Signals and `control stop` end the guest cleanly, paused or not, and act as PCS_STOP: clients get all remaining data, then the end of file.
#[test]
fn signals_end_the_guest_and_clients_get_all_data() {
    on_kvm(|| {
        let signals = [Signal::INT, Signal::TERM, Signal::HUP].map(Some);
        for (end, is_paused) in signals
            .into_iter()
            .chain([None])
            .zip([false, true].into_iter().cycle())
        {
            let mut guest = Guest::start(Boot::Demo, ["--hz", "1000", "--cpus", "2"]);
            let pcs = guest.open();
            pcs.ioctl(PROF_ALL, 0);
            pcs.stall_until("there is something left", |ledger| ledger.pending > 130);
            if is_paused {
                guest.control("pause");
            }
            match end {
                Some(signal) => guest.signal(signal),
                None => guest.control("stop"),
            }
            let recorded = pcs.drain();
            assert!(recorded.ticks() > 130, "{end:?}: {:?}", recorded.status);
            guest.wait().quiet();
            assert!(!guest.socket().exists());
        }
    });
}

/// A client that reads the remaining data slowly gets all of it, even if that takes longer than kvmprof waits for the next byte. Nearly all of
/// the buffer is unused, so that only bytes show that the client continues.
#[test]
fn a_slow_client_gets_all_remaining_data() {
    on_kvm(|| {
        let buffer = 65_536;
        let mut guest = Guest::start(Boot::Demo, ["--hz", "1000"]);
        let pcs = guest.open();
        pcs.ioctl(PCS_SETBSIZE, buffer);
        pcs.ioctl(PROF_ALL, 0);
        pcs.stall_until("there is something left", |ledger| ledger.pending > 10);
        guest.signal(Signal::TERM);
        let mut all = 0;
        loop {
            let bytes = pcs.device.read(512).unwrap().len();
            if bytes == 0 {
                break;
            }
            all += i64::try_from(bytes).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        assert!(all > 0 && all % buffer == 0, "{all}");
        drop(pcs);
        assert_eq!(guest.wait().status, 0);
    });
}

/// The guest's own end does the same; a waiting read is answered.
#[test]
fn clients_get_all_data_of_a_guest_that_ends() {
    on_kvm(|| {
        for (workload, status) in [("poweroff", 0), ("triple-fault", 3)] {
            let options = ["--wait", "--hz", "1000"];
            let words = format!("workload={workload}");
            let mut guest = Guest::start(Boot::Test(&words), options);
            let pcs = guest.open();
            let read = pcs.device.start_read(1 << 20).unwrap();
            pcs.ioctl(PROF_ALL, 0);
            let first = read.wait().unwrap();
            assert_eq!(first.len() % 1024, 0);
            // The end stays the end.
            assert_eq!(pcs.device.read(1024).unwrap().len(), 0);
            assert_eq!(pcs.status().ledger.pending, 0);
            let second = guest.connect();
            assert_eq!(errno_of(second.open(device::PCS, 0)), Errno::ENXIO);
            drop((pcs, second));
            assert_eq!(guest.wait().status, status, "{workload}");
        }
    });
}

/// As many vCPUs as are possible, each with its clock.
#[test]
fn sixty_four_vcpus_run() {
    on_kvm(|| {
        for cpus in [1, 64] {
            let count = cpus.to_string();
            let options = ["--cpus", &count, "--hz", "10"];
            let guest = Guest::start(Boot::Test("workload=halt"), options);
            let mut pcs = guest.open();
            pcs.ioctl(PROF_ALL, 0);
            pcs.read_ticks(10 * cpus);
            let recorded = pcs.stop();
            let accounts = &recorded.accounts;
            assert_eq!(u64::try_from(accounts.vcpus.len()).unwrap(), cpus);
            let mut vcpus = accounts.vcpus.iter();
            assert!(vcpus.all(|vcpu| vcpu.ticks > 0), "{accounts:?}");
            let idle = kvmprof_tests::ticks_by_kind(recorded.records())[&kind::IDLE];
            assert!(idle * 2 > recorded.ticks(), "{:?}", recorded.status);
            guest.stop();
        }
    });
}
