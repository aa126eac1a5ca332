//! Boots a guest several times in sequence, and records each boot.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use kvmprof_cli::command_line::{Console, ExitStatus, WithStatus};
use kvmprof_introspection::TaskScope;
use kvmprof_profiling::LookPlan;
use kvmprof_recording::StackParts;
use kvmprof_recording::file::Recording;
use tempfile::TempDir;

use super::BootArguments;
use crate::commands::record::{self, Ended, Started};
use crate::commands::recordings::refuse_recording;

/// The suffix of a recording whose boot doesn't count, so that it isn't taken for a valid one.
const FAILED: &str = ".failed";

/// Boots to make.
pub struct Runs<'a> {
    options: &'a BootArguments,
    kernel: &'a Path,
    paths: Vec<PathBuf>,
    /// Their folder, if they are temporary. Removed when dropped.
    folder: Option<TempDir>,
}

/// Boots that were made.
pub struct RecordedBoots {
    /// The status of the first guest that has failed, if there is one.
    pub status: ExitStatus,
    /// The recordings of the other guests, at least one.
    pub paths: Vec<PathBuf>,
    /// Their folder, if they are temporary.
    pub folder: Option<TempDir>,
}

/// The result of boots.
pub enum Outcome {
    /// Nothing is left to do: this was a guest's process, or there is no recording.
    Ended(ExitStatus),
    /// There are recordings.
    RecordedBoots(RecordedBoots),
}

impl<'a> Runs<'a> {
    /// Boots of this `kernel`, according to the `options`.
    ///
    /// # Errors
    /// The folder for the recordings can't be created, or contains recordings already.
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

    /// Boots the guest the given number of times, or until a signal requests the end. Incomplete boots don't count,
    /// because their missing work would look like work that takes no time.
    ///
    /// # Errors
    /// As of [`Started::record`], and if no boot counts.
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
        Ok(Outcome::RecordedBoots(RecordedBoots {
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
            stacks: StackParts::BOTH,
            event: None,
            // Shows what the thread that runs the initcalls waits for while it isn't on a vCPU. The looks go on in user
            // mode, because that thread may load modules there, and their init functions may wait.
            looks: Some(LookPlan {
                ticks: 1,
                scope: TaskScope::FirstThread,
            }),
            limit: None,
            time: self.options.seconds,
            until: self.options.until.as_deref(),
        }
    }

    /// The reason why the boot of this recording doesn't count; `None` if it counts.
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

    /// Renames the recording at `path`, so that it isn't taken for a boot. Returns the new name as the end of a
    /// sentence, if recordings are kept.
    fn set_aside(&self, path: &Path) -> anyhow::Result<String> {
        if self.folder.is_some() {
            return Ok(String::new());
        }
        let aside = failed(path);
        fs::rename(path, &aside).with_context(|| format!("Cannot rename {}", path.display()))?;
        Ok(format!("; its recording is {}", aside.display()))
    }
}

/// The name of the recording at `path` if its boot doesn't count.
fn failed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(FAILED);
    name.into()
}
