//! A panic of any thread ends the program that runs a guest: a vCPU that stands still, or a recording that nobody writes any
//! more, would go unnoticed.

use std::panic;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use kvmprof_tools::command_line::ExitStatus;

/// How long the guest may take to end in order after a panic.
const LIMIT: Duration = Duration::from_secs(10);

static HAPPENED: AtomicBool = AtomicBool::new(false);
/// The thread that sees to the end if nobody else does.
static GUARD: OnceLock<Thread> = OnceLock::new();

/// From now on a panic is reported, and the process asks itself to end by SIGINT (SIGTERM might only press
/// the guest's power button). What takes that has to be there already.
pub fn end_program() {
    start_guard();
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        if !HAPPENED.swap(true, Ordering::SeqCst) {
            eprintln!(
                "kvmprof: A thread of kvmprof has panicked: that is a fault of its own. It ends."
            );
            start_end();
        }
    }));
}

/// A thread that panics may not start another one (`kvmprof_sandbox`), so it is there before.
fn start_guard() {
    let guard = thread::Builder::new().name("panic guard".into());
    let guard = guard.spawn(|| {
        kvmprof_sandbox::enter(kvmprof_sandbox::Thread::End);
        while !HAPPENED.load(Ordering::SeqCst) {
            thread::park();
        }
        thread::sleep(LIMIT);
        process::exit(ExitStatus::FAULT.into());
    });
    // If there is no thread to be had, the end in order has to do.
    if let Ok(guard) = guard {
        GUARD.get_or_init(|| guard.thread().clone());
    }
}

fn start_end() {
    if let Some(guard) = GUARD.get() {
        guard.unpark();
    }
    let process = rustix::process::getpid();
    let _ = rustix::process::kill_process(process, rustix::process::Signal::INT);
}

/// The exit status of a program in which a thread has panicked.
pub fn status() -> Option<ExitStatus> {
    HAPPENED.load(Ordering::SeqCst).then_some(ExitStatus::FAULT)
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Set in the process that panics.
    const CHILD: &str = "KVMPROF_TEST_PANICS";

    /// In a process of its own: what takes the signal here is its default action.
    #[test]
    fn a_thread_that_panics_ends_the_program() {
        if env::var_os(CHILD).is_some() {
            end_program();
            let panicked = thread::spawn(|| panic!("on purpose")).join();
            assert!(panicked.is_err());
            loop {
                thread::park();
            }
        }
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "--nocapture"]);
        command.arg("commands::thread_panics::tests::a_thread_that_panics_ends_the_program");
        let output = command.env(CHILD, "1").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGINT), "{stderr}");
        assert!(stderr.contains("on purpose"), "{stderr}");
        assert!(stderr.contains("a fault of its own"), "{stderr}");
    }
}
