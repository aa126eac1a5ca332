//! A panic of any thread ends the program that runs a guest. Otherwise, a stopped vCPU, or a recording that isn't
//! written any more, would go unnoticed.

use std::panic;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use kvmprof_cli::command_line::ExitStatus;
use kvmprof_vmm::vm::{end_at_once, enter_sandbox};

/// Maximum time for the report of a panic before the end is requested anyway, because standard error may not be read.
const REPORT_LIMIT: Duration = Duration::from_secs(1);
/// Maximum time for an orderly end of the guest after that.
const LIMIT: Duration = Duration::from_secs(10);

static HAPPENED: AtomicBool = AtomicBool::new(false);
static IS_REPORTED: AtomicBool = AtomicBool::new(false);
/// The thread that requests the end, and enforces it if necessary.
static GUARD: OnceLock<Thread> = OnceLock::new();

/// Installs a hook that reports a panic and requests the end of this process by SIGINT (SIGTERM might only press the
/// guest's power button). The handler of SIGINT has to be installed before. The end doesn't wait for a reader of the
/// report.
pub fn end_program() {
    start_guard();
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let is_first = !HAPPENED.swap(true, Ordering::SeqCst);
        if is_first {
            // Before any output, which may block forever.
            match GUARD.get() {
                Some(guard) => guard.unpark(),
                None => ask_for_end(),
            }
        }
        report(panic);
        if is_first {
            eprintln!(
                "kvmprof: A thread of kvmprof has panicked: this is a bug in kvmprof. It ends."
            );
            IS_REPORTED.store(true, Ordering::SeqCst);
            if let Some(guard) = GUARD.get() {
                guard.unpark();
            }
        }
    }));
}

/// Starts the guard in advance, because a thread that panics may not start another one (`kvmprof_sandbox`).
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
    // Without this thread, there is only the orderly end.
    if let Ok(guard) = guard {
        GUARD.get_or_init(|| guard.thread().clone());
    }
}

/// Waits until the report is written, which an orderly end might cut off.
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

    /// The environment variable of the process that panics.
    const CHILD: &str = "KVMPROF_TEST_PANICS";
    /// The documented exit status (docs/running.md).
    const FAULT: i32 = 5;

    /// Panics on a thread in a separate process, which handles the signal and ends as the program does.
    fn panic_and_end() -> ! {
        // SAFETY: the handler does only what signal-safety(7) allows.
        unsafe { libc::signal(libc::SIGINT, end as *const () as libc::sighandler_t) };
        end_program();
        thread::spawn(|| panic!("on purpose"));
        loop {
            thread::park();
        }
    }

    extern "C" fn end(_signal: i32) {
        let status = status().map_or(0, i32::from);
        // SAFETY: the call doesn't return.
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
        assert!(stderr.contains("a bug in kvmprof"), "{stderr}");
    }

    #[test]
    fn an_unread_report_does_not_delay_the_end() {
        if env::var_os(CHILD).is_some() {
            panic_and_end();
        }
        let mut command = child("an_unread_report_does_not_delay_the_end");
        let (_reader, full) = full_pipe();
        let status = command.stderr(Stdio::from(full)).status().unwrap();
        assert_eq!(status.code(), Some(FAULT));
    }

    /// A full pipe: its ends to read and to write.
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
