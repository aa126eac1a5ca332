//! Lines in a text of symbols that say when these hold.

use std::fmt;
use std::ops::Range;

/// When symbols changed, in ns of CLOCK_MONOTONIC: what follows in the text holds since then. Displayed as its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolChange {
    /// The change had happened at this time.
    pub since: u64,
    /// It hadn't yet at this one.
    pub unchanged: u64,
}

impl SymbolChange {
    /// A change whose time is known.
    pub fn at(time: u64) -> Self {
        Self {
            since: time,
            unchanged: time,
        }
    }
}

impl fmt::Display for SymbolChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "since {} {}", self.since, self.unchanged)
    }
}

/// The addresses of code that has gone with the change before it in the text. Displayed as its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoneCode(pub Range<u64>);

impl fmt::Display for GoneCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.0;
        writeln!(formatter, "gone {start:016x} {end:016x}")
    }
}
