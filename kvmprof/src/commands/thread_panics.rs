//! A panic of any thread ends the program that runs a guest: a vCPU that stands still, or a recording that nobody writes any
//! more, would go unnoticed.

use std::panic;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use kvmprof_tools::command_line::ExitStatus;
use kvmprof_vmm::vm::{end_at_once, enter_sandbox};

/// How long the report of a panic may take before the end is asked for all the same: nobody may read standard error.
const REPORT_LIMIT: Duration = Duration::from_secs(1);
/// How long the guest may take to end in order after that.
const LIMIT: Duration = Duration::from_secs(10);

static HAPPENED: AtomicBool = AtomicBool::new(false);
static IS_REPORTED: AtomicBool = AtomicBool::new(false);
/// The thread that asks for the end, and sees to it if nobody else does.
static GUARD: OnceLock<Thread> = OnceLock::new();

/// From now on a panic is reported, and the process asks itself to end by SIGINT (SIGTERM might only press
/// the guest's power button). What takes that has to be there already. The end waits for nobody who reads the report.
pub fn end_program() {
    start_guard();
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let is_first = !HAPPENED.swap(true, Ordering::SeqCst);
        if is_first {
            // Before anything is written: that may take for ever.
            match GUARD.get() {
                Some(guard) => guard.unpark(),
                None => ask_for_end(),
            }
        }
        report(panic);
        if is_first {
            eprintln!(
                "kvmprof: A thread of kvmprof has panicked: that is a fault of its own. It ends."
            );
            IS_REPORTED.store(true, Ordering::SeqCst);
            if let Some(guard) = GUARD.get() {
                guard.unpark();
            }
        }
    }));
}

/// A thread that panics may not start another one (`kvmprof_sandbox`), so it is there before.
fn start_guard() {
    let guard = thread::Builder::new().name("panic guard".into());
    let guard = guard.spawn(|| {
        enter_sandbox();
        while !HAPPENED.load(Ordering::SeqCst) {
            thread::park();
        }
        await_report();
        ask_for_end();
        thread::sleep(LIMIT);
        end_at_once(
            ExitStatus::FAULT.into(),
            "kvmprof: ended by force, because it didn't end in order after a panic\n",
        );
    });
    // If there is no thread to be had, the end in order has to do.
    if let Ok(guard) = guard {
        GUARD.get_or_init(|| guard.thread().clone());
    }
}

/// Lets the report be written whole, which an end in order might cut off.
fn await_report() {
    let begun = Instant::now();
    while !IS_REPORTED.load(Ordering::SeqCst)
        && let Some(left) = REPORT_LIMIT.checked_sub(begun.elapsed())
    {
        thread::park_timeout(left);
    }
}

fn ask_for_end() {
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
    use std::fs::File;
    use std::io::{self, Write};
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    /// Set in the process that panics.
    const CHILD: &str = "KVMPROF_TEST_PANICS";
    /// The documented exit status (docs/running.md).
    const FAULT: i32 = 5;

    /// Panics on a thread, in a process of its own, which takes the signal and ends as the program does.
    fn panic_and_end() -> ! {
        // SAFETY: the handler does only what a handler may (signal-safety(7)).
        unsafe { libc::signal(libc::SIGINT, end as *const () as libc::sighandler_t) };
        end_program();
        thread::spawn(|| panic!("on purpose"));
        loop {
            thread::park();
        }
    }

    extern "C" fn end(_signal: i32) {
        let status = status().map_or(0, i32::from);
        // SAFETY: it doesn't return.
        unsafe { libc::_exit(status) };
    }

    fn child(test: &str) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "--nocapture"]);
        command.arg(format!("commands::thread_panics::tests::{test}"));
        command.env(CHILD, "1");
        command
    }

    #[test]
    fn a_thread_that_panics_ends_the_program() {
        if env::var_os(CHILD).is_some() {
            panic_and_end();
        }
        let mut command = child("a_thread_that_panics_ends_the_program");
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(FAULT), "{stderr}");
        assert!(stderr.contains("on purpose"), "{stderr}");
        assert!(stderr.contains("a fault of its own"), "{stderr}");
    }

    #[test]
    fn a_report_that_nobody_reads_doesnt_hold_up_the_end() {
        if env::var_os(CHILD).is_some() {
            panic_and_end();
        }
        let mut command = child("a_report_that_nobody_reads_doesnt_hold_up_the_end");
        let (_reader, full) = full_pipe();
        let status = command.stderr(Stdio::from(full)).status().unwrap();
        assert_eq!(status.code(), Some(FAULT));
    }

    /// A pipe that takes nothing any more: its ends to read and to write.
    fn full_pipe() -> (io::PipeReader, OwnedFd) {
        let (reader, writer) = io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        let mut file = File::from(writer.try_clone().unwrap());
        while file.write(&[b'x'; 4096]).is_ok() {}
        fcntl_setfl(&writer, OFlags::empty()).unwrap();
        (reader, writer)
    }
}
