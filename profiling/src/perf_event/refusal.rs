//! Why the host didn't open an event, in words.

use std::fs;
use std::io;

use kvmprof_sandbox::user;
use rustix::thread::CapabilitySet;

use super::{is_missing, opener};

/// The host's rule for processes without rights (kernel: Documentation/admin-guide/sysctl/kernel.rst).
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
/// The highest value for which CAP_PERFMON is enough. Above it, the kernels of Debian and Ubuntu ask for CAP_SYS_ADMIN; others have no such value.
const ENOUGH_FOR_PERFMON: i32 = 2;
/// The highest value for which a thread's own events need no right. They count in the kernel, too.
const ENOUGH_FOR_ALL: i32 = 1;

/// Whether `error` is a refusal, and not the lack of an event or of a resource.
pub fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// The reason why the host didn't open an event, and what to do, in words.
pub fn why_not(error: &io::Error) -> String {
    if is_missing(error) {
        return "the host's processor has no such counter, or doesn't show it".to_owned();
    }
    let refused = format!("the host refuses perf_event_open: {error}");
    if !is_refusal(error) {
        return refused;
    }
    let access = PerfAccess {
        paranoid: paranoid(),
        // The process that opens events for this thread has both.
        rights: opener::rights().unwrap_or_else(own_rights),
        is_another_user: user::is_chosen(),
    };
    format!("{refused}; {}", access.advice())
}

/// The value of the host's sysctl; `None` where that can't be read.
pub(super) fn paranoid() -> Option<i32> {
    fs::read_to_string(PARANOID).ok()?.trim().parse().ok()
}

/// The rights of the calling thread (proc_pid_status(5)). No filter allows capget(2).
pub(super) fn own_rights() -> CapabilitySet {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    CapabilitySet::from_bits_retain(bits.unwrap_or_default())
}

/// Which right a thread needs for events where the sysctl has this value; `None` for none.
pub(super) fn needed(paranoid: i32) -> Option<(CapabilitySet, &'static str)> {
    let either = CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN;
    match paranoid {
        ..=ENOUGH_FOR_ALL => None,
        ENOUGH_FOR_PERFMON => Some((either, "CAP_PERFMON")),
        _ => Some((CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN")),
    }
}

/// What decides whether kvmprof may open events.
struct PerfAccess {
    paranoid: Option<i32>,
    rights: CapabilitySet,
    /// Whether `--user` has taken all rights away.
    is_another_user: bool,
}

impl PerfAccess {
    fn advice(&self) -> String {
        let Some(paranoid) = self.paranoid else {
            return "it takes CAP_PERFMON (on Debian and Ubuntu CAP_SYS_ADMIN), or the host's sysctl kernel.perf_event_paranoid at 1".to_owned();
        };
        match needed(paranoid) {
            Some((enough, name)) if !self.rights.intersects(enough) => {
                let value = format!("the host's sysctl kernel.perf_event_paranoid is {paranoid}, so that it takes {name}");
                if self.is_another_user {
                    return format!("{value}, which --user gives up: set it to 1");
                }
                format!("{value}: give kvmprof that, or set the sysctl to 1")
            }
            _ => "neither the host's sysctl kernel.perf_event_paranoid nor a lack of rights is the reason: see if a seccomp filter of a \
                  container or a security module forbids it"
                .to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(paranoid: Option<i32>, rights: CapabilitySet, is_another_user: bool) -> String {
        let access = PerfAccess {
            paranoid,
            rights,
            is_another_user,
        };
        access.advice()
    }

    #[test]
    fn only_the_missing_right_is_named() {
        let (none, all) = (CapabilitySet::empty(), CapabilitySet::all());
        let perfmon = CapabilitySet::PERFMON;
        for (paranoid, rights, words) in [
            (2, none, "takes CAP_PERFMON: give kvmprof that"),
            (3, none, "takes CAP_SYS_ADMIN: give kvmprof that"),
            (3, perfmon, "takes CAP_SYS_ADMIN: give kvmprof that"),
            (4, perfmon, "is 4, so that it takes CAP_SYS_ADMIN"),
            (2, perfmon, "a seccomp filter"),
            (1, none, "a seccomp filter"),
            (-1, none, "a seccomp filter"),
            (3, all, "a seccomp filter"),
        ] {
            let advice = advice(Some(paranoid), rights, false);
            assert!(advice.contains(words), "{paranoid} {rights:?}: {advice}");
            assert_eq!(advice.contains("give kvmprof"), !words.contains("seccomp"));
        }
        // No advice that `--user` would undo.
        let of_user = advice(Some(3), none, true);
        let words = "--user gives up: set it to 1";
        assert!(of_user.contains(words), "{of_user}");
        assert!(advice(None, none, false).contains("on Debian and Ubuntu CAP_SYS_ADMIN"));
    }
}
