//! A thread of a VMM, which is distinguished from other threads that get its id later.

use std::fs::File;
use std::os::unix::fs::FileExt;

use libc::pid_t;

/// A thread of a VMM.
///
/// The kernel may give a thread's id to another thread once the thread has ended. A file in `/proc` that was opened for the first thread stays
/// that thread's file, and can't be read any more once the thread has ended.
#[derive(Debug)]
pub struct VmmThread {
    pub pid: pid_t,
    pub tid: pid_t,
    /// The thread's file with its name; `None` if there was no such thread.
    name: Option<File>,
}

impl VmmThread {
    /// The thread that has the number `tid` in process `pid` now, if there is one.
    pub fn new(pid: pid_t, tid: pid_t) -> Self {
        Self {
            pid,
            tid,
            name: File::open(format!("/proc/{pid}/task/{tid}/comm")).ok(),
        }
    }

    /// Whether the thread still exists, so that its id is still its own. This takes about 1 us. The thread may have executed another program.
    pub fn is_there(&self) -> bool {
        let mut name = [0; 16];
        let read = self.name.as_ref().map(|file| file.read_at(&mut name, 0));
        matches!(read, Some(Ok(1..)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    fn own_number() -> pid_t {
        rustix::thread::gettid().as_raw_nonzero().get()
    }

    #[test]
    fn a_thread_exists_until_it_ends() {
        let pid = std::process::id().cast_signed();
        let (number, received) = channel();
        let (end, ended) = channel();
        let other = thread::spawn(move || {
            number.send(own_number()).unwrap();
            let _: Result<(), _> = ended.recv();
        });
        let thread = VmmThread::new(pid, received.recv().unwrap());
        assert!(thread.is_there() && thread.is_there());
        end.send(()).unwrap();
        other.join().unwrap();
        // Its number is free shortly after that.
        while thread.is_there() {
            thread::yield_now();
        }
        assert!(!VmmThread::new(pid, i32::MAX).is_there());
        assert!(!VmmThread::new(1, own_number()).is_there());
    }
}
