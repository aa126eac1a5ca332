//! Flame graphs of each phase of each boot.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use kvmprof_cli::command_line::{Console, usage};
use kvmprof_recording::file::Recording;
use kvmprof_report::boot::{Boot, BootError, Phase};
use kvmprof_report::graph::{GraphArguments, GraphError, title};
use kvmprof_report::profile::{Profile, Selection, TimeRange};
use kvmprof_report::symbolize::Resolver;

use crate::commands::recordings::{OutputLimit, Progress, refuse_recording, write_picture};

/// The destination of flame graphs of boots.
pub struct Flames<'a> {
    folder: &'a Path,
    limit: OutputLimit,
}

impl<'a> Flames<'a> {
    /// Flame graphs in this folder, which is created if it doesn't exist. The output for each recording is at most the
    /// `limit`.
    ///
    /// # Errors
    /// The folder can't be created; the caller learns that before it boots a guest.
    pub fn new(folder: &'a Path, limit: OutputLimit) -> anyhow::Result<Self> {
        let made = fs::create_dir_all(folder);
        made.with_context(|| format!("Cannot make the folder {}", folder.display()))?;
        Ok(Self { folder, limit })
    }

    /// Draws the phases of `boots`, from the recordings at `paths`.
    ///
    /// # Errors
    /// A recording can't be read, a picture can't be written, or two recordings have the same name.
    pub fn draw(
        &self,
        boots: &[Boot],
        paths: &[PathBuf],
        console: &mut Console<'_>,
    ) -> anyhow::Result<()> {
        let mut names = HashSet::new();
        if let Some(path) = paths.iter().find(|path| !names.insert(path.file_stem())) {
            return Err(usage(format_args!(
                "Flame graphs have the names of their recordings, and another is called as {}: give --flamegraphs with others",
                path.display()
            )));
        }
        let progress = Progress::for_terminal();
        for (boot, path) in boots.iter().zip(paths) {
            for (phase, (begin, end)) in Phase::ALL.into_iter().zip(boot.phases) {
                self.draw_phase(path, phase, begin, end, &progress, console)?;
            }
        }
        Ok(())
    }

    /// Draws a phase from `begin` to `end`, in ns from the recording's start, unless it has no samples.
    fn draw_phase(
        &self,
        path: &Path,
        phase: Phase,
        begin: u64,
        end: u64,
        progress: &Progress,
        console: &mut Console<'_>,
    ) -> anyhow::Result<()> {
        if begin >= end {
            return Ok(());
        }
        let recording = Recording::open(path)?;
        let resolver = Resolver::from_contents(&recording.contents()?);
        let selection = Selection {
            time: TimeRange {
                begin: Some(Duration::from_nanos(begin)),
                end: Some(Duration::from_nanos(end)),
            },
            ..Selection::default()
        };
        let profile = Profile::read(&recording, selection, resolver, &progress.of("Drawing"))?;
        if profile.contents.unread > 0 {
            return Err(BootError::Interrupted.into());
        }
        let title = format!("{}: {}", phase.name(), title(&profile));
        let budget = self.limit.budget(profile.length());
        let svg = match GraphArguments::default().draw(&profile, title, &budget) {
            Err(GraphError::NoSamples) => return Ok(()),
            svg => svg?,
        };
        let output = self.folder.join(name_of(path, phase));
        refuse_recording(&output, "name another folder with --flamegraphs")?;
        write_picture(&output, &svg, console)
    }
}

/// The picture's name: the name of the recording at `path`, and the phase.
fn name_of(path: &Path, phase: Phase) -> OsString {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}.svg", phase.name().replace(' ', "-")));
    name
}
