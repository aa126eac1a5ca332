//! prfpr: prints the records of prfdc and prfsnap.

use std::io;
use std::path::PathBuf;

use clap::Args;

use super::log::{Log, Record};
use super::report::{Names, was_reset, write_interval};
use super::{LogError, PrfError};
use crate::device::GuestSide;
use crate::symbols::{Symbol, SymbolsError, read_namelist, running_symbols, slide_of_table};
use kvmprof_cli::command_line::{Command, Console, ExitStatus, SocketArgs};

/// Print where the kernel spent its time, from a file of prfdc or prfsnap
///
/// For each pair of consecutive records prfpr prints their times, and the share of each function in the samples between them,
/// in percent, if it is greater than the cutoff. A function reaches from one address of the table to the next. The last
/// rows are user (time in user mode) and idle. Names come from the namelist, or from the running guest if none is given,
/// also when the kernel was at other addresses when the file was written. 0x0 stands for code below the first symbol.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0; 1 when the file is no such log or has fewer than two records, or when the namelist \
    cannot be read; 2 for wrong options.\n\n\
    Examples:\n  prfpr log\n  prfpr log 0.1\n  prfpr log 0 System.map"
)]
pub struct PrfprArguments {
    /// The file that prfdc or prfsnap has written
    pub file: PathBuf,

    /// Print only shares greater than this, in percent
    #[arg(default_value = "1", value_parser = parse_cutoff)]
    pub cutoff: f64,

    /// A file with the kernel's symbols: ELF, System.map, or a copy of /proc/kallsyms [default: the running
    /// guest's symbols]
    pub namelist: Option<PathBuf>,

    /// Accepted and ignored: names do not depend on the device
    #[arg(long, short = 'f', value_name = "DEVICE")]
    pub device: Option<String>,

    /// Which guest's symbols
    #[command(flatten)]
    pub socket: SocketArgs,
}

fn parse_cutoff(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(cutoff) if (0.0..=100.0).contains(&cutoff) => Ok(cutoff),
        _ => Err("has to be 0 to 100 percent".to_owned()),
    }
}

impl Command for PrfprArguments {
    /// Prints the shares between consecutive records.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let mut log = Log::open(&self.file)?;
        let names = self.names(log.addresses(), console)?;
        if print(&mut log, &names, self.cutoff, console)? == 0 {
            let path = self.file.clone();
            return Err(LogError::TooFewRecords { path }.into());
        }
        Ok(ExitStatus::SUCCESS)
    }
}

impl PrfprArguments {
    fn names(&self, table: &[u64], console: &mut Console<'_>) -> Result<Names, SymbolsError> {
        let (symbols, source) = match &self.namelist {
            Some(path) => (read_namelist(path)?, path.display().to_string()),
            None => match self.running() {
                Ok(symbols) if self.socket.path().is_some() => {
                    (symbols, "the running guest".to_owned())
                }
                Ok(symbols) => (symbols, "/proc/kallsyms".to_owned()),
                Err(error) => {
                    console.warn(format_args!(
                        "{error:#}; addresses are shown instead of names"
                    ));
                    return Ok(Names::default());
                }
            },
        };
        match slide_of_table(table, &symbols) {
            Some(slide) => Ok(Names::new(symbols, slide)),
            None => {
                let path = self.file.display();
                console.warn(format_args!(
                    "The symbols of {source} are of another kernel than {path}; addresses are shown instead of names"
                ));
                Ok(Names::default())
            }
        }
    }

    /// The running guest's symbols.
    fn running(&self) -> anyhow::Result<Vec<Symbol>> {
        let side = GuestSide::from_socket(&self.socket)?;
        Ok(running_symbols(&side)?)
    }
}

/// Prints each pair of consecutive records and returns the number of pairs.
fn print<R: io::Read>(
    log: &mut Log<R>,
    names: &Names,
    cutoff: f64,
    console: &mut Console<'_>,
) -> Result<usize, PrfError> {
    let mut pairs = 0;
    let mut before: Option<Record> = None;
    while let Some(after) = log.next_record()? {
        if let Some(before) = before {
            if pairs > 0 {
                writeln!(console.text()).map_err(PrfError::Write)?;
            }
            if was_reset(&before, &after) {
                console.warn(
                    "a table was loaded between two records: the later one counts from there",
                );
            }
            write_interval(
                console.text(),
                log.addresses(),
                names,
                &before,
                &after,
                cutoff,
            )
            .map_err(PrfError::Write)?;
            pairs += 1;
        }
        before = Some(after);
    }
    if log.is_cut_off() {
        console.warn("the file ends within a record, which is left out");
    }
    Ok(pairs)
}
