//! The symbols of the running guest at their run-time addresses.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::device;

use super::listing::{MAX_BYTES, parse_listing, read_rest};
use super::{Symbol, SymbolsError};
use crate::device::GuestSide;
use kvmprof_client::Connection;

/// The symbols of a Linux guest.
const PROC_KALLSYMS: &str = "/proc/kallsyms";

/// The time in which the symbols of a guest that has just started must be known.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The pause between two requests.
const PAUSE: Duration = Duration::from_millis(50);

/// The text symbols of the running guest: from kvmprof, or from the guest's own `/proc/kallsyms`.
///
/// # Errors
/// [`SymbolsError::Unknown`] or [`SymbolsError::Hidden`] if they aren't accessible; or another error.
pub fn running_symbols(side: &GuestSide) -> Result<Vec<Symbol>, SymbolsError> {
    let (bytes, name) = match side {
        GuestSide::Host(connection) => {
            (found_by_kvmprof(connection)?, "the running guest's symbols")
        }
        GuestSide::Guest => {
            let path = Path::new(PROC_KALLSYMS);
            let file = File::open(path).map_err(SymbolsError::read(path))?;
            (read_rest(Vec::new(), file, path)?, PROC_KALLSYMS)
        }
    };
    known(parse_listing(&bytes, name)?, name)
}

/// Asks kvmprof, which knows the symbols after it has read the image and found the running kernel.
fn found_by_kvmprof(connection: &Connection) -> Result<Vec<u8>, SymbolsError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match connection.snapshot(device::KALLSYMS, MAX_BYTES) {
            Ok(lines) => return Ok(lines),
            Err(error) if error.errno() != Some(Errno::ENXIO) => {
                return Err(SymbolsError::Client(error));
            }
            Err(_) if Instant::now() >= deadline => return Err(SymbolsError::Unknown),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// `symbols`, if there are any with addresses: a process without the privilege gets zeros.
fn known(symbols: Vec<Symbol>, name: &str) -> Result<Vec<Symbol>, SymbolsError> {
    if symbols.is_empty() {
        return Err(SymbolsError::NoText {
            source_name: name.to_owned(),
        });
    }
    if symbols.iter().all(|symbol| symbol.address == 0) {
        return Err(SymbolsError::Hidden);
    }
    Ok(symbols)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &[u8]) -> Result<Vec<Symbol>, SymbolsError> {
        known(parse_listing(lines, "list")?, "list")
    }

    #[test]
    fn zero_addresses_are_ignored() {
        let hidden = check(b"0000000000000000 T _text\n0000000000000000 t other\n");
        assert!(matches!(hidden, Err(SymbolsError::Hidden)));
        let none = check(b"0000000000000000 D data\n");
        assert!(matches!(none, Err(SymbolsError::NoText { .. })));
        assert_eq!(check(b"0 T zero\n10 t other\n").unwrap().len(), 2);
    }
}
