//! The threads of a process: what the host's scheduler says of them, and how one is stopped.

use std::fs;
use std::io;
use std::marker::PhantomData;

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its name.
    pub name: String,
    /// How often it went to sleep by itself.
    pub voluntary_switches: u64,
}

/// The threads of process `pid` whose names begin with `name`, by thread id (proc(5), `task/TID`).
///
/// # Panics
/// When there is no such process.
pub fn threads(pid: u32, name: &str) -> Vec<Thread> {
    ids(pid)
        .into_iter()
        .filter_map(|id| {
            let status = fs::read_to_string(format!("/proc/{pid}/task/{id}/status")).ok()?;
            let field = |key: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(key))?;
                Some(line.trim().to_owned())
            };
            Some(Thread {
                name: field("Name:")?,
                voluntary_switches: field("voluntary_ctxt_switches:")?.parse().ok()?,
            })
        })
        .filter(|thread| thread.name.starts_with(name))
        .collect()
}

fn ids(pid: u32) -> Vec<u32> {
    let mut ids: Vec<u32> = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    ids.sort_unstable();
    ids
}

/// One thread of another process, which stands still until this is dropped (ptrace(2)).
#[derive(Debug)]
pub struct StoppedThread {
    tid: libc::pid_t,
    /// Only the thread that has stopped it can let it go.
    _not_send: PhantomData<*const ()>,
}

impl StoppedThread {
    /// Stops the thread called `name` of process `pid`, and waits until it stands still.
    ///
    /// # Panics
    /// There is no such thread, or it can't be stopped.
    pub fn stop(pid: u32, name: &str) -> Self {
        let is_it = |tid: &u32| {
            let comm = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
            comm.is_ok_and(|comm| comm.trim_end() == name)
        };
        let tid = ids(pid).into_iter().find(is_it);
        let tid = tid.and_then(|tid| tid.try_into().ok());
        let stopped = Self {
            tid: tid.unwrap_or_else(|| panic!("there is no thread {name}")),
            _not_send: PhantomData,
        };
        stopped.request(libc::PTRACE_SEIZE);
        stopped.request(libc::PTRACE_INTERRUPT);
        // SAFETY: waitpid(2) may be given no place for the status.
        let waited = unsafe { libc::waitpid(stopped.tid, std::ptr::null_mut(), libc::__WALL) };
        assert_eq!(waited, stopped.tid, "{}", io::Error::last_os_error());
        stopped
    }

    fn request(&self, request: libc::c_uint) {
        // SAFETY: these requests take no address and no data: both are 0.
        let result = unsafe { libc::ptrace(request, self.tid, 0, 0) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // SAFETY: as above.
        let detached = unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid, 0, 0) } == 0;
        if !detached {
            // It has ended meanwhile: until this is seen, its process can't be waited for.
            // SAFETY: waitpid(2) may be given no place for the status.
            unsafe { libc::waitpid(self.tid, std::ptr::null_mut(), libc::__WALL) };
        }
    }
}
