//! Detects the end of a process: the VMM, or the one that traces it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::vm::add;

/// Watches for the end of a process.
#[derive(Debug)]
pub struct ProcessWatch {
    process: OwnedFd,
    has_ended: Arc<AtomicBool>,
}

impl ProcessWatch {
    /// Watches process `pid`.
    ///
    /// # Errors
    /// There is no such process.
    pub fn new(pid: i32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self::of(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Watches the process behind a descriptor of pidfd_open(2).
    pub fn of(process: OwnedFd) -> Self {
        Self {
            process,
            has_ended: Arc::default(),
        }
    }

    /// Set once it has ended.
    pub fn has_ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_ended)
    }
}

impl MutEventSubscriber for ProcessWatch {
    fn process(&mut self, events: Events, ops: &mut EventOps) {
        self.has_ended.store(true, Ordering::Relaxed);
        // It stays readable.
        let _ = ops.remove(events);
    }

    fn init(&mut self, ops: &mut EventOps) {
        add(ops, Events::new(&self.process, EventSet::IN));
    }
}
