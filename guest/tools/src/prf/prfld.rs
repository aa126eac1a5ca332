//! prfld: loads the table of addresses.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{Profiler, table};
use crate::device::{Access, DeviceOptions, GuestSide};
use crate::symbols::{Slide, Symbol, SymbolsError, read_namelist, running_symbols, slide_to};
use kvmprof_cli::command_line::{Command, Console, ExitStatus};

/// Load the addresses of the kernel's functions into the profiler
///
/// The addresses are those of the running guest's text symbols: on the host kvmprof finds them in the guest, in the guest
/// they come from /proc/kallsyms. A namelist (an ELF file such as vmlinux, or a System.map) has link-time addresses. If
/// the kernel was moved when it started (KASLR), prfld adds the distance, which it takes from _text, from _stext or from
/// another name that both have. Loading sets all counters to 0.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0, and no output; 1 when the addresses cannot be found or loaded: there are too many \
    (ENOSPC) or too few (E2BIG) of them, profiling is on (EBUSY), they do not ascend (EINVAL); 2 for wrong options.\n\n\
    Examples:\n  prfld\n  prfld System.map\n  prfld --socket /run/guest.sock vmlinux"
)]
pub struct PrfldArguments {
    /// A file with the kernel's symbols: ELF, System.map, or a copy of /proc/kallsyms [default: the running
    /// guest's symbols]
    pub namelist: Option<PathBuf>,

    /// Load the namelist's link-time addresses without moving them
    #[arg(long, requires = "namelist")]
    pub no_slide: bool,

    /// Which profiler
    #[command(flatten)]
    pub device: DeviceOptions,
}

impl Command for PrfldArguments {
    /// Loads the table.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let side = self.device.side()?;
        let device = self.device.open_on(&side, Access::ReadWrite)?;
        let table = match &self.namelist {
            None => table(&running_symbols(&side)?, 0),
            Some(path) => self.table_of(path, &side, console)?,
        };
        Profiler::new(&*device).load(&table)?;
        Ok(ExitStatus::SUCCESS)
    }
}

impl PrfldArguments {
    fn table_of(
        &self,
        path: &Path,
        side: &GuestSide,
        console: &mut Console<'_>,
    ) -> Result<Vec<u64>, SymbolsError> {
        let symbols = read_namelist(path)?;
        if self.no_slide {
            return Ok(table(&symbols, 0));
        }
        let (distance, warning) = distance(&symbols, running_symbols(side));
        if let Some(text) = warning {
            console.warn(format_args!("{}: {text}", path.display()));
        }
        Ok(table(&symbols, distance))
    }
}

/// The distance to add to the addresses of `symbols`, and a warning if there is one.
fn distance(
    symbols: &[Symbol],
    running: Result<Vec<Symbol>, SymbolsError>,
) -> (u64, Option<String>) {
    let slide = running.map(|running| slide_to(symbols, &running));
    let (distance, text) = match slide {
        Ok(Some(Slide { distance, fits })) if fits => return (distance, None),
        Ok(Some(Slide { distance, .. })) => {
            let text = "these are the symbols of another kernel than the guest's";
            (distance, text.to_owned())
        }
        Ok(None) => {
            let text =
                "no symbol in common with the guest, so the addresses are loaded as they are";
            (0, text.to_owned())
        }
        Err(error) => {
            let error = anyhow::Error::from(error);
            (
                0,
                format!("the addresses are loaded as they are: {error:#}"),
            )
        }
    };
    (distance, Some(text))
}
