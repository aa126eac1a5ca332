//! The names of the processes that samples have met.

use std::collections::BTreeMap;
use std::fmt::Write;

use kvmprof_abi::text::task_name;
use kvmprof_recording::{COMM_LENGTH, Sample};

/// The processes that are remembered at most: a guest can make up any number.
const MAX_PROCESSES: usize = 65_536;

#[derive(Clone, Copy, Debug)]
struct Name {
    tid: i32,
    comm: [u8; COMM_LENGTH],
}

/// The last name seen of each process, that of its main thread if that one was ever sampled.
#[derive(Debug, Default)]
pub struct Names {
    processes: BTreeMap<i32, Name>,
}

impl Names {
    /// Notes the process that `sample` met, if it has a name.
    pub fn note(&mut self, sample: &Sample) {
        let Sample { pid, tid, comm, .. } = *sample;
        self.add(pid, Name { tid, comm });
    }

    /// Notes the name of the main thread of process `pid`, which need not have been sampled.
    pub fn note_main_thread(&mut self, pid: i32, comm: [u8; COMM_LENGTH]) {
        self.add(pid, Name { tid: pid, comm });
    }

    fn add(&mut self, pid: i32, name: Name) {
        if pid < 0 || name.comm == [0; COMM_LENGTH] {
            return;
        }
        let room = self.processes.len() < MAX_PROCESSES;
        match self.processes.get_mut(&pid) {
            Some(known) if known.tid != pid || name.tid == pid => *known = name,
            Some(_) => {}
            None if room => {
                self.processes.insert(pid, name);
            }
            None => {}
        }
    }

    /// One line a process: pid, tid of the thread that the name is from, name; tabs between them.
    /// Bytes of a name that would break a line or a terminal are shown as `?`.
    pub fn table(&self) -> String {
        let mut table = String::new();
        for (pid, name) in &self.processes {
            let comm: String = task_name(&name.comm).collect();
            // Writing to a String cannot fail.
            let _ = writeln!(table, "{pid}\t{}\t{comm}", name.tid);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pid: i32, tid: i32, name: &[u8]) -> Sample {
        let mut comm = [0; COMM_LENGTH];
        comm[..name.len()].copy_from_slice(name);
        Sample {
            pid,
            tid,
            comm,
            ..Sample::default()
        }
    }

    #[test]
    fn the_main_thread_names_the_process() {
        let mut names = Names::default();
        names.note(&sample(7, 9, b"worker"));
        assert_eq!(names.table(), "7\t9\tworker\n");
        names.note(&sample(7, 7, b"server"));
        names.note(&sample(7, 9, b"worker"));
        names.note(&sample(7, 7, b"renamed"));
        assert_eq!(names.table(), "7\t7\trenamed\n");
    }

    #[test]
    fn what_has_no_name_or_pid_is_left_out_and_control_bytes_are_shown() {
        let mut names = Names::default();
        names.note(&sample(-1, -1, b"ghost"));
        names.note(&sample(3, 3, b""));
        names.note(&sample(4, 4, b"a\n\x1b[b"));
        assert_eq!(names.table(), "4\t4\ta??[b\n");
    }

    #[test]
    fn a_guest_with_endless_pids_fills_no_memory() {
        let mut names = Names::default();
        for pid in 0..100_000 {
            names.note(&sample(pid, pid, b"fork"));
        }
        assert_eq!(names.processes.len(), MAX_PROCESSES);
    }
}
