//! `kvmprof top` with the demo guest: in a pipe, and on a terminal.

use std::process::{Child, Command};

use kvmprof_demo_guest::{Mode, rows};
use kvmprof_tests::{Boot, Guest, TERMINAL_TYPE, Terminal, kvmprof, on_kvm, until};
use rustix::process::{Pid, Signal, kill_process};

fn guest() -> Guest {
    Guest::start(Boot::Demo, ["--hz", "1000", "--cpus", "2", "--jitter"])
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
        // Neither colours nor escape sequences.
        assert!(!ran.stdout.contains('\u{1b}'), "{ran:?}");
        guest.stop();
    });
}

#[test]
fn a_guest_without_a_clock_is_reported() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "0"]);
        let ran = guest.command("top", &["--count", "1"]);
        ran.assert_refused(1, &["clock is off"]);
        guest.stop();
    });
}

/// `kvmprof top` on a terminal of its own.
struct OnTerminal {
    child: Child,
    terminal: Terminal,
}

impl OnTerminal {
    fn start(guest: &Guest, arguments: &[&str]) -> Self {
        let terminal = Terminal::open(80, 24);
        let child = Command::new(kvmprof())
            .args(["top", "--socket"])
            .env("TERM", TERMINAL_TYPE)
            .arg(guest.socket())
            .args(arguments)
            .stdin(terminal.stdio())
            .stdout(terminal.stdio())
            .stderr(terminal.stdio())
            .spawn()
            .unwrap();
        Self { child, terminal }
    }

    fn until_shown(&mut self, word: &str) {
        self.terminal.until_shown(word, &mut self.child);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end, and checks that the terminal is as it was.
    fn end(mut self) {
        self.until_shown("\u{1b}[?1049l");
        assert!(self.child.wait().unwrap().success());
        assert!(!self.terminal.is_raw());
        let shown = self.terminal.shown();
        assert!(shown.contains("\u{1b}[?25h"), "{shown:?}");
    }
}

#[test]
fn a_terminal_shows_the_guest_obeys_keys_and_is_restored() {
    on_kvm(|| {
        let guest = guest();
        let mut top = OnTerminal::start(&guest, &["--no-colour"]);
        top.until_shown("spinner");
        assert!(top.terminal.is_raw());
        top.terminal.press("f");
        top.until_shown("compute");
        top.terminal.press("h");
        top.until_shown("Bars:");
        top.terminal.press("h");
        top.terminal.press("p");
        top.until_shown("weaver");
        assert!(!top.terminal.shown().contains("[38;5;"));
        // A key arrives with a new size, of which the kernel tells only a session's foreground processes.
        top.signal(Signal::STOP);
        top.terminal.resize(120, 40);
        top.signal(Signal::WINCH);
        top.terminal.press("q");
        top.signal(Signal::CONT);
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
        top.terminal.press("\u{3}");
        top.end();
        guest.stop();
    });
}

/// As when its window is closed.
#[test]
fn a_closed_terminal_ends_the_view() {
    on_kvm(|| {
        let guest = guest();
        let mut top = OnTerminal::start(&guest, &[]);
        top.until_shown("spinner");
        let OnTerminal {
            mut child,
            terminal,
        } = top;
        drop(terminal);
        let status = until("the view has ended", || child.try_wait().unwrap());
        assert!(status.success(), "{status}");
        guest.stop();
    });
}
