//! Guests of other VMMs: they are found as `kvmprof list` finds them, and each is followed through its own `kvmprof attach`, whose socket is in a folder
//! that no other user can enter.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use glob::Pattern;
use kvmprof_attach::{HostKernel, Machine, find_machines};
use kvmprof_report::text::visible;
use tempfile::TempDir;

use crate::child::{Child, ENDING, program};
use crate::config::{AttachConfig, Config};
use crate::sockets::{Socket, socket_at};

/// The program that attaches. Guests that it runs itself have sockets, and aren't attached to.
const PROGRAM: &str = "kvmprof";
/// The interval between searches for guests.
const LOOK: Duration = Duration::from_secs(5);
/// The wait before the first attempt to attach to a guest again, and its maximum: it doubles at each attempt that fails.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Maximum number of messages about guests in the log. Further ones are left out.
const MAX_LOGGED: usize = 4096;

/// A VMM's process: its pid and its start time, which together are never used again.
type Process = (i32, u64);

/// A guest to follow.
#[derive(Debug)]
struct Guest {
    process: Process,
    name: String,
    path: PathBuf,
    /// `None` until the next attempt.
    child: Option<Child>,
    until: Instant,
    wait: Duration,
}

/// A `kvmprof attach` whose guest has ended, and that was asked to end.
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

/// The guests of other VMMs.
#[derive(Debug)]
pub struct Attached {
    config: AttachConfig,
    patterns: Vec<Pattern>,
    hz: u32,
    program: PathBuf,
    folder: TempDir,
    kernel: Option<HostKernel>,
    guests: BTreeMap<Process, Guest>,
    ending: Vec<Ending>,
    next_look: Instant,
    left_out: usize,
    /// The messages that have been logged, with their processes.
    logged: BTreeSet<(Process, String)>,
}

impl Attached {
    /// The guests that match the patterns of `config`. `None` if there are no patterns.
    ///
    /// # Errors
    /// The folder for their sockets can't be made.
    pub fn new(config: &Config) -> io::Result<Option<Self>> {
        let attach = &config.attach;
        if attach.guests.is_empty() {
            return Ok(None);
        }
        let patterns = attach.guests.iter();
        Ok(Some(Self {
            // Invalid patterns are refused by `Config::check`.
            patterns: patterns
                .filter_map(|pattern| Pattern::new(pattern).ok())
                .collect(),
            config: attach.clone(),
            hz: config.hz,
            program: program(PROGRAM),
            // Its mode is 0700.
            folder: tempfile::Builder::new()
                .prefix("kvmprof-collect-")
                .tempdir()?,
            kernel: None,
            guests: BTreeMap::new(),
            ending: Vec::new(),
            next_look: Instant::now(),
            left_out: 0,
            logged: BTreeSet::new(),
        }))
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
            if guest.child.is_none() && Instant::now() >= guest.until {
                guest.attach(&self.program, &self.config, self.hz);
            }
        }
    }

    /// The sockets that exist by now.
    pub fn sockets(&self) -> impl Iterator<Item = Socket> {
        let guests = self.guests.values();
        guests.filter_map(|guest| socket_at(guest.path.clone(), Some(guest.name.clone())))
    }

    /// Number of guests that aren't followed because of the limit.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Whether an attach is starting: its socket will exist soon.
    pub fn is_starting(&self) -> bool {
        let mut guests = self.guests.values();
        guests.any(|guest| guest.child.is_some() && !guest.path.exists())
    }

    /// The guests that match the patterns, by process.
    fn machines(&mut self) -> BTreeMap<Process, Machine> {
        if self.kernel.is_none() {
            match HostKernel::open() {
                Ok(kernel) => self.kernel = Some(kernel),
                Err(error) => {
                    let message = format!("Cannot attach to guests: {error}");
                    log_once(&mut self.logged, (0, 0), &message);
                    return BTreeMap::new();
                }
            }
        }
        let Some(kernel) = &self.kernel else {
            return BTreeMap::new();
        };
        let mut machines: BTreeMap<Process, Vec<Machine>> = BTreeMap::new();
        for machine in find_machines(Ok(kernel)).machines {
            if is_meant(&self.patterns, &machine) {
                let process = (machine.pid, machine.start_time);
                machines.entry(process).or_default().push(machine);
            }
        }
        let mut single = BTreeMap::new();
        for (process, mut machines) in machines {
            let count = machines.len();
            if let (Some(machine), 1) = (machines.pop(), count) {
                single.insert(process, machine);
            } else {
                let pid = process.0;
                let message = format!(
                    "Process {pid} has {count} guests: kvmprof attaches to processes with one"
                );
                log_once(&mut self.logged, process, &message);
            }
        }
        single
    }

    /// Chooses the guests that can be attached to, as many as the limit allows.
    fn choose(&mut self, mut machines: BTreeMap<Process, Machine>) {
        machines.retain(|process, machine| {
            let Some(obstacle) = &machine.obstacle else {
                return true;
            };
            let is_followed = self.guests.contains_key(process);
            if !is_followed {
                let pid = process.0;
                let message = format!("Cannot attach to the guest of process {pid}: {obstacle}");
                log_once(&mut self.logged, *process, &message);
            }
            is_followed
        });
        let is_followed = |process: &Process| self.guests.contains_key(process);
        let chosen = fair(&machines, is_followed, self.config.limit);
        self.left_out = machines.len() - chosen.len();
        machines.retain(|process, _| chosen.contains(process));
        // A `kvmprof attach` whose guest has ended ends by itself, or is ended here, without waiting for it.
        let ending = &mut self.ending;
        self.guests.retain(|process, guest| {
            let stays = machines.contains_key(process);
            if !stays && let Some(child) = guest.child.take() {
                child.ask_to_end();
                let until = Instant::now() + ENDING;
                ending.push(Ending { child, until });
            }
            stays
        });
        for (process, machine) in machines {
            if self.guests.contains_key(&process) {
                continue;
            }
            let guest = Guest {
                process,
                path: self.folder.path().join(format!("{}.sock", word(process))),
                name: self.name_of(&machine),
                child: None,
                until: Instant::now(),
                wait: FIRST_WAIT,
            };
            self.guests.insert(process, guest);
        }
    }

    /// A guest's name: the one that `kvmprof list` shows, or else the VMM's program; with the pid if that is no name, or if another guest has it.
    fn name_of(&self, machine: &Machine) -> String {
        let own = machine.name.as_deref().map(visible);
        let own = own.filter(|name| !name.is_empty());
        let with_pid = |name: &str| format!("{name}-{}", machine.pid);
        let mut name = own.unwrap_or_else(|| with_pid(&visible(&machine.program)));
        while self.guests.values().any(|guest| guest.name == name) {
            name = with_pid(&name);
        }
        name
    }

    /// Handles each `kvmprof attach` that has ended. It is started again while the guest is there, which may have rebooted.
    fn reap(&mut self) {
        self.ending.retain_mut(|ending| !ending.is_over());
        for guest in self.guests.values_mut() {
            let Some(child) = &mut guest.child else {
                continue;
            };
            let ended = match child.ended() {
                Ok(None) => continue,
                Ok(ended) => ended,
                Err(error) => {
                    log::warn!("Guest {}: {error}", guest.name);
                    None
                }
            };
            guest.child = None;
            if let Some((status, said)) = ended {
                guest.note_end(status.success(), said.trim());
            }
        }
    }
}

