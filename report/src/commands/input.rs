//! What all commands that look at a recording are asked alike.

use std::path::{Path, PathBuf};

use clap::Args;

use super::CommandError;
use super::progress::Progress;
use crate::file::Recording;
use crate::profile::{Profile, Selection, TimeRange};
use crate::symbolize::{Resolver, Sources};

/// Which part of the recording, and where names come from.
#[derive(Clone, Debug, Default, Args)]
pub struct InputArguments {
    /// Only this process; may be given more than once
    #[arg(long, value_name = "PID", allow_negative_numbers = true)]
    pid: Vec<i32>,
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

impl InputArguments {
    /// Opens the recording at `path` and sums it up.
    ///
    /// # Errors
    /// The recording can't be read, or the files that names come from aren't there or are of another kernel.
    pub(super) fn open(&self, path: &Path) -> Result<(Recording, Profile), CommandError> {
        let progress = Progress::for_terminal();
        let recording = Recording::open(path)?;
        let sources = Sources {
            vmlinux: self.vmlinux.clone(),
            sysroot: self.sysroot.clone(),
        };
        let resolver = Resolver::new(&recording.contents()?, &sources)?;
        let selection = Selection {
            pids: self.pid.clone(),
            time: self.time,
        };
        let profile = Profile::read(&recording, selection, resolver, &progress.of("Reading"))?;
        profile.resolve(&progress.of("Finding names"));
        if profile.contents.unread > 0 {
            eprintln!("kvmprof: interrupted: the result is of what was read until then");
        }
        for note in profile.resolver.take_notes() {
            eprintln!("kvmprof: {note}");
        }
        Ok((recording, profile))
    }
}
