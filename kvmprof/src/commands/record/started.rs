//! Recordings of guests that the command starts.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kvmprof_cli::command_line::ExitStatus;
use kvmprof_machine::console::Interrupt;
use kvmprof_profiling::{LookPlan, RecordPlan};
use kvmprof_recording::file::RecordingFailure;
use kvmprof_recording::{SamplingEvent, StackParts};
use kvmprof_vmm::vm::VmConfig;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::commands::guest::GuestOptions;
use crate::commands::record_limit::{file_options, whole_recording};
use crate::commands::separate_process::{Side, separate};

/// A guest to start, and how to record it.
pub struct Started<'a> {
    pub guest: &'a GuestOptions,
    pub kernel: &'a Path,
    /// The recording's file.
    pub output: &'a Path,
    pub stacks: StackParts,
    pub event: Option<SamplingEvent>,
    /// The looks at the guest's tasks.
    pub looks: Option<LookPlan>,
    /// Maximum length of the recording, in bytes.
    pub limit: Option<u64>,
    /// Maximum time that the guest runs.
    pub time: Option<Duration>,
    /// The text on the console that ends the recording.
    pub until: Option<&'a str>,
}

/// The result of a recording.
pub enum Outcome {
    /// Nothing is left to do: this was the guest's process.
    GuestProcess(ExitStatus),
    /// Nothing is left to do: there is no recording, and the guest's process has printed the reason.
    NoRecording(ExitStatus),
    /// There is a recording, and the guest has ended.
    Recorded(Ended),
}

/// How a guest has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The status of its process.
    pub status: ExitStatus,
    /// Whether the text that ends it was on its console.
    pub has_said: bool,
    /// Whether a signal requested the end.
    pub was_asked: bool,
}

impl Started<'_> {
    /// Starts the guest and records it to its end. The guest runs in a separate process in the sandbox; the work on the
    /// recording doesn't.
    ///
    /// # Errors
    /// The guest can't be started, also because this process has started a thread; the recording is incomplete.
    pub fn record(&self) -> anyhow::Result<Outcome> {
        let failure = RecordingFailure::default();
        let said = EventFd::new(EFD_NONBLOCK).context("Cannot make a descriptor")?;
        let said = Arc::new(said);
        let plan = RecordPlan {
            path: self.output.to_owned(),
            stacks: self.stacks,
            event: self.event,
            looks: self.looks,
            file: file_options(self.limit, &failure),
        };
        let config = VmConfig {
            time_limit: self.time,
            until: self.until.map(str::to_owned),
            said: Some(Arc::clone(&said)),
            ..self.guest.config(self.kernel, Some(plan))?
        };
        let before = version(self.output);
        match separate().context("Cannot start a process for the guest")? {
            Side::Child => {
                // Its own console isn't what the user came for.
                let status = self.guest.run(config, Interrupt::ForPrograms)?;
                // An error of the guest takes precedence.
                whole_recording(&failure)?;
                Ok(Outcome::GuestProcess(status))
            }
            Side::Parent { status, was_asked } => {
                let after = version(self.output);
                if after.is_none() || after == before {
                    return Ok(Outcome::NoRecording(status));
                }
                Ok(Outcome::Recorded(Ended {
                    status,
                    has_said: said.read().is_ok(),
                    was_asked,
                }))
            }
        }
    }
}

/// Distinguishes a new file from an older one with the same name.
fn version(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let found = path.metadata().ok()?;
    Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
}
