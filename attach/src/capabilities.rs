//! The capabilities of this process (capabilities(7)).

use std::fs;

/// A capability that kvmprof needs: its name, and the bits of `CapEff` each of which is enough
/// (`include/uapi/linux/capability.h`).
#[derive(Clone, Copy, Debug)]
pub struct Capability {
    name: &'static str,
    enough: u64,
}

const SYS_ADMIN: u64 = 1 << 21;

/// The capabilities that eBPF needs.
pub const EBPF: [Capability; 2] = [
    Capability {
        name: "CAP_PERFMON",
        enough: 1 << 38 | SYS_ADMIN,
    },
    Capability {
        name: "CAP_BPF",
        enough: 1 << 39 | SYS_ADMIN,
    },
];
/// The capability to look into another process.
pub const PROCESS: Capability = Capability {
    name: "CAP_SYS_PTRACE",
    enough: 1 << 19,
};
/// The capability to open the files of another user's process in /proc. CAP_DAC_OVERRIDE includes it.
pub const FILES: Capability = Capability {
    name: "CAP_DAC_READ_SEARCH",
    enough: 1 << 2 | 1 << 1,
};

/// The names of the capabilities among `needed` that this process lacks.
pub fn missing(needed: &[Capability]) -> Vec<&'static str> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    missing_of(effective(&status).unwrap_or_default(), needed)
}

/// Says that kvmprof lacks the capabilities `missing`, and what to do.
pub fn lacks(missing: &[&str]) -> String {
    words(missing, rustix::process::geteuid().is_root())
}

fn words(missing: &[&str], is_root: bool) -> String {
    let names = missing.join(" and ");
    let cure = if is_root {
        "being root isn't enough here: run it outside of containers, or give it that"
    } else {
        "run it as root, or give it that"
    };
    format!("kvmprof lacks {names}; {cure}")
}

/// The effective capabilities in a process's status (proc_pid_status(5)).
fn effective(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn missing_of(effective: u64, needed: &[Capability]) -> Vec<&'static str> {
    needed
        .iter()
        .filter(|capability| effective & capability.enough == 0)
        .map(|capability| capability.name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_advised_to_be_root() {
        let missing = ["CAP_BPF", "CAP_PERFMON"];
        let (root, other) = (words(&missing, true), words(&missing, false));
        for words in [&root, &other] {
            assert!(words.contains("lacks CAP_BPF and CAP_PERFMON; "), "{words}");
        }
        assert!(other.contains("as root") && !root.contains("as root"));
    }

    #[test]
    fn missing_capabilities_are_named() {
        let status = "Name:\tx\nCapEff:\t0000008000000000\nCapBnd:\t000001ffffffffff\n";
        assert_eq!(effective(status), Some(1 << 39));
        assert_eq!(missing_of(1 << 39, &EBPF), ["CAP_PERFMON"]);
        assert_eq!(missing_of(0, &EBPF), ["CAP_PERFMON", "CAP_BPF"]);
        assert_eq!(missing_of(1 << 21, &EBPF), [""; 0]);
        assert_eq!(missing_of(3 << 38, &EBPF), [""; 0]);
        assert_eq!(missing_of(1 << 21, &[PROCESS]), ["CAP_SYS_PTRACE"]);
        assert_eq!(missing_of(1 << 1, &[FILES]), [""; 0]);
        assert_eq!(effective("CapEff:\tnothing\n"), None);
    }
}
