//! Child processes, which end with this process.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use kvmprof_cli::child::end_with_this_process;
pub use kvmprof_cli::child::program;
use rustix::process::{Pid, Signal, kill_process};

/// Maximum number of bytes of a program's standard error that are kept: usually it is a line or two.
const MAX_SAID: u64 = 16 << 10;
/// Maximum time that a program may take to end after it was asked to.
pub const ENDING: Duration = Duration::from_secs(5);
/// The interval at which its end is checked meanwhile.
const POLL: Duration = Duration::from_millis(20);

/// A running program. When this is dropped, the program is asked to end, and killed if it doesn't. It also ends with this process, however that ends.
#[derive(Debug)]
pub struct Child {
    child: std::process::Child,
    said: Option<JoinHandle<String>>,
    /// Whether it has been waited for: its pid may belong to another process.
    has_ended: bool,
}

impl Child {
    /// Runs `program` with the arguments `words`. The first KiB of its standard error are kept. It ends at the latest with the calling
    /// thread, which therefore has to live as long as this process, as the main thread does.
    ///
    /// # Errors
    /// It can't be run.
    pub fn start<S: AsRef<OsStr>>(
        program: impl AsRef<OsStr>,
        words: impl IntoIterator<Item = S>,
    ) -> io::Result<Self> {
        Self::start_into(Stdio::null(), program, words)
    }

    /// As [`start`](Self::start), with this standard output.
    ///
    /// # Errors
    /// It can't be run.
    pub fn start_into<S: AsRef<OsStr>>(
        output: Stdio,
        program: impl AsRef<OsStr>,
        words: impl IntoIterator<Item = S>,
    ) -> io::Result<Self> {
        let mut command = Command::new(program);
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::piped());
        end_with_this_process(&mut command);
        let mut child = command.spawn()?;
        let errors = child.stderr.take();
        let reader =
            errors.map(|errors| Builder::new().name("child".into()).spawn(|| read(errors)));
        let mut child = Self {
            child,
            said: None,
            has_ended: false,
        };
        child.said = reader.transpose()?;
        Ok(child)
    }

    /// Its exit status and standard error, once it has ended.
    ///
    /// # Errors
    /// The system refuses to wait for it.
    pub fn ended(&mut self) -> io::Result<Option<(ExitStatus, String)>> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(None);
        };
        self.has_ended = true;
        let said = self.said.take().and_then(|reader| reader.join().ok());
        Ok(Some((status, said.unwrap_or_default())))
    }

    /// Asks it to end.
    pub fn ask_to_end(&self) {
        if !self.has_ended {
            // It may have ended already.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.has_ended = true;
    }

    /// Asks it to end, and waits `within` this time for its end. `None` if it had to be killed.
    pub fn end(mut self, within: Duration) -> Option<(ExitStatus, String)> {
        self.ask_to_end();
        self.wait(Instant::now() + within)
    }

    fn wait(&mut self, until: Instant) -> Option<(ExitStatus, String)> {
        while Instant::now() < until {
            match self.ended() {
                Ok(None) => sleep(POLL),
                Ok(ended) => return ended,
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        self.ask_to_end();
        if self.wait(Instant::now() + ENDING).is_none() {
            self.kill();
        }
    }
}

/// Reads the beginning of the text. The rest is discarded, so that the program doesn't wait for a reader.
fn read(mut from: impl Read) -> String {
    let mut kept = Vec::new();
    let _ = from.by_ref().take(MAX_SAID).read_to_end(&mut kept);
    let _ = io::copy(&mut from, &mut io::sink());
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        Child::start("sh", ["-c", script]).unwrap()
    }

    #[test]
    fn messages_of_a_child_are_bounded() {
        let mut child = shell("yes 12345678 | head -c 1000000 >&2; exit 3");
        let (status, said) = loop {
            if let Some(ended) = child.ended().unwrap() {
                break ended;
            }
            sleep(POLL);
        };
        assert_eq!(status.code(), Some(3));
        assert_eq!(said.len() as u64, MAX_SAID);
    }

    #[test]
    fn a_child_gets_sigterm_before_sigkill() {
        // It reports that it is ready: before, the signal would find no handler.
        let folder = tempfile::tempdir().unwrap();
        let ready = folder.path().join("ready");
        let script = "trap 'echo asked >&2; exit 7' TERM; : >\"$0\"; while :; do sleep 0.05; done";
        let child = Child::start("sh", ["-c", script, ready.to_str().unwrap()]).unwrap();
        while !ready.exists() {
            sleep(POLL);
        }
        let (status, said) = child.end(ENDING).unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(7), "asked\n"));
    }

    #[test]
    fn a_missing_program_is_reported() {
        let error = Child::start("/nowhere/program", [""; 0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(program("no-such-program").to_str(), Some("no-such-program"));
    }
}
