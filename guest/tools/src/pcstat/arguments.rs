//! The command line of pcstat.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{PcstatError, read_profile, to_json, write_report};
use crate::getpc::FormatName;

/// Report what a file of getpc holds
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0 for a whole stream, 1 for a damaged one, of which the \
    part that makes sense is reported."
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
        let (mut input, name): (Box<dyn Read>, String) = match &self.file {
            Some(path) => {
                let name = path.display().to_string();
                let file = File::open(path).map_err(|source| PcstatError::Read {
                    name: name.clone(),
                    source,
                })?;
                (Box::new(file), name)
            }
            None => (Box::new(io::stdin()), "standard input".to_owned()),
        };
        let profile = read_profile(&mut *input, &name, self.format.map(Into::into))?;
        if self.json {
            writeln!(output, "{}", to_json(&profile, self.top)).map_err(PcstatError::Write)?;
        } else {
            write_report(&profile, self.top, output).map_err(PcstatError::Write)?;
        }
        for problem in &profile.problems {
            writeln!(warnings, "pcstat: warning: {problem}").map_err(PcstatError::Write)?;
        }
        Ok(if profile.problems.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
