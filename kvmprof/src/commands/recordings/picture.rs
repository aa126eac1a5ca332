//! The common part of the commands that draw a picture of a recording.

use std::path::{Path, PathBuf};

use clap::Args;

use super::InputArguments;
use super::output::{Naming, check_output, is_standard, write_picture};
use kvmprof_cli::command_line::Console;

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
    /// The options for the selected part, after a check that the output file, whose name ends in `ending` if none is named, may be replaced.
    ///
    /// # Errors
    /// It may not be.
    pub fn checked_input(&self, ending: &str) -> anyhow::Result<&InputArguments> {
        let inputs: Vec<&Path> = self.files.iter().map(PathBuf::as_path).collect();
        check_output(&self.output(ending), &inputs, Naming::output(self.force))?;
        Ok(&self.input)
    }

    /// The file to write, with `ending` if none is named. What comes from standard input goes to standard output.
    fn output(&self, ending: &str) -> PathBuf {
        let by_name = || match self.files.first() {
            Some(file) if !is_standard(file) => file.with_extension(ending),
            _ => "-".into(),
        };
        self.output.clone().unwrap_or_else(by_name)
    }

    /// The names of the recordings.
    pub fn names(&self) -> String {
        let names = self.files.iter().map(|file| file.display().to_string());
        names.collect::<Vec<_>>().join(" ")
    }

    /// The given title, or `otherwise`.
    pub fn title_or(&self, otherwise: String) -> String {
        self.title.clone().unwrap_or(otherwise)
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
    ) -> anyhow::Result<()> {
        let path = self.output(ending);
        write_picture(&path, picture, console)?;
        if self.output.is_none() && !is_standard(&path) {
            console.say(format_args!("{} is written", path.display()));
        }
        Ok(())
    }
}
