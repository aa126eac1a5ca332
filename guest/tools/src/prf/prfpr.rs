//! prfpr: prints what prfdc and prfsnap have recorded.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;

use super::log::{Log, Record};
use super::report::{Names, was_reset, write_interval};
use super::{LogError, PrfError};
use crate::device::GuestSide;
use crate::symbols::{Symbol, SymbolsError, read_namelist, running_symbols, slide_of_table};

/// Print where the kernel spent its time, from a file of prfdc or prfsnap
///
/// Of each two consecutive records it prints their times, and for each function (the text from one address
/// of the table to the next) its share of the samples between them in percent, if that is greater
/// than the cutoff. The last rows are user, the time in user mode, and idle. Functions are
/// named after the namelist, or after the running guest's symbols if none is given; a kernel that
/// lay elsewhere when the file was written is recognised. 0x0 stands for what lies below the first
/// symbol.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0; 1 when the file is no such log or has less than two records, or when the namelist \
    can't be read; 2 for wrong options.\n\n\
    Examples:\n  prfpr log\n  prfpr log 0.1\n  prfpr log 0 System.map"
)]
pub struct PrfprArguments {
    /// The file that prfdc or prfsnap has written
    pub file: PathBuf,

    /// Shares that aren't greater than this aren't printed, in percent
    #[arg(default_value = "1", value_parser = parse_cutoff)]
    pub cutoff: f64,

    /// A file with the kernel's symbols: ELF, System.map, or a copy of /proc/kallsyms [default: the running
    /// guest's symbols]
    pub namelist: Option<PathBuf>,

    /// Ignored, as names don't depend on the device
    #[arg(long, short = 'f', value_name = "DEVICE")]
    pub device: Option<String>,

    /// On the host: the socket of the kvmprof that runs the guest, for its symbols
    #[arg(long, short, env = "KVMPROF_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

fn parse_cutoff(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(cutoff) if (0.0..=100.0).contains(&cutoff) => Ok(cutoff),
        _ => Err("has to be 0 to 100 percent".to_owned()),
    }
}

impl PrfprArguments {
    /// Prints to `output`; warnings go to `warnings`.
    ///
    /// # Errors
    /// [`PrfError::Log`], [`PrfError::Symbols`] of a namelist; or when `output` can't be written to.
    pub fn execute(
        &self,
        output: &mut dyn Write,
        warnings: &mut dyn Write,
    ) -> Result<(), PrfError> {
        let mut log = Log::open(&self.file)?;
        let names = self.names(log.addresses(), warnings)?;
        let mut output = BufWriter::new(output);
        let printed = print(&mut log, &names, self.cutoff, &mut output, warnings);
        let printed = printed.and_then(|pairs| {
            output.flush().map_err(PrfError::Write)?;
            Ok(pairs)
        });
        match printed {
            Ok(0) => Err(LogError::TooFewRecords {
                path: self.file.clone(),
            }
            .into()),
            // Whoever read the report, head(1) say, has seen enough.
            Err(PrfError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            printed => printed.map(|_| ()),
        }
    }

    fn names(&self, table: &[u64], warnings: &mut dyn Write) -> Result<Names, PrfError> {
        let (symbols, source) = match &self.namelist {
            Some(path) => (read_namelist(path)?, path.display().to_string()),
            None => match self.running() {
                Ok(symbols) if self.socket.is_some() => (symbols, "the running guest".to_owned()),
                Ok(symbols) => (symbols, "/proc/kallsyms".to_owned()),
                Err(error) => {
                    warn(
                        warnings,
                        &format!("{error}; addresses are shown instead of names"),
                    );
                    return Ok(Names::default());
                }
            },
        };
        match slide_of_table(table, &symbols) {
            Some(slide) => Ok(Names::new(symbols, slide)),
            None => {
                let path = self.file.display();
                let text = format!(
                    "The symbols of {source} are of another kernel than {path}; addresses are shown instead of names"
                );
                warn(warnings, &text);
                Ok(Names::default())
            }
        }
    }

    /// The running guest's symbols, or in words why there are none.
    fn running(&self) -> Result<Vec<Symbol>, String> {
        let side = GuestSide::of(self.socket.as_deref());
        let side = side.map_err(|error| crate::one_line(&error))?;
        let symbols: Result<_, SymbolsError> = running_symbols(&side);
        symbols.map_err(|error| crate::one_line(&error))
    }
}

fn warn(warnings: &mut dyn Write, text: &str) {
    // A warning that can't be written is no reason to fail.
    let _ = writeln!(warnings, "prfpr: warning: {text}");
}

/// Prints each pair of consecutive records and returns how many there were.
fn print<R: io::Read>(
    log: &mut Log<R>,
    names: &Names,
    cutoff: f64,
    output: &mut dyn Write,
    warnings: &mut dyn Write,
) -> Result<usize, PrfError> {
    let mut pairs = 0;
    let mut before: Option<Record> = None;
    while let Some(after) = log.next_record()? {
        if let Some(before) = before {
            if pairs > 0 {
                writeln!(output).map_err(PrfError::Write)?;
            }
            if was_reset(&before, &after) {
                warn(
                    warnings,
                    "a table was loaded between two records: the later one counts from there",
                );
            }
            write_interval(output, log.addresses(), names, (&before, &after), cutoff)
                .map_err(PrfError::Write)?;
            pairs += 1;
        }
        before = Some(after);
    }
    if log.is_cut_off() {
        warn(warnings, "the file ends within a record, which is left out");
    }
    Ok(pairs)
}
