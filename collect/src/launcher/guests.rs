//! Guests of other VMMs: they are found as `kvmprof list` finds them, and each is recorded by its own `kvmprof attach` into a pipe, which the collector reads.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use glob::Pattern;
use kvmprof_attach::{HostKernel, Machine, NameRules, find_machines};
use kvmprof_report::text::visible;

use super::message::{LauncherMessage, MAX_NAME, MAX_VALUE, Process, cut};
use super::retry::Retry;
use crate::child::{Child, ENDING, program};
use crate::config::Config;

/// The program that attaches. Guests that it runs itself have sockets, and aren't attached to.
const PROGRAM: &str = "kvmprof";
/// The interval between searches for guests.
const LOOK: Duration = Duration::from_secs(5);
/// Maximum number of messages about guests that are told. Further ones are left out.
const MAX_WARNINGS: usize = 4096;
/// Maximum length of the part of a guest's name that others choose. Its pid and a number have room behind it.
const MAX_OWN_NAME: usize = MAX_NAME - 24;

/// A guest to attach to.
#[derive(Debug)]
struct Guest {
    process: Process,
    name: String,
    labels: BTreeMap<String, String>,
    /// `None` until the next attempt.
    child: Option<Child>,
    again: Retry,
    /// The same of what counts its exits.
    exits: Option<Child>,
    exits_again: Retry,
}

/// A program whose guest has ended, and that was asked to end.
#[derive(Debug)]
struct Ending {
    child: Child,
    /// The time at which it is killed.
    until: Instant,
}

impl Ending {
    /// Whether it has ended. It is killed if it hasn't ended in time.
    fn is_over(&mut self) -> bool {
        match self.child.ended() {
            Ok(None) if Instant::now() < self.until => return false,
            Ok(None) => self.child.kill(),
            _ => {}
        }
        true
    }
}

/// The guests of other VMMs. When this is dropped, each `kvmprof attach` ends.
#[derive(Debug)]
pub struct Guests {
    rules: Config,
    patterns: Vec<Pattern>,
    names: NameRules,
    program: PathBuf,
    kernel: Option<HostKernel>,
    guests: BTreeMap<Process, Guest>,
    ending: Vec<Ending>,
    next_look: Instant,
    left_out: usize,
    /// What has been warned of.
    warnings: BTreeSet<String>,
    /// What the collector isn't told yet, with the pipe of a guest.
    told: VecDeque<(LauncherMessage, Option<OwnedFd>)>,
}

impl Guests {
    /// The guests that `rules` mean.
    pub fn new(rules: Config) -> Self {
        let patterns = rules.attach.guests.iter();
        Self {
            // Invalid patterns and rules are refused by `Config::check`.
            patterns: patterns
                .filter_map(|pattern| Pattern::new(pattern).ok())
                .collect(),
            names: rules.attach.name_rules().unwrap_or_default(),
            rules,
            program: program(PROGRAM),
            kernel: None,
            guests: BTreeMap::new(),
            ending: Vec::new(),
            next_look: Instant::now(),
            left_out: 0,
            warnings: BTreeSet::new(),
            told: VecDeque::new(),
        }
    }

    /// Searches for guests if it is time to do so, attaches to new ones, and drops those that have ended.
    pub fn look(&mut self) {
        self.reap();
        if Instant::now() >= self.next_look {
            self.next_look = Instant::now() + LOOK;
            let machines = self.machines();
            self.choose(machines);
        }
        for guest in self.guests.values_mut() {
            if guest.child.is_none() && guest.again.is_due() {
                let pipe = guest.attach(&self.program, &self.rules);
                self.told.push_back(guest.begun(pipe));
            }
        }
        self.count_exits();
    }

    /// Has the exits of guests counted that are attached to.
    fn count_exits(&mut self) {
        if !self.rules.attach.exits {
            return;
        }
        let mut failed = Vec::new();
        let guests = self.guests.values_mut();
        let is_due = |guest: &&mut Guest| guest.exits.is_none() && guest.exits_again.is_due();
        for guest in guests.filter(|guest| guest.child.is_some()).filter(is_due) {
            match guest.count_exits(&self.program) {
                Ok(pipe) => {
                    let told = LauncherMessage::Exits {
                        process: guest.process,
                    };
                    self.told.push_back((told, Some(pipe.into())));
                }
                Err(error) => failed.push(guest.not_counted(&error.to_string())),
            }
        }
        failed.into_iter().for_each(|message| self.warn(message));
    }

