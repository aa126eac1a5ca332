//! What the host's scheduler says of a process's threads.

use std::fs;

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
    let mut ids: Vec<u32> = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    ids.sort_unstable();
    ids.into_iter()
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
