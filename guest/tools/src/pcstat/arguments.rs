//! The command line of pcstat.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{PcstatError, Profile, read_profile, to_json, write_report};
use crate::getpc::FormatName;
use crate::interrupt::ignore_first_interrupt;

/// Report what a file of getpc holds
///
/// How long it took, what was asked for, where every tick of the clock went, and which processes
/// and program counters had the most samples.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0 for a whole stream, 1 for a damaged one, of which the \
    part that makes sense is reported; 2 for wrong options.\n\n\
    Examples:\n  getpc --all 5 | pcstat\n  pcstat --top 30 samples\n  pcstat --json <samples"
)]
pub struct Arguments {
    /// The file [default: standard input]
    pub file: Option<PathBuf>,

    /// How many program counters to list
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 10)]
    pub top: usize,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// The form of the records [default: what the START record tells]
    #[arg(long, short, value_enum)]
    pub format: Option<FormatName>,
}

impl Arguments {
    /// Reads the stream, prints the report to `output` and any problems to `warnings`.
    /// The exit status is 1 if there were problems.
    ///
    /// # Errors
    /// When there is no stream at all, or the report can't be written.
    pub fn execute(
        &self,
        output: &mut dyn Write,
        warnings: &mut dyn Write,
    ) -> Result<ExitCode, PcstatError> {
        let (mut input, name) = self.open_input()?;
        let profile = read_profile(&mut *input, &name, self.format.map(Into::into))?;
        match self.print(&profile, output, warnings) {
            // Whoever read the report, head(1) say, has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => (),
            result => result.map_err(PcstatError::Write)?,
        }
        Ok(if profile.problems.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    fn open_input(&self) -> Result<(Box<dyn Read>, String), PcstatError> {
        if let Some(path) = &self.file {
            let name = path.display().to_string();
            return match File::open(path) {
                Ok(file) => Ok((Box::new(file), name)),
                Err(source) => Err(PcstatError::Read { name, source }),
            };
        }
        if io::stdin().is_terminal() {
            return Err(PcstatError::Terminal);
        }
        // The interrupt that ends getpc in a pipe reaches this end of it too, which has yet
        // to report.
        ignore_first_interrupt().map_err(PcstatError::Signals)?;
        Ok((Box::new(io::stdin()), "standard input".to_owned()))
    }

    fn print(
        &self,
        profile: &Profile,
        output: &mut dyn Write,
        warnings: &mut dyn Write,
    ) -> io::Result<()> {
        if self.json {
            writeln!(output, "{}", to_json(profile, self.top))?;
        } else {
            write_report(profile, self.top, output)?;
        }
        for problem in &profile.problems {
            writeln!(warnings, "pcstat: warning: {problem}")?;
        }
        output.flush()
    }
}