    /// What the collector is to be told next.
    pub fn next_told(&mut self) -> Option<(LauncherMessage, Option<OwnedFd>)> {
        self.told.pop_front()
    }

    /// Puts back what couldn't be told yet.
    pub fn put_back(&mut self, told: (LauncherMessage, Option<OwnedFd>)) {
        self.told.push_front(told);
    }

    /// Adds something that the collector is to be told.
    #[cfg(test)]
    pub fn put_last(&mut self, told: (LauncherMessage, Option<OwnedFd>)) {
        self.told.push_back(told);
    }

    /// How many messages wait.
    pub fn waiting(&self) -> usize {
        self.told.len()
    }

    /// Warns of something once.
    fn warn(&mut self, message: String) {
        if self.warnings.len() < MAX_WARNINGS && self.warnings.insert(message.clone()) {
            self.told
                .push_back((LauncherMessage::Warning(message), None));
        }
    }

    /// The guests that match the patterns, by process.
    fn machines(&mut self) -> BTreeMap<Process, Machine> {
        if self.kernel.is_none() {
            match HostKernel::open() {
                Ok(kernel) => self.kernel = Some(kernel),
                Err(error) => {
                    self.warn(format!("Cannot attach to guests: {error}"));
                    return BTreeMap::new();
                }
            }
        }
        let Some(kernel) = &self.kernel else {
            return BTreeMap::new();
        };
        let mut machines: BTreeMap<Process, Vec<Machine>> = BTreeMap::new();
        for mut machine in find_machines(Ok(kernel)).machines {
            let process = process_of(&machine);
            // A guest keeps the name under which it is followed.
            let is_followed = self.guests.contains_key(&process);
            if !is_followed {
                let named = self.names.of(&machine).unwrap_or_default();
                machine.name = named.name.or(machine.name);
                // What its manager says stays on this host.
                machine.labels = named.labels;
            }
            if is_followed || is_meant(&self.patterns, &machine) {
                machines.entry(process).or_default().push(machine);
            }
        }
        let mut single = BTreeMap::new();
        for (process, mut machines) in machines {
            let count = machines.len();
            if let (Some(machine), 1) = (machines.pop(), count) {
                single.insert(process, machine);
            } else {
                let pid = process.pid;
                self.warn(format!(
                    "Process {pid} has {count} guests: kvmprof attaches to processes with one"
                ));
            }
        }
        single
    }

    /// Chooses the guests that can be attached to, as many as the limit allows.
    fn choose(&mut self, mut machines: BTreeMap<Process, Machine>) {
        let followed: BTreeSet<Process> = self.guests.keys().copied().collect();
        let has_obstacle = |(process, machine): (&Process, &mut Machine)| {
            let obstacle = machine.obstacle.as_ref()?;
            let pid = process.pid;
            (!followed.contains(process))
                .then(|| format!("Cannot attach to the guest of process {pid}: {obstacle}"))
        };
        let refused: Vec<String> = machines.iter_mut().filter_map(has_obstacle).collect();
        refused.into_iter().for_each(|message| self.warn(message));
        machines
            .retain(|process, machine| machine.obstacle.is_none() || followed.contains(process));
        let is_followed = |process: &Process| followed.contains(process);
        let chosen = fair(&machines, is_followed, self.rules.attach.limit);
        let left_out = machines.len() - chosen.len();
        if std::mem::replace(&mut self.left_out, left_out) != left_out {
            let left_out = u32::try_from(left_out).unwrap_or(u32::MAX);
            self.told
                .push_back((LauncherMessage::LeftOut(left_out), None));
        }
        machines.retain(|process, _| chosen.contains(process));
        // A `kvmprof attach` whose guest has ended ends by itself, or is ended here, without waiting for it.
        let ending = &mut self.ending;
        self.guests.retain(|process, guest| {
            let stays = machines.contains_key(process);
            if !stays {
                let until = Instant::now() + ENDING;
                for child in [guest.child.take(), guest.exits.take()]
                    .into_iter()
                    .flatten()
                {
                    child.ask_to_end();
                    ending.push(Ending { child, until });
                }
            }
            stays
        });
        for (process, machine) in machines {
            if self.guests.contains_key(&process) {
                continue;
            }
            let guest = Guest {
                process,
                name: self.name_of(&machine),
                labels: labels_of(&machine),
                child: None,
                again: Retry::now(),
                exits: None,
                exits_again: Retry::now(),
            };
            self.guests.insert(process, guest);
        }
    }

