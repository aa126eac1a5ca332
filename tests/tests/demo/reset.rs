//! A guest that is reset restarts, and profiling continues.

use std::fs;

use kvmprof_abi::pcs::{PCS_STOP, PROF_ALL};
use kvmprof_abi::profil::{Call, Function, State};
use kvmprof_recording::file::Recording;
use kvmprof_tests::{
    Accounts, Boot, Guest, Profil, check_demo_processes, clocks_for_demo, kept, on_kvm,
    profil_call, run, until,
};

use super::control::let_pass;

/// Number of resets of a guest in a loop.
const RESETS: u64 = 100;
/// Maximum number of restarts a second.
const MOST: u64 = 20;

fn resets(guest: &Guest) -> u64 {
    guest.status().machine.resets
}

fn reset(guest: &Guest) {
    let before = resets(guest);
    guest.control("reset");
    until("the guest is restarted", || {
        (resets(guest) == before + 1).then_some(())
    });
}

/// The memory of kvmprof in KiB, and its number of open files.
fn resources(guest: &Guest) -> (u64, usize) {
    let files = fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap();
    (guest.resident_bytes() >> 10, files.count())
}

/// The guest prints its greeting once for each start; ticks continue in the same account, on each clock and vCPU.
#[test]
fn a_reset_guest_restarts_and_profiling_continues() {
    on_kvm(|| {
        for clock in clocks_for_demo() {
            let options = ["--clock", clock, "--hz", "1000", "--cpus", "2"];
            let guest = Guest::start(Boot::Demo, options);
            let connection = guest.connect();
            let mut pcs = guest.open();
            pcs.ioctl(PROF_ALL, 0);
            pcs.read_ticks(500);
            let greeting = until("the guest has started", || {
                let console = guest.console();
                console.ends_with('\n').then_some(console)
            });
            let before = Accounts::of(&connection);
            reset(&guest);
            // A reset during the greeting would truncate it.
            until("the guest has restarted", || {
                (guest.console() == greeting.repeat(2)).then_some(())
            });
            reset(&guest);
            let after = Accounts::of(&connection);
            after.check();
            assert!(after.clock.ticks >= before.clock.ticks);
            pcs.read_ticks(2000);
            assert_eq!(guest.console(), greeting.repeat(3), "{clock}");
            pcs.ioctl(PCS_STOP, 0);
            let stopped = Accounts::of(&connection);
            stopped.check();
            assert_eq!(stopped.clock.ticks, stopped.pcs.ticks);
            for (now, then) in stopped.vcpus.iter().zip(&after.vcpus) {
                assert!(now.sampled > then.sampled, "{clock}: {stopped:?}");
            }
            let recorded = pcs.drain();
            let users = recorded.samples();
            let users = users.filter(|sample| sample.kind == kvmprof_abi::pcs::kind::USER);
            check_demo_processes(users.map(|sample| (sample.pc, sample.pid)));
            guest.stop();
        }
    });
}

/// After a reset another program runs at a process's id. It hasn't asked for anything, and its memory has another use.
#[test]
fn a_reset_ends_stores_into_processes() {
    /// A process's memory that it doesn't use (`guest/demo/image/layout.h`), and its length in program counters.
    const UNUSED: u64 = 0x80_0000_4000;
    const ROOM: u64 = 2048;
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000"]);
        let connection = guest.connect();
        let stored = Profil::open(&connection);
        let pcsample = profil_call(Function::Pcsample, 102);
        let call = Call {
            buffer: UNUSED,
            size: ROOM,
            ..pcsample
        };
        stored.call(&call, &[]);
        let own = Profil::open(&connection);
        let size = 100_000;
        own.call(&kept(Call { size, ..pcsample }), &[]);
        for profil in [&stored, &own] {
            assert_eq!(profil.until_stored(3).state, State::On);
        }
        reset(&guest);
        let mut pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        pcs.read_ticks(500);
        // It is forgotten some time after its end.
        assert_ne!(stored.status().state, State::On);
        assert_eq!(own.status().state, State::Ended);
        guest.stop();
    });
}

