//! Processes that end, or execute another program, at the worst moments of a look.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::fights::{ASKED, LIMIT, let_go, look};
use super::*;

/// The status with which a process ends by itself.
const OWN_STATUS: i32 = 7;
/// Whether the thread is to end.
static ENDS: AtomicBool = AtomicBool::new(false);

/// The process: one thread spins until the process is told how to end.
#[test]
fn the_process() {
    if is_started().is_none() {
        return;
    }
    let (sender, received) = channel();
    thread::spawn(move || {
        sender.send(own_thread()).unwrap();
        while !ENDS.load(Ordering::SeqCst) {
            spin_loop();
        }
    });
    tell(received.recv().unwrap(), 0);
    let mut way = String::new();
    stdin().read_line(&mut way).unwrap();
    match way.trim() {
        "execute" => panic!("{}", Command::new("cat").exec()),
        "exit" => std::process::exit(OWN_STATUS),
        "end the thread" => ENDS.store(true, Ordering::SeqCst),
        way => panic!("{way:?}"),
    }
    stdin().read_line(&mut String::new()).unwrap();
    std::process::exit(OWN_STATUS);
}

/// How a process ends.
const WAYS: [&str; 4] = ["execute", "exit", "kill", "end the thread"];

/// When it does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Before,
    /// While the thread stands still. It can't end by itself then. Its tracer lets it go, or looks at it again first: an execve(2) waits until the
    /// tracer has waited for the thread's end, and a tracer that would trace it again waits for the execve(2).
    During {
        looks_again: bool,
    },
    /// After so long, in us, while one look comes after the other.
    AtAnyTime(u64),
}

impl OtherProcess {
    /// Has it end in this way.
    fn end(&mut self, way: &str) {
        match way {
            "kill" => self.child.kill().unwrap(),
            _ => writeln!(self.child.stdin.as_mut().unwrap(), "{way}").unwrap(),
        }
    }

    /// Waits until the thread has ended, though its tracer may not have waited for it yet.
    fn until_ended(&self) {
        let status = format!("/proc/{}/task/{}/status", self.pid(), self.thread);
        let is_there =
            |status: String| !status.contains("State:\tZ") && !status.contains("State:\tX");
        while fs::read_to_string(&status).is_ok_and(is_there) {
            thread::yield_now();
        }
    }

    /// Waits for its end, which is the one that it wanted.
    fn ended(mut self, way: &str) {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        match way {
            "execute" => assert!(status.success(), "{status}"),
            "kill" => assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}"),
            _ => assert_eq!(status.code(), Some(OWN_STATUS), "{way}: {status}"),
        }
    }
}

fn end(way: &str, moment: Moment) {
    let mut process = OtherProcess::begin("ends::the_process", "1");
    let mut vcpu = process.vcpu();
    match moment {
        Moment::Before => {
            process.end(way);
            process.until_ended();
        }
        Moment::During { looks_again } => {
            let looked = vcpu.look(|_| {
                process.end(way);
                process.until_ended();
                Ok(())
            });
            assert_eq!(looked.unwrap(), StopOutcome::Stopped(()), "{way}");
            assert!(way != "execute" || vcpu.is_slow());
            if !looks_again {
                let_go(&mut vcpu);
            }
        }
        Moment::AtAnyTime(time) => {
            let begin = Instant::now();
            let mut is_told = false;
            loop {
                if !is_told && begin.elapsed() >= Duration::from_micros(time) {
                    process.end(way);
                    is_told = true;
                }
                let outcome = look(&mut vcpu);
                let_go(&mut vcpu);
                match outcome.as_str() {
                    "gone" => break,
                    ASKED | "slow" => {}
                    // Its process may have other memory.
                    _ if is_told && way == "execute" => {}
                    other => panic!("{way} after {time} us: {other}"),
                }
                assert!(begin.elapsed() < LIMIT, "{way} after {time} us");
            }
            assert!(is_told);
        }
    }
    assert_eq!(look(&mut vcpu), "gone", "{way}, {moment:?}");
    assert!(!vcpu.is_slow(), "{way}, {moment:?}");
    process.ended(way);
}

/// However and whenever it ends, it does so as it would without a tracer, and looks say that it is gone.
#[test]
fn a_process_ends_as_it_wants_whatever_the_tracer_does() {
    for way in WAYS {
        end(way, Moment::Before);
        if way != "end the thread" {
            for looks_again in [false, true] {
                end(way, Moment::During { looks_again });
            }
        }
        for time in 0..8 {
            end(way, Moment::AtAnyTime(time * 731));
        }
    }
}

#[test]
fn a_thread_that_is_killed_during_a_look_is_gone() {
    let mut process = OtherProcess::begin("ends::the_process", "1");
    let mut vcpu = process.vcpu();
    let looked = vcpu.look(|vcpu| {
        process.end("kill");
        process.until_ended();
        vcpu.registers()
    });
    assert!(matches!(looked, Ok(StopOutcome::Gone)), "{looked:?}");
    assert_eq!(look(&mut vcpu), "gone");
    process.ended("kill");
}
