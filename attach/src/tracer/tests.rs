//! A thread of another process that is killed while it is stopped. The process is this test program, started again.

use std::env;
use std::fs;
use std::hint::spin_loop;
use std::io::{BufRead, BufReader, Write, stdin};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use super::*;

/// Set in the process that is traced.
const IS_TRACED: &str = "KVMPROF_TEST_TRACED";
/// What its line with the thread's id begins with.
const MARK: &str = "thread ";

/// The process: one of its threads spins, and another one executes another program once it is told to.
#[test]
fn the_process() {
    if env::var_os(IS_TRACED).is_none() {
        return;
    }
    let (sender, received) = channel();
    thread::spawn(move || {
        sender.send(rustix::thread::gettid()).unwrap();
        loop {
            spin_loop();
        }
    });
    println!("\n{MARK}{}", received.recv().unwrap());
    stdin().read_line(&mut String::new()).unwrap();
    panic!("{}", Command::new("cat").exec());
}

/// The process, and its thread that spins.
struct OtherProcess {
    child: Child,
    thread: i32,
}

impl OtherProcess {
    fn start() -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--nocapture", "--exact", "tracer::tests::the_process"])
            .env(IS_TRACED, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let thread = lines.find_map(|line| line.unwrap().strip_prefix(MARK)?.parse().ok());
        Self {
            child,
            thread: thread.unwrap(),
        }
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn vcpu(&self) -> TracedVcpu {
        let code = ThreadCode::find(self.pid()).unwrap();
        // No look here asks for the registers of a vCPU.
        TracedVcpu::new(self.pid(), self.thread, -1, code)
    }

    /// Makes the process execute the other program, and waits until this has killed the thread.
    fn execute(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
        let status = format!("/proc/{}/task/{}/status", self.pid(), self.thread);
        while !fs::read_to_string(&status).unwrap().contains("State:\tZ") {
            thread::yield_now();
        }
    }

    /// Waits until the other program runs, and has read its input to the end.
    fn finish(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        // After a failure.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The execve(2) waits until the tracer has waited for the thread's end, and a tracer that would trace it again waits for the execve(2).
#[test]
fn a_process_may_execute_another_program_during_a_look() {
    for looks_again in [false, true] {
        let mut process = OtherProcess::start();
        let mut vcpu = process.vcpu();
        let looked = vcpu.look(|_| {
            process.execute();
            Ok(())
        });
        assert_eq!(looked.unwrap(), Look::Seen(()));
        assert!(vcpu.is_slow());
        if looks_again {
            let looked = vcpu.look(|_| Ok(()));
            assert_eq!(looked.unwrap(), Look::Gone);
        } else {
            vcpu.let_go();
        }
        assert!(!vcpu.is_slow());
        process.finish();
    }
}
