//! Boots of a guest, one after the other, each recorded.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use kvmprof_recording::StackParts;
use kvmprof_tools::command_line::{Console, ExitStatus};
use tempfile::TempDir;

use super::BootArguments;
use crate::commands::record::{self, Started};
use crate::commands::recordings::refuse_recording;

/// Boots to be made.
pub struct Runs<'a> {
    options: &'a BootArguments,
    kernel: &'a Path,
    recordings: Recordings,
}

/// Their recordings.
pub struct Recordings {
    pub paths: Vec<PathBuf>,
    /// Where they are, if they aren't to be kept: removed when dropped.
    _folder: Option<TempDir>,
}

/// What is left to do.
pub enum Outcome {
    /// Nothing: this was a guest's process, or there is no recording.
    Ended(ExitStatus),
    /// There are recordings. The status is that of the first guest that hasn't ended well, if there is one.
    Made {
        status: ExitStatus,
        recordings: Recordings,
    },
}

impl<'a> Runs<'a> {
    /// As the `options` say, of this `kernel`.
    ///
    /// # Errors
    /// There is no folder for the recordings, or there are recordings in it already.
    pub fn new(options: &'a BootArguments, kernel: &'a Path) -> anyhow::Result<Self> {
        let (folder, temporary) = match &options.output {
            Some(folder) => {
                let made = fs::create_dir_all(folder);
                made.with_context(|| format!("Cannot make the folder {}", folder.display()))?;
                (folder.clone(), None)
            }
            None => {
                let temporary = tempfile::Builder::new().prefix("kvmprof-boot-").tempdir();
                let temporary = temporary.context("Cannot make a folder for the recordings")?;
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        let paths = (1..=options.runs).map(|number| folder.join(format!("boot-{number}.kvmprof")));
        let paths: Vec<PathBuf> = paths.collect();
        for path in &paths {
            refuse_recording(path, "name another folder with --output")?;
        }
        Ok(Self {
            options,
            kernel,
            recordings: Recordings {
                paths,
                _folder: temporary,
            },
        })
    }

    /// Boots the guest as often as it is to be.
    ///
    /// # Errors
    /// As [`Started::record`].
    pub fn make(self, console: &mut Console<'_>) -> anyhow::Result<Outcome> {
        let mut status = ExitStatus::SUCCESS;
        let count = self.recordings.paths.len();
        for (index, path) in self.recordings.paths.iter().enumerate() {
            if count > 1 {
                console.say(format_args!("boot {} of {count}", index + 1));
            }
            let started = Started {
                guest: &self.options.guest,
                kernel: self.kernel,
                output: path,
                stacks: StackParts {
                    kernel: true,
                    user: true,
                },
                event: None,
                tasks: None,
                limit: None,
                time: self.options.seconds,
                until: self.options.until.as_deref(),
            };
            match started.record()? {
                record::Outcome::GuestProcess(ended) => {
                    // The other process removes the folder.
                    std::mem::forget(self.recordings);
                    return Ok(Outcome::Ended(ended));
                }
                record::Outcome::NoRecording(ended) => return Ok(Outcome::Ended(ended)),
                record::Outcome::Recorded(ended) if status == ExitStatus::SUCCESS => status = ended,
                record::Outcome::Recorded(_) => {}
            }
        }
        Ok(Outcome::Made {
            status,
            recordings: self.recordings,
        })
    }
}
