//! Perf events on a stock Debian host, whose kernel allows them only with CAP_SYS_ADMIN. No thread that runs a guest keeps
//! that.

use std::ffi::OsStr;
use std::fs;

use kvmprof_tests::Capability::{Bpf, Perfmon};
use kvmprof_tests::{
    Boot, Guest, as_root_with, kvmprof, on_kvm_of_lab, recorded, run, run_command, write_kernel,
};

use crate::clock::check_sleep;

/// A halted guest of root sleeps: a guest that writes a warning fails the test.
#[test]
fn root_has_perf_events_and_the_capability_that_others_need_is_named() {
    on_kvm_of_lab(|| {
        let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
        assert_eq!(paranoid, "3\n", "this isn't a stock Debian");
        assert_eq!(check_sleep("thread"), "all at the next wake-up");
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let socket = guest.socket();
        let list = ["pmc", "list", "--socket"].map(OsStr::new);
        let listed = run(list.into_iter().chain([socket.as_os_str()]));
        assert_eq!(listed.status, 0, "{listed:?}");
        assert!(!listed.stdout.contains("refuses"), "{}", listed.stdout);
        let path = guest.folder().join("recording");
        let output = path.to_str().unwrap();
        for event in ["kvm-exits:10", "guest-time:1ms"] {
            let ran = guest.record(10, &["--event", event, "--output", output]);
            assert_eq!(ran.status, 0, "{event}: {ran:?}");
            let (samples, contents) = recorded(&path);
            assert_eq!(contents.info.event, Some(event.parse().unwrap()));
            assert!(!samples.is_empty(), "{event}: {:?}", contents.account);
        }
        guest.stop();

        // The message doesn't suggest a capability that is already there.
        let folder = tempfile::tempdir().unwrap();
        let kernel = write_kernel(Boot::Demo, folder.path());
        let mut command = std::process::Command::new(kvmprof());
        as_root_with(&mut command, &[Perfmon, Bpf]);
        command
            .args(["run", "--memory", "64M", "--console", "none", "--event"])
            .args(["kvm-exits:10", "--kernel"])
            .arg(&kernel)
            .args([
                OsStr::new("--record"),
                folder.path().join("out").as_os_str(),
            ]);
        let words = [
            "kernel.perf_event_paranoid is 3",
            "it takes CAP_SYS_ADMIN: give kvmprof that",
        ];
        run_command(&mut command).assert_refused(1, &words);
    });
}
