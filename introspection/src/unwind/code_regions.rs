//! Code outside of the kernel's image, which has unwind tables of its own: its modules'.

use std::ops::Range;
use std::sync::Arc;

use super::orc::{OrcEntry, OrcFormat, OrcTable};

/// Where modules and what is compiled at run time lie (`Documentation/arch/x86/x86_64/mm.rst`).
pub const MODULES: Range<u64> = 0xffff_ffff_a000_0000..0xffff_ffff_ff00_0000;

/// A stretch of code.
#[derive(Clone, Debug)]
pub struct CodeRegion {
    /// Where it is.
    pub range: Range<u64>,
    /// Its unwind table, by the addresses where it is, if it has one.
    pub orc: Option<Arc<OrcTable>>,
}

/// The code of all modules.
#[derive(Debug, Default)]
pub struct ModuleCode {
    /// By address; none overlaps another.
    regions: Vec<CodeRegion>,
}

impl ModuleCode {
    /// Takes `regions`. Where two overlap, which a kernel's don't, the lower one is kept.
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

    /// The entry that holds at `address`, and the form that it has.
    pub fn find(&self, address: u64) -> Option<(OrcEntry, OrcFormat)> {
        let after = (self.regions).partition_point(|region| region.range.start <= address);
        let region = self.regions.get(after.checked_sub(1)?)?;
        let orc = (region.range.contains(&address)).then_some(region.orc.as_ref())??;
        Some((orc.find(address)?, orc.format()))
    }
}
