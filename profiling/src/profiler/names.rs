//! The names of the processes that samples have found.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmprof_abi::text::task_name;
use kvmprof_recording::{COMM_LENGTH, Sample};

use super::texts::PacedText;

/// Maximum number of processes that are kept: a guest can make up any number. Beyond it, an eighth of them is forgotten: those that were seen
/// least recently.
const MAX_PROCESSES: usize = 65_536;

/// A table is used again for this time at most although there are other names by now.
const MAX_AGE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    tid: i32,
    comm: [u8; COMM_LENGTH],
}

/// A process's name, when it was started, 0 if unknown, and when it was last seen: the higher, the later.
#[derive(Debug)]
struct Process {
    name: Name,
    started: u64,
    turn: u64,
}

/// The last name of each process that was seen, or that of its main thread if that was ever sampled. A process that was started later than one
/// of the same id is another one.
#[derive(Debug, Default)]
pub struct Names {
    processes: BTreeMap<i32, Process>,
    turns: u64,
    /// Number of names that were noted and weren't known before.
    changes: u64,
    table: Option<Table>,
    /// How many processes have made room for others.
    forgotten: u64,
}

/// The table that was made last.
#[derive(Debug)]
struct Table {
    text: PacedText,
    changes: u64,
}

impl Names {
    /// Notes the process of `sample`, if it has a name.
    pub fn note(&mut self, sample: &Sample) {
        let Sample { pid, tid, comm, .. } = *sample;
        self.add(pid, Name { tid, comm }, sample.started);
    }

    /// Notes the name of the main thread, which need not have been sampled, of process `pid`, which was started at `started`, 0 if that is unknown.
    pub fn note_main_thread(&mut self, pid: i32, comm: [u8; COMM_LENGTH], started: u64) {
        self.add(pid, Name { tid: pid, comm }, started);
    }

    fn add(&mut self, pid: i32, name: Name, started: u64) {
        if pid < 0 || name.comm == [0; COMM_LENGTH] {
            return;
        }
        self.turns += 1;
        let turn = self.turns;
        let is_new = if let Some(known) = self.processes.get_mut(&pid) {
            known.turn = turn;
            let is_other = started != 0 && known.started != 0 && started != known.started;
            if started != 0 {
                known.started = started;
            }
            let is_better = is_other || known.name.tid != pid || name.tid == pid;
            is_better && std::mem::replace(&mut known.name, name) != name
        } else {
            self.make_room();
            let process = Process {
                name,
                started,
                turn,
            };
            self.processes.insert(pid, process);
            true
        };
        self.changes += u64::from(is_new);
    }

    /// Forgets processes if there is no room for another one.
    fn make_room(&mut self) {
        let before = self.processes.len();
        if before < MAX_PROCESSES {
            return;
        }
        let mut turns: Vec<u64> = self.processes.values().map(|it| it.turn).collect();
        let (_, last, _) = turns.select_nth_unstable(MAX_PROCESSES / 8);
        let last = *last;
        self.processes.retain(|_, process| process.turn > last);
        self.forgotten += (before - self.processes.len()) as u64;
    }

    /// The [`table`](Self::table), for clients. It is rebuilt if there are other names, but at a limited rate: clients may request it
    /// constantly, and a guest can make up any number of names.
    pub fn text(&mut self) -> Arc<[u8]> {
        if let Some(table) = &self.table
            && (table.changes == self.changes || table.text.is_good())
        {
            return Arc::clone(&table.text.bytes);
        }
        let begun = Instant::now();
        let table = Table {
            text: PacedText::new(self.table().into_bytes(), begun, MAX_AGE),
            changes: self.changes,
        };
        let bytes = Arc::clone(&table.text.bytes);
        self.table = Some(table);
        bytes
    }

    /// How many processes have made room for others.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Whether the table was ever made.
    #[cfg(test)]
    pub fn has_table(&self) -> bool {
        self.table.is_some()
    }

    /// Minimum length of the table in bytes.
    pub fn least_bytes(&self) -> usize {
        self.processes.len() * "1\t1\t?\n".len()
    }

