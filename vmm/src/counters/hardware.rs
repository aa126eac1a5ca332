//! The processor's own counters, for the guest alone.

use std::fs::File;
use std::io;

use crate::perf_event::{self, Attributes, HardwareEvent};

/// A counter of one vCPU. It counts while the vCPU's thread runs the guest.
#[derive(Debug)]
pub struct HardwareCounter(File);

impl HardwareCounter {
    /// Counts `event` from now on for the vCPU whose thread is the calling one.
    ///
    /// # Errors
    /// What perf_event_open(2) says: ENOENT where there is no such counter, EACCES where the host forbids it.
    pub fn open(event: HardwareEvent) -> io::Result<Self> {
        let mut attributes = Attributes::new(perf_event::HARDWARE, event as u64);
        attributes.flags = perf_event::EXCLUDE_HOST;
        attributes.open(0).map(Self)
    }

    /// What it has counted; `None` if the kernel won't say.
    pub fn value(&self) -> Option<u64> {
        perf_event::count(&self.0)
    }
}