/// The rate of resets of a guest in a loop is limited, and they don't increase kvmprof's memory and files.
#[test]
fn a_guest_that_resets_itself_in_a_loop_is_bounded() {
    on_kvm(|| {
        for cpus in ["1", "2"] {
            let begun = std::time::Instant::now();
            let options = ["--cpus", cpus, "--hz", "1000"];
            let guest = Guest::start(Boot::Test("workload=reboot"), options);
            let pcs = guest.open();
            pcs.ioctl(PROF_ALL, 0);
            let until_reset = |count| {
                until("the guest has reset itself", || {
                    (resets(&guest) >= count).then_some(())
                });
            };
            until_reset(20);
            let (memory, files) = resources(&guest);
            until_reset(20 + RESETS);
            let (memory_after, files_after) = resources(&guest);
            let seconds = begun.elapsed().as_secs();
            assert!(resets(&guest) <= (seconds + 1) * MOST + 1);
            assert!(
                memory_after < memory + 4096,
                "{memory} KiB, then {memory_after} KiB"
            );
            // A client may connect and disconnect meanwhile.
            assert!(
                files_after <= files + 1,
                "{files} files, then {files_after}"
            );
            let accounts = Accounts::of(&guest.connect());
            accounts.check();
            drop(pcs);
            guest.until_closed();
            guest.stop();
        }
    });
}

/// The recording continues over a pause, which has no tick, and over a reset, is complete, and has the reset's time.
#[test]
fn a_recording_has_the_time_of_a_reset() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reset.kvmprof");
        let options = ["--hz", "1000", "--record", path.to_str().unwrap()];
        let mut guest = Guest::start(Boot::Demo, options);
        let ticks = || guest.status().clock.ledger.ticks;
        let more = |before| until("there are ticks", || (ticks() > before + 200).then_some(()));
        more(0);
        guest.control("pause");
        let before = ticks();
        let_pass();
        assert_eq!(ticks(), before);
        guest.control("resume");
        more(before);
        reset(&guest);
        more(ticks());
        guest.control("stop");
        assert_eq!(guest.wait().status, 0);

        let mut times = Vec::new();
        let recording = Recording::open(&path).unwrap();
        let contents = recording
            .read(|ticks, _| times.extend(ticks.sample.map(|sample| sample.time)))
            .unwrap();
        assert_eq!(contents.closed, Some(contents.account));
        let [reset] = contents.resets.as_slice() else {
            panic!("{:?}", contents.resets);
        };
        assert!(times.iter().any(|time| *time < reset.time));
        assert!(times.iter().any(|time| *time > reset.time));
        let report = run(["report", "--json", path.to_str().unwrap()]).json();
        assert_eq!(report["resets"], 1);
        let ran = run(["report", path.to_str().unwrap()]);
        assert!(ran.stdout.contains("restarted once, "), "{ran:?}");
    });
}

/// A paused guest stays paused, and restarts when it is resumed; a held one starts as usual.
#[test]
fn a_paused_guest_can_be_reset() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000", "--cpus", "2"]);
        let console = || guest.console();
        let greeting = until("the guest has started", || {
            Some(console()).filter(|console| console.ends_with('\n'))
        });
        guest.control("pause");
        reset(&guest);
        assert!(guest.status().machine.paused);
        assert_eq!(console(), greeting);
        guest.control("resume");
        until("the guest has started again", || {
            (console() == greeting.repeat(2)).then_some(())
        });
        guest.stop();
    });
}

/// Any reset ends the guest with --on-reset exit.
#[test]
fn on_reset_exit_ends_it() {
    on_kvm(|| {
        let mut guest = Guest::start(Boot::Demo, ["--on-reset", "exit"]);
        guest.control("reset");
        guest.wait().quiet();
    });
}

/// The guest's ports are closed, and the driver of the next start can open them.
#[test]
fn ports_work_after_a_reset() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Test("workload=port"), ["--hz", "1000"]);
        let virtio = || guest.status().machine.virtio.unwrap();
        let driver_resets = || virtio().resets;
        until("the driver has begun", || {
            (driver_resets() > 0).then_some(())
        });
        for _ in 0..2 {
            let before = driver_resets();
            reset(&guest);
            // The machine's own reset, and the one at the start of the driver.
            until("the driver has begun again", || {
                (driver_resets() >= before + 2).then_some(())
            });
        }
        for port in virtio().ports {
            let faults = (port.queue_faults, port.protocol_faults);
            assert_eq!(faults, (0, 0), "{port:?}");
        }
    });
}

/// The initial RAM disk is the one that was opened at the start, even if its path has changed. If it can't be loaded any more,
/// the guest ends with the reason.
#[test]
fn the_initial_ram_disk_is_read_again() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["initrd", "other"].map(|name| folder.path().join(name));
        fs::write(&path, [7; 8192]).unwrap();
        fs::write(&other, []).unwrap();
        let mut guest = Guest::start(Boot::Demo, ["--initrd", path.to_str().unwrap()]);
        let opened = fs::File::options().write(true).open(&path).unwrap();
        fs::rename(&other, &path).unwrap();
        reset(&guest);
        opened.set_len(0).unwrap();
        guest.control("reset");
        guest
            .wait()
            .assert_refused(1, &["cannot be restarted", "initrd"]);
    });
}
