//! The common part of the commands that draw a picture of a recording.

use std::path::{Path, PathBuf};

use clap::Args;

use super::input::TaskInput;
use super::output::{Naming, check_output, is_packed_name, is_standard, write_to};
use super::{CommandError, InputArguments, OutputLimit};
use kvmprof_cli::command_line::Console;
use kvmprof_report::graph::title;
use kvmprof_report::profile::{Profile, Watcher};

/// Recordings, and the file that is made of them.
#[derive(Debug, Args)]
pub struct PictureArguments {
    /// The recordings, which are counted together; - is standard input
    #[arg(value_name = "FILE", default_value = "out.kvmprof")]
    pub files: Vec<PathBuf>,
    /// The file to write; - is standard output; it is compressed by gzip if its name ends in .gz. If not given, it is called as the first recording,
    /// with another ending
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Replace the output file even if it is a recording
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    input: InputArguments,
    /// The title above it
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

impl PictureArguments {
    /// Opens the recordings, and passes the data of each to a watcher of its own. `ending` is that of the file that will be written.
    ///
    /// # Errors
    /// A recording can't be read, the recordings can't be counted together, or the output file may not be replaced.
    pub fn open<W: Watcher + Default>(
        &self,
        ending: &str,
        console: &mut Console<'_>,
    ) -> anyhow::Result<(Profile, Vec<W>)> {
        self.check_output(ending)?;
        self.input.open_all(&self.files, console)
    }

    /// Opens the recordings as [`InputArguments::open_grouped`].
    ///
    /// # Errors
    /// As [`Self::open`] and of that.
    pub fn open_grouped(
        &self,
        ending: &str,
        by_parts: Option<OutputLimit>,
        console: &mut Console<'_>,
    ) -> anyhow::Result<Profile> {
        self.check_output(ending)?;
        self.input.open_grouped(&self.files, by_parts, console)
    }

    fn check_output(&self, ending: &str) -> Result<(), CommandError> {
        let inputs: Vec<&Path> = self.files.iter().map(PathBuf::as_path).collect();
        check_output(&self.output(ending), &inputs, Naming::output(self.force))
    }

    /// The file to write, with `ending` if none is named. What comes from standard input goes to standard output.
    fn output(&self, ending: &str) -> PathBuf {
        let by_name = || match self.files.first() {
            Some(file) if !is_standard(file) => file.with_extension(ending),
            _ => "-".into(),
        };
        self.output.clone().unwrap_or_else(by_name)
    }

    /// The options for the selected part, and for names.
    pub fn input(&self) -> &InputArguments {
        &self.input
    }

    /// The names of the recordings.
    pub fn names(&self) -> String {
        let names = self.files.iter().map(|file| file.display().to_string());
        names.collect::<Vec<_>>().join(" ")
    }

    /// Opens the recording for its looks at the guest's tasks.
    ///
    /// # Errors
    /// As [`Self::open`]; or there are no looks.
    pub fn open_tasks(&self, ending: &str, console: &mut Console<'_>) -> anyhow::Result<TaskInput> {
        self.check_output(ending)?;
        self.input.open_tasks(&self.files, console)
    }

    /// The given title, or `otherwise`.
    pub fn title_or(&self, otherwise: String) -> String {
        self.title.clone().unwrap_or(otherwise)
    }

    /// The given title, or the default one.
    pub fn title(&self, profile: &Profile) -> String {
        self.title.clone().unwrap_or_else(|| title(profile))
    }

    /// Writes the `picture`, and says where it is if no file was named.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(
        &self,
        picture: &[u8],
        ending: &str,
        console: &mut Console<'_>,
    ) -> Result<(), CommandError> {
        let path = self.output(ending);
        write_to(&path, is_packed_name(&path), console.data(), |out| {
            out.write_all(picture).map_err(CommandError::Output)
        })?;
        if self.output.is_none() && !is_standard(&path) {
            console.say(format_args!("{} is written", path.display()));
        }
        Ok(())
    }
}
