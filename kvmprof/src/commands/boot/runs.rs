//! Boots of a guest, one after the other, each recorded.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use kvmprof_introspection::TaskScope;
use kvmprof_recording::StackParts;
use kvmprof_recording::file::Recording;
use kvmprof_tools::command_line::{Console, ExitStatus, WithStatus};
use kvmprof_vmm::profiler::LookPlan;
use tempfile::TempDir;

use super::BootArguments;
use crate::commands::record::{self, Ended, Started};
use crate::commands::recordings::refuse_recording;

/// What the name of a recording ends in whose boot doesn't count, so that nobody takes it for one.
const FAILED: &str = ".failed";

/// Boots to be made.
pub struct Runs<'a> {
    options: &'a BootArguments,
    kernel: &'a Path,
    paths: Vec<PathBuf>,
    /// Where they are, if they aren't to be kept: removed when dropped.
    folder: Option<TempDir>,
}

/// Boots that were made.
pub struct Made {
    /// That of the first guest that hasn't ended well, if there is one.
    pub status: ExitStatus,
    /// The recordings of the others, of which there is one at least.
    pub paths: Vec<PathBuf>,
    /// Where they are, if they aren't to be kept.
    pub folder: Option<TempDir>,
}

/// What is left to do.
pub enum Outcome {
    /// Nothing: this was a guest's process, or there is no recording.
    Ended(ExitStatus),
    /// There are recordings.
    Made(Made),
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
            for path in [path, &failed(path)] {
                refuse_recording(path, "name another folder with --output")?;
            }
        }
        Ok(Self {
            options,
            kernel,
            paths,
            folder: temporary,
        })
    }

    /// Boots the guest as often as it is to be, or until a signal asks for the end. Boots that haven't come to their end don't count: what they
    /// haven't done would pass for what takes no time.
    ///
    /// # Errors
    /// As [`Started::record`]; no boot counts.
    pub fn make(self, console: &mut Console<'_>) -> anyhow::Result<Outcome> {
        let mut made = Vec::new();
        let mut status = ExitStatus::SUCCESS;
        let count = self.paths.len();
        for (index, path) in self.paths.iter().enumerate() {
            if count > 1 {
                console.say(format_args!("boot {} of {count}", index + 1));
            }
            let ended = match self.started(path).record()? {
                record::Outcome::GuestProcess(ended) => {
                    // The other process removes the folder.
                    std::mem::forget(self.folder);
                    return Ok(Outcome::Ended(ended));
                }
                record::Outcome::NoRecording(ended) if made.is_empty() => {
                    return Ok(Outcome::Ended(ended));
                }
                record::Outcome::NoRecording(ended) => {
                    status = ended;
                    console.warn(format_args!("There is no recording of boot {}", index + 1));
                    break;
                }
                record::Outcome::Recorded(ended) => ended,
            };
            let Some(why) = self.failure(path, &ended)? else {
                made.push(path.clone());
                continue;
            };
            if status == ExitStatus::SUCCESS {
                status = match ended.status {
                    ExitStatus::SUCCESS => ExitStatus::FAILURE,
                    status => status,
                };
            }
            let kept = self.set_aside(path)?;
            console.warn(format_args!(
                "Boot {} doesn't count: {why}{kept}",
                index + 1
            ));
            if ended.was_asked {
                break;
            }
        }
        if made.is_empty() {
            let message = "No boot has come to its end: there is nothing to show".to_owned();
            return Err(WithStatus { message, status }.into());
        }
        Ok(Outcome::Made(Made {
            status,
            paths: made,
            folder: self.folder,
        }))
    }

    fn started<'s>(&'s self, output: &'s Path) -> Started<'s> {
        Started {
            guest: &self.options.guest,
            kernel: self.kernel,
            output,
            stacks: StackParts {
                kernel: true,
                user: true,
            },
            event: None,
            // What the thread that makes the initcalls waits for while it isn't on a vCPU.
            looks: Some(LookPlan {
                ticks: 1,
                scope: TaskScope::FirstThread,
            }),
            limit: None,
            time: self.options.seconds,
            until: self.options.until.as_deref(),
        }
    }

    /// Why the boot of this recording doesn't count, if it doesn't.
    fn failure(&self, path: &Path, ended: &Ended) -> anyhow::Result<Option<String>> {
        if ended.was_asked {
            return Ok(Some("it was interrupted".to_owned()));
        }
        if ended.status != ExitStatus::SUCCESS {
            return Ok(Some("its guest has failed".to_owned()));
        }
        if !Recording::open(path)?.contents()?.resets.is_empty() {
            return Ok(Some("the guest was reset on its way".to_owned()));
        }
        let until = self.options.until.as_ref().filter(|_| !ended.has_said);
        Ok(until.map(|text| format!("its console hasn't said {text:?}")))
    }

    /// Has the recording at `path` have a name that is none of a boot, and returns that as the end of a sentence, where recordings are kept.
    fn set_aside(&self, path: &Path) -> anyhow::Result<String> {
        if self.folder.is_some() {
            return Ok(String::new());
        }
        let aside = failed(path);
        fs::rename(path, &aside).with_context(|| format!("Cannot rename {}", path.display()))?;
        Ok(format!("; its recording is {}", aside.display()))
    }
}

/// What the recording at `path` is called if its boot doesn't count.
fn failed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(FAILED);
    name.into()
}
