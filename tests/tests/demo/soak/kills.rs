//! kvmprof itself ends at any moment: the next one takes its socket over, and its recording can be read up to there.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use kvmprof_client::Connection;
use kvmprof_recording::file::{HEADER, Recording};
use kvmprof_tests::{kvmprof, run_command, until};

use super::Soak;

/// Guests that are killed in a round, one after the other at the same socket.
const KILLS: u64 = 4;
/// Longest time until that, in ms: some don't come as far as to their socket.
const MOMENT: u64 = 400;

fn start(kernel: &Path, socket: &Path, recording: &Path) -> Child {
    Command::new(kvmprof())
        .args(["run", "--memory", "64M", "--hz", "1000", "--cpus", "2"])
        .args(["--console", "none", "--kernel"])
        .arg(kernel)
        .arg("--socket")
        .arg(socket)
        .arg("--record")
        .arg(recording)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Guests beside the one that goes on are killed; at last one comes to its socket.
pub fn kill_kvmprof(soak: &mut Soak) -> Option<&'static str> {
    let folder = tempfile::tempdir().unwrap();
    let kernel = soak.guest.folder().join("demo.elf");
    let [socket, recording] = ["socket", "recording"].map(|name| folder.path().join(name));
    for kill in 0..KILLS {
        let mut child = start(&kernel, &socket, &recording);
        if kill + 1 == KILLS {
            until("the socket is taken over", || {
                Connection::connect(&socket).ok()
            });
            check_status(&socket);
        }
        sleep(Duration::from_millis(soak.below(MOMENT)));
        child.kill().unwrap();
        child.wait().unwrap();
        check_recording(&recording);
    }
    None
}

/// A client that meets nobody, or somebody who is just killed, doesn't hang; here somebody answers.
fn check_status(socket: &Path) {
    let ran = run_command(
        Command::new(kvmprof())
            .arg("status")
            .arg("--socket")
            .arg(socket),
    );
    assert_eq!(ran.status, 0, "{ran:?}");
}

/// All blocks that came into the file are sound, if it began at all.
fn check_recording(path: &Path) {
    let length = fs::metadata(path).map_or(0, |found| found.len());
    if length <= HEADER as u64 {
        return;
    }
    let mut samples = 0;
    let recording = Recording::open(path).unwrap();
    let contents = recording
        .read(|ticks, _| samples += u64::from(ticks.sample.is_some()))
        .unwrap();
    assert!(contents.account.balances(), "{:?}", contents.account);
    assert_eq!(contents.account.samples, samples);
    fs::remove_file(path).unwrap();
}
