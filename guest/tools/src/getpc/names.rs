//! The names of the guest's processes.

use std::collections::BTreeMap;
use std::fs;

use kvmprof_abi::stream::COMM_SIZE;
use kvmprof_abi::wire::device::PROCESSES;

use kvmprof_client::Connection;

/// Maximum length of the list of processes, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// The names of the guest's present processes that kvmprof knows; a process has its main thread's name. Empty on
/// errors: a run works without names.
pub fn fetch_names(connection: &Connection) -> Vec<(i32, [u8; COMM_SIZE])> {
    let lines = connection.snapshot(PROCESSES, MAX_BYTES);
    parse_processes(&lines.unwrap_or_default())
}

/// The names of the processes on this machine by `/proc/PID/comm`: if getpc runs in the guest, they are the sampled
/// ones. Empty without /proc.
pub fn own_names() -> Vec<(i32, [u8; COMM_SIZE])> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let comm = fs::read(entry.path().join("comm")).ok()?;
            Some((pid, padded(comm.strip_suffix(b"\n").unwrap_or(&comm))))
        })
        .collect()
}

/// The names in lines `pid\ttid\tcomm\n`; other lines are ignored.
fn parse_processes(lines: &[u8]) -> Vec<(i32, [u8; COMM_SIZE])> {
    let mut names = BTreeMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        if let Some((pid, tid, comm)) = parse_line(line)
            && (pid == tid || !names.contains_key(&pid))
        {
            names.insert(pid, comm);
        }
    }
    names.into_iter().collect()
}

fn parse_line(line: &[u8]) -> Option<(i32, i32, [u8; COMM_SIZE])> {
    let mut fields = line.splitn(3, |byte| *byte == b'\t');
    let mut number = || -> Option<i32> { str::from_utf8(fields.next()?).ok()?.parse().ok() };
    let (pid, tid) = (number()?, number()?);
    Some((pid, tid, padded(fields.next()?)))
}

/// A name for records: cut off, or padded with NULs.
fn padded(name: &[u8]) -> [u8; COMM_SIZE] {
    let mut comm = [0; COMM_SIZE];
    for (to, from) in comm.iter_mut().zip(name) {
        *to = *from;
    }
    comm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_name_of_its_main_thread() {
        let lines = b"7\t9\tworker\n7\t7\tserver\n7\t8\tworker\nnonsense\n8\tx\ty\n12\t13\ta name of many letters";
        let names = parse_processes(lines);
        let expected = [
            (7, *b"server\0\0\0\0\0\0\0\0\0\0"),
            (12, *b"a name of many l"),
        ];
        assert_eq!(names, expected);
        assert!(parse_processes(b"").is_empty());
    }

    #[test]
    fn the_own_process_has_its_name() {
        let name = fs::read("/proc/self/comm").unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let expected = padded(name.strip_suffix(b"\n").unwrap());
        assert!(own_names().contains(&(pid, expected)));
    }
}