/// Logs why the guest of `process` can't be attached to, once.
fn log_once(logged: &mut BTreeSet<(Process, String)>, process: Process, message: &str) {
    if logged.len() < MAX_LOGGED && logged.insert((process, message.to_owned())) {
        log::warn!("{message}");
    }
}

/// A process as a word of the command line of `kvmprof attach`, which means no later process.
fn word((pid, start_time): Process) -> String {
    format!("{pid}:{start_time}")
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
impl Drop for Attached {
    fn drop(&mut self) {
        let children = self.guests.values();
        for child in children.filter_map(|guest| guest.child.as_ref()) {
            child.ask_to_end();
        }
        self.guests.clear();
    }
}

impl Guest {
    fn attach(&mut self, program: &Path, config: &AttachConfig, hz: u32) {
        // A killed program may have left its socket.
        let _ = std::fs::remove_file(&self.path);
        let path = self.path.display().to_string();
        let mut words = vec!["attach".to_owned(), word(self.process)];
        words.extend(["--socket".to_owned(), path]);
        words.extend(["--hz".to_owned(), hz.to_string()]);
        words.extend(["--capture".to_owned(), config.capture.word().to_owned()]);
        if config.capture.has_jitter() {
            words.push("--jitter".to_owned());
        }
        match Child::start(program, words) {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                let message = format!("Cannot run {}: {error}", program.display());
                self.note_end(false, &message);
            }
        }
    }

    fn note_end(&mut self, is_success: bool, said: &str) {
        if is_success {
            log::info!("Guest {}: {said}", self.name);
            self.wait = FIRST_WAIT;
        } else {
            log::warn!("Guest {}: {said}", self.name);
        }
        self.until = Instant::now() + self.wait;
        self.wait = (2 * self.wait).min(LONGEST_WAIT);
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
