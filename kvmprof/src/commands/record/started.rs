//! Recordings of guests that are started for it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kvmprof_recording::file::RecordingFailure;
use kvmprof_recording::{SamplingEvent, StackParts};
use kvmprof_tools::command_line::ExitStatus;
use kvmprof_vmm::profiler::{LookPlan, RecordPlan};
use kvmprof_vmm::vm::VmConfig;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::commands::guest::GuestOptions;
use crate::commands::record_limit::{file_options, whole_recording};
use crate::commands::separate_process::{Side, separate};

/// A guest to be started, and how it is recorded.
pub struct Started<'a> {
    pub guest: &'a GuestOptions,
    pub kernel: &'a Path,
    /// The recording's file.
    pub output: &'a Path,
    pub stacks: StackParts,
    pub event: Option<SamplingEvent>,
    /// The looks at the guest's tasks.
    pub looks: Option<LookPlan>,
    /// Bytes of the recording at most.
    pub limit: Option<u64>,
    /// How long the guest runs at most.
    pub time: Option<Duration>,
    /// The text on the console that ends it.
    pub until: Option<&'a str>,
}

/// What is left to do.
pub enum Outcome {
    /// Nothing: this was the guest's process.
    GuestProcess(ExitStatus),
    /// Nothing: there is no recording, and the guest's process has said why.
    NoRecording(ExitStatus),
    /// There is a recording, and the guest has ended.
    Recorded(Ended),
}

/// How a guest has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The status of its process.
    pub status: ExitStatus,
    /// Whether its console has said what it was to end by.
    pub has_said: bool,
    /// Whether a signal asked for the end.
    pub was_asked: bool,
}

impl Started<'_> {
    /// Starts the guest and records it to its end. That takes a process of its own, which is contained; what is done with the recording
    /// isn't. This process has started no thread yet.
    ///
    /// # Errors
    /// The guest can't be started, or the recording isn't whole.
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
        // SAFETY: by this function's own condition.
        match unsafe { separate() }.context("Cannot start a process for the guest")? {
            Side::Child => {
                let status = self.guest.run(config)?;
                // What went wrong with the guest counts for more.
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

/// What tells a new file from an older one of the same name.
fn version(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let found = path.metadata().ok()?;
    Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
}
