//! Names of processes.

use kvmprof_recording::{COMM_LENGTH, Sample};

use super::sums::task_name;
use crate::text::visible;

/// A process's name: its main thread's if that is known, else that of another thread.
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

    /// Adds the names of a later part of the recording.
    pub fn add(&mut self, later: &Self) {
        if later.comm[0] != 0 && (later.is_of_main_thread || !self.is_of_main_thread) {
            *self = later.clone();
        }
    }

    /// The name; empty when unknown. `leader` is the main thread's name by its mappings, if known.
    pub fn text(&self, leader: Option<&str>) -> String {
        match leader {
            Some(leader) if !self.is_of_main_thread => visible(leader),
            _ => task_name(&self.comm),
        }
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::comm_of;

    use super::*;

    #[test]
    fn the_main_thread_names_the_process_sampled_or_not() {
        let mut names = ProcessNames::default();
        let note = |names: &mut ProcessNames, tid, name| {
            names.note(&Sample {
                pid: 7,
                tid,
                comm: comm_of(name),
                ..Sample::default()
            });
        };
        assert_eq!(names.text(None), "");
        note(&mut names, 9, "worker");
        assert_eq!(names.text(None), "worker");
        assert_eq!(names.text(Some("server\x1b")), "server\u{fffd}");
        note(&mut names, 7, "renamed");
        note(&mut names, 9, "worker");
        assert_eq!(names.text(Some("server")), "renamed");
    }
}