    /// A guest's name: the one that `kvmprof list` shows, or else the VMM's program; with the pid if that is no name, or if another guest has it.
    fn name_of(&self, machine: &Machine) -> String {
        let shown = |name: &str| cut(&visible(name), MAX_OWN_NAME).to_owned();
        let own = machine.name.as_deref().map(shown);
        let own = own.filter(|name| !name.is_empty());
        let base = own.clone().unwrap_or_else(|| shown(&machine.program));
        let with_pid = format!("{base}-{}", machine.pid);
        // Whoever starts a guest chooses its name, and so may have chosen such a one.
        let others = (2..).map(|number: u32| format!("{with_pid}-{number}"));
        let mut names = own.into_iter().chain([with_pid.clone()]).chain(others);
        let is_free = |name: &String| self.guests.values().all(|guest| guest.name != *name);
        names.find(is_free).unwrap_or_default()
    }

    /// Handles each `kvmprof attach` that has ended. It is started again while the guest is there, which may have rebooted.
    fn reap(&mut self) {
        self.ending.retain_mut(|ending| !ending.is_over());
        let mut not_counted = Vec::new();
        for guest in self.guests.values_mut() {
            if let Some((is_success, said)) = take_ended(&mut guest.child) {
                self.told.push_back((guest.ended(is_success, &said), None));
            }
            if let Some((_, said)) = take_ended(&mut guest.exits) {
                not_counted.push(guest.not_counted(&said));
            }
        }
        (not_counted.into_iter()).for_each(|message| self.warn(message));
    }
}

/// Whether the program has succeeded, and what it has said, if it has ended. It is dropped then.
fn take_ended(child: &mut Option<Child>) -> Option<(bool, String)> {
    let ended = match child.as_mut()?.ended() {
        Ok(ended) => ended.map(|(status, said)| (status.success(), said)),
        Err(error) => Some((false, error.to_string())),
    };
    if ended.is_some() {
        *child = None;
    }
    ended
}

/// A guest's labels by the rules, which have taken them from what others choose.
fn labels_of(machine: &Machine) -> BTreeMap<String, String> {
    let shown = |value: &str| cut(&visible(value), MAX_VALUE).to_owned();
    let labels = machine.labels.iter();
    labels
        .map(|(key, value)| (key.clone(), shown(value)))
        .collect()
}

fn process_of(machine: &Machine) -> Process {
    Process {
        pid: machine.pid,
        start_time: machine.start_time,
    }
}

/// At most `limit` of `machines`. Everyone may start VMMs: so each user has the same share, and what others don't need of theirs. Of a user's guests, those that
/// are followed already come first, and then those that were started first.
fn fair(
    machines: &BTreeMap<Process, Machine>,
    is_followed: impl Fn(&Process) -> bool,
    limit: usize,
) -> BTreeSet<Process> {
    let mut of_users: BTreeMap<u32, Vec<(bool, u64, Process)>> = BTreeMap::new();
    for (process, machine) in machines {
        let order = (!is_followed(process), machine.start_time, *process);
        of_users.entry(machine.user).or_default().push(order);
    }
    let mut turns = Vec::new();
    for (user, mut guests) in of_users {
        guests.sort_unstable();
        let guests = (0_usize..).zip(guests);
        turns.extend(guests.map(|(turn, (is_new, _, process))| (turn, is_new, user, process)));
    }
    turns.sort_unstable();
    turns.truncate(limit);
    turns.into_iter().map(|(.., process)| process).collect()
}

