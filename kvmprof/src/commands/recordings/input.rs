//! The common options of all commands that read recordings.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{anyhow, ensure};
use clap::Args;
use kvmprof_cli::command_line::{Console, usage};
use tempfile::NamedTempFile;

use super::OutputLimit;
use super::debuginfod::Debuginfod;
use super::output::is_standard;
use super::progress::Progress;
use super::source::{self, OpenRecording};
use kvmprof_recording::exits::ExitInterval;
use kvmprof_recording::file::{Contents, Observer, Recording};
use kvmprof_report::exits;
use kvmprof_report::graph::title_of;
use kvmprof_report::profile::{
    Criteria, Profile, Selection, SelectionArguments, ThreadCounts, TimeRange, Watcher,
};
use kvmprof_report::symbolize::{Resolver, Sources};
use kvmprof_report::tasks::TaskSums;

/// The options that select a part of a recording, and name the files with the names of functions.
#[derive(Clone, Debug, Default, Args)]
pub struct InputArguments {
    #[command(flatten)]
    selection: SelectionArguments,
    /// The debug file of the guest's kernel, for inlined functions and source lines
    #[arg(long, value_name = "FILE")]
    vmlinux: Option<PathBuf>,
    /// A folder with the guest's files, for the functions and source lines of programs
    ///
    /// kvmprof looks for files by their paths in the guest, for debug files in usr/lib/debug, and for functions that
    /// programs generated at run time, where the recording doesn't name them, in tmp/perf-PID.map, those of containers
    /// in proc/PID/root/tmp/perf-OWN.map. It does not use a file whose build id isn't the recorded one.
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
    /// A debuginfod server, for functions and source lines by build id (more than once); without it, those in DEBUGINFOD_URLS
    ///
    /// The program debuginfod-find asks it, and keeps what it has got in its cache.
    #[arg(long, value_name = "URL", value_parser = server_url)]
    debuginfod: Vec<String>,
    /// Also show the frames of interpreters, beside the functions of the language that they execute
    #[arg(long)]
    native: bool,
}

/// A recording, and the sums of the selected part.
pub struct Input {
    /// The recording.
    pub recording: Recording,
    /// The sums of the selected part.
    pub profile: Profile,
    /// The temporary file that contains the recording, if it isn't read from its own file. Removed when dropped.
    pub copy: Option<NamedTempFile>,
}

/// The sums of the looks at a guest's tasks in a recording.
pub struct TaskInput {
    /// The sums of the selected part.
    pub sums: TaskSums,
    /// Finds the names of functions.
    pub resolver: Resolver,
    /// The title of a picture of the recording.
    pub title: String,
    /// The length of the recording, in bytes.
    pub length: usize,
}

impl InputArguments {
    /// The options that select all of a recording, with the guest's files in the folder `sysroot`, if given.
    pub fn of_all(sysroot: Option<PathBuf>) -> Self {
        Self {
            sysroot,
            ..Self::default()
        }
    }

    /// The options that select the part, as words of a command line.
    ///
    /// # Errors
    /// There are options that name files, which a program with these words doesn't read.
    pub fn words(&self) -> anyhow::Result<Vec<OsString>> {
        if self.vmlinux.is_some() || self.sysroot.is_some() || !self.debuginfod.is_empty() {
            return Err(usage(
                "This format cannot use --vmlinux, --sysroot and --debuginfod: leave them out",
            ));
        }
        let mut words = self.selection.words();
        words.extend(self.naming().into_iter().map(OsString::from));
        Ok(words)
    }

    /// The given times.
    pub fn times(&self) -> &[TimeRange] {
        &self.selection.time
    }

    /// The same options with this time.
    #[must_use]
    pub fn with_time(&self, time: TimeRange) -> Self {
        let mut arguments = self.clone();
        arguments.selection.time = vec![time];
        arguments
    }

    /// Opens the recording at `path` and sums it up.
    ///
    /// # Errors
    /// The recording can't be read, the options select nothing in it, or the files with names of functions don't exist
    /// or belong to another kernel.
    pub fn open(&self, path: &Path, console: &mut Console<'_>) -> anyhow::Result<Input> {
        self.open_with(path, console, &mut ())
    }

