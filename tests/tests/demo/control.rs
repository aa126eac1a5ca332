//! `kvmprof control`: pause, resume, stop and info, and the account of ticks during a pause.

use std::time::{Duration, Instant};

use kvmprof_abi::control::{CTL_PAUSE, CTL_RESET, CTL_RESUME, CTL_STOP};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{PCS_STOP, PROF_ALL};
use kvmprof_abi::wire::device;
use kvmprof_recording::status::MachineStatus;
use kvmprof_tests::{
    Accounts, Boot, Guest, clocks_for_demo, errno_of, on_kvm, run, status_of, until,
};

/// The length of a pause here: hundreds of ticks at 1000 Hz.
const PAUSE: Duration = Duration::from_millis(400);
const HZ: u64 = 1000;

fn info(guest: &Guest) -> MachineStatus {
    let document = guest.command("control", &["info", "--json"]).json();
    serde_json::from_value(document).unwrap()
}

/// Lets a pause last.
pub fn let_pass() {
    let begun = Instant::now();
    until("the pause has lasted", || {
        (begun.elapsed() >= PAUSE).then_some(())
    });
}

/// In text and JSON, with the times of the client's requests.
#[test]
fn a_recording_says_when_the_guest_was_paused() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let path = path.to_str().unwrap();
        let mut guest = Guest::start(Boot::Demo, ["--hz", "1000", "--record", path]);
        let mut pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        pcs.read_ticks(200);
        guest.control("pause");
        let_pass();
        guest.control("resume");
        pcs.read_ticks(200);
        guest.control("pause");
        guest.control("stop");
        guest.wait();
        let report = run(["report", "--json", path]).json();
        let pauses = report["pauses"].as_array().unwrap();
        let [first, last] = &pauses[..] else {
            panic!("{pauses:?}");
        };
        let [begin, end] = ["begin", "end"].map(|edge| first[edge].as_f64().unwrap());
        assert!(end - begin >= PAUSE.as_secs_f64(), "{pauses:?}");
        assert!(last["begin"].as_f64().unwrap() > end && last["end"].is_null());
        let words = run(["report", path]).stdout;
        assert!(words.contains("The guest was paused 2 times"), "{words}");
    });
}

/// Busy and halted guests, on each clock: no tick is made while they are paused, and none for that time afterwards.
#[test]
fn a_pause_makes_no_ticks() {
    on_kvm(|| {
        for clock in clocks_for_demo() {
            for boot in [Boot::Demo, Boot::Test("workload=halt")] {
                let options = ["--clock", clock, "--hz", "1000", "--cpus", "2"];
                check_pause(&Guest::start(boot, options));
            }
        }
    });
}

fn check_pause(guest: &Guest) {
    let connection = guest.connect();
    let mut pcs = guest.open();
    pcs.ioctl(PROF_ALL, 0);
    pcs.read_ticks(200);
    guest.control("pause");
    let paused = Accounts::of(&connection);
    paused.check();
    assert!(info(guest).paused);
    // A second pause changes nothing, and clients are served as usual.
    let_pass();
    guest.control("pause");
    let still = Accounts::of(&connection);
    still.check();
    assert_eq!(still.vcpus, paused.vcpus, "ticks came while it was paused");
    assert!(still.running, "the clock continues");

    let resumed = Instant::now();
    guest.control("resume");
    guest.control("resume");
    assert!(!info(guest).paused);
    pcs.read_ticks(200);
    pcs.ioctl(PCS_STOP, 0);
    let after = Accounts::of(&connection);
    let ran = u64::try_from(resumed.elapsed().as_millis()).unwrap();
    after.check();
    for (after, before) in after.vcpus.iter().zip(&paused.vcpus) {
        let since = after.since(before);
        // One tick at each end.
        assert!(since.ticks <= ran * HZ / 1000 + 2, "{since:?} in {ran} ms");
    }
    let recorded = pcs.drain();
    assert_eq!(recorded.accounts.clock.ticks, after.clock.ticks);
}

/// A client that has requested a pause may disconnect: the guest stays paused, and another client resumes it.
#[test]
fn a_pause_outlasts_its_client() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000"]);
        let client = guest.connect();
        let device = client.open(device::CONTROL, 0).unwrap();
        device.ioctl(CTL_PAUSE, 0).unwrap();
        drop((device, client));
        assert!(info(&guest).paused);
        let ran = guest.command("control", &["info"]);
        assert!(ran.stdout.contains("state         paused\n"), "{ran:?}");
        let ran = guest.command("status", &[]);
        assert!(ran.stdout.contains(", paused\n"), "{ran:?}");
        // A device that is opened during the pause has its first tick afterwards.
        let mut pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        let_pass();
        assert_eq!(Accounts::of(&guest.connect()).pcs.ticks, 0);
        guest.control("resume");
        pcs.read_ticks(100);
        drop(pcs);
        guest.until_closed();
        guest.stop();
    });
}

/// A guest that is held by `--wait` and paused starts when both end.
#[test]
fn a_held_guest_can_be_paused() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000", "--wait"]);
        guest.control("pause");
        let mut pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        let_pass();
        assert_eq!(guest.console(), "");
        guest.control("resume");
        pcs.read_ticks(100);
        assert_ne!(guest.console(), "");
    });
}

#[test]
fn impossible_requests_are_refused_in_one_line() {
    on_kvm(|| {
        let mut guest = Guest::start(Boot::Demo, ["--hz", "0"]);
        let unknown = guest.command("control", &["hibernate"]);
        assert_eq!(unknown.status, 2, "{unknown:?}");
        assert!(unknown.stderr.contains("power-button"), "{unknown:?}");
        guest
            .command("control", &["pause", "--json"])
            .assert_refused(2, &["--json", "info"]);
        let button = |words: &[&str]| {
            let ran = guest.command("control", &["power-button"]);
            ran.assert_refused(1, words);
        };
        button(&["power button", "control stop"]);
        guest.control("pause");
        button(&["paused", "resume"]);

        let client = guest.connect();
        assert_eq!(errno_of(client.open(device::CONTROL, 1)), Errno::ENXIO);
        let device = client.open(device::CONTROL, 0).unwrap();
        assert_eq!(errno_of(device.ioctl(0x4300, 0)), Errno::EINVAL);
        assert_eq!(errno_of(device.read(1)), Errno::EINVAL);
        // While this client stays connected, the guest has ended for some time.
        device.ioctl(CTL_STOP, 0).unwrap();
        let second = until("the guest has ended", || {
            let has_ended = status_of(&client).machine.ended;
            has_ended.then(|| client.open(device::CONTROL, 0).unwrap())
        });
        for command in [CTL_PAUSE, CTL_RESUME, CTL_RESET] {
            assert_eq!(errno_of(second.ioctl(command, 0)), Errno::ENXIO);
        }
        drop((device, second, client));
        assert_eq!(guest.wait().status, 0);
        run(["control", "pause"]).assert_refused(2, &["--socket"]);
    });
}
