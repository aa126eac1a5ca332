//! Names of processes.

use kvmprof_recording::{COMM_LENGTH, Sample};

use super::sums::task_name;

/// A process's name: its main thread's if that was ever sampled, else another thread's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessNames {
    comm: [u8; COMM_LENGTH],
    is_of_main_thread: bool,
}

impl ProcessNames {
    /// Notes the name of the sampled thread.
    pub fn note(&mut self, sample: &Sample) {
        self.add(&Self {
            comm: sample.comm,
            is_of_main_thread: sample.tid == sample.pid,
        });
    }

    /// Adds what was learned later from another part of the recording.
    pub fn add(&mut self, later: &Self) {
        if later.comm[0] != 0 && (later.is_of_main_thread || !self.is_of_main_thread) {
            *self = later.clone();
        }
    }

    /// The name; empty when unknown.
    pub fn text(&self) -> String {
        task_name(&self.comm)
    }
}
