//! The command line of pcstat.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::Args;

use super::{PcstatError, Profile, read_profile, to_json, write_report};
use crate::getpc::FormatName;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};
use kvmprof_cli::interrupt::ignore_first_interrupt;
use kvmprof_cli::table::most_rows;
use kvmprof_cli::text::write_json;

/// The most program counters of the report without `--top`.
const FEW_ROWS: usize = 10;

/// Report what getpc has gathered
///
/// The report says how long getpc ran, what it sampled, where every tick of the clock went, and which processes and
/// program counters had the most samples. If many ticks were lost or stolen it warns that the shares mislead.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0 for a complete file; 1 for a damaged one, which is reported up to the damage; 2 for \
    wrong options.\n\n\
    Examples:\n  getpc --all 5 | pcstat\n  pcstat --top 30 samples\n  pcstat --json <samples"
)]
pub struct Arguments {
    /// The file; - is standard input [default: standard input]
    pub file: Option<PathBuf>,

    /// The most program counters to list [default: 10; all of a JSON object's]
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub top: Option<usize>,

    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,

    /// The form of the records [default: that of the START record]
    #[arg(long, short, value_enum)]
    pub format: Option<FormatName>,
}

impl Command for Arguments {
    /// Reads the stream and prints the report. Warns of problems of the stream, and returns exit status 1 for them.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let (mut input, name) = self.open_input()?;
        let profile = read_profile(&mut *input, &name, self.format.map(Into::into))?;
        self.print(&profile, console).map_err(PcstatError::Write)?;
        for problem in &profile.problems {
            console.warn(problem);
        }
        Ok(if profile.problems.is_empty() {
            ExitStatus::SUCCESS
        } else {
            ExitStatus::FAILURE
        })
    }
}

impl Arguments {
    fn open_input(&self) -> Result<(Box<dyn Read>, String), PcstatError> {
        if let Some(path) = self.file.as_deref().filter(|path| *path != Path::new("-")) {
            let name = path.display().to_string();
            return match File::open(path) {
                Ok(file) => Ok((Box::new(file), name)),
                Err(source) => Err(PcstatError::Read { name, source }),
            };
        }
        if io::stdin().is_terminal() {
            return Err(PcstatError::Terminal);
        }
        // In a pipe, the SIGINT that ends getpc also reaches this process, which must still report.
        ignore_first_interrupt().map_err(PcstatError::Signals)?;
        Ok((Box::new(io::stdin()), "standard input".to_owned()))
    }

    fn print(&self, profile: &Profile, console: &mut Console<'_>) -> io::Result<()> {
        let top = most_rows(self.top, FEW_ROWS, self.json);
        if self.json {
            write_json(console.text(), to_json(profile, top))
        } else {
            write_report(profile, top, console.text())
        }
    }
}
