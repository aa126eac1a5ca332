//! Clients that are ended while the guest's program doesn't answer them.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use kvmprof_tests::{Boot, Guest, kvmprof, on_kvm, until};
use rustix::process::{Pid, Signal, kill_process};

fn until_clock(guest: &Guest, runs: bool) {
    until("the clock runs as clients want it", || {
        (guest.status().clock.running == runs).then_some(())
    });
}

/// The first SIGINT requests an end in order, which waits for an answer; the second one ends the client.
#[test]
fn a_second_interrupt_ends_a_client_that_gets_no_answer() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000"]);
        let output = guest.folder().join("output");
        let output = output.to_str().unwrap();
        for words in [&["record", "--output", output][..], &["getpc", "--all"]] {
            let mut client = Command::new(kvmprof())
                .args(words)
                .env("KVMPROF_SOCKET", guest.socket())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            until_clock(&guest, true);
            guest.signal(Signal::STOP);
            // Two within a short time count as one.
            let ended = until("a signal ends the client", || {
                kill_process(Pid::from_child(&client), Signal::INT).unwrap();
                client.try_wait().unwrap()
            });
            guest.signal(Signal::CONT);
            assert_eq!(ended.signal(), Some(Signal::INT.as_raw()), "{words:?}");
            until_clock(&guest, false);
        }
        guest.stop();
    });
}