    /// As [`Self::open`], and passes the selected ticks to `watcher`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        &self,
        path: &Path,
        console: &mut Console<'_>,
        watcher: &mut dyn Watcher,
    ) -> anyhow::Result<Input> {
        let progress = Progress::for_terminal();
        let input = self.read(path, &self.sources(&progress), &progress, console, watcher)?;
        self.check_match(&[path], &input.profile)?;
        Ok(input)
    }

    /// Opens the recordings at `paths` and counts them together, and passes the selected ticks of each to a watcher of
    /// its own.
    ///
    /// # Errors
    /// As [`Self::open`]; or a recording is named twice, or the ticks can't be added up.
    pub fn open_all<W: Watcher + Default>(
        &self,
        paths: &[PathBuf],
        console: &mut Console<'_>,
    ) -> anyhow::Result<(Profile, Vec<W>)> {
        self.open_watched(paths, console, W::default)
    }

    /// Opens the recordings at `paths` and counts them together, with [`Profile::parts`] within the limit of memory `by_parts`, if given.
    ///
    /// # Errors
    /// As [`Self::open_all`]; or the parts are more than the limit.
    pub fn open_grouped(
        &self,
        paths: &[PathBuf],
        by_parts: Option<OutputLimit>,
        console: &mut Console<'_>,
    ) -> anyhow::Result<Profile> {
        let Some(limit) = by_parts else {
            return Ok(self.open_all::<()>(paths, console)?.0);
        };
        let new = || ThreadCounts::new(limit.bytes());
        let (mut profile, parts) = self.open_watched(paths, console, new)?;
        profile.set_parts(parts)?;
        Ok(profile)
    }

    fn open_watched<W: Watcher>(
        &self,
        paths: &[PathBuf],
        console: &mut Console<'_>,
        new: impl Fn() -> W,
    ) -> anyhow::Result<(Profile, Vec<W>)> {
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        check_paths(&paths)?;
        let progress = Progress::for_terminal();
        let sources = self.sources(&progress);
        let mut profiles = Vec::with_capacity(paths.len());
        let mut watchers = Vec::with_capacity(paths.len());
        for path in &paths {
            let mut watcher = new();
            let mut profile = self
                .read(path, &sources, &progress, console, &mut watcher)?
                .profile;
            profile.file = path.display().to_string();
            profiles.push(profile);
            watchers.push(watcher);
        }
        let profile = Profile::merge(profiles)?;
        self.check_match(&paths, &profile)?;
        Ok((profile, watchers))
    }

    /// Sums up what the recording at `path` has while it is being written, and passes the selected ticks to a watcher. `progress` interrupts that.
    /// Nothing is said, and that nothing is selected yet is no error.
    ///
    /// # Errors
    /// As [`Self::open`] otherwise.
    pub fn read_unfinished<W: Watcher + Default>(
        &self,
        path: &Path,
        progress: &Progress,
    ) -> anyhow::Result<(Profile, W)> {
        let mut watcher = W::default();
        let sources = self.sources(progress);
        let mut profile = self
            .read_silently(path, &sources, progress, &mut watcher)?
            .profile;
        profile.file = path.display().to_string();
        Ok((profile, watcher))
    }

    fn read(
        &self,
        path: &Path,
        sources: &Sources,
        progress: &Progress,
        console: &mut Console<'_>,
        watcher: &mut dyn Watcher,
    ) -> anyhow::Result<Input> {
        let input = self.read_silently(path, sources, progress, watcher)?;
        if input.profile.contents.unread > 0 {
            console.say("interrupted: the result has only what was read until then");
        }
        for note in input.profile.resolver.take_notes() {
            console.say(note);
        }
        Ok(input)
    }

    fn read_silently(
        &self,
        path: &Path,
        sources: &Sources,
        progress: &Progress,
        watcher: &mut dyn Watcher,
    ) -> anyhow::Result<Input> {
        let selection = self.selection()?;
        let OpenRecording { recording, copy } = source::open(path, progress.interrupt())?;
        let resolver = Resolver::new(&recording.contents()?, sources)?;
        let (reading, naming) = (progress.of("Reading"), progress.of("Finding names"));
        let observers: [&dyn Observer; 2] = [&reading, &naming];
        let profile = Profile::read_observed(&recording, selection, resolver, observers, watcher)?;
        Ok(Input {
            recording,
            profile: Profile {
                naming: self.naming(),
                ..profile
            },
            copy,
        })
    }

    /// Opens the only recording of `paths` and sums up its looks at the guest's tasks.
    ///
    /// # Errors
    /// As [`Self::open`]; or there are several recordings, no looks, or options that select samples.
    pub fn open_tasks(
        &self,
        paths: &[PathBuf],
        console: &mut Console<'_>,
    ) -> anyhow::Result<TaskInput> {
        let selection = self.selection()?;
        let Criteria { pids, comms, .. } = selection.only.clone();
        let time = selection.time;
        let of_tasks = Selection {
            only: Criteria {
                pids: pids.clone(),
                comms: comms.clone(),
                ..Criteria::default()
            },
            time,
            ..Selection::default()
        };
        if selection != of_tasks {
            return Err(usage(
                "With --tasks only --pid, --comm and --time select a part: other filters select samples",
            ));
        }
        let [path] = paths else {
            return Err(usage("--tasks takes one recording: name one"));
        };
        let progress = Progress::for_terminal();
        let OpenRecording { recording, .. } = source::open(path, progress.interrupt())?;
        let contents = recording.contents()?;
        let resolver = Resolver::new(&contents, &self.sources(&progress))?;
        let reading = progress.of("Reading");
        let pids = if comms.is_empty() {
            pids
        } else {
            let named = TaskSums::pids_by_name(&recording, &comms, &reading)?;
            named
                .into_iter()
                .filter(|pid| pids.is_empty() || pids.contains(pid))
                .collect()
        };
        if pids.is_empty() && !comms.is_empty() {
            return Err(self.nothing_matched(&[path]));
        }
        let selection = Selection {
            time,
            ..Selection::from_pids(&pids)
        };
        let sums = TaskSums::read(&recording, &contents, &selection, &reading)?;
        if contents.info.tasks.is_none() || sums.looks == 0 && time.is_all() {
            return Err(no_looks(&path.display().to_string()));
        }
        let is_empty = sums.on_vcpu == 0 && sums.states.is_empty();
        if is_empty && selection != Selection::default() {
            return Err(self.nothing_matched(&[path]));
        }
        for note in resolver.take_notes() {
            console.say(note);
        }
        Ok(TaskInput {
            sums,
            resolver,
            title: title_of(&contents),
            length: recording.length(),
        })
    }

    /// Opens the only recording of `paths` and sums up its exits. Returns its contents, too.
    ///
    /// # Errors
    /// As [`Self::open`]; or there are several recordings, no exits, or options that select samples.
    pub fn open_exits(&self, paths: &[PathBuf]) -> anyhow::Result<(ExitInterval, Contents)> {
        let selection = self.selection()?;
        let time = selection.time;
        let of_time = Selection {
            time,
            ..Selection::default()
        };
        if selection != of_time {
            return Err(usage(
                "Exits are those of all processes and vCPUs: with --exits only --time selects a part",
            ));
        }
        let [path] = paths else {
            return Err(usage("--exits takes one recording: name one"));
        };
        let progress = Progress::for_terminal();
        let OpenRecording { recording, .. } = source::open(path, progress.interrupt())?;
        let reading = progress.of("Reading");
        let (sum, contents) = exits::sum(&recording, &time, &reading)?;
        match sum {
            Some(sum) => Ok((sum, contents)),
            None if time.is_all() => Err(anyhow!(
                "{} has no exits: record the guest with --exits",
                path.display()
            )),
            None => Err(self.nothing_matched(&[path])),
        }
    }

    /// The files with names of functions.
    fn sources(&self, progress: &Progress) -> Sources {
        let mut urls = self.debuginfod.join(" ");
        if urls.is_empty() {
            urls = std::env::var("DEBUGINFOD_URLS").unwrap_or_default();
        }
        let is_set = !urls.trim().is_empty();
        Sources {
            vmlinux: self.vmlinux.clone(),
            sysroot: self.sysroot.clone(),
            debug_files: is_set.then(|| Rc::new(Debuginfod::new(urls, progress.clone())) as _),
            native: self.native,
        }
    }

    /// The options that name functions, each as one word.
    fn naming(&self) -> Vec<String> {
        let option = |name: &str, path: &Option<PathBuf>| {
            path.as_ref()
                .map(|path| format!("--{name}={}", path.display()))
        };
        let servers = self
            .debuginfod
            .iter()
            .map(|url| format!("--debuginfod={url}"));
        option("vmlinux", &self.vmlinux)
            .into_iter()
            .chain(option("sysroot", &self.sysroot))
            .chain(servers)
            .chain(self.native.then(|| "--native".to_owned()))
            .collect()
    }

    /// The folder with the guest's files.
    pub fn sysroot(&self) -> Option<&Path> {
        self.sysroot.as_deref()
    }

    /// The part that the options select.
    ///
    /// # Errors
    /// There are several times.
    fn selection(&self) -> anyhow::Result<Selection> {
        self.selection.selection().map_err(usage)
    }

    /// Checks that the options, if there are any, select something in the recordings.
    fn check_match(&self, paths: &[&Path], profile: &Profile) -> anyhow::Result<()> {
        // The process of a tick without a sample is unknown.
        let is_of_samples = profile.selection.is_of_samples();
        let is_there = profile.samples() > 0 || !is_of_samples && profile.account().ticks > 0;
        let was_interrupted = profile.recordings().any(|one| one.contents.unread > 0);
        if is_there || was_interrupted || self.selection.given().is_empty() {
            return Ok(());
        }
        Err(self.nothing_matched(paths))
    }

    fn nothing_matched<P: AsRef<Path>>(&self, paths: &[P]) -> anyhow::Error {
        let names = paths.iter().map(|path| path.as_ref().display().to_string());
        let recordings = names.collect::<Vec<_>>().join(" ");
        anyhow!(
            "Nothing in {recordings} matches {}: kvmprof report {recordings} --by process --by thread --by vcpu --by function shows what \
             there is",
            self.selection.given().join(" and ")
        )
    }
}

