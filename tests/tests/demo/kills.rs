//! kill -9 of every process of the host at any moment: the next guest takes over the socket, a recording can be read up to the cut, clients
//! of the killed process get an error, and a killed client leaves no state in the guest.
//!
//! The test is 20 kills. `tests/soak kill 1000` makes more, by `KVMPROF_KILLS`. pcsd is killed in the lab: tests/tests/linux/agent.

use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvmprof_client::Connection;
use kvmprof_recording::file::{FileError, HEADER, Recording};
use kvmprof_recording::status::ConsumerStatus;
use kvmprof_tests::{Accounts, Boot, Guest, Random, kvmprof, on_kvm, until};
use rustix::process::Signal;
use tempfile::TempDir;

/// Kills without `KVMPROF_KILLS`.
const KILLS: u32 = 20;
/// Maximum life of a VMM, and of a client, in ms: some are killed before they have a socket or a file.
const MOMENT: u64 = 400;

/// Kills one process. Returns whether it was still running.
type Kill = fn(&mut Victims) -> bool;

/// The kinds of killed processes, in turn.
const KINDS: [(&str, Kill); 6] = [
    ("run", |victims| victims.machine("run")),
    ("status", |victims| victims.client(&["status"], 10)),
    ("demo", |victims| victims.machine("demo")),
    ("record", |victims| victims.client(&["record"], MOMENT)),
    ("getpc", |victims| {
        victims.client(&["getpc", "--all"], MOMENT)
    }),
    ("top", |victims| {
        victims.client(&["top", "--interval", "1"], MOMENT)
    }),
];

/// Processes that are killed.
struct Victims {
    folder: TempDir,
    /// A guest that continues, whose clients are killed.
    guest: Guest,
    random: Random,
}

/// A command of kvmprof with this socket, whose output isn't read.
pub fn start(words: &[&str], socket: &Path) -> Command {
    let mut command = Command::new(kvmprof());
    command.args(words).arg("--socket").arg(socket);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Kills `child`. Returns whether it hadn't ended by itself.
pub fn kill(mut child: Child) -> bool {
    child.kill().unwrap();
    child.wait().unwrap().signal() == Some(libc::SIGKILL)
}

/// All blocks in the file are valid, if it was begun at all.
fn check_recording(path: &Path) {
    let length = fs::metadata(path).map_or(0, |found| found.len());
    if length <= HEADER as u64 {
        return;
    }
    let mut samples = 0;
    let recording = Recording::open(path).unwrap();
    let read = recording.read(|ticks, _| samples += u64::from(ticks.sample.is_some()));
    let contents = match read {
        // Its first block is truncated.
        Err(FileError::Empty(_)) => return,
        read => read.unwrap(),
    };
    assert!(contents.account.balances(), "{:?}", contents.account);
    assert_eq!(contents.account.samples, samples);
    fs::remove_file(path).unwrap();
}

impl Victims {
    /// With a guest that continues.
    fn new(seed: u64) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            guest: Guest::start(Boot::Demo, ["--cpus", "2", "--hz", "1000"]),
            random: Random(seed),
        }
    }

    /// Kills a process of the kind after `number` others. Returns whether it hadn't ended by itself.
    fn kill(&mut self, number: usize) -> bool {
        let (_, kill) = KINDS[number % KINDS.len()];
        kill(self)
    }

    /// The other guest ends without errors or messages.
    fn end(mut self) {
        self.guest.signal(Signal::TERM);
        self.guest.wait().quiet();
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A VMM at the socket of the one that was killed before, or a client that records it, alternately.
    fn machine(&mut self, command: &str) -> bool {
        let [socket, recording, beside] =
            ["socket", "recording", "beside"].map(|name| self.file(name));
        let mut vmm = start(&[command, "--hz", "1000", "--cpus", "2"], &socket);
        if command == "run" {
            let kernel = self.guest.folder().join("demo.elf");
            vmm.args(["--memory", "64M", "--console", "none", "--kernel"])
                .arg(kernel)
                .arg("--record")
                .arg(&recording);
        }
        let vmm = vmm.spawn().unwrap();
        let client = (self.below(2) == 0).then(|| {
            until("the socket is taken over", || {
                Connection::connect(&socket).ok()
            });
            let mut client = start(&["record"], &socket);
            client.arg("--output").arg(&beside).spawn().unwrap()
        });
        sleep(Duration::from_millis(self.below(MOMENT)));
        let was_there = kill(vmm);
        if let Some(mut client) = client {
            let status: ExitStatus = until("the client of a killed VMM ends", || {
                client.try_wait().unwrap()
            });
            // It lacks the end of its recording, or had nothing to record.
            assert!(matches!(status.code(), Some(0 | 1)), "{status}");
        }
        check_recording(&recording);
        check_recording(&beside);
        was_there
    }

    /// A client of the guest that continues, which lives for `longest` ms at most.
    fn client(&mut self, words: &[&str], longest: u64) -> bool {
        let output = self.file(words[0]);
        let mut client = start(words, &self.guest.socket());
        if matches!(words[0], "record" | "getpc") {
            client.arg("--output").arg(&output);
        }
        let client = client.spawn().unwrap();
        sleep(Duration::from_millis(self.below(longest)));
        let was_there = kill(client);
        if words[0] == "record" {
            check_recording(&output);
        }
        until("a killed client's devices are closed", || {
            let status = self.guest.status();
            // pcs is always there.
            let is_closed =
                |one: &ConsumerStatus| matches!(one, ConsumerStatus::Pcs(pcs) if !pcs.open);
            status.consumers.iter().all(is_closed).then_some(())
        });
        Accounts::of(&self.guest.connect()).check();
        was_there
    }
}

fn wanted() -> u32 {
    env::var("KVMPROF_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number"))
}

#[test]
fn no_process_hangs_when_another_is_killed() {
    on_kvm(|| {
        let begin = Instant::now();
        // The same at every run.
        let mut victims = Victims::new(1);
        let mut killed = [0_u32; KINDS.len()];
        let mut tried = 0;
        while killed.iter().sum::<u32>() < wanted() {
            killed[tried % KINDS.len()] += u32::from(victims.kill(tried));
            tried += 1;
        }
        let kinds = KINDS.iter().zip(killed);
        let counts: Vec<String> = kinds
            .map(|((name, _), count)| format!("{count} {name}"))
            .collect();
        println!(
            "{} kills in {} s: {}; {} processes ended before they were killed",
            wanted(),
            begin.elapsed().as_secs(),
            counts.join(", "),
            tried - killed.iter().sum::<u32>() as usize
        );
        victims.end();
    });
}
