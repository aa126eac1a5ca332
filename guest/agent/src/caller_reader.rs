//! Threads that inspect callers. A caller controls when its memory can be read (userfaultfd(2), a mapped file of a slow file system), and
//! the agent serves others meanwhile.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::nodes::{Inspection, InspectionResult};

/// Maximum number of simultaneous inspections. Further ones find nothing. Calls of nodes for everybody are limited to fewer.
const INSPECTIONS_MAX: usize = 96;

/// The number of an inspection, and what it has found.
type Finding = (u64, InspectionResult);

/// The threads, and what they have found.
#[derive(Debug)]
pub(crate) struct CallerReader {
    sender: Sender<Finding>,
    findings: Receiver<Finding>,
    /// Gets a byte for each finding.
    bell: UnixStream,
    ringer: Arc<UnixStream>,
}

impl CallerReader {
    /// Makes a reader without inspections.
    pub fn new() -> io::Result<Self> {
        let (sender, findings) = channel();
        let (bell, ringer) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ringer.set_nonblocking(true)?;
        Ok(Self {
            sender,
            findings,
            bell,
            ringer: Arc::new(ringer),
        })
    }

    /// Starts an inspection. [`Self::next`] returns what it finds, under `number`.
    pub fn inspect(&self, number: u64, inspection: Inspection) {
        let ringer = Arc::clone(&self.ringer);
        let sender = self.sender.clone();
        let tell = move |whole| {
            // Without a receiver the finding isn't needed. If the socket's buffer is full, the bell is readable already.
            let _ = sender.send((number, whole));
            let _ = (&*ringer).write(&[1]);
        };
        // Each thread holds the ringer, and so do this reader and the inspection about to start.
        if Arc::strong_count(&self.ringer) > INSPECTIONS_MAX + 1 {
            return tell(inspection.given_up());
        }
        let tell_failure = tell.clone();
        let started = std::thread::Builder::new()
            .name("caller".into())
            .spawn(move || tell(inspection.carry_out()));
        if started.is_err() {
            tell_failure(inspection.given_up());
        }
    }

    /// The next finding, if there is one.
    pub fn next(&mut self) -> Option<Finding> {
        let mut rings = [0; INSPECTIONS_MAX];
        // The bell is emptied before a finding is taken, so that a later finding makes it readable again.
        while matches!(self.bell.read(&mut rings), Ok(count) if count > 0) {}
        self.findings.try_recv().ok()
    }
}

impl AsFd for CallerReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_of_a_caller_has_a_result() {
        let mut caller_reader = CallerReader::new().unwrap();
        let numbers: Vec<u64> = (1..200).collect();
        for number in &numbers {
            // No thread has this number.
            caller_reader.inspect(*number, Inspection::WholeWrite { thread: u32::MAX });
        }
        let mut found = Vec::new();
        while found.len() < numbers.len() {
            if let Some((number, whole)) = caller_reader.next() {
                assert_eq!(whole, None);
                found.push(number);
            }
        }
        found.sort_unstable();
        assert_eq!(found, numbers);
    }
}