/// The error that these recordings have no looks at tasks.
pub fn no_looks(recordings: &str) -> anyhow::Error {
    anyhow!(
        "{recordings} has no looks at tasks: record a Linux guest with --tasks, and for longer than it takes to find its kernel"
    )
}

/// The error that these recordings have nothing to draw.
pub fn no_samples(recordings: &str) -> anyhow::Error {
    anyhow!("There are no samples to draw: {recordings} has none")
}

/// The URL of a server, in a form that elfutils' client takes.
fn server_url(text: &str) -> Result<String, String> {
    let has_scheme = ["http://", "https://", "file://"]
        .iter()
        .any(|scheme| text.starts_with(scheme));
    if !has_scheme || text.contains(char::is_whitespace) {
        return Err("give one URL that begins with http://, https:// or file://".to_owned());
    }
    Ok(text.to_owned())
}

/// Checks that each recording is named once, because its ticks would count twice.
fn check_paths(paths: &[&Path]) -> anyhow::Result<()> {
    let mut seen = Vec::with_capacity(paths.len());
    for path in paths {
        let inode = match path.metadata() {
            _ if is_standard(path) => None,
            Ok(found) => Some((found.dev(), found.ino())),
            // Opening it reports this error.
            Err(_) => continue,
        };
        ensure!(
            !seen.contains(&inode),
            "{} is named twice: its ticks would count twice",
            path.display()
        );
        seen.push(inode);
    }
    Ok(())
}
