//! The kernel's code in which the registers of user mode may be saved in part.

use std::ops::Range;

use crate::Symbols;

/// Code that saves the registers of user mode, and functions that move them to the task's stack (`arch/x86/entry/entry_64.S`,
/// `arch/x86/kernel/traps.c`), at link-time addresses.
#[derive(Debug)]
pub struct EntryCode([Range<u64>; 3]);

impl EntryCode {
    /// `None` if the symbols don't tell where all of it is.
    pub fn find(symbols: &Symbols) -> Option<Self> {
        let [start, end] = symbols.addresses_of(["__entry_text_start", "__entry_text_end"]);
        let functions = symbols.addresses_of(["sync_regs", "fixup_bad_iret"]);
        let [moves, mends] =
            functions.map(|function| Some(function?..symbols.address_after(function?)?));
        Some(Self([start?..end?, moves?, mends?]))
    }

    /// Whether `address` is in it.
    pub fn contains(&self, address: u64) -> bool {
        self.0.iter().any(|range| range.contains(&address))
    }
}
