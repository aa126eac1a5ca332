//! The processor time that the host denies a VMM, as its kernel counts it: for want of quota of a control group, and because its own host takes it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use kvmprof_attach::Machine;
use kvmprof_recording::exits::{Exits, HostTimes};

/// Maximum number of bytes of a file that are read.
const MAX_BYTES: u64 = 256 << 10;
/// Maximum number of control groups.
const MAX_GROUPS: usize = 4096;
/// The unit of times in `/proc/stat` (`USER_HZ`), in ns.
const UNIT: u64 = 10_000_000;
/// Where hierarchies of control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// What was counted since the host's boot, or since a group was made.
#[derive(Clone, Debug, Default)]
pub struct HostCounts {
    /// By group.
    throttled: BTreeMap<PathBuf, Exits>,
    stolen: u64,
    processors: u32,
}

impl HostCounts {
    /// What has been counted until now for the groups of a VMM's vCPUs, and for all of the host. Nothing where it can't be read.
    pub fn read(machine: &Machine) -> Self {
        let mut counts = Self::default();
        let threads = machine.vcpus.iter().filter_map(|vcpu| vcpu.thread);
        for thread in threads {
            let groups = text(Path::new(&format!(
                "/proc/{}/task/{thread}/cgroup",
                machine.pid
            )));
            for folder in groups.lines().filter_map(folder) {
                counts.add_groups(&folder);
            }
        }
        let (stolen, processors) = stolen(&text(Path::new("/proc/stat")));
        Self {
            stolen,
            processors,
            ..counts
        }
    }

    /// Adds the group of this folder and those that it is in. A group without a quota has none of these numbers, or zeros.
    fn add_groups(&mut self, folder: &Path) {
        for group in folder.ancestors() {
            if group == Path::new(GROUPS)
                || self.throttled.len() >= MAX_GROUPS
                || self.throttled.contains_key(group)
            {
                return;
            }
            let throttled = throttled(&text(&group.join("cpu.stat")));
            self.throttled.insert(group.to_owned(), throttled);
        }
    }

    /// What was counted since `earlier`. A group that a thread has come into meanwhile counts from the next time on.
    pub fn since(&self, earlier: &Self) -> HostTimes {
        let mut throttled = Exits::default();
        for (group, now) in &self.throttled {
            if let Some(then) = earlier.throttled.get(group) {
                throttled.add(now.since(*then));
            }
        }
        HostTimes {
            throttled,
            stolen: self.stolen.saturating_sub(earlier.stolen),
            processors: self.processors,
        }
    }
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = |file: File| file.take(MAX_BYTES).read_to_end(&mut bytes);
    let read: io::Result<usize> = File::open(path).and_then(read);
    // A group that has just gone has no numbers.
    read.map_or_else(
        |_| String::new(),
        |_| String::from_utf8_lossy(&bytes).into_owned(),
    )
}

/// The folder of a group in a line of a thread's groups, if it is that of the controller `cpu` (cgroups(7)). Groups outside of this process's own root have none.
fn folder(line: &str) -> Option<PathBuf> {
    let mut words = line.splitn(3, ':').skip(1);
    let (controllers, group) = (words.next()?, Path::new(words.next()?));
    let hierarchy = match controllers {
        "" => Path::new(GROUPS).to_owned(),
        v1 => {
            v1.split(',').find(|name| *name == "cpu")?;
            Path::new(GROUPS).join(v1)
        }
    };
    let mut folder = hierarchy;
    for part in group.components() {
        match part {
            Component::RootDir => {}
            Component::Normal(name) => folder.push(name),
            _ => return None,
        }
    }
    Some(folder)
}

/// In how many periods a group had no quota left, and for how long, in its `cpu.stat` (cgroup-v2.rst; sched-bwc.rst for version 1).
fn throttled(text: &str) -> Exits {
    let number = |name: &str| {
        let mut lines = text.lines();
        let number = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        number.and_then(|number| number.trim().parse::<u64>().ok())
    };
    let us = number("throttled_usec").map(|us| us.saturating_mul(1000));
    Exits {
        count: number("nr_throttled").unwrap_or_default(),
        time: us.or_else(|| number("throttled_time")).unwrap_or_default(),
    }
}

/// For how long the host's processors have waited for those of its own host, in ns, and how many processors there are, in `/proc/stat` (proc_stat(5)).
fn stolen(text: &str) -> (u64, u32) {
    const STEAL: usize = 8;
    let lines = text.lines().filter(|line| line.starts_with("cpu"));
    let (mut stolen, mut processors) = (0, 0);
    for line in lines {
        let mut words = line.split_whitespace();
        if words.next() == Some("cpu") {
            let steal = words.nth(STEAL - 1).and_then(|steal| steal.parse().ok());
            stolen = steal.unwrap_or(0_u64).saturating_mul(UNIT);
        } else {
            processors += 1;
        }
    }
    (stolen, processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_controller_cpu() {
        for (line, expected) in [
            (
                "0::/machine.slice/vm.scope",
                Some("/sys/fs/cgroup/machine.slice/vm.scope"),
            ),
            ("0::/", Some("/sys/fs/cgroup")),
            ("4:cpu,cpuacct:/vm", Some("/sys/fs/cgroup/cpu,cpuacct/vm")),
            ("5:cpuset:/vm", None),
            ("1:name=systemd:/vm", None),
            // Of a process in another root of control groups.
            ("0::/../other", None),
            ("", None),
            ("0:", None),
        ] {
            assert_eq!(folder(line).as_deref(), expected.map(Path::new), "{line}");
        }
    }

    #[test]
    fn numbers_are_those_of_the_kernel() {
        let exits = |count, time| Exits { count, time };
        for (text, expected) in [
            (
                "usage_usec 5\nnr_periods 9\nnr_throttled 7\nthrottled_usec 1234\n",
                exits(7, 1_234_000),
            ),
            (
                "nr_periods 9\nnr_throttled 7\nthrottled_time 1234\n",
                exits(7, 1234),
            ),
            ("usage_usec 5\n", exits(0, 0)),
            (
                "nr_throttled x\nthrottled_usec 99999999999999999999\n",
                exits(0, 0),
            ),
        ] {
            assert_eq!(throttled(text), expected, "{text}");
        }
        let text = "cpu  19 5 29 50 56 0 47 92 12 0\ncpu0 9 2\ncpu1 10 3\nintr 77 cpu\n";
        assert_eq!(stolen(text), (920_000_000, 2));
        assert_eq!(stolen("cpu 1 2"), (0, 0));
    }

    #[test]
    fn a_group_counts_from_when_it_is_known() {
        let exits = |count, time| Exits { count, time };
        let counts = |groups: &[(&str, Exits)], stolen| HostCounts {
            throttled: groups
                .iter()
                .map(|(group, throttled)| (group.into(), *throttled))
                .collect(),
            stolen,
            processors: 2,
        };
        let before = counts(&[("a", exits(5, 50)), ("gone", exits(9, 9))], 100);
        let now = counts(&[("a", exits(7, 80)), ("new", exits(1000, 1000))], 130);
        let expected = HostTimes {
            throttled: exits(2, 30),
            stolen: 30,
            processors: 2,
        };
        assert_eq!(now.since(&before), expected);
    }
}
