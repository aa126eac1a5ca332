//! The capabilities of this process that eBPF needs (capabilities(7)).

use std::fs;

/// Bits of `CapEff` (`include/uapi/linux/capability.h`).
const SYS_ADMIN: u64 = 1 << 21;
const NEEDED: [(u64, &str); 2] = [(1 << 38, "CAP_PERFMON"), (1 << 39, "CAP_BPF")];

/// Which of the needed capabilities this process lacks.
pub fn missing() -> Vec<&'static str> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    missing_of(effective(&status).unwrap_or_default())
}

/// The effective capabilities that a process's status (proc_pid_status(5)) tells.
fn effective(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn missing_of(effective: u64) -> Vec<&'static str> {
    let is_missing = |bit| effective & (SYS_ADMIN | bit) == 0;
    NEEDED
        .iter()
        .filter(|(bit, _)| is_missing(*bit))
        .map(|(_, name)| *name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lacks_is_named() {
        let status = "Name:\tx\nCapEff:\t0000008000000000\nCapBnd:\t000001ffffffffff\n";
        assert_eq!(effective(status), Some(1 << 39));
        assert_eq!(missing_of(1 << 39), ["CAP_PERFMON"]);
        assert_eq!(missing_of(0), ["CAP_PERFMON", "CAP_BPF"]);
        assert_eq!(missing_of(1 << 21), [""; 0]);
        assert_eq!(missing_of(3 << 38), [""; 0]);
        assert_eq!(effective("CapEff:\tnothing\n"), None);
    }
}
