//! Code outside the kernel's image with unwind tables of its own: the code of modules.

use std::ops::Range;
use std::sync::Arc;

use super::CodeRules;
use super::orc::{OrcEntry, OrcFormat, OrcTable};

/// The addresses of modules and of code that is compiled at run time (`Documentation/arch/x86/x86_64/mm.rst`).
pub const MODULES: Range<u64> = 0xffff_ffff_a000_0000..0xffff_ffff_ff00_0000;

/// A contiguous range of code.
#[derive(Clone, Debug)]
pub struct CodeRegion {
    /// Its addresses.
    pub range: Range<u64>,
    /// Its unwind table with run-time addresses, if it has one.
    pub orc: Option<Arc<OrcTable>>,
    /// The rules that its code gives, in a kernel without unwind tables.
    pub rules: Option<Arc<CodeRules>>,
}

/// The code of all modules.
#[derive(Debug, Default)]
pub struct ModuleCode {
    /// Sorted by address, without overlaps.
    regions: Vec<CodeRegion>,
}

impl ModuleCode {
    /// The code of modules with these regions. Regions of a kernel don't overlap; if two of them do, the lower one is kept.
    pub fn new(mut regions: Vec<CodeRegion>) -> Self {
        regions.sort_by_key(|region| region.range.start);
        let mut end = 0;
        regions.retain(|region| {
            let fits = region.range.start >= end;
            if fits {
                end = region.range.end;
            }
            fits
        });
        Self { regions }
    }

    /// The entry for `address`, and its format.
    pub fn find(&self, address: u64) -> Option<(OrcEntry, OrcFormat)> {
        let orc = self.region(address)?.orc.as_ref()?;
        Some((orc.find(address)?, orc.format()))
    }

    /// The rule for `address`, an instruction that was about to be executed if it `is_exact`, otherwise what follows a call.
    pub fn rule(&self, address: u64, is_exact: bool) -> Option<OrcEntry> {
        let region = self.region(address.wrapping_sub(u64::from(!is_exact)))?;
        region.rules.as_ref()?.entry(address, is_exact)
    }

    fn region(&self, address: u64) -> Option<&CodeRegion> {
        let after = (self.regions).partition_point(|region| region.range.start <= address);
        let region = self.regions.get(after.checked_sub(1)?)?;
        region.range.contains(&address).then_some(region)
    }
}
