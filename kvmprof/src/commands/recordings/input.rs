//! The options that all commands that read a recording have.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use kvmprof_tools::command_line::{Console, value};
use tempfile::NamedTempFile;

use super::CommandError;
use super::progress::Progress;
use super::source::{self, OpenRecording};
use kvmprof_recording::file::Recording;
use kvmprof_report::profile::{Profile, Selection, TimeRange, Watcher};
use kvmprof_report::symbolize::{Resolver, Sources};
use kvmprof_report::tasks::TaskSums;

/// Which part of the recording, and where names come from.
#[derive(Clone, Debug, Default, Args)]
pub struct InputArguments {
    /// Only these processes, by the guest's own pids, separated by commas
    #[arg(long, value_name = "PID", value_parser = value::pid, value_delimiter = ',', allow_negative_numbers = true)]
    pid: Vec<i32>,
    /// Only the processes that have a thread of this name, as ps in the guest shows it; may be given more than once
    #[arg(long, value_name = "NAME")]
    comm: Vec<String>,
    /// Only this time, in seconds from the recording's begin; either end may be left open
    #[arg(long, value_name = "A:B", default_value = ":")]
    time: TimeRange,
    /// The debug file of the guest's kernel, for inlined functions and source lines
    #[arg(long, value_name = "FILE")]
    vmlinux: Option<PathBuf>,
    /// A folder with the guest's files, for the functions and source lines of programs
    ///
    /// Files are looked for by their paths in the guest, debug files in usr/lib/debug, and the functions that
    /// programs made while they ran in tmp/perf-PID.map. A file whose build id isn't the recorded one is not used.
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

/// A recording and its sums.
pub struct Input {
    /// The recording.
    pub recording: Recording,
    /// The sums of the part that was chosen.
    pub profile: Profile,
    /// What the recording is read from, where that is a copy; removed when dropped.
    pub copy: Option<NamedTempFile>,
}

impl InputArguments {
    /// All of a recording, with the guest's files in this folder, if any.
    pub fn of_all(sysroot: Option<PathBuf>) -> Self {
        Self {
            sysroot,
            ..Self::default()
        }
    }

    /// Opens the recording at `path` and sums it up.
    ///
    /// # Errors
    /// The recording can't be read, nothing in it is of the part that was chosen, or the files that names come from
    /// aren't there or are of another kernel.
    pub fn open(&self, path: &Path, console: &mut Console<'_>) -> Result<Input, CommandError> {
        self.open_with(path, console, &mut ())
    }

    /// The same, while `watcher` gets what was chosen.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        &self,
        path: &Path,
        console: &mut Console<'_>,
        watcher: &mut dyn Watcher,
    ) -> Result<Input, CommandError> {
        let progress = Progress::for_terminal();
        let OpenRecording { recording, copy } = source::open(path, progress.interrupt())?;
        let sources = Sources {
            vmlinux: self.vmlinux.clone(),
            sysroot: self.sysroot.clone(),
        };
        let resolver = Resolver::new(&recording.contents()?, &sources)?;
        let mut pids = self.pid.clone();
        if !self.comm.is_empty() {
            pids.extend(self.pids_by_name(&recording, &progress)?);
            if pids.is_empty() {
                return Err(self.nothing_matched(path));
            }
        }
        let time = self.time;
        let selection = Selection { pids, time };
        let reading = progress.of("Reading");
        let profile = Profile::read_with(&recording, selection, resolver, &reading, watcher)?;
        self.check_match(path, &profile)?;
        profile.resolve(&progress.of("Finding names"));
        if profile.contents.unread > 0 {
            console.say("interrupted: the result is of what was read until then");
        }
        for note in profile.resolver.take_notes() {
            console.say(note);
        }
        Ok(Input {
            recording,
            profile,
            copy,
        })
    }

    /// Opens the recording at `path` and sums up the looks at the guest's tasks that it has.
    ///
    /// # Errors
    /// As [`Self::open`]; or there are no looks.
    pub fn open_tasks(
        &self,
        path: &Path,
        console: &mut Console<'_>,
    ) -> Result<(TaskSums, Resolver), CommandError> {
        let progress = Progress::for_terminal();
        let OpenRecording { recording, .. } = source::open(path, progress.interrupt())?;
        let sources = Sources {
            vmlinux: self.vmlinux.clone(),
            sysroot: self.sysroot.clone(),
        };
        let contents = recording.contents()?;
        let resolver = Resolver::new(&contents, &sources)?;
        let mut pids = self.pid.clone();
        let reading = progress.of("Reading");
        if !self.comm.is_empty() {
            recording.looks(&reading, |look| {
                let named = look.tasks.iter().filter(|task| self.is_named(&task.comm));
                for pid in named.map(|task| task.pid) {
                    if !pids.contains(&pid) {
                        pids.push(pid);
                    }
                }
            })?;
        }
        let nobody = !self.comm.is_empty() && pids.is_empty();
        let time = self.time;
        let selection = Selection { pids, time };
        let sums = TaskSums::read(&recording, &contents, &selection, &reading)?;
        if contents.info.tasks.is_none() || sums.looks == 0 && time.is_all() {
            return Err(CommandError::NoLooks(path.to_owned()));
        }
        let is_empty = sums.on_vcpu == 0 && sums.states.is_empty();
        if nobody || is_empty && selection != Selection::default() {
            return Err(self.nothing_matched(path));
        }
        for note in resolver.take_notes() {
            console.say(note);
        }
        Ok((sums, resolver))
    }

    /// Whether `comm` is one of the names.
    fn is_named(&self, comm: &[u8]) -> bool {
        let name = comm.split(|byte| *byte == 0).next().unwrap_or_default();
        self.comm.iter().any(|comm| comm.as_bytes() == name)
    }

    /// The processes of which a thread had one of the names.
    fn pids_by_name(
        &self,
        recording: &Recording,
        progress: &Progress,
    ) -> Result<BTreeSet<i32>, CommandError> {
        let mut pids = BTreeSet::new();
        let part = progress.of("Finding pids");
        recording.read_observed(&part, |ticks, _| {
            let Some(sample) = &ticks.sample else {
                return;
            };
            if self.is_named(&sample.comm) {
                pids.insert(sample.pid);
            }
        })?;
        Ok(pids)
    }

    /// Checks that something was chosen, if a choice was made.
    fn check_match(&self, path: &Path, profile: &Profile) -> Result<(), CommandError> {
        let by_pid = !self.pid.is_empty() || !self.comm.is_empty();
        let by_time = !self.time.is_all();
        // Of ticks without a sample it isn't known whose they were.
        let is_there = profile.samples() > 0 || !by_pid && profile.contents.account.ticks > 0;
        if is_there || !by_pid && !by_time || profile.contents.unread > 0 {
            return Ok(());
        }
        Err(self.nothing_matched(path))
    }

    fn nothing_matched(&self, recording: &Path) -> CommandError {
        let options = [
            (!self.pid.is_empty(), "--pid"),
            (!self.comm.is_empty(), "--comm"),
            (!self.time.is_all(), "--time"),
        ];
        let given: Vec<&str> = options
            .into_iter()
            .filter_map(|(is_given, option)| is_given.then_some(option))
            .collect();
        CommandError::NothingMatched {
            recording: recording.to_owned(),
            options: given.join(" and "),
        }
    }
}
