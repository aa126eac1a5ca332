//! `kvmprof top` with the demo guest: in a pipe, and on a terminal.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use kvmprof_demo_guest::{Mode, rows};
use kvmprof_tests::{Guest, kvmprof, on_kvm};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode as FileMode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// How often it is looked whether the program still runs.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

fn guest() -> Guest {
    Guest::start(
        "workload=mixed",
        ["--hz", "1000", "--cpus", "2", "--jitter"],
    )
}

#[test]
fn a_pipe_gets_tables_with_the_guests_processes_and_functions() {
    on_kvm(|| {
        let guest = guest();
        let ran = guest.command("top", &["--count", "2", "--interval", "3"]);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{ran:?}");
        assert_eq!(ran.stdout.matches("kvmprof top: ").count(), 2, "{ran:?}");
        let last = ran.stdout.rfind("kvmprof top: ").unwrap();
        let table = &ran.stdout[last..];
        println!("{table}");
        assert!(table.contains("demo.elf, 2 vCPUs, 1000 Hz\n"), "{table}");
        for row in rows().iter().filter(|row| row.mode == Mode::User) {
            let pid = row.pid.unwrap().to_string();
            let listed = table.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.next() == Some(&pid) && words.next() == Some(row.name)
            });
            assert!(listed, "{row:?} isn't in\n{table}");
        }
        assert!(table.contains(" k compute\n"), "{table}");
        for vcpu in ["vCPU 0   [", "vCPU 1   ["] {
            assert!(table.contains(vcpu), "{table}");
        }
        // Neither colours nor a terminal's sequences.
        assert!(!ran.stdout.contains('\u{1b}'), "{ran:?}");
        guest.stop();
    });
}

#[test]
fn a_guest_without_a_clock_is_told_of() {
    on_kvm(|| {
        let guest = Guest::start("workload=mixed", ["--hz", "0"]);
        let ran = guest.command("top", &["--count", "1"]);
        ran.assert_refused(1, &["clock is off"]);
        guest.stop();
    });
}

/// `kvmprof top` on a terminal of its own.
struct OnTerminal {
    child: Child,
    controller: File,
    terminal: OwnedFd,
    shown: Vec<u8>,
}

impl OnTerminal {
    fn start(guest: &Guest, arguments: &[&str]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let terminal = open(&name, flags, FileMode::empty()).unwrap();
        tcsetwinsize(&terminal, size(80, 24)).unwrap();
        let stdio = || Stdio::from(terminal.try_clone().unwrap());
        let child = Command::new(kvmprof())
            .args(["top", "--socket"])
            .arg(guest.socket())
            .args(arguments)
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        Self {
            child,
            controller: File::from(controller),
            terminal,
            shown: Vec::new(),
        }
    }

    /// Reads on until `word` has been drawn. What doesn't change isn't drawn again.
    fn until_shown(&mut self, word: &str) {
        let from = self.shown.len();
        let mut bytes = [0; 4096];
        let mut has_ended = false;
        while !String::from_utf8_lossy(&self.shown[from..]).contains(word) {
            let mut readable = [PollFd::new(&self.controller, PollFlags::IN)];
            let some = poll(&mut readable, Some(&PAUSE)).unwrap();
            if some > 0 {
                let count = self.controller.read(&mut bytes).unwrap();
                self.shown.extend(&bytes[..count]);
                continue;
            }
            let shown = String::from_utf8_lossy(&self.shown);
            assert!(!has_ended, "it ended without {word:?}: {shown:?}");
            // What it wrote last may have come just now.
            has_ended = self.child.try_wait().unwrap().is_some();
        }
    }

    fn press(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO)
    }

    /// Waits for its end, and checks that the terminal is as it was.
    fn end(mut self) {
        self.until_shown("\u{1b}[?1049l");
        assert!(self.child.wait().unwrap().success());
        assert!(!self.is_raw());
        let shown = String::from_utf8_lossy(&self.shown).into_owned();
        assert!(shown.contains("\u{1b}[?25h"), "{shown:?}");
    }
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

#[test]
fn a_terminal_shows_the_guest_obeys_keys_and_is_restored() {
    on_kvm(|| {
        let guest = guest();
        let mut top = OnTerminal::start(&guest, &["--no-colour"]);
        top.until_shown("spinner");
        assert!(top.is_raw());
        top.press("f");
        top.until_shown("compute");
        top.press("h");
        top.until_shown("Bars:");
        top.press("h");
        // The kernel tells only a session's foreground processes of a new size.
        tcsetwinsize(&top.terminal, size(120, 40)).unwrap();
        top.signal(Signal::WINCH);
        top.press("p");
        top.until_shown("weaver");
        assert!(!String::from_utf8_lossy(&top.shown).contains("[38;5;"));
        top.press("q");
        top.end();
        guest.stop();
    });
}

#[test]
fn signals_and_the_control_key_restore_the_terminal() {
    on_kvm(|| {
        let guest = guest();
        for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
            let mut top = OnTerminal::start(&guest, &[]);
            top.until_shown("spinner");
            top.signal(signal);
            top.end();
        }
        let mut top = OnTerminal::start(&guest, &[]);
        top.until_shown("spinner");
        top.press("\u{3}");
        top.end();
        guest.stop();
    });
}
