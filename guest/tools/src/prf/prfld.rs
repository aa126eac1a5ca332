//! prfld: loads the table of addresses.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::{PrfError, Profiler, table};
use crate::device::{Access, DeviceOptions, GuestSide};
use crate::symbols::{Slide, Symbol, SymbolsError, read_namelist, running_symbols, slide_to};

/// Load the addresses of the kernel's functions into the profiler
///
/// The addresses are those of the text symbols of the running guest: the ones that kvmprof has found
/// in it on the host, /proc/kallsyms in the guest. A namelist, an ELF file such as vmlinux, or a
/// System.map, has them where the kernel was linked to; a kernel that was moved at its start (KASLR)
/// lies elsewhere, and prfld adds the distance between the two, taken from _text or _stext, or
/// else from another name that both have. Loading sets all counters to 0.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0, and not a word; 1 when the addresses can't be had or loaded: there are too many \
    (ENOSPC) or too few (E2BIG) of them, profiling is on (EBUSY), they don't ascend (EINVAL); 2 for wrong options.\n\n\
    Examples:\n  prfld\n  prfld System.map\n  prfld --socket /run/guest.sock vmlinux"
)]
pub struct PrfldArguments {
    /// A file with the kernel's symbols: ELF, System.map, or a copy of /proc/kallsyms [default: the running
    /// guest's symbols]
    pub namelist: Option<PathBuf>,

    /// Load the namelist's addresses as they are
    #[arg(long, requires = "namelist")]
    pub no_slide: bool,

    /// Which profiler
    #[command(flatten)]
    pub device: DeviceOptions,
}

impl PrfldArguments {
    /// Loads the table. Warnings go to `warnings`.
    ///
    /// # Errors
    /// [`PrfError::Symbols`]; one of its own for each errno that prf's page has for a write; or what
    /// the device says.
    pub fn execute(&self, warnings: &mut dyn Write) -> Result<(), PrfError> {
        let side = self.device.side()?;
        let device = self.device.open_on(&side, Access::ReadWrite)?;
        let table = match &self.namelist {
            None => table(&running_symbols(&side)?, 0),
            Some(path) => self.table_of(path, &side, warnings)?,
        };
        Profiler::new(&*device).load(&table)
    }

    fn table_of(
        &self,
        path: &Path,
        side: &GuestSide,
        warnings: &mut dyn Write,
    ) -> Result<Vec<u64>, PrfError> {
        let symbols = read_namelist(path)?;
        if self.no_slide {
            return Ok(table(&symbols, 0));
        }
        let (distance, warning) = distance(&symbols, running_symbols(side));
        if let Some(text) = warning {
            // A warning that can't be written is no reason to fail.
            let _ = writeln!(warnings, "prfld: warning: {}: {text}", path.display());
        }
        Ok(table(&symbols, distance))
    }
}

/// What has to be added to the addresses of a file's `symbols`, and what to warn of, if anything.
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
            let error = crate::one_line(&error);
            (0, format!("the addresses are loaded as they are: {error}"))
        }
    };
    (distance, Some(text))
}
