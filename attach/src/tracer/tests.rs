//! A thread of another process is stopped, and its process is killed or executes another program. That process is this test program, started
//! again.

mod ends;
mod fights;
mod filtered;
#[path = "../../../tests/shared/seccomp.rs"]
mod seccomp;
mod sequence;

use std::env;
use std::fs;
use std::hint::spin_loop;
use std::io::{BufRead, BufReader, Read, Write, stdin};

use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use kvmprof_introspection::bytes::u64_at;

use super::*;

/// Set in the traced process.
const IS_TRACED: &str = "KVMPROF_TEST_TRACED";
/// Prefixes of the lines with the thread's id, and with the address of its report.
const MARK: &str = "thread ";

/// The process has no vCPU: KVM isn't asked, but the system calls are made.
const NO_DESCRIPTOR: i32 = i32::MAX;

/// Whether this process is the one that a test has started for the test function `name`, and its task; `None` in the tests themselves.
fn is_started() -> Option<String> {
    env::var(IS_TRACED).ok()
}

/// Reports which thread to trace, and the address of its report.
fn tell(thread: i32, told: u64) {
    println!("\n{MARK}{thread} {told}");
}

fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// This test program, started again, and its traced thread.
struct OtherProcess {
    child: Child,
    thread: i32,
    /// The address of the thread's report.
    told: u64,
    /// Open until the end: a test that goes on for a minute says so, and its program ends if it can't.
    _output: BufReader<ChildStdout>,
}

impl OtherProcess {
    /// Starts the process for the test function `name` with the task `what`.
    fn begin(name: &str, what: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--nocapture", "--exact"])
            .arg(format!("tracer::tests::{name}"))
            .env(IS_TRACED, what)
            // The C library's own registration would prevent the test's.
            .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let told = output.by_ref().lines().find_map(|line| {
            let line = line.unwrap();
            let (thread, told) = line.strip_prefix(MARK)?.split_once(' ')?;
            Some((thread.parse().ok()?, told.parse().ok()?))
        });
        let (thread, told) = told.unwrap();
        Self {
            child,
            thread,
            told,
            _output: output,
        }
    }

    /// The thread's present report.
    fn told<const NUMBERS: usize>(&self) -> [u64; NUMBERS] {
        let mut bytes = vec![0; NUMBERS * 8];
        memory::read(self.thread, [(self.told, &mut bytes)]).unwrap();
        std::array::from_fn(|index| u64_at(&bytes, 8 * index).unwrap())
    }

    /// The value of the line `name` of the thread's status.
    fn status(&self, name: &str) -> String {
        let path = format!("/proc/{}/task/{}/status", self.pid(), self.thread);
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn vcpu(&self) -> TracedVcpu {
        let code = ThreadCode::find(self.pid()).unwrap();
        TracedVcpu::new(self.pid(), self.thread, NO_DESCRIPTOR, code)
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        // After a failure.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