    /// The table. It has a line for each process: the pid, the tid of the thread whose name it is, and the name, separated by tabs. Bytes
    /// of a name that would break a line or a terminal are shown as `?`.
    pub fn table(&self) -> String {
        let mut table = String::new();
        for (pid, Process { name, .. }) in &self.processes {
            // Writing to a String cannot fail.
            let _ = write!(table, "{pid}\t{}\t", name.tid);
            table.extend(task_name(&name.comm));
            table.push('\n');
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::comm_of;

    use super::*;

    fn sample(pid: i32, tid: i32, name: &str) -> Sample {
        Sample {
            pid,
            tid,
            comm: comm_of(name),
            ..Sample::default()
        }
    }

    #[test]
    fn the_main_thread_names_the_process() {
        let mut names = Names::default();
        names.note(&sample(7, 9, "worker"));
        assert_eq!(names.table(), "7\t9\tworker\n");
        names.note(&sample(7, 7, "server"));
        names.note(&sample(7, 9, "worker"));
        names.note(&sample(7, 7, "renamed"));
        assert_eq!(names.table(), "7\t7\trenamed\n");
    }

    /// The main thread of a process that has the id of one that has ended may never be sampled.
    #[test]
    fn a_later_process_with_the_same_id_has_its_own_name() {
        let mut names = Names::default();
        let mut note = |tid, name, started| {
            names.note(&Sample {
                started,
                ..sample(7, tid, name)
            });
            names.table()
        };
        assert_eq!(note(7, "server", 5), "7\t7\tserver\n");
        assert_eq!(note(9, "worker", 5), "7\t7\tserver\n");
        assert_eq!(note(12, "other", 6), "7\t12\tother\n");
        assert_eq!(note(7, "client", 6), "7\t7\tclient\n");
        // Of which process this is isn't known.
        assert_eq!(note(12, "other", 0), "7\t7\tclient\n");
        // By its mappings.
        names.note_main_thread(7, comm_of("next"), 8);
        names.note(&Sample {
            started: 8,
            ..sample(7, 14, "worker")
        });
        assert_eq!(names.table(), "7\t7\tnext\n");
    }

    #[test]
    fn unnamed_tasks_are_omitted_and_control_bytes_escaped() {
        let mut names = Names::default();
        names.note(&sample(-1, -1, "ghost"));
        names.note(&sample(3, 3, ""));
        names.note(&sample(4, 4, "a\n\x1b[b"));
        assert_eq!(names.table(), "4\t4\ta??[b\n");
    }

    #[test]
    fn a_table_is_rebuilt_after_new_names_and_a_delay() {
        let mut names = Names::default();
        names.note(&sample(7, 7, "first"));
        let first = names.text();
        assert!(first.len() >= names.least_bytes());
        let (past, future) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let good_until =
            |names: &mut Names, time| names.table.as_mut().unwrap().text.good_until = time;
        good_until(&mut names, past);
        names.note(&sample(7, 7, "first"));
        names.note(&sample(7, 8, "another"));
        assert!(Arc::ptr_eq(&first, &names.text()));
        names.note(&sample(7, 7, "second"));
        good_until(&mut names, future);
        assert!(Arc::ptr_eq(&first, &names.text()));
        good_until(&mut names, past);
        assert_eq!(&*names.text(), b"7\t7\tsecond\n");
        let table = names.table.as_ref().unwrap();
        assert!(table.text.good_until <= Instant::now() + MAX_AGE);
    }

    #[test]
    fn endless_pids_leave_the_names_of_the_newest() {
        const PIDS: i32 = 200_000;
        let mut names = Names::default();
        for pid in 1..PIDS {
            names.note(&sample(pid, pid, "fork"));
            names.note(&sample(0, 0, "idle"));
            assert!(names.processes.len() <= MAX_PROCESSES);
        }
        let count = names.processes.len();
        assert!(count >= MAX_PROCESSES / 8 * 7 - 1, "{count}");
        assert_eq!(names.forgotten() + count as u64, 200_000);
        let newest = PIDS - i32::try_from(count).unwrap() + 1;
        let kept = [0].into_iter().chain(newest..PIDS);
        assert!(names.processes.keys().copied().eq(kept));
    }
}
