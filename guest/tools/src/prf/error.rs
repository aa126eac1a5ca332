//! The errors of the commands of prf.

use std::io;

use kvmprof_abi::prf::{MIN_ADDRESSES, RATE_HZ};

use super::log::LogError;
use crate::device::DeviceError;
use crate::symbols::SymbolsError;

/// Why a command of prf failed.
#[derive(Debug, thiserror::Error)]
pub enum PrfError {
    /// The device can't be opened, or is lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A command of the device failed.
    #[error("Cannot {purpose}")]
    Command {
        /// The purpose.
        purpose: &'static str,
        /// The device's error.
        source: DeviceError,
    },
    /// The device gave invalid data.
    #[error("prf gave data that makes no sense: use tools and kvmprof of one release")]
    Nonsense,
    /// The table changes faster than it can be read.
    #[error("The table of addresses was replaced repeatedly while it was being read")]
    Unsteady,
    /// ENOSPC: the table has more addresses than the device takes.
    #[error(
        "Too many addresses (ENOSPC): the table has {addresses}, and this prf takes {most} at most; give kvmprof run a larger --prf-addresses, or name a smaller list of symbols"
    )]
    TooMany {
        /// Addresses in the table.
        addresses: usize,
        /// The device's limit.
        most: usize,
    },
    /// ENOSPC for a table that isn't too large by itself.
    #[error(
        "No room for {addresses} addresses (ENOSPC): the tables of all of prf's minors together take too much memory; load fewer minors"
    )]
    NoRoom {
        /// Addresses in the table.
        addresses: usize,
    },
    /// E2BIG: the table has too few addresses.
    #[error(
        "Too few addresses (E2BIG): the table has {addresses}, and prf wants {MIN_ADDRESSES} at least"
    )]
    TooFew {
        /// Addresses in the table.
        addresses: usize,
    },
    /// EBUSY: profiling is on.
    #[error("Profiling is enabled (EBUSY): turn it off with prfstat off before loading addresses")]
    Enabled,
    /// EINVAL from a write: the addresses don't ascend.
    #[error("Addresses don't ascend (EINVAL): prf has dropped its table, load another one")]
    NotAscending,
    /// The device took only a part of the table.
    #[error("prf took {taken} of {size} bytes of addresses: load them again")]
    ShortWrite {
        /// Number of bytes that it took.
        taken: usize,
        /// Number of bytes of the addresses.
        size: usize,
    },
    /// No table is loaded.
    #[error("No kernel text addresses are loaded: run prfld first")]
    NotLoaded,
    /// EINVAL from turning profiling on: the clock has another rate.
    #[error(
        "Cannot turn profiling on (EINVAL): prf counts at {RATE_HZ} Hz, and the guest's profiling clock runs at another rate than a multiple of that; start the guest with --hz 100 or 1000, say"
    )]
    Rate,
    /// The argument of prfstat is neither on nor off.
    #[error("eh? Say on or off, not '{word}'")]
    Eh {
        /// The argument.
        word: String,
    },
    /// There are no symbols.
    #[error(transparent)]
    Symbols(#[from] SymbolsError),
    /// The log has an error.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The report can't be written.
    #[error("Cannot write the report")]
    Write(#[source] io::Error),
}
