//! Properties of ticks, by which they are selected or left out.

use std::fmt::Display;
use std::str::FromStr;

use kvmprof_recording::{Mode, parse_pid};

use super::{Label, Pattern};

/// Properties of ticks. An empty list says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Criteria {
    /// The pids of processes.
    pub pids: Vec<i32>,
    /// The tids of threads.
    pub tids: Vec<i32>,
    /// Names of threads: all processes that have a thread of one of these names.
    pub comms: Vec<String>,
    /// vCPUs.
    pub vcpus: Vec<u16>,
    /// Modes.
    pub modes: Vec<Mode>,
    /// Labels of processes.
    pub labels: Vec<Label>,
    /// Names of modules, as reports have them, of which a function is on the stack.
    pub modules: Vec<String>,
    /// Patterns that the name of a function on the stack matches.
    pub greps: Vec<Pattern>,
}

/// The text isn't one of [`Criteria`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotACriterion {
    /// It has no kind, or another one.
    #[error(
        "a kind and a value are wanted, such as mode=idle or module=libc.so.6; kinds are pid, tid, comm, vcpu, mode, label, \
         module and grep"
    )]
    Kind,
    /// The value isn't of its kind.
    #[error("no {kind}: {why}")]
    Value {
        /// The kind.
        kind: &'static str,
        /// What is wrong.
        why: String,
    },
}

impl FromStr for Criteria {
    type Err = NotACriterion;

    /// Parses `KIND=VALUE`. Pids, tids, vCPUs and modes can be several, with commas between them.
    fn from_str(text: &str) -> Result<Self, NotACriterion> {
        let (kind, value) = text.split_once('=').ok_or(NotACriterion::Kind)?;
        let mut criteria = Self::default();
        let one = || vec![value.to_owned()];
        match kind {
            "pid" => criteria.pids = list("pid", value, parse_pid)?,
            "tid" => criteria.tids = list("tid", value, parse_pid)?,
            "comm" => criteria.comms = one(),
            "vcpu" => criteria.vcpus = list("vcpu", value, str::parse)?,
            "mode" => {
                let names = Mode::ALL.map(Mode::name).join(", ");
                let named = |name: &str| Mode::named(name).ok_or_else(|| names.clone());
                criteria.modes = list("mode", value, named)?;
            }
            "label" => criteria.labels = vec![parsed("label", value.parse())?],
            "module" => criteria.modules = one(),
            "grep" => criteria.greps = vec![parsed("grep", value.parse())?],
            _ => return Err(NotACriterion::Kind),
        }
        Ok(criteria)
    }
}

fn parsed<T, E: Display>(kind: &'static str, parsed: Result<T, E>) -> Result<T, NotACriterion> {
    let wrong = |error: E| NotACriterion::Value {
        kind,
        why: error.to_string(),
    };
    parsed.map_err(wrong)
}

fn list<T, E: Display>(
    kind: &'static str,
    values: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, NotACriterion> {
    let values = values.split(',');
    values.map(|value| parsed(kind, parse(value))).collect()
}

impl Criteria {
    /// Adds those of `other`.
    pub fn extend(&mut self, other: Self) {
        self.pids.extend(other.pids);
        self.tids.extend(other.tids);
        self.comms.extend(other.comms);
        self.vcpus.extend(other.vcpus);
        self.modes.extend(other.modes);
        self.labels.extend(other.labels);
        self.modules.extend(other.modules);
        self.greps.extend(other.greps);
    }

    /// Whether there are others than vCPUs, which are known of ticks without a sample, too.
    pub fn are_of_samples(&self) -> bool {
        self.options().iter().any(|(kind, _)| *kind != "vcpu")
    }

    /// Whether they are of stacks or labels.
    pub(super) fn are_of_stacks(&self) -> bool {
        !(self.labels.is_empty() && self.modules.is_empty() && self.greps.is_empty())
    }

    /// The kind and the value of each, in the form that is parsed.
    pub fn options(&self) -> Vec<(&'static str, String)> {
        fn joined<T: Display>(all: &[T]) -> Option<String> {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            (!all.is_empty()).then(|| all.join(","))
        }
        fn each<T: Display>(all: &[T]) -> impl Iterator<Item = String> {
            all.iter().map(ToString::to_string)
        }
        let modes: Vec<&str> = self.modes.iter().map(|mode| mode.name()).collect();
        let pids = joined(&self.pids).into_iter().map(|list| ("pid", list));
        pids.chain(joined(&self.tids).map(|list| ("tid", list)))
            .chain(each(&self.comms).map(|comm| ("comm", comm)))
            .chain(joined(&self.vcpus).map(|list| ("vcpu", list)))
            .chain(joined(&modes).map(|list| ("mode", list)))
            .chain(each(&self.labels).map(|label| ("label", label)))
            .chain(each(&self.modules).map(|module| ("module", module)))
            .chain(each(&self.greps).map(|grep| ("grep", grep)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_criteria_round_trip() {
        let mut all = Criteria::default();
        let words = [
            "pid=-1,7",
            "tid=8",
            "comm=a=b",
            "vcpu=0,65535",
            "mode=kernel,idle",
            "label=user=0",
            "module=[kernel]",
            "grep=^a=,b$",
        ];
        for word in words {
            all.extend(word.parse().unwrap());
        }
        let options = all.options();
        let options = options
            .iter()
            .map(|(kind, value)| format!("{kind}={value}"));
        assert_eq!(options.collect::<Vec<_>>(), words);
        assert_eq!(all.modes, [Mode::Kernel, Mode::Idle]);
        assert_eq!(all.comms, ["a=b"]);
        assert!(all.are_of_samples() && all.are_of_stacks());
        let of_vcpus: Criteria = "vcpu=1".parse().unwrap();
        assert!(!of_vcpus.are_of_samples() && !of_vcpus.are_of_stacks());
    }

    #[test]
    fn wrong_criteria_say_what_is_wrong() {
        for (text, said) in [
            ("", "kinds are pid"),
            ("mode", "kinds are pid"),
            ("pids=1", "kinds are pid"),
            ("pid=", "no pid"),
            ("pid=1,x", "no pid"),
            ("vcpu=65536", "no vcpu"),
            ("mode=halted", "user, kernel, interrupt, idle"),
            ("label=user", "such as user=1000"),
            ("grep=a(", "no regular expression"),
        ] {
            let error = text.parse::<Criteria>().unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