/// All children are asked to end before the first one is waited for.
impl Drop for Guests {
    fn drop(&mut self) {
        let children = self.guests.values();
        for child in children.flat_map(|guest| guest.child.iter().chain(&guest.exits)) {
            child.ask_to_end();
        }
        self.guests.clear();
    }
}

impl Guest {
    /// Starts the program that attaches. Returns the pipe with its recording.
    fn attach(&mut self, program: &Path, rules: &Config) -> io::Result<io::PipeReader> {
        self.again.begin();
        let (pipe, recording) = io::pipe()?;
        let mut words = vec!["attach".to_owned(), self.process.to_string()];
        let hz = rules.hz.to_string();
        let capture = rules.attach.capture;
        let options = [
            ("--record", "/dev/stdout"),
            ("--stacks", stacks(rules)),
            ("--hz", &hz),
            ("--capture", capture.word()),
        ];
        words.extend(
            options
                .iter()
                .flat_map(|(option, value)| [option, value])
                .map(|word| (*word).to_owned()),
        );
        if capture.has_jitter() {
            words.push("--jitter".to_owned());
        }
        self.child = Some(start(recording, program, words)?);
        Ok(pipe)
    }

    /// Starts the program that counts the guest's exits. Returns the pipe with them.
    fn count_exits(&mut self, program: &Path) -> io::Result<io::PipeReader> {
        self.exits_again.begin();
        let (pipe, output) = io::pipe()?;
        let words = ["exits".to_owned(), self.process.to_string()];
        let words = words.into_iter().chain(["--blocks".to_owned()]);
        self.exits = Some(start(output, program, words)?);
        Ok(pipe)
    }

    /// Notes that its exits aren't counted. Returns why, in words.
    fn not_counted(&mut self, said: &str) -> String {
        self.exits_again.end(false);
        let (name, said) = (&self.name, said.trim());
        format!("Guest {name}: kvmprof exits has ended: {said}")
    }

    /// What the collector is told of an attempt.
    fn begun(&mut self, pipe: io::Result<io::PipeReader>) -> (LauncherMessage, Option<OwnedFd>) {
        match pipe {
            Ok(pipe) => {
                let told = LauncherMessage::Guest {
                    process: self.process,
                    name: self.name.clone(),
                    labels: self.labels.clone(),
                };
                (told, Some(pipe.into()))
            }
            Err(error) => (self.ended(false, &error.to_string()), None),
        }
    }

    fn ended(&mut self, has_succeeded: bool, said: &str) -> LauncherMessage {
        self.again.end(has_succeeded);
        LauncherMessage::Ended {
            process: self.process,
            has_failed: !has_succeeded,
            said: said.trim().to_owned(),
        }
    }
}

/// Runs `program` with its standard output in a pipe.
fn start(
    output: io::PipeWriter,
    program: &Path,
    words: impl IntoIterator<Item = String>,
) -> io::Result<Child> {
    Child::start_into(output.into(), program, words).map_err(|error| {
        let message = format!("Cannot run {}: {error}", program.display());
        io::Error::new(error.kind(), message)
    })
}

/// The parts of call stacks that `rules` mean, as `kvmprof attach` names them.
fn stacks(rules: &Config) -> &'static str {
    match (rules.kernel_stacks, rules.user_stacks) {
        (true, true) => "kernel,user",
        (true, false) => "kernel",
        (false, true) => "user",
        (false, false) => "none",
    }
}

/// Whether a pattern matches a guest's name, its VMM's program or its pid. Guests of kvmprof have sockets, and aren't attached to.
fn is_meant(patterns: &[Pattern], machine: &Machine) -> bool {
    let pid = machine.pid.to_string();
    let names = [
        Some(machine.program.as_str()),
        Some(&pid),
        machine.name.as_deref(),
    ];
    let names = names.into_iter().flatten();
    machine.program != PROGRAM
        && names
            .into_iter()
            .any(|name| patterns.iter().any(|pattern| pattern.matches(name)))
}
