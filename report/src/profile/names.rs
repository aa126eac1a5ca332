//! What processes are called.

use kvmprof_recording::{COMM_LENGTH, Sample};

use super::sums::task_name;

/// What is known of a process's name: that of its main thread if that was ever sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessNames {
    comm: [u8; COMM_LENGTH],
    is_of_main_thread: bool,
}

impl ProcessNames {
    /// Notes the name of the thread that `sample` is of.
    pub fn note(&mut self, sample: &Sample) {
        self.add(&Self {
            comm: sample.comm,
            is_of_main_thread: sample.tid == sample.pid,
        });
    }

    /// Adds what is known from elsewhere, from a later time.
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
