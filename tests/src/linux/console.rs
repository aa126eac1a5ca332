//! A guest's output on its console.

use std::collections::BTreeMap;

/// The lines of a console.
#[derive(Clone, Debug)]
pub struct Console {
    lines: Vec<String>,
}

/// A task as the guest's own kernel lists it (`/proc/PID/stat`, proc_pid_stat(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its time in user mode, in hundredths of a second.
    pub user: u64,
    /// Its time in the kernel, in hundredths of a second.
    pub kernel: u64,
}

/// The accounts of the guest's kernel at one moment.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// The `cpu` lines of `/proc/stat`: all, then each (proc_stat(5)).
    pub cpus: Vec<Vec<u64>>,
    /// The guest's uptime, in hundredths of a second (proc_uptime(5)).
    pub uptime: u64,
    /// The tasks by pid, without the kernel's own threads.
    pub processes: BTreeMap<i32, Process>,
    /// The highest pid so far.
    pub last_pid: i32,
}

impl Console {
    /// Splits the console's output into lines.
    pub fn new(text: &str) -> Self {
        let lines = text
            .lines()
            .map(|line| line.trim_end_matches('\r').to_owned());
        Self {
            lines: lines.collect(),
        }
    }

    /// The whole output, for messages.
    pub fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// Whether a line contains `words`.
    pub fn has(&self, words: &str) -> bool {
        self.lines.iter().any(|line| line.contains(words))
    }

    /// The lines of failed checks of the guest's programs.
    pub fn failed_checks(&self) -> Vec<&str> {
        let lines = self.lines.iter().map(String::as_str);
        lines.filter(|line| line.contains(": failed:")).collect()
    }

    /// The text after `start` on the first line that begins with it.
    ///
    /// # Panics
    /// If there is no such line.
    pub fn after(&self, start: &str) -> &str {
        let found = self.lines.iter().find_map(|line| line.strip_prefix(start));
        found
            .unwrap_or_else(|| panic!("no line begins with {start:?}:\n{}", self.text()))
            .trim()
    }

    /// The number after `start` on the first line that begins with it.
    ///
    /// # Panics
    /// If there is no such line.
    pub fn number(&self, start: &str) -> i32 {
        let word = self
            .after(start)
            .split_whitespace()
            .next()
            .unwrap_or_default();
        word.parse()
            .unwrap_or_else(|_| panic!("{start:?} isn't followed by a number: {word:?}"))
    }

    /// The lines between a line `begin` and the next line `end`.
    fn between(&self, begin: &str, end: &str) -> &[String] {
        let position = |from: usize, line: &str| {
            let found = self.lines[from..].iter().position(|this| this == line);
            from + found.unwrap_or_else(|| panic!("no line {line:?}:\n{}", self.text()))
        };
        let begin = position(0, begin) + 1;
        &self.lines[begin..position(begin, end)]
    }

    /// The output of the guest's `ps`: process group and name by pid.
    pub fn ps(&self) -> BTreeMap<i32, (i32, String)> {
        let lines = self.between("ps begin", "ps end");
        let rows = lines.iter().skip(1).map(|line| {
            let mut words = line.split_whitespace();
            let mut number = || words.next().and_then(|word| word.parse().ok());
            let (pid, group) = (number(), number());
            let comm = words.collect::<Vec<_>>().join(" ");
            let (Some(pid), Some(group)) = (pid, group) else {
                panic!("a line of ps: {line:?}");
            };
            (pid, (group, comm))
        });
        rows.collect()
    }

    /// The accounts that the guest printed as `name`.
    pub fn accounts(&self, name: &str) -> Accounts {
        let mut accounts = Accounts::default();
        for line in self.between(&format!("accounts {name}"), "accounts end") {
            let number = |word: &str| {
                word.parse::<u64>()
                    .unwrap_or_else(|_| panic!("no number in {line:?}"))
            };
            let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
            match what {
                "last" => accounts.last_pid = i32::try_from(number(&rest[4..])).expect("a pid"),
                "uptime" => {
                    let first = rest.split(' ').next().unwrap_or_default();
                    accounts.uptime = number(&first.replace('.', ""));
                }
                "task" => {
                    let (pid, process) = process(rest)
                        .unwrap_or_else(|| panic!("a line of /proc/PID/stat: {line:?}"));
                    accounts.processes.insert(pid, process);
                }
                _ => accounts
                    .cpus
                    .push(rest.split_whitespace().map(number).collect()),
            }
        }
        accounts
    }
}

impl Accounts {
    /// The idle time of CPU `cpu`, in hundredths of a second.
    pub fn idle(&self, cpu: usize) -> u64 {
        // User, nice, system, idle.
        self.cpus[cpu + 1][3]
    }
}

/// A line of `accounts` about a task. The name is in parentheses, and may itself contain some.
fn process(line: &str) -> Option<(i32, Process)> {
    let (pid, rest) = line.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let process = Process {
        user: fields.next()?.parse().ok()?,
        kernel: fields.next()?.parse().ok()?,
    };
    Some((pid.parse().ok()?, process))
}
