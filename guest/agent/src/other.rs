//! Finds another pcsd that has the nodes: there can be only one.

use std::fs;
use std::path::Path;

use crate::cuse::CUSE;

/// The pid of another process `pcsd` that serves nodes; `None` if there is none, or it isn't visible.
pub(crate) fn running() -> Option<u32> {
    find(Path::new("/proc"), std::process::id())
}

fn find(processes: &Path, ours: u32) -> Option<u32> {
    let entries = fs::read_dir(processes).ok()?;
    let mut pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| *pid != ours && serves_nodes(&processes.join(pid.to_string())))
}

/// Whether the process is a pcsd with nodes. A pcsd that only waits for another one in the background has none.
fn serves_nodes(process: &Path) -> bool {
    let name = fs::read_to_string(process.join("comm"));
    if name.is_ok_and(|name| name.trim_end() == "pcsd")
        && let Ok(descriptors) = fs::read_dir(process.join("fd"))
    {
        return descriptors.flatten().any(|descriptor| {
            fs::read_link(descriptor.path()).is_ok_and(|to| to == Path::new(CUSE))
        });
    }
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_second_agent_is_distinguished_from_its_parent() {
        let processes = tempfile::tempdir().unwrap();
        for (pid, name, open) in [
            ("7", "pcsd", "/dev/cuse"),
            ("8", "pcsd", "/dev/null"),
            ("9", "sshfs", "/dev/cuse"),
            ("self", "pcsd", "/dev/cuse"),
            ("10", "pcsd", "/dev/cuse"),
        ] {
            let process = processes.path().join(pid);
            fs::create_dir_all(process.join("fd")).unwrap();
            fs::write(process.join("comm"), format!("{name}\n")).unwrap();
            symlink(open, process.join("fd/3")).unwrap();
        }
        assert_eq!(find(processes.path(), 7), Some(10));
        assert_eq!(find(processes.path(), 10), Some(7));
        fs::remove_dir_all(processes.path().join("10")).unwrap();
        assert_eq!(find(processes.path(), 7), None);
        assert_eq!(find(Path::new("/nonexistent"), 7), None);
    }
}
